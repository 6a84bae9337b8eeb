"""Compute how a GPU can be split into MIG instances: which profiles fit on it, and where each instance
begins.

A GPU has 7 compute slices and a number of memory slices. An instance of a profile takes some compute slices
and an interval of memory slices. This interval may begin only at the memory slices that the driver reports.
If MIG is off, the driver does not report them. Then only the number of instances and the compute slices are
checked, and the driver chooses the positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COMPUTE_SLICES_PER_GPU = 7


@dataclass(frozen=True, slots=True)
class MigProfileSpec:
    """A MIG profile that the driver of a GPU offers.

    ``slices`` is the number of compute slices of one instance. ``most`` is the highest number of instances on
    one GPU. ``size`` is the number of memory slices of one instance, or 0 if it is unknown. ``starts`` has
    the memory slices at which an instance may begin. It is empty if they are unknown.
    """

    name: str
    slices: int
    most: int
    size: int = 0
    starts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MigInstancePlacement:
    """One MIG instance. ``start`` is its first memory slice, or None if the driver chooses the position."""

    profile: str
    start: int | None


@dataclass(frozen=True, slots=True)
class MigLayoutProblem:
    """The reason why a list of profiles does not fit on a GPU.

    ``why`` is one of:

    - ``unknown``: the GPU does not offer ``profile``.
    - ``most``: there are too many instances of ``profile``.
    - ``slices``: the instances need too many compute slices together.
    - ``places``: no positions exist at which the instances do not overlap.

    For ``most`` and ``slices``, ``asked`` is the requested number and ``allowed`` is its limit.
    """

    why: str
    profile: str = ""
    asked: int = 0
    allowed: int = 0


def place_instances(
    requested: Sequence[str], offered: Mapping[str, MigProfileSpec]
) -> tuple[MigInstancePlacement, ...] | MigLayoutProblem:
    """Return a position for each requested profile, or the reason why the profiles do not fit on one GPU.

    The positions are sorted by their first memory slice. If no profile is requested, the GPU is not split and
    the result is empty.
    """
    problem = _count_problem(Counter(requested), offered)
    if problem is not None:
        return problem
    # The largest profiles come first, because they have the fewest possible positions. ``_place_rest`` places
    # instances of one profile only in ascending order, so that it tries no combination twice.
    largest_first = sorted((offered[name] for name in requested), key=lambda p: (-p.size, -p.slices, p.name))
    if any(not profile.starts or not profile.size for profile in largest_first):
        return tuple(MigInstancePlacement(profile.name, None) for profile in largest_first)
    instances = _place_rest(largest_first, frozenset(), None)
    if instances is None:
        return MigLayoutProblem("places")
    return tuple(sorted(instances, key=lambda instance: instance.start or 0))


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
    remaining: Sequence[MigProfileSpec], taken: frozenset[int], before: MigInstancePlacement | None
) -> tuple[MigInstancePlacement, ...] | None:
    if not remaining:
        return ()
    first = remaining[0]
    for start in sorted(first.starts):
        if (
            before is not None
            and before.profile == first.name
            and before.start is not None
            and start <= before.start
        ):
            continue
        slices_taken = frozenset(range(start, start + first.size))
        if slices_taken & taken:
            continue
        instance = MigInstancePlacement(first.name, start)
        others = _place_rest(remaining[1:], taken | slices_taken, instance)
        if others is not None:
            return (instance, *others)
    return None


def layout_text(profiles: Sequence[str]) -> str:
    """Return a text such as "2x3g.40gb+1x1g.10gb", with the largest profile first.

    The text is "" for a GPU that is not split.
    """
    counts = Counter(profiles)
    largest_first = sorted(counts, key=lambda name: (-_compute_slices_of(name), name))
    return "+".join(f"{counts[name]}x{name}" for name in largest_first)


def _compute_slices_of(name: str) -> int:
    head = name.partition("g.")[0]
    return int(head) if head.isdecimal() else 0
