"""The backend as Django looks for it: ``ENGINE = "config.postgres"``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.postgresql import base

from config.postgres.pool import FastReconnectPool

pools_of_parent_process: list[
    FastReconnectPool
] = []  # of the process that this one was forked from: kept, so that nothing of them is closed here


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's own, on our pool; ``POOL`` in the settings of a database are options of psycopg's pool."""

    _connection_pools: dict[str, FastReconnectPool]  # of the process, by alias; Django's own
    _configure_connection: Callable[[psycopg.Connection[Any]], None]

    @property
    def pool(self) -> FastReconnectPool | None:
        """This process's pool for this database; none for the connection that names no database."""
        options: dict[str, Any] | None = self.settings_dict.get("POOL")
        if self.alias == NO_DB_ALIAS or not options:
            return None
        pools: dict[str, FastReconnectPool] = self._connection_pools
        standing = pools.get(self.alias)
        if standing is not None and not standing.belongs_to_this_process():
            pools_of_parent_process.append(pools.pop(self.alias))
        if self.alias not in pools:
            kwargs = {**self.get_connection_params(), "autocommit": True}
            # Two threads may each make one: the first counts, and neither is open yet.
            pools.setdefault(
                self.alias,
                FastReconnectPool(kwargs=kwargs, open=False, configure=self._configure_connection, **options),
            )
        return pools[self.alias]
