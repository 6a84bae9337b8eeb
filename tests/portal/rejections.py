"""Expect that a service rejects an operation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.rejection import OperationRejected


@contextmanager
def rejected(match: str = "") -> Iterator[pytest.ExceptionInfo[OperationRejected]]:
    """Expect OperationRejected. The sentence that people read must match the expression ``match``."""
    with pytest.raises(OperationRejected) as raised:
        yield raised
    sentence = refusal_sentence(raised.value)
    assert re.search(match, sentence), sentence
