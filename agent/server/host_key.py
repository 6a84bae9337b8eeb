"""Signs with the key pair of this host (Ed25519). The first signature creates the key pair.

The private key never leaves the state folder. The cryptographic library takes 7 MB of memory, and the agent
needs it only about once a day. Therefore it runs in a separate process: ``agent/server/host_key_process.py``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

KEY_PROCESS_TIMEOUT_SECONDS = 30.0


class HostKeyError(Exception):
    """The host's key cannot be created or cannot be used. The message gives the reason in one line."""


def join_message(host: str, token: str) -> bytes:
    """Return the text that a host signs when it joins. The signature proves that it has the private key."""
    return f"gpupool join {host} {token}".encode()


def renewal_message(challenge: str) -> bytes:
    """Return the text that a host signs to renew its credential."""
    return f"gpupool renew {challenge}".encode()


async def sign(file: Path, text: bytes) -> tuple[str, str]:
    """Return the public key of the key pair in ``file``, and the signature of ``text``, both in base64.

    Creates the key pair if there is none. Raises HostKeyError.
    """
    output = await _run_key_process(file, text)
    public_key, signature = output.split()
    return public_key, signature


async def _run_key_process(file: Path, text: bytes) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent.server.host_key_process", str(file)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(KEY_PROCESS_TIMEOUT_SECONDS):
            output, errors = await process.communicate(text)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise HostKeyError(f"the host's key: no answer within {KEY_PROCESS_TIMEOUT_SECONDS:.0f} s") from None
    if process.returncode:
        raise HostKeyError(f"the host's key: {errors.decode('utf-8', 'replace').strip().splitlines()[-1:]}")
    return output.decode().strip()
