"""Name all attacks in the order in which they run."""

from __future__ import annotations

from benchmarks.trust_parts.attacks import (  # noqa: F401 (register)
    accounts,
    hosts,
    pages,
    sandbox,
    tenants,
    tokens,
    workspaces,
)
from benchmarks.trust_parts.attacks import (
    records as records,
)  # the last one, because it breaks the audit record
from benchmarks.trust_parts.attacks.registry import ATTACKS, Attack

SHORT_MODULES = ("tokens", "tenants", "pages")


def chosen_attacks(short: bool = False) -> list[Attack]:
    """Return all attacks, or with ``short`` those that need little time."""
    attacks = [each for each in ATTACKS.values() if not _of(each, "records")]
    attacks += [each for each in ATTACKS.values() if _of(each, "records")]
    return [each for each in attacks if not short or each.do.__module__.rpartition(".")[2] in SHORT_MODULES]


def _of(attack: Attack, module: str) -> bool:
    return attack.do.__module__.endswith(f".{module}")
