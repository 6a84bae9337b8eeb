"""Register attacks by their names, and run them.

An attack makes two kinds of checks. A control shows that the legitimate use works, because otherwise a
refusal proves nothing. A defence shows that the attack is refused. The attack held if all controls and
defences hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class AttackSucceeded(Exception):
    """Raised when the site does not refuse an attack. The message says what the attacker got."""


class ControlFailed(Exception):
    """Raised when the legitimate use does not work, so that the attack proves nothing."""


@dataclass(frozen=True)
class Attack:
    """One named attack. ``do`` raises AttackSucceeded or ControlFailed, or returns."""

    name: str
    what: str
    do: Callable[[Any], None]


ATTACKS: dict[str, Attack] = {}


def attack(what: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Return a decorator that registers a function as an attack under the function's name."""

    def register(do: Callable[[Any], None]) -> Callable[[Any], None]:
        if do.__name__ in ATTACKS:
            raise ValueError(f"two attacks are called {do.__name__}")
        ATTACKS[do.__name__] = Attack(do.__name__, what, do)
        return do

    return register


def control(holds: object, what: str) -> None:
    """Check that the legitimate use works. Raises ControlFailed."""
    if not holds:
        raise ControlFailed(what)


def defended(holds: object, what: str) -> None:
    """Check that the attack is refused. ``what`` says what the attacker got. Raises AttackSucceeded."""
    if not holds:
        raise AttackSucceeded(what)


def run_attacks(target: Any, attacks: Sequence[Attack]) -> dict[str, int]:
    """Run all attacks, and return how many there were, and how many held.

    An attack that fails for another reason did not hold.
    """
    held = 0
    for each in attacks:
        began = time.monotonic()
        try:
            each.do(target)
        except AttackSucceeded as result:
            print(f"  NOT HELD {each.name}: {result}", flush=True)
        except ControlFailed as result:
            print(f"  NOT PROVED {each.name}: {result}", flush=True)
        except Exception as problem:  # noqa: BLE001 (the other attacks must still run)
            print(f"  FAILED {each.name}: {type(problem).__name__}: {problem}", flush=True)
        else:
            held += 1
            print(f"  held {each.name} ({time.monotonic() - began:.1f} s)", flush=True)
    return {"attacks": len(attacks), "held": held}
