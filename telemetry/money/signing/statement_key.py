"""Sign the digests of closed months with Ed25519, and verify signatures.

The private key is a PEM file that only its owner may read. ``GPUPOOL_STATEMENT_KEY`` names it. Each statement
stores the public key of its signature, so that old signatures stay valid after the key was replaced.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


class StatementKeyError(Exception):
    """The file of the private key cannot be used. The message names the file and the reason."""


@dataclass(frozen=True)
class StatementSignature:
    """A signature with its public key, both in base64, and the SHA-256 of the public key."""

    signature: str = ""
    public_key: str = ""
    key_fingerprint: str = ""


def make_key(file: Path) -> str:
    """Create the private key in a new file with mode 0600. Return the fingerprint of its public key.

    Raises StatementKeyError if the file exists or its folder does not.
    """
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise StatementKeyError(f"{file}: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as out:
        out.write(text)
    return _fingerprint(key.public_key().public_bytes_raw())


def sign_digest(month: date, digest: str, file: str) -> StatementSignature:
    """Return the signature of a month's digest with the key in ``file``.

    If ``file`` is empty, the signature is empty. Raises StatementKeyError if the key cannot be used.
    """
    if not file:
        return StatementSignature()
    key = _load_key(Path(file))
    public = key.public_key().public_bytes_raw()
    return StatementSignature(
        base64.b64encode(key.sign(signed_text(month, digest))).decode(),
        base64.b64encode(public).decode(),
        _fingerprint(public),
    )


def signature_problem(month: date, digest: str, signed: StatementSignature) -> str:
    """Return the problem with the signature of a month's digest; empty if the signature is valid."""
    try:
        public = base64.b64decode(signed.public_key, validate=True)
        if _fingerprint(public) != signed.key_fingerprint:
            return "the fingerprint is not that of the public key"
        key = Ed25519PublicKey.from_public_bytes(public)
        key.verify(base64.b64decode(signed.signature, validate=True), signed_text(month, digest))
    except (InvalidSignature, ValueError, binascii.Error):
        return "the signature does not match the digest"
    return ""


def signed_text(month: date, digest: str) -> bytes:
    """Return the bytes that are signed: ``gpupool statement 2026-10 sha256 DIGEST``."""
    return f"gpupool statement {month:%Y-%m} sha256 {digest}".encode()


def _load_key(file: Path) -> Ed25519PrivateKey:
    try:
        if file.stat().st_mode & 0o077:
            raise StatementKeyError(f"{file}: other users may read it; its mode must be 0600")
        key = load_pem_private_key(file.read_bytes(), password=None)
    except OSError as error:
        raise StatementKeyError(f"{file}: {error.strerror}") from None
    except ValueError:
        raise StatementKeyError(f"{file}: it is no private key in PEM") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise StatementKeyError(f"{file}: its key is not an Ed25519 key")
    return key


def _fingerprint(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()
