"""Define the database backend for ``ENGINE = "config.postgres"``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.postgresql import base

from config.postgres.pool import FastReconnectPool

# Pools that this process inherited at a fork. This list keeps them alive: their garbage collection would
# close connections of the parent process.
pools_of_parent_process: list[FastReconnectPool] = []


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's backend with a FastReconnectPool.

    ``POOL`` in the database settings holds the options of the pool.
    """

    _connection_pools: dict[str, FastReconnectPool]  # by alias; declared by Django
    _configure_connection: Callable[[psycopg.Connection[Any]], None]

    @property
    def pool(self) -> FastReconnectPool | None:
        """Return this process's pool for this database; None for the connection without a database."""
        options: dict[str, Any] | None = self.settings_dict.get("POOL")
        if self.alias == NO_DB_ALIAS or not options:
            return None
        pools: dict[str, FastReconnectPool] = self._connection_pools
        existing = pools.get(self.alias)
        if existing is not None and not existing.belongs_to_this_process():
            pools_of_parent_process.append(pools.pop(self.alias))
        if self.alias not in pools:
            kwargs = {**self.get_connection_params(), "autocommit": True}
            # Two threads may each create a pool. The first pool is used, and neither pool is open yet.
            pools.setdefault(
                self.alias,
                FastReconnectPool(kwargs=kwargs, open=False, configure=self._configure_connection, **options),
            )
        return pools[self.alias]
