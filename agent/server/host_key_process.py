"""Creates the key pair of this host and signs with it: python -m agent.server.host_key_process FILE

Prints the public key and, on a second line, the signature of the text on stdin, both in base64. See
``agent/server/host_key.py``.
"""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.host.durable_files import write_text


def load_or_create(file: Path) -> Ed25519PrivateKey:
    """Return the private key in ``file``. If there is no file, create the key."""
    if not file.exists():
        write_text(file, base64.b64encode(Ed25519PrivateKey.generate().private_bytes_raw()).decode())
    if os.stat(file).st_mode & 0o077:
        raise SystemExit(f"{file}: other users may read it; its mode must be 0600")
    return Ed25519PrivateKey.from_private_bytes(base64.b64decode(file.read_text()))


def main() -> None:
    """Print the public key and the signature of the text on stdin."""
    key = load_or_create(Path(sys.argv[1]))
    print(base64.b64encode(key.public_key().public_bytes_raw()).decode())
    print(base64.b64encode(key.sign(sys.stdin.buffer.read())).decode())


if __name__ == "__main__":
    main()
