"""Create pools and change their limits."""

from __future__ import annotations

from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef

from portal import policy
from portal.input_checks import InputChecks, unique_slug
from portal.models import User
from portal.services import audit
from portal.wording.host_texts import ISOLATION_BY_FIRST_HOSTS
from portal.wording.problems import administration_problems
from scheduler import services as scheduling
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import PoolKind
from scheduler.core.rejection import OperationRejected
from scheduler.models import Host, Pool, Team
from scheduler.state import nudge
from scheduler.state.isolation import ISOLATION_LEVELS

SECONDS_PER_DAY = 86_400
MAX_POOL_GPUS = 100_000
MAX_WAITING_LIMIT = 1_000_000

# For each limit of a pool: (minimum, maximum, unit). NULLABLE_LIMITS lists the limits that may be empty.
POOL_LIMITS: dict[str, tuple[int, int, str]] = {
    "notice_seconds": (0, SECONDS_PER_DAY, "seconds"),
    "grace_seconds": (1, 3600, "seconds"),
    "minimum_runtime_seconds": (0, SECONDS_PER_DAY, "seconds"),
    "half_life_seconds": (3600, 365 * SECONDS_PER_DAY, "seconds"),
    "spare_gpus": (0, MAX_POOL_GPUS, "GPUs"),
    "longest_runtime_seconds": (60, 365 * SECONDS_PER_DAY, "seconds"),
    "approval_above_gpus": (0, MAX_POOL_GPUS, "GPUs"),
    "longest_reservation_seconds": (3600, 365 * SECONDS_PER_DAY, "seconds"),
    "reservation_horizon_seconds": (3600, 2 * 365 * SECONDS_PER_DAY, "seconds"),
    "no_show_seconds": (60, SECONDS_PER_DAY, "seconds"),
    "idle_limit_seconds": (60, 7 * SECONDS_PER_DAY, "seconds"),
    "most_gpus_per_user": (1, MAX_POOL_GPUS, "GPUs"),
    "most_gpus_per_workload": (1, MAX_POOL_GPUS, "GPUs"),
    "most_waiting_per_user": (1, MAX_WAITING_LIMIT, "notebooks and jobs"),
    "most_waiting_per_team": (1, MAX_WAITING_LIMIT, "notebooks and jobs"),
}
NULLABLE_LIMITS = ("most_gpus_per_user", "most_gpus_per_workload", "spare_gpus")
# Limits that people enter in GPUs and the database stores in slots, each with the name of its column.
LIMITS_STORED_IN_SLOTS = {"spare_gpus": "spare_slots"}


def create_pool(
    *,
    actor: User,
    name: str,
    kind: str,
    now: datetime,
    team: Team | None = None,
    via: str = "web",
    **limits: int | None,
) -> Pool:
    """Create a pool. ``kind`` is "dynamic" or "static".

    A dynamic pool is shared by all teams with a quota in it. A static pool belongs to one team. ``limits``
    contains fields of POOL_LIMITS. Absent limits keep their defaults. Raises Invalid, OperationRejected,
    NotAllowed.
    """
    policy.require(actor, "pool.change")
    checks = InputChecks()
    name = checks.text("name", name)
    kind = checks.choice("kind", kind, [str(word) for word in PoolKind])
    if kind == PoolKind.STATIC and team is None:
        checks.note("team", None, administration_problems.STATIC_POOL_WITHOUT_TEAM)
    if kind == PoolKind.DYNAMIC and team is not None:
        checks.note("team", team.slug, administration_problems.DYNAMIC_POOL_WITH_TEAM.format(team=team.name))
    clean = _checked_limits(checks, limits)
    checks.done()
    try:
        with transaction.atomic():
            pool = Pool.objects.create(
                slug=unique_slug(name, Pool.with_removed.values_list("slug", flat=True)),
                name=name,
                kind=kind,
                team=team,
                isolation_from_hosts=True,
                created_at=now,
                **clean,
            )
            if team is not None:
                scheduling.reject_if_team_removed(team)
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="create_pool",
                target=pool,
                after=audit.audited_fields(pool, "name", "kind", *POOL_LIMITS),
            )
    except IntegrityError:
        raise _name_rejection(name) from None
    return pool


def change_pool(*, actor: User, pool: Pool, now: datetime, via: str = "web", **limits: int | None) -> Pool:
    """Change the limits of a pool. The engine uses them from its next cycle on.

    Raises Invalid, NotAllowed.
    """
    policy.require(actor, "pool.change")
    checks = InputChecks()
    clean = _checked_limits(checks, limits)
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(pool, *clean)
        Pool.objects.filter(pk=pool.pk).update(**clean)
        pool.refresh_from_db()
        after = audit.audited_fields(pool, *clean)
        if before != after:
            audit.record(
                actor=actor, via=via, now=now, verb="change_pool", target=pool, before=before, after=after
            )
        nudge.engine()
    return pool


def demand_isolation(
    *, actor: User, pool: Pool, isolation: str, now: datetime, why: str = "", via: str = "web"
) -> Pool:
    """Set the isolation level that the hosts of a pool must provide. Raises Invalid, NotAllowed.

    From the next planning cycle on, hosts with a lower level start no new workloads. Running workloads
    continue.
    """
    policy.require(actor, "pool.change")
    checks = InputChecks()
    isolation = checks.choice("isolation", isolation, ISOLATION_LEVELS)
    why = checks.text("why", why, least=0, most=300)
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(pool, "isolation")
        Pool.objects.filter(pk=pool.pk).update(isolation=isolation, isolation_from_hosts=False)
        pool.refresh_from_db()
        after = audit.audited_fields(pool, "isolation")
        if before != after:
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="demand_isolation",
                target=pool,
                before=before,
                after=after,
                why=why,
            )
        nudge.engine()
        nudge.pages(nudge.HOSTS)
    return pool


def demand_isolation_of_first_hosts(now: datetime) -> int:
    """Let each new pool demand the isolation that all its hosts provide, once a host has reported.

    From then on, only operators change what the pool demands. Return the number of pools. A repeated call
    does no harm.
    """
    reported = Host.objects.filter(pool=OuterRef("pk")).exclude(isolation="")
    new_pools = Pool.objects.filter(Exists(reported), isolation_from_hosts=True)
    return sum(_demand_isolation_of_hosts(pool, now) for pool in new_pools.order_by("pk"))


@transaction.atomic
def _demand_isolation_of_hosts(pool: Pool, now: datetime) -> bool:
    provided = Host.objects.filter(pool=pool).exclude(isolation="").values_list("isolation_level", flat=True)
    weakest = min(provided, key=ISOLATION_LEVELS.index)
    before = audit.audited_fields(pool, "isolation")
    undecided = Pool.objects.filter(pk=pool.pk, isolation_from_hosts=True)
    if not undecided.update(isolation=weakest, isolation_from_hosts=False):
        return False
    pool.refresh_from_db()
    audit.record(
        actor=None,
        via="program",
        now=now,
        verb="demand_isolation",
        target=pool,
        before=before,
        after=audit.audited_fields(pool, "isolation"),
        why=ISOLATION_BY_FIRST_HOSTS,
    )
    nudge.engine()
    nudge.pages(nudge.HOSTS)
    return True


def _checked_limits(checks: InputChecks, limits: dict[str, int | None]) -> dict[str, int | None]:
    """Check the limits, and return the values of the pool's columns."""
    clean: dict[str, int | None] = {}
    for field, value in limits.items():
        if field not in POOL_LIMITS:
            checks.note(
                field,
                value,
                administration_problems.POOL_LIMIT_UNKNOWN.format(
                    field=field, allowed=", ".join(POOL_LIMITS)
                ),
            )
            continue
        low, high, unit = POOL_LIMITS[field]
        if field in LIMITS_STORED_IN_SLOTS:
            clean[LIMITS_STORED_IN_SLOTS[field]] = (
                0 if value is None else checks.count(field, value, low, high, unit) * SLOTS_PER_GPU
            )
        elif value is None and field in NULLABLE_LIMITS:
            clean[field] = None
        else:
            clean[field] = checks.count(field, value, low, high, unit)
    return clean


def _name_rejection(name: str) -> OperationRejected:
    """Return the error for a pool name that is taken. The name of a removed pool stays taken."""
    if Pool.objects.filter(name=name).exists():
        return OperationRejected("pool_name_is_taken", {"name": name}, field="name")
    return OperationRejected("pool_name_was_used", {"name": name}, field="name")
