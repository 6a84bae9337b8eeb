"""Creates the key pair of this host (Ed25519) and signs with it.

The private key never leaves the state folder.

The library takes 7 MB of memory and is used once a day, so it runs in a separate process. ``python -m
agent.server.host_key FILE`` prints the public key, or the signature of a text on stdin, both in base64.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from pathlib import Path

KEY_PROCESS_TIMEOUT_SECONDS = 30.0


class HostKeyError(Exception):
    """The key is missing and cannot be created, or cannot be used. The message is the reason in one line."""


def join_message(host: str, token: str) -> bytes:
    """Return the text that a host signs to prove that it holds the private key it registers."""
    return f"gpupool join {host} {token}".encode()


def renewal_message(challenge: str) -> bytes:
    """Return the text that a host signs for a new credential."""
    return f"gpupool renew {challenge}".encode()


async def public_key(file: Path) -> str:
    """Return the public key of the key in ``file``. Creates the key if there is none. Raises HostKeyError."""
    return await _run_key_process(file, b"")


async def sign(file: Path, text: bytes) -> str:
    """Return the signature of ``text``. Raises HostKeyError."""
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
            output, errors = await process.communicate(text)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise HostKeyError(f"the host's key: no answer within {KEY_PROCESS_TIMEOUT_SECONDS:.0f} s") from None
    if process.returncode:
        raise HostKeyError(f"the host's key: {errors.decode('utf-8', 'replace').strip().splitlines()[-1:]}")
    return output.decode().strip()


def main(file: Path, text: bytes) -> str:
    """Return the public key, or the signature of ``text`` if it is not empty."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    from agent.host.durable_files import write_text

    if not file.exists():
        private_bytes = Ed25519PrivateKey.generate().private_bytes(
            Encoding.Raw, PrivateFormat.Raw, NoEncryption()
        )
        write_text(file, base64.b64encode(private_bytes).decode())
    if os.stat(file).st_mode & 0o077:
        raise SystemExit(f"{file}: other users may read it; its mode must be 0600")
    key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(file.read_text()))
    answer = key.sign(text) if text else key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return base64.b64encode(answer).decode()


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), sys.stdin.buffer.read()))
