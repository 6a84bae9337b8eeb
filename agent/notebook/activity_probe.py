"""Asks the notebook server of a run for its activity. The request itself does not count as activity."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import aiohttp

from agent.isolation.workspace_socket import SocketMissing, socket_path

ANSWER_TIMEOUT_SECONDS = 5.0
MAX_ANSWER_BYTES = 1 << 20


async def probe_activity(socket: Path, secret: str) -> dict[str, Any] | None:
    """Return the activity of a notebook; None if its server does not answer or its answer is invalid.

    The result has these keys. Times are in seconds since the epoch, or None if unknown.

    - ``kernels``, ``terminals``: the number of kernels and of terminals.
    - ``busy``: the number of kernels that compute or start now.
    - ``connections``: the number of connections to kernels; each browser tab with a kernel has one.
    - ``last_activity``: the last request to the server. An open page sends one every few seconds.
    - ``last_message``: the last message through a kernel or a terminal.
    """
    try:
        with socket_path(socket) as path:
            connector = aiohttp.UnixConnector(path)
            timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_SECONDS)
            headers = {"X-Gpupool-Secret": secret}
            async with aiohttp.ClientSession(
                connector=connector, timeout=timeout, headers=headers
            ) as session:
                status = await _get_json(session, "status")
                kernels = await _get_json(session, "kernels")
                terminals = await _get_json(session, "terminals")
    except (TimeoutError, SocketMissing, aiohttp.ClientError, OSError, ValueError, RecursionError):
        return None
    return _activity(status, kernels, terminals)


async def _get_json(session: aiohttp.ClientSession, resource: str) -> Any:
    async with session.get(f"http://notebook/api/{resource}?no_track_activity=1") as answer:
        answer.raise_for_status()
        return json.loads(await answer.content.read(MAX_ANSWER_BYTES))


def _activity(status: Any, kernels: Any, terminals: Any) -> dict[str, Any] | None:
    """Return the activity that the answers contain; None if an answer is invalid.

    The answers can't be trusted, because the workload controls the notebook server.
    """
    if not isinstance(status, dict) or not isinstance(kernels, list) or not isinstance(terminals, list):
        return None
    listed = [kernel for kernel in kernels if isinstance(kernel, dict)]
    shells = [terminal for terminal in terminals if isinstance(terminal, dict)]
    return {
        "kernels": len(listed),
        "busy": sum(1 for kernel in listed if kernel.get("execution_state") in ("busy", "starting")),
        "connections": sum(_count(kernel.get("connections")) for kernel in listed),
        "terminals": len(terminals),
        "last_activity": _seconds(status.get("last_activity")),
        "last_message": max(
            filter(None, (_seconds(entry.get("last_activity")) for entry in [*listed, *shells])), default=None
        ),
    }


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else 0


def _seconds(value: Any) -> float | None:
    try:
        return datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None
