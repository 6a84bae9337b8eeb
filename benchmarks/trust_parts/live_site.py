"""Measure on one running site: attacks, the end of access, a host that is cut off, and many connections."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from benchmarks.harness.installation import Installation
from benchmarks.trust_parts.attacks.all_attacks import chosen_attacks
from benchmarks.trust_parts.attacks.registry import run_attacks
from benchmarks.trust_parts.attacks.target import AttackTarget
from benchmarks.trust_parts.connections import open_connections
from benchmarks.trust_parts.departure import SOCKETS, cut_off_host, deprovision_s, revoke_ms

HOSTS = 3
LEASE_SECONDS = 10
CONNECTIONS, SHORT_CONNECTIONS, SHORT_SOCKETS = 5000, 500, 20


def measure(
    site: Installation, parts: Collection[str], short: bool, attacks: Collection[str]
) -> dict[str, Any]:
    """Run the chosen parts one after another, and return their figures.

    ``attacks`` limits the attacks to these names; empty: all. The host is cut off last, because this ends the
    notebook that the attacks use.
    """
    target = AttackTarget(site)
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "connections": lambda: _connections(target, SHORT_CONNECTIONS if short else CONNECTIONS),
        "revoke_ms": lambda: {"revoke_ms": revoke_ms(target, SHORT_SOCKETS if short else SOCKETS)},
        "deprovision_s": lambda: {"deprovision_s": deprovision_s(target)},
        "attacks": lambda: run_attacks(
            target, [each for each in chosen_attacks(short) if not attacks or each.name in attacks]
        ),
        "cut_off_host_s": lambda: _cut_off(target),
    }
    figures: dict[str, Any] = {}
    for name, step in steps.items():
        if name in parts:
            try:
                figures |= step()
            except Exception as problem:  # noqa: BLE001 (the other parts must still run)
                print(f"  {name}: {type(problem).__name__}: {problem}", flush=True)
    return figures


def _connections(target: AttackTarget, count: int) -> dict[str, Any]:
    still_open, milliseconds = open_connections(target.edge_port, count)
    return {"connections": still_open, "healthz_ms": milliseconds}


def _cut_off(target: AttackTarget) -> dict[str, Any]:
    stopped, limit = cut_off_host(target)
    return {"cut_off_host_s": stopped, "cut_off_limit_s": limit}
