"""Runs the process that measures people's homes, and parses its result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from pathlib import Path

from agent.protocol import HomesSeen, ProtocolError, parse
from agent.storage import home_usage

log = logging.getLogger("agent.storage.home_usage_reader")

# Longest wait for the end of the killed process after this task was cancelled. The process may hang in a file
# system.
KILL_WAIT_SECONDS = 2.0
MEASURE_TIMEOUT_SECONDS = home_usage.ROUND_TIMEOUT_SECONDS + 2 * home_usage.HOME_TIMEOUT_SECONDS
RETRY_SECONDS = 5.0  # time until the next call, while another host measures these homes for the first time


async def read_home_usage(
    folder: Path, deadline: float = MEASURE_TIMEOUT_SECONDS
) -> tuple[HomesSeen | None, float]:
    """Return the usage of the homes in ``folder``, and the time in seconds until the next call.

    The usage is None if the homes could not be measured now.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "agent.storage.home_usage",
            str(folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:  # no process can be started at present
        log.warning("homes are not measured: %s", error)
        return None, home_usage.MIN_PAUSE_SECONDS
    try:
        async with asyncio.timeout(deadline):
            result, errors = await process.communicate()
    except TimeoutError:
        log.warning("homes are not measured: no answer within %g s", deadline)
        process.kill()
        # If the process hangs in a file system, it ends only when the file system answers. Wait for its end,
        # so that no second process hangs too.
        await process.wait()
        return None, home_usage.MAX_PAUSE_SECONDS
    finally:
        if process.returncode is None:  # this task was cancelled
            process.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KILL_WAIT_SECONDS):
                    await process.wait()
    if process.returncode != 0:
        reason = errors.decode("utf-8", "replace").strip().splitlines()[-1:] or [
            f"exit code {process.returncode}"
        ]
        log.warning("homes are not measured: %s", reason[0])
        return None, home_usage.MIN_PAUSE_SECONDS
    return _parse_usage(result)


def _parse_usage(result: bytes) -> tuple[HomesSeen | None, float]:
    usage = json.loads(result)
    if usage is None:
        return None, RETRY_SECONDS
    try:
        return parse(HomesSeen, usage), home_usage.pause_after(usage["took_seconds"])
    except ProtocolError as error:
        log.warning("homes are not measured: the stored sizes are damaged: %s", error)
        return None, home_usage.MAX_PAUSE_SECONDS
