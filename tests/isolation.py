"""Give each parallel test worker its own Valkey database. Loaded by pytest before Django's settings."""

from __future__ import annotations

import os

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")


def own_redis_url(url: str, worker: str) -> str:
    """Return the URL of database 1 for worker gw0, of database 2 for gw1, and so on, on the same server."""
    number = int(worker.removeprefix("gw")) + 1
    if url.startswith("unix://"):
        return f"{url.split('?')[0]}?db={number}"
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.split('/')[0]}/{number}"


if WORKER and "REDIS_URL" in os.environ:
    os.environ["REDIS_URL"] = own_redis_url(os.environ["REDIS_URL"], WORKER)
