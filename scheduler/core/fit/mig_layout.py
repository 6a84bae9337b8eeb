"""How a GPU can be split into MIG instances: which sets of profiles fit on it, and where each instance begins.

A profile takes compute slices, of which a GPU has 7, and memory slices, a stretch that may begin only where the driver says. Where
the driver does not say (it may not while MIG is off), only counts and slices are checked, and the driver finds the places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COMPUTE_SLICES_PER_GPU = 7


@dataclass(frozen=True, slots=True)
class MigProfileSpec:
    """What a GPU's driver offers. ``size``: memory slices, 0: not told; ``starts``: where one may begin, empty likewise."""

    name: str
    slices: int
    most: int
    size: int = 0
    starts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MigInstancePlacement:
    """One instance. ``start`` None: where the driver puts it."""

    profile: str
    start: int | None


@dataclass(frozen=True, slots=True)
class MigLayoutProblem:
    """Why a set of profiles can't be had: ``unknown`` (no such profile), ``slices`` (too many compute slices), ``most`` (too many
    of one profile) or ``places`` (no places beside each other)."""

    why: str
    profile: str = ""
    asked: int = 0
    allowed: int = 0


def place_instances(
    wanted: Sequence[str], offered: Mapping[str, MigProfileSpec]
) -> tuple[MigInstancePlacement, ...] | MigLayoutProblem:
    """Places for ``wanted``, in order of their starts; for none wanted (a whole GPU) none."""
    problem = _count_problem(Counter(wanted), offered)
    if problem is not None:
        return problem
    # The largest first, since they have the fewest places; equal ones only in rising order, so that none is tried twice.
    order = sorted((offered[name] for name in wanted), key=lambda p: (-p.size, -p.slices, p.name))
    if any(not profile.starts or not profile.size for profile in order):
        return tuple(MigInstancePlacement(profile.name, None) for profile in order)
    found = _place_rest(order, frozenset(), None)
    if found is None:
        return MigLayoutProblem("places")
    return tuple(sorted(found, key=lambda part: part.start or 0))


def _count_problem(counts: Counter[str], offered: Mapping[str, MigProfileSpec]) -> MigLayoutProblem | None:
    for name in sorted(counts):
        if name not in offered:
            return MigLayoutProblem("unknown", name)
    for name in sorted(counts):
        if counts[name] > offered[name].most:
            return MigLayoutProblem("most", name, counts[name], offered[name].most)
    slices = sum(offered[name].slices * count for name, count in counts.items())
    return (
        MigLayoutProblem("slices", "", slices, COMPUTE_SLICES_PER_GPU)
        if slices > COMPUTE_SLICES_PER_GPU
        else None
    )


def _place_rest(
    rest: Sequence[MigProfileSpec], taken: frozenset[int], before: MigInstancePlacement | None
) -> tuple[MigInstancePlacement, ...] | None:
    if not rest:
        return ()
    first = rest[0]
    for start in sorted(first.starts):
        if (
            before is not None
            and before.profile == first.name
            and before.start is not None
            and start <= before.start
        ):
            continue
        stretch = frozenset(range(start, start + first.size))
        if stretch & taken:
            continue
        part = MigInstancePlacement(first.name, start)
        others = _place_rest(rest[1:], taken | stretch, part)
        if others is not None:
            return (part, *others)
    return None


def layout_text(profiles: Sequence[str]) -> str:
    """ "2x3g.40gb+1x1g.10gb", the largest first by compute slices and then by name; "" for a whole GPU."""
    counts = Counter(profiles)
    order = sorted(counts, key=lambda name: (-_compute_slices_of(name), name))
    return "+".join(f"{counts[name]}x{name}" for name in order)


def _compute_slices_of(name: str) -> int:
    head = name.partition("g.")[0]
    return int(head) if head.isdecimal() else 0
