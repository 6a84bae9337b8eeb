"""What this host offers its workloads beside GPUs: people's homes, measured now and then by a process of its own, and the programs
that they find. What is not known is left out, never made up."""

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

KILL_WAIT_SECONDS = 2.0  # for a process that is killed to be gone: one that hangs in a file system may stay
MEASURE_TIMEOUT_SECONDS = home_usage.ROUND_TIMEOUT_SECONDS + 2 * home_usage.HOME_TIMEOUT_SECONDS
RETRY_SECONDS = 5.0  # while another host measures the same homes for the first time


async def read_home_usage(
    folder: Path, deadline: float = MEASURE_TIMEOUT_SECONDS
) -> tuple[HomesSeen | None, float]:
    """What is known of the homes in ``folder``, and in how many seconds to ask again. None: nothing new could be found out."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "agent.storage.home_usage",
        str(folder),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(deadline):
            output, said = await process.communicate()
    except TimeoutError:
        log.warning("homes are not measured: no answer within %g s", deadline)
        process.kill()
        await (
            process.wait()
        )  # one that hangs in a file system goes when that answers; until then no other is started
        return None, home_usage.MAX_PAUSE_SECONDS
    finally:
        if process.returncode is None:  # the agent ends
            process.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KILL_WAIT_SECONDS):
                    await process.wait()
    if process.returncode != 0:
        reason = said.decode("utf-8", "replace").strip().splitlines()[-1:] or [
            f"exit code {process.returncode}"
        ]
        log.warning("homes are not measured: %s", reason[0])
        return None, home_usage.MIN_PAUSE_SECONDS
    return _parse_usage(output)


def _parse_usage(output: bytes) -> tuple[HomesSeen | None, float]:
    found = json.loads(output)
    if found is None:
        return None, RETRY_SECONDS
    try:
        return parse(HomesSeen, found), home_usage.pause_after(found["took_seconds"])
    except ProtocolError as error:
        log.warning("homes are not measured: what was kept of them is damaged: %s", error)
        return None, home_usage.MAX_PAUSE_SECONDS
