from __future__ import annotations

from scheduler.core.model.snapshot import Ask, QueuedWorkload, RunningWorkload, Snapshot


def ask_of(snapshot: Snapshot, running: RunningWorkload) -> Ask:
    """What a running workload asked for; where that is not known, the ask that its units answer to."""
    if running.ask is not None:
        return running.ask
    mine = set(running.units)
    units = [unit for unit in snapshot.units if unit.id in mine]
    hosts = {unit.host for unit in units}
    first = min(units, key=lambda u: u.id)
    return Ask(
        units=max(1, len(units) // max(1, len(hosts))),
        hosts=max(1, len(hosts)),
        models=(first.model,),
        profile=first.profile,
        cpu_milli=running.cpu_milli,
        memory_mib=running.memory_mib,
    )


def home_storage_of(snapshot: Snapshot, running: RunningWorkload) -> int | None:
    """The homes that all its hosts share; None where they don't, or it is not known."""
    mine = set(running.units)
    hosts = {unit.host for unit in snapshot.units if unit.id in mine}
    homes = {host.homes for host in snapshot.hosts if host.id in hosts}
    return homes.pop() if len(homes) == 1 else None


def as_requeued(snapshot: Snapshot, running: RunningWorkload, now: int) -> QueuedWorkload:
    """A running workload as if it waited again, with the run time it has left and its place kept."""
    return QueuedWorkload(
        id=running.id,
        team=running.team,
        project=running.project,
        user=running.user,
        pool=running.pool,
        ask=ask_of(snapshot, running),
        submitted=running.started,
        max_runtime_seconds=max(60, running.until - now),
        predicted_seconds=max(60, min(running.until, running.predicted_until) - now),
        priority=running.priority,
        preemptible=running.preemptible,
        may_borrow=running.preemptible,
        reservation=running.reservation,
        homes=home_storage_of(snapshot, running),  # where it writes its checkpoint when it is told to go
    )
