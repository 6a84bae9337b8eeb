"""Where an ask fits: which hosts and units may serve it, and which of them is best.

Which place is best is the placement rule's to say (``ranking``), among those that keep together what belongs together:
slices and shares go on the GPU used most; units of a host come from one NVLink island if they can; the hosts of a gang from
one island that spans hosts, else from one rack, else from as few racks as will do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.board import HOLDS, MAINTENANCE, NOBODY, RESERVATIONS, Board, Ground, Ints, Kind, Mask, both
from scheduler.core.model import WHOLE, Ask, Queued
from scheduler.core.ordering import expected_seconds
from scheduler.core.ranking import Ranking, Terms
from scheduler.core.topology import islands, nearest_first
from scheduler.core.waste import fits
from scheduler.core.wishes import apart, wished_for

NOTHING: frozenset[str] = frozenset()
EVERYTHING = frozenset({HOLDS, MAINTENANCE, RESERVATIONS})
TOGETHER = 1 << 40  # outweighs every difference the placement rule can make


def gone_after(board: Board, queued: Queued) -> int:
    """Seconds after which a workload that starts now can be off its units: preemptible work may be told to go."""
    policy = board.policy
    if not queued.preemptible:
        return queued.max_runtime_seconds
    return min(
        queued.max_runtime_seconds, policy.minimum_runtime_seconds + policy.notice_seconds + policy.grace_seconds
    )


def time_class(board: Board, queued: Queued, ignoring: frozenset[str] = NOTHING) -> tuple[int, ...]:
    """Which promises a workload's times would run into: workloads of one class may take the same units.

    ``ignoring`` leaves out HOLDS, MAINTENANCE or RESERVATIONS, to find out which of them is in the way.
    """
    known = board.time_classes.get(queued.id)
    if known is None:
        known = board.time_classes[queued.id] = (
            board.next_promise(HOLDS, board.now + expected_seconds(queued)),
            board.next_promise(MAINTENANCE, board.now + queued.max_runtime_seconds),
            board.next_promise(RESERVATIONS, board.now + gone_after(board, queued)),
        )
    if not ignoring:
        return known
    return tuple(0 if sort in ignoring else bound for sort, bound in zip(board.promised_from, known, strict=True))


def in_time(board: Board, queued: Queued, ignoring: frozenset[str] = NOTHING) -> Mask | None:
    """The units a workload would be off before they are promised to others; None when that is all of them."""
    return board.clear_of(time_class(board, queued, ignoring))


def takeable(board: Board, queued: Queued, ignoring: frozenset[str] = NOTHING) -> Mask | None:
    """The units a workload may take now; None stands for every free unit (the common case, which is then cheap)."""
    if queued.reservation is not None:
        return both((board.bound == queued.reservation) & (board.holder == NOBODY), board.usable)
    mask = in_time(board, queued, ignoring)
    free = board.free
    if queued.id in board.keepers:
        free = free | ((board.kept == queued.id) & (board.holder == NOBODY) & board.usable & (board.bound == 0))
    elif mask is None and not board.is_shared(queued.ask):
        return None
    if board.is_shared(queued.ask):
        free = both(free, own_shares(board, queued.team))
    return free if mask is None else both(free, mask)


def own_shares(board: Board, team: int) -> Mask:
    """Units on GPUs that no other team has time-sliced work on."""
    foreign = [gpu for gpu, holder in board.gpu_teams.items() if holder != team]
    return ~np.isin(board.gpu_of, np.array(foreign, dtype=np.int64))


def host_counts(board: Board, kind: int, available: Mask | None) -> Ints:
    """How many takeable units of a kind each host has."""
    if available is None:
        return board.counts[kind]
    return np.bincount(board.host_of[of_kind(board, kind, available)], minlength=len(board.hosts)).astype(np.int64)


def of_kind(board: Board, kind: int, mask: Mask) -> Ints:
    """The units of a kind that are in a mask. Sooner than to look at all units, most of all where the kind has few."""
    units = board.ground.units_of_kind[kind]
    return units[mask[units]]


@dataclass(frozen=True, slots=True)
class Beside:
    """CPU (thousandths) and memory (MiB) that each host has to give beside its GPUs."""

    cpu_milli: Ints
    memory_mib: Ints


def suitable_hosts(board: Board, ask: Ask, counts: Ints, beside: Beside | None = None) -> Mask:
    """Hosts with enough units, every label, and enough CPU and memory."""
    cpu = board.cpu_free if beside is None else beside.cpu_milli
    memory = board.memory_free if beside is None else beside.memory_mib
    mask = fits(board.wanted(ask).need, cpu, memory, counts, counts)
    if ask.labels:
        mask = both(mask, board.label_mask(ask.labels))
    return mask


def choose(
    board: Board, ask: Ask, kind: int, available: Mask | None = None, beside: Beside | None = None
) -> list[int] | None:
    """The best units of one kind for a whole ask, or None when they are not there.

    ``available`` and ``beside`` are given to ask "what if" (somebody was gone); otherwise what is free now counts.
    """
    counts = host_counts(board, kind, available)
    hosts = suitable_hosts(board, ask, counts, beside).nonzero()[0]
    return choose_among(board, ask, kind, hosts, counts, available, beside) if len(hosts) >= ask.hosts else None


def choose_among(
    board: Board,
    ask: Ask,
    kind: int,
    hosts: Ints,
    counts: Ints,
    available: Mask | None = None,
    beside: Beside | None = None,
) -> list[int] | None:
    """As ``choose``, for who knows already how many units each host has to take, and which hosts suit: enough of them."""
    free = board.free if available is None else available
    ranks = place_ranks(board, ask, kind, counts[hosts], hosts, free, beside)
    keys = wished_for(board.ground, ask, hosts, counts[hosts], ranks)
    if ask.hosts == 1 and not ask.nvlink:
        return pick_on_host(board, ask, kind, int(hosts[keys.argmin()]), free)
    chosen: list[int] = []
    found = 0
    best_first = hosts[keys.argsort(kind="stable")]
    for host in apart(board.ground, best_first) if ask.spread else nearest_first(board.ground, ask.hosts, best_first):
        units = pick_on_host(board, ask, kind, int(host), free)
        if units is not None:
            chosen += units
            found += 1
            if found == ask.hosts:
                return chosen
    return None


def kinds_in_order(board: Board, ask: Ask) -> list[int]:
    """The kinds that serve an ask, the first to be tried first: as ``kinds_for`` says, and among models that an ask without a
    wish finds equally capable, those first that others could best do without (the rule's model price)."""
    kinds = board.kinds_for(ask)
    if ask.models or len(kinds) < 2 or not several_as_capable(board.ground):
        return kinds
    rule = ranking(board, ask.profile)
    return sorted(kinds, key=lambda k: (*capability(board.kinds[k]), rule.model_price(k), k))


def capability(kind: Kind) -> tuple[int, int]:
    """What an ask by properties can tell kinds apart by."""
    return kind.memory_mib, kind.compute_capability


def several_as_capable(ground: Ground) -> bool:
    """Are there kinds of one profile that only their models tell apart?"""
    if "several as capable" not in ground.memo:
        sorts = [(kind.profile, capability(kind)) for kind in ground.kinds]
        ground.memo["several as capable"] = len(set(sorts)) < len(sorts)
    return bool(ground.memo["several as capable"])


def place_ranks(
    board: Board, ask: Ask, kind: int, counts: Ints, hosts: Ints, free: Mask, beside: Beside | None = None
) -> Ints:
    """The rank of each candidate host, lower is better; equal ranks fall to the lower host.

    First what keeps things together (slices and shares on a GPU that is in use already, several units in one NVLink
    island), then the placement rule.
    """
    cpu = board.cpu_free if beside is None else beside.cpu_milli
    memory = board.memory_free if beside is None else beside.memory_mib
    ranks = ranking(board, ask.profile).ranks(ask, kind, counts, cpu[hosts], memory[hosts])
    if ask.profile != WHOLE:
        return ranks - TOGETHER * fullest_gpu(board, kind, free)[hosts]
    if ask.units > 1 and islands(board.ground).matter:
        return ranks + TOGETHER * (largest_island(board, kind, free)[hosts] < ask.units)
    return ranks


def ranking(board: Board, profile: str) -> Ranking:
    """The placement rule for units of one profile, made when first needed in a cycle."""
    known = board.rankings.get(profile)
    if known is None:
        known = board.rankings[profile] = Ranking(board, profile)
    return known


def terms(board: Board, ask: Ask, kind: int, units: list[int]) -> Terms:
    """Why these units, about to be taken for an ask: the placement rule's terms, added up over the hosts."""
    rule, found = ranking(board, ask.profile), Terms(0, 0, 0, 0)
    for at in range(0, len(units), ask.units):
        here = units[at : at + ask.units]
        host = int(board.host_of[here[0]])
        kept = sum(not board.free[unit] for unit in here)  # for this workload, so not counted as free
        count = int(board.counts[kind][host]) + kept
        found += rule.terms(ask, kind, count, int(board.cpu_free[host]), int(board.memory_free[host]))
    return found


def largest_island(board: Board, kind: int, free: Mask) -> Ints:
    """Per host: the most takeable units of a kind within one NVLink island."""
    within = islands(board.ground)
    chosen = of_kind(board, kind, both(free, within.of >= 0))
    members = np.bincount(within.of[chosen], minlength=len(within.host))
    largest = np.zeros(len(board.hosts), dtype=np.int64)
    np.maximum.at(largest, within.host, members)
    return largest


def fullest_gpu(board: Board, kind: int, free: Mask) -> Ints:
    """Per host: the most slots in use on a GPU that still has a takeable slice of this kind."""
    chosen = of_kind(board, kind, free)
    fullest = np.zeros(len(board.hosts), dtype=np.int64)
    np.maximum.at(fullest, board.host_of[chosen], board.gpu_used[board.gpu_of[chosen]])
    return fullest


def pick_on_host(board: Board, ask: Ask, kind: int, host: int, free: Mask) -> list[int] | None:
    """Which of a host's takeable units: in one NVLink group if there is one, slices on the fullest GPUs."""
    first, last = int(board.first_unit[host]), int(board.first_unit[host + 1])
    units: list[int] = (first + (free[first:last] & (board.kind[first:last] == kind)).nonzero()[0]).tolist()
    return pick(board, ask, units)


def pick(board: Board, ask: Ask, units: list[int]) -> list[int] | None:
    """``ask.units`` of one host's takeable units, given in order."""
    if len(units) < ask.units:
        return None
    if ask.profile != WHOLE:
        units.sort(key=lambda u: (-int(board.gpu_used[board.gpu_of[u]]), u))
        return units[: ask.units]
    if not ask.nvlink and not islands(board.ground).matter:
        return units[: ask.units]
    groups: dict[int, list[int]] = {}
    for unit in units:
        group = board.units[unit].nvlink_group
        if group is not None:
            groups.setdefault(group, []).append(unit)
    for _, members in sorted(groups.items(), key=lambda item: (len(item[1]), item[0])):
        if len(members) >= ask.units:
            return members[: ask.units]
    return None if ask.nvlink else units[: ask.units]
