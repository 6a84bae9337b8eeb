"""Encode a column of samples as compressed bytes, and decode it.

The known values are stored as differences between neighbours, each moved to a positive number, in planes: the
lowest bytes of all values, then their second bytes, and so on. Neighbours are similar, so that the higher
planes are almost constant, and zlib stores them in few bytes. Real numbers with at most three decimals are
stored as integers, others by their bits. Decoded values equal the encoded ones exactly.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

UNKNOWN = -1  # an unknown integer; an unknown real number is NaN
_HEAD = struct.Struct("<BBxxIq")  # form of the values, planes, number of values, first known value
_ALL_KNOWN, _SOME_KNOWN = 0, 16  # added to the form
_MAX_DECIMALS = 3
_BITS = 15  # the form of real numbers that are stored by their bits; else the number of decimals
_LARGEST_WHOLE = 2.0**53
_LEVEL = 6


def encode_integers(values: Ints) -> bytes | None:
    """Return the bytes of integers of which UNKNOWN ones are unknown; None if all are unknown."""
    return _encode(values, values != UNKNOWN, 0)


def decode_integers(data: bytes) -> Ints:
    """Return the integers that ``encode_integers`` has encoded."""
    values, is_known, _ = _decode(data)
    found = np.full(len(is_known), UNKNOWN, np.int64)
    found[is_known] = values
    return found


def encode_reals(values: Floats) -> bytes | None:
    """Return the bytes of single-precision numbers, of which NaN are unknown; None if all are unknown."""
    is_known = ~np.isnan(values)
    exact = np.where(is_known, values, 0.0).astype(np.float32)
    for decimals in range(_MAX_DECIMALS + 1):
        whole = np.rint(exact.astype(np.float64) * 10**decimals)
        is_exact = np.array_equal(_of_decimals(whole, decimals), exact)
        if is_exact and np.abs(whole).max(initial=0) < _LARGEST_WHOLE:
            return _encode(whole.astype(np.int64), is_known, decimals)
    return _encode(exact.view(np.int32).astype(np.int64), is_known, _BITS)


def decode_reals(data: bytes) -> Floats:
    """Return the numbers that ``encode_reals`` has encoded, in double precision."""
    values, is_known, form = _decode(data)
    exact = values.astype(np.int32).view(np.float32) if form == _BITS else _of_decimals(values, form)
    found = np.full(len(is_known), np.nan)
    found[is_known] = exact
    return found


def _of_decimals(whole: npt.NDArray[np.generic], decimals: int) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = (whole.astype(np.float64) / 10**decimals).astype(np.float32)
    return found


def _encode(values: Ints, is_known: Bools, form: int) -> bytes | None:
    known = values[is_known]
    if not len(known):
        return None
    steps = np.diff(known)
    positive = ((steps << 1) ^ (steps >> 63)).view(np.uint64)
    planes = -(-int(positive.max(initial=0)).bit_length() // 8)
    body = positive.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :planes].T.tobytes()
    mask = b"" if len(known) == len(values) else np.packbits(is_known).tobytes()
    form += _SOME_KNOWN if mask else _ALL_KNOWN
    return _HEAD.pack(form, planes, len(values), int(known[0])) + zlib.compress(mask + body, _LEVEL)


def _decode(data: bytes) -> tuple[Ints, Bools, int]:
    """Return the known values, True for each value that is known, and the form of the values."""
    form, planes, count, first = _HEAD.unpack_from(data)
    body = np.frombuffer(zlib.decompress(data[_HEAD.size :]), np.uint8)
    is_known = np.ones(count, bool)
    if form >= _SOME_KNOWN:
        size = -(-count // 8)
        is_known, body = np.unpackbits(body[:size], count=count).astype(bool), body[size:]
    known = int(is_known.sum())
    wide = np.zeros((known - 1, 8), np.uint8)
    wide[:, :planes] = body.reshape(planes, known - 1).T
    positive = wide.view("<u8").reshape(-1)
    steps = (positive >> np.uint64(1)).view(np.int64) ^ -(positive & np.uint64(1)).view(np.int64)
    return np.cumsum(np.concatenate([[first], steps])), is_known, form % _SOME_KNOWN
