"""How a GPU can be split into MIG instances: which sets of profiles fit on it, and where each instance begins.

A profile takes compute slices, of which a GPU has 7, and memory slices, a stretch that may begin only where the driver says. Where
the driver does not say (it may not while MIG is off), only counts and slices are checked, and the driver finds the places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COMPUTE_SLICES = 7


@dataclass(frozen=True, slots=True)
class Profile:
    """What a GPU's driver offers. ``size``: memory slices, 0: not told; ``starts``: where one may begin, empty likewise."""

    name: str
    slices: int
    most: int
    size: int = 0
    starts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """One instance. ``start`` None: where the driver puts it."""

    profile: str
    start: int | None


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a set of profiles can't be had: ``unknown`` (no such profile), ``slices`` (too many compute slices), ``most`` (too many
    of one profile) or ``places`` (no places beside each other)."""

    why: str
    profile: str = ""
    asked: int = 0
    allowed: int = 0


def arrange(wanted: Sequence[str], offered: Mapping[str, Profile]) -> tuple[Part, ...] | Misfit:
    """Places for ``wanted``, in order of their starts; for none wanted (a whole GPU) none."""
    problem = _counted(Counter(wanted), offered)
    if problem is not None:
        return problem
    # The largest first, since they have the fewest places; equal ones only in rising order, so that none is tried twice.
    order = sorted((offered[name] for name in wanted), key=lambda p: (-p.size, -p.slices, p.name))
    if any(not profile.starts or not profile.size for profile in order):
        return tuple(Part(profile.name, None) for profile in order)
    found = _placed(order, frozenset(), None)
    if found is None:
        return Misfit("places")
    return tuple(sorted(found, key=lambda part: part.start or 0))


def _counted(counts: Counter[str], offered: Mapping[str, Profile]) -> Misfit | None:
    for name in sorted(counts):
        if name not in offered:
            return Misfit("unknown", name)
    for name in sorted(counts):
        if counts[name] > offered[name].most:
            return Misfit("most", name, counts[name], offered[name].most)
    slices = sum(offered[name].slices * count for name, count in counts.items())
    return Misfit("slices", "", slices, COMPUTE_SLICES) if slices > COMPUTE_SLICES else None


def _placed(rest: Sequence[Profile], taken: frozenset[int], before: Part | None) -> tuple[Part, ...] | None:
    if not rest:
        return ()
    first = rest[0]
    for start in sorted(first.starts):
        if before is not None and before.profile == first.name and before.start is not None and start <= before.start:
            continue
        stretch = frozenset(range(start, start + first.size))
        if stretch & taken:
            continue
        part = Part(first.name, start)
        others = _placed(rest[1:], taken | stretch, part)
        if others is not None:
            return (part, *others)
    return None


def described(profiles: Sequence[str]) -> str:
    """ "2x3g.40gb+1x1g.10gb", the largest first by compute slices and then by name; "" for a whole GPU."""
    counts = Counter(profiles)
    order = sorted(counts, key=lambda name: (-_slices(name), name))
    return "+".join(f"{counts[name]}x{name}" for name in order)


def _slices(name: str) -> int:
    head = name.partition("g.")[0]
    return int(head) if head.isdecimal() else 0
