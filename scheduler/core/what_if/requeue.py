"""Convert a running workload to a waiting workload, for hypothetical plans."""

from __future__ import annotations

from scheduler.core.model.snapshot import Ask, QueuedWorkload, RunningWorkload, Snapshot


def ask_of(snapshot: Snapshot, running: RunningWorkload) -> Ask:
    """Return the ask of a running workload. An ask is the hardware that a workload requests.

    If the ask is unknown, return an ask that matches the units of the workload.
    """
    if running.ask is not None:
        return running.ask
    own_units = set(running.units)
    units = [unit for unit in snapshot.units if unit.id in own_units]
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
    """Return the id of the home storage that all hosts of a workload use.

    Return None if the hosts use different storages or if the storage is unknown.
    """
    own_units = set(running.units)
    hosts = {unit.host for unit in snapshot.units if unit.id in own_units}
    storage = {host.home_storage for host in snapshot.hosts if host.id in hosts}
    return storage.pop() if len(storage) == 1 else None


def as_requeued(snapshot: Snapshot, running: RunningWorkload, now: int) -> QueuedWorkload:
    """Return a running workload as a waiting workload.

    The new runtime limit is the remaining time of the running workload. The new submit time is the time at
    which the workload started.
    """
    return QueuedWorkload(
        id=running.id,
        team=running.team,
        project=running.project,
        user=running.user,
        pool=running.pool,
        ask=ask_of(snapshot, running),
        submitted=running.started,
        max_runtime_seconds=max(60, running.until - now),
        predicted_seconds=max(60, min(running.until, running.predicted_end) - now),
        priority=running.priority,
        preemptible=running.preemptible,
        may_borrow=running.preemptible,
        reservation=running.reservation,
        # An evicted workload writes its checkpoint to the storage of its present hosts.
        checkpoint_storage=home_storage_of(snapshot, running),
    )
