"""Define the database backend that ``ENGINE = "config.postgres"`` selects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.postgresql import base

from config.postgres.pool import FastReconnectPool

# Pools that this process inherited from its parent at a fork. This list prevents their garbage collection,
# which would close the connections of the parent.
pools_of_parent_process: list[FastReconnectPool] = []


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's PostgreSQL backend with a FastReconnectPool.

    ``POOL`` in the database settings has the options of the pool.
    """

    _connection_pools: dict[str, FastReconnectPool]  # pools by database alias; Django defines this attribute
    _configure_connection: Callable[[psycopg.Connection[Any]], None]

    @property
    def pool(self) -> FastReconnectPool | None:
        """Return the pool of this process for this database.

        Return None if the settings have no ``POOL``, or for Django's connection without a database.
        """
        options: dict[str, Any] | None = self.settings_dict.get("POOL")
        if self.alias == NO_DB_ALIAS or not options:
            return None
        pools: dict[str, FastReconnectPool] = self._connection_pools
        existing = pools.get(self.alias)
        if existing is not None and not existing.belongs_to_this_process():
            pools_of_parent_process.append(pools.pop(self.alias))
        if self.alias not in pools:
            kwargs = {**self.get_connection_params(), "autocommit": True}
            # Two threads may each create a pool. ``setdefault`` keeps the first; the other was never opened.
            pools.setdefault(
                self.alias,
                FastReconnectPool(kwargs=kwargs, open=False, configure=self._configure_connection, **options),
            )
        return pools[self.alias]
