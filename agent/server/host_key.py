"""This host's key pair (Ed25519): made here at the first start; the private half never leaves the state folder.

The library that signs takes 7 MB and is needed once a day, so it is loaded in a process of its own, which ends at once:
``python -m agent.server.host_key FILE`` prints the public key, or, given text on stdin, the signature of that text. Both in base64.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from pathlib import Path

KEY_PROCESS_TIMEOUT_SECONDS = 30.0


class HostKeyError(Exception):
    """There is no key and none can be made: says why in one line."""


def join_message(host: str, token: str) -> bytes:
    """What is signed when a host joins: it holds the private half of the key that it registers."""
    return f"gpupool join {host} {token}".encode()


def renewal_message(challenge: str) -> bytes:
    """What is signed for a new credential."""
    return f"gpupool renew {challenge}".encode()


async def public_key(file: Path) -> str:
    """The public half of the key in ``file``, which is made where there is none. Raises HostKeyError."""
    return await _run_key_process(file, b"")


async def sign(file: Path, text: bytes) -> str:
    """The signature of ``text``. Raises HostKeyError."""
    return await _run_key_process(file, text)


async def _run_key_process(file: Path, text: bytes) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent.server.host_key", str(file)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(KEY_PROCESS_TIMEOUT_SECONDS):
            said, wrong = await process.communicate(text)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise HostKeyError(f"the host's key: no answer within {KEY_PROCESS_TIMEOUT_SECONDS:.0f} s") from None
    if process.returncode:
        raise HostKeyError(f"the host's key: {wrong.decode('utf-8', 'replace').strip().splitlines()[-1:]}")
    return said.decode().strip()


def main(file: Path, text: bytes) -> str:
    """What this process prints."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    from agent.host.durable_files import write_text

    if not file.exists():
        made = Ed25519PrivateKey.generate().private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        write_text(file, base64.b64encode(made).decode())
    if os.stat(file).st_mode & 0o077:
        raise SystemExit(f"{file}: others may read it; it has to be 0600")
    key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(file.read_text()))
    answer = key.sign(text) if text else key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return base64.b64encode(answer).decode()


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), sys.stdin.buffer.read()))
