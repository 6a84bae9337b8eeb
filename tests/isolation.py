"""Loaded by pytest before Django's settings: tests that run side by side each get a Valkey database of their own."""

from __future__ import annotations

import os

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")


def own_redis_url(url: str, worker: str) -> str:
    """The address of database 1, 2, ... for worker gw0, gw1, ... of the same server."""
    number = int(worker.removeprefix("gw")) + 1
    if url.startswith("unix://"):
        return f"{url.split('?')[0]}?db={number}"
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.split('/')[0]}/{number}"


if WORKER and "REDIS_URL" in os.environ:
    os.environ["REDIS_URL"] = own_redis_url(os.environ["REDIS_URL"], WORKER)
