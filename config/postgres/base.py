"""Defines the database backend for ``ENGINE = "config.postgres"``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.postgresql import base

from config.postgres.pool import FastReconnectPool

# Pools of the parent process after a fork. They are kept here so that this process does not close their
# connections.
pools_of_parent_process: list[FastReconnectPool] = []


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's backend with a FastReconnectPool.

    ``POOL`` in the database settings holds the options of the pool.
    """

    _connection_pools: dict[str, FastReconnectPool]  # by alias; declared by Django
    _configure_connection: Callable[[psycopg.Connection[Any]], None]

    @property
    def pool(self) -> FastReconnectPool | None:
        """The pool of this process for this database; None for the connection without a database."""
        options: dict[str, Any] | None = self.settings_dict.get("POOL")
        if self.alias == NO_DB_ALIAS or not options:
            return None
        pools: dict[str, FastReconnectPool] = self._connection_pools
        existing = pools.get(self.alias)
        if existing is not None and not existing.belongs_to_this_process():
            pools_of_parent_process.append(pools.pop(self.alias))
        if self.alias not in pools:
            kwargs = {**self.get_connection_params(), "autocommit": True}
            # Two threads may each create a pool: the first one is used, and neither is open yet.
            pools.setdefault(
                self.alias,
                FastReconnectPool(kwargs=kwargs, open=False, configure=self._configure_connection, **options),
            )
        return pools[self.alias]
