"""Test that decoded columns of samples equal the encoded ones, and that usual readings take few bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.samples.codec import (
    UNKNOWN,
    decode_integers,
    decode_reals,
    encode_integers,
    encode_reals,
)

INTEGERS = st.one_of(st.just(UNKNOWN), st.integers(0, 300), st.integers(0, 2**62))
SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
REALS = st.one_of(
    st.just(float("nan")), SINGLES, st.integers(0, 100_000).map(lambda thousandths: thousandths / 1_000)
)


@given(st.lists(INTEGERS, min_size=1, max_size=200))
def test_decoded_integers_are_the_encoded_ones(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    data = encode_integers(values)
    if (values == UNKNOWN).all():
        assert data is None
    else:
        assert data is not None
        np.testing.assert_array_equal(decode_integers(data), values)


@given(st.lists(REALS, min_size=1, max_size=200))
def test_decoded_reals_are_the_encoded_ones_in_single_precision(numbers: list[float]) -> None:
    values = np.array(numbers, np.float64)
    data = encode_reals(values)
    if np.isnan(values).all():
        assert data is None
    else:
        assert data is not None
        np.testing.assert_array_equal(decode_reals(data), values.astype(np.float32).astype(np.float64))


@pytest.mark.parametrize(
    ("values", "most_bytes"),
    [
        (np.full(720, 80_000), 0.1),  # a constant count
        (np.arange(720) * 5_000_000 + 1_790_000_000_000_000, 0.1),  # times with one distance
        (np.random.default_rng(1).integers(0, 100, 720), 1.2),  # a noisy percentage
        (np.cumsum(np.random.default_rng(1).integers(3_000_000, 3_500_000, 720)), 3.0),  # a counter of energy
    ],
)
def test_usual_readings_take_few_bytes_each(values: np.ndarray, most_bytes: float) -> None:
    data = encode_integers(values.astype(np.int64))
    assert data is not None
    assert len(data) <= most_bytes * len(values)
