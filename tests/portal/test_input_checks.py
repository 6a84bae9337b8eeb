"""Test that a message about an invalid value names only the limit that the value violates."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from portal.input_checks import InputChecks
from portal.services.work.request_checks import parse_array_indices


def message(check: str, value: Any, **limits: Any) -> str:
    checks = InputChecks()
    getattr(checks, check)("field", value, **limits)
    return checks.problems.get("field", "")


@pytest.mark.parametrize(
    ("check", "value", "limits", "said"),
    [
        ("text", "", {"most": 5}, "field has 0 characters; allowed: at least 1."),
        ("text", "abcdef", {"most": 5}, "field has 6 characters; allowed: at most 5."),
        ("text", 7, {}, "field is 7; allowed: text."),
        (
            "text",
            "a\u202eb",
            {},
            "field contains the character U+202E; allowed: text without control or direction-changing "
            "characters.",
        ),
        (
            "amount",
            "x",
            {"high": Decimal(10), "decimals": 2},
            "field is 'x'; allowed: an amount, such as 12.50.",
        ),
        ("amount", "-1", {"high": Decimal(10), "decimals": 2}, "field is '-1'; allowed: 0 or more."),
        ("amount", "11", {"high": Decimal(10), "decimals": 2}, "field is '11'; allowed: at most 10."),
        (
            "amount",
            "1.234",
            {"high": Decimal(10), "decimals": 2},
            "field is '1.234'; allowed: at most 2 decimals.",
        ),
        ("amount", "1.23", {"high": Decimal(10), "decimals": 2}, ""),
        ("labels", {str(n): "x" for n in range(21)}, {}, "field has 21 pairs; allowed: at most 20."),
        (
            "labels",
            {"a b": "c"},
            {},
            "field has the word 'a b'; allowed: 1 to 63 letters, digits, dots, dashes, underscores and "
            "slashes.",
        ),
        (
            "environment",
            {f"A{n}": "" for n in range(101)},
            {},
            "field has 101 variables; allowed: at most 100.",
        ),
    ],
)
def test_a_message_names_only_the_violated_limit(
    check: str, value: Any, limits: dict[str, Any], said: str
) -> None:
    assert message(check, value, **limits) == said


@pytest.mark.parametrize(
    ("array", "said"),
    [
        ("x", "allowed: numbers and ranges such as"),
        ("0-999,1000-1999", "2,000 tasks; allowed: at most 1,000 tasks."),
        ("0-9%0", "0 tasks at the same time; allowed: 1 or more after %."),
    ],
)
def test_a_message_about_an_array_names_only_the_violated_limit(array: str, said: str) -> None:
    checks = InputChecks()
    parse_array_indices(checks, array)
    assert said in checks.problems["array"]
