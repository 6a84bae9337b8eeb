"""Verbs on the organisation itself, its pools and its templates."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from portal import policy
from portal.errors import Conflict
from portal.input_checks import InputChecks, unique_slug
from portal.models import Organisation, Template, User
from portal.services import audit
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import PoolKind
from scheduler.models import Pool, Team, WorkloadKind, WorkloadType
from scheduler.state import nudge
from scheduler.state.isolation import ISOLATION_LEVELS

SECONDS_PER_DAY = 86_400
MAX_POOL_GPUS = 100_000
MAX_WAITING_LIMIT = 1_000_000

# Field of a pool: (lowest, highest, unit). Counts of GPUs may be left empty where the second table says so.
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
LIMITS_STORED_IN_SLOTS = {"spare_gpus": "spare_slots"}  # limits that are said in GPUs and kept in slots


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
    """A pool: dynamic ones are shared by every team with a quota in it, a static one belongs to one team.

    ``limits`` are fields of POOL_LIMITS; what is not given keeps its default. Raises Invalid, Conflict, NotAllowed.
    """
    policy.require(actor, "pool.change")
    checks = InputChecks()
    name = checks.text("name", name)
    kind = checks.choice("kind", kind, [str(word) for word in PoolKind])
    if kind == PoolKind.STATIC and team is None:
        checks.note("team", None, "team is empty; allowed: the team that owns a static pool.")
    if kind == PoolKind.DYNAMIC and team is not None:
        checks.note(
            "team", team.slug, f"team is {team.name}; allowed: nothing, since a dynamic pool is shared."
        )
    clean = _checked_limits(checks, limits)
    checks.done()
    try:
        with transaction.atomic():
            pool = Pool.objects.create(
                slug=unique_slug(name, Pool.objects.values_list("slug", flat=True)),
                name=name,
                kind=kind,
                team=team,
                created_at=now,
                **clean,
            )
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="create_pool",
                target=pool,
                after=audit.audited_fields(pool, "name", "kind", *POOL_LIMITS),
            )
    except IntegrityError:
        raise Conflict(f"name is {name}; a pool of that name exists already.", field="name") from None
    return pool


def change_pool(*, actor: User, pool: Pool, now: datetime, via: str = "web", **limits: int | None) -> Pool:
    """Change a pool's limits; the engine uses them in its next cycle. Raises Invalid, NotAllowed."""
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
    """How well hosts of this pool have to keep workloads apart; those that have less take no new work from the next cycle on.

    What runs on them goes on. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "pool.change")
    checks = InputChecks()
    isolation = checks.choice("isolation", isolation, ISOLATION_LEVELS)
    why = checks.text("why", why, least=0, most=300)
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(pool, "isolation")
        Pool.objects.filter(pk=pool.pk).update(isolation=isolation)
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


def change_organisation(
    *, actor: User, name: str, time_zone: str, currency: str, now: datetime, via: str = "web"
) -> Organisation:
    """Its name, time zone and currency; sums are never converted. Raises Invalid, NotAllowed."""
    policy.require(actor, "pool.change")
    checks = InputChecks()
    name = checks.text("name", name)
    time_zone = checks.time_zone("time_zone", time_zone)
    currency = checks.text("currency", currency, least=3, most=3).upper()
    if currency and not (currency.isascii() and currency.isalpha()):
        checks.note("currency", currency, f"currency is {currency!a}; allowed: three letters, such as EUR.")
    checks.done()
    with transaction.atomic():
        organisation, _ = Organisation.objects.get_or_create(pk=1, defaults={"name": name})
        before = audit.audited_fields(organisation, "name", "time_zone", "currency")
        Organisation.objects.filter(pk=1).update(name=name, time_zone=time_zone, currency=currency)
        organisation.refresh_from_db()
        after = audit.audited_fields(organisation, "name", "time_zone", "currency")
        if before != after:
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="change_organisation",
                target=organisation,
                before=before,
                after=after,
            )
    return organisation


def save_template(
    *,
    actor: User,
    name: str,
    kind: str,
    type: str,
    units: int,
    max_runtime_seconds: int,
    now: datetime,
    template: Template | None = None,
    description: str = "",
    profile: str = "",
    command: str = "",
    hosts: int = 1,
    via: str = "web",
) -> Template:
    """Make a template, or change ``template``. A job's needs a command; a notebook's has none, and is on one host.

    Raises Invalid, NotAllowed.
    """
    policy.require(actor, "template.change")
    checks = InputChecks()
    clean: dict[str, Any] = {
        "name": checks.text("name", name),
        "description": checks.text("description", description, least=0, most=300),
        "kind": checks.choice("kind", kind, WorkloadKind.values),
        "type": checks.choice("type", type, WorkloadType.values),
        "units": checks.count("units", units, 1, 1024, "GPUs"),
        "hosts": checks.count("hosts", hosts, 1, 1024 if kind == WorkloadKind.JOB else 1, "hosts"),
        "profile": checks.text("profile", profile, least=0, most=30),
        "command": checks.text(
            "command", command, least=1 if kind == WorkloadKind.JOB else 0, most=100_000, lines=True
        ),
        "max_runtime_seconds": checks.count(
            "max_runtime_seconds", max_runtime_seconds, 60, 365 * SECONDS_PER_DAY, "seconds"
        ),
    }
    checks.done()
    with transaction.atomic():
        before = None if template is None else audit.audited_fields(template, *clean)
        if template is None:
            slug = unique_slug(clean["name"], Template.objects.values_list("slug", flat=True))
            template = Template.objects.create(slug=slug, position=Template.objects.count(), **clean)
        else:
            Template.objects.filter(pk=template.pk).update(**clean)
            template.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="save_template",
            target=template,
            before=before,
            after=audit.audited_fields(template, *clean),
        )
    return template


def delete_template(*, actor: User, template: Template, now: datetime, via: str = "web") -> None:
    """Take a template away; what was launched from it stays. Raises NotAllowed."""
    policy.require(actor, "template.change")
    with transaction.atomic():
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="delete_template",
            target=template,
            before=audit.audited_fields(template, "name", "kind", "units"),
        )
        template.delete()


def _checked_limits(checks: InputChecks, limits: dict[str, int | None]) -> dict[str, int | None]:
    """The columns of a pool for these limits."""
    clean: dict[str, int | None] = {}
    for field, value in limits.items():
        if field not in POOL_LIMITS:
            checks.note(field, value, f"{field} is not a limit of a pool; allowed: {', '.join(POOL_LIMITS)}.")
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
