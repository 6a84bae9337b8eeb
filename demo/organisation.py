"""Create the demo organisation: three teams that share two pools, with users, prices and budgets.

It uses the same tables and services as a real organisation. Only two things are simulated: the NVML readings
of the hosts, and the past (``demo/simulated_past.py``).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from allauth.account.models import EmailAddress
from django.contrib.auth.hashers import make_password
from django.db import transaction

from demo import job_scripts
from portal.models import Membership, Organisation, Template, User
from portal.services.money.billing_currency import set_first_currency
from scheduler import services as scheduling
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import Priority
from scheduler.models import Host, Pool, Project, Quota, Team
from telemetry.models import Budget, CostCentre, CostCentreShare, Price, PriceFactor

TIME_ZONE = "Europe/Berlin"
H100, A100 = "H100-80GB", "A100-80GB"
LOCAL_HOST_NAME = "this-machine"


@dataclass(frozen=True)
class DemoHost:
    name: str
    pool: str
    simulate: str
    simulate_mig: str = ""
    labels: tuple[tuple[str, str], ...] = ()


DEMO_HOSTS = (
    DemoHost("h1", "shared", f"8x{H100}", labels=(("rack", "r1"), ("site", "north"))),
    DemoHost("h2", "shared", f"8x{H100}", labels=(("rack", "r1"), ("site", "north"))),
    DemoHost(
        "h3", "shared", f"8x{A100}", "6:7x1g.10gb,7:7x1g.10gb", labels=(("rack", "r2"), ("site", "north"))
    ),
    DemoHost("h4", "climate-lab", f"8x{A100}", labels=(("rack", "r9"), ("site", "south"))),
)

# slug, name, tag, colour, weight
TEAMS = (
    ("imaging", "Medical imaging", "MI", 5, 2),
    ("folding", "Protein folding", "PF", 1, 2),
    ("climate", "Climate", "CL", 2, 1),
)
# team, slug, name, cost centre
PROJECTS = (
    ("imaging", "vessel-seg", "Vessel segmentation", "CC-4100"),
    ("imaging", "mri-foundation", "MRI foundation model", "CC-4110"),
    ("folding", "binder", "Binder design", "CC-5200"),
    ("folding", "fold-md", "Folding dynamics", "CC-5210"),
    ("climate", "nowcast", "Nowcasting", "CC-6300"),
    ("climate", "era5", "Reanalysis surrogate", "CC-6310"),
)
# project, and the percents of its cost centres from the first of this month on
SHARED_PROJECT = "mri-foundation"
SHARES_OF_PROJECT = (("CC-4110", "70"), ("CC-4100", "30"))
# code, name, postal address, purchase order reference
COST_CENTRES = (
    ("CC-4100", "Vascular imaging", "Institute of Imaging\nHospital Street 3\n10117 Berlin", "PO-2201"),
    ("CC-4110", "Imaging research", "Institute of Imaging\nHospital Street 3\n10117 Berlin", "PO-2202"),
    ("CC-5200", "Protein design", "Centre of Structural Biology\nCampus 12\n14195 Berlin", "PO-2310"),
    ("CC-5210", "Molecular dynamics", "Centre of Structural Biology\nCampus 12\n14195 Berlin", ""),
    ("CC-6300", "Weather forecasts", "Climate Department\nHarbour Road 8\n20457 Hamburg", "PO-2407"),
    ("CC-6310", "Climate data", "Climate Department\nHarbour Road 8\n20457 Hamburg", ""),
)
DEDICATED_COST_CENTRE = "CC-6300"  # pays for the unused time of the climate team's own pool
# team, model, guaranteed GPUs, GPUs that the team may borrow
QUOTAS = (
    ("imaging", H100, 8, 8),
    ("folding", H100, 6, 8),
    ("climate", H100, 2, 10),
    ("imaging", A100, 3, 5),
    ("folding", A100, 2, 4),
    ("climate", A100, 2, 4),
)
# model, own cost per GPU-hour, list price per GPU-hour, how the cost was calculated
PRICES = (
    (
        H100,
        "1.92",
        "2.40",
        "30,000 EUR over 5 years, 0.9 kW x PUE 1.3 x 0.22 EUR/kWh, 0.90 EUR/h room, people and network",
    ),
    (
        A100,
        "1.16",
        "1.45",
        "15,000 EUR over 5 years, 0.5 kW x PUE 1.3 x 0.22 EUR/kWh, 0.65 EUR/h room, people and network",
    ),
)
LOW_PRIORITY_FACTOR = "0.8"  # on the price of low-priority work in shared pools, from the first of this month
# user, given name, family name, organisation role, memberships
USERS: tuple[tuple[str, str, str, str, tuple[tuple[str, str], ...]], ...] = (
    ("researcher", "Mara", "Klein", "", (("imaging", "member"),)),
    ("lead", "Jonas", "Weber", "", (("folding", "lead"),)),
    ("operator", "Olga", "Petrov", "operator", ()),
    ("finance", "Femi", "Adeyemi", "finance", ()),
    ("imaging-lead", "Ines", "Moreau", "", (("imaging", "lead"),)),
    ("folding-member", "Tariq", "Hassan", "", (("folding", "member"),)),
    ("climate-lead", "Sofia", "Lindqvist", "", (("climate", "lead"),)),
    ("climate-member", "Noah", "Okafor", "", (("climate", "member"),)),
    ("auditor", "Ada", "Brandt", "auditor", ()),
)
DISPLAYED_USERS = ("researcher", "lead", "operator", "finance", "auditor")


def first_of_last_month(now: datetime) -> datetime:
    """Return midnight UTC on the first day of the previous month.

    The time zone is UTC because the demo sets no time zone of billing months.
    """
    year, month = (now.year, now.month - 1) if now.month > 1 else (now.year - 1, 12)
    return datetime(year, month, 1, tzinfo=UTC)


def first_of_this_month(now: datetime) -> datetime:
    """Return midnight UTC on the first day of the present month."""
    return datetime(now.year, now.month, 1, tzinfo=UTC)


def create_organisation(
    now: datetime, this_machine: Sequence[str] = (), *, with_history: bool = True
) -> dict[str, Any]:
    """Create the organisation if it does not exist, and return its sign-ins and agents.

    If the organisation exists, only issue join tokens for hosts that have not joined.

    ``this_machine`` lists the models of this machine's real GPUs, one entry per GPU. If there are any, this
    machine becomes a host of the shared pool, and each team is guaranteed a part of its GPUs. Set
    ``with_history`` if a simulated past will be loaded. Every page then shows when the past ends.

    The result is ``{"sign_ins": [...], "agents": [...]}``. ``sign_ins`` has the passwords of new users. It is
    empty if the organisation already exists.
    """
    sign_ins: list[dict[str, str]] = []
    if not Organisation.objects.exists():
        with transaction.atomic():
            sign_ins = _create_rows(now, now if with_history else None)
            if this_machine:
                _add_local_host(this_machine, now)
    return {"sign_ins": sign_ins, "agents": _agent_specs(now)}


def _create_rows(now: datetime, past_until: datetime | None) -> list[dict[str, str]]:
    Organisation.objects.create(
        name="Northern Research Institute",
        time_zone=TIME_ZONE,
        tax_text="internal allocation, no VAT",
        two_step_close=True,
        simulated_history_until=past_until,
    )
    set_first_currency("EUR", now)
    teams = _create_teams_and_projects(now)
    pools = _create_pools(teams, now)
    _create_hosts(pools, now)
    _create_quotas(teams, pools, now)
    _create_prices_and_budgets(teams, now)
    _create_templates()
    return _create_users(teams, now)


def _add_local_host(models: Sequence[str], now: datetime) -> None:
    shared = Pool.objects.get(slug="shared")
    Host.objects.create(
        name=LOCAL_HOST_NAME, pool=shared, labels={"site": "here"}, simulated=False, created_at=now
    )
    teams = list(Team.objects.order_by("pk"))
    for model in sorted(set(models) - {H100, A100}):
        count = models.count(model)
        for number, team in enumerate(teams):
            guaranteed = count // len(teams) + (1 if number < count % len(teams) else 0)
            Quota.objects.create(
                team=team,
                pool=shared,
                model=model,
                guaranteed_slots=guaranteed * SLOTS_PER_GPU,
                borrow_limit_slots=(count - guaranteed) * SLOTS_PER_GPU,
                updated_at=now,
            )
        Price.objects.create(
            model=model,
            cost_per_gpu_hour=Decimal(PRICES[0][1]),
            price_per_gpu_hour=Decimal(PRICES[0][2]),
            valid_from=first_of_last_month(now),
            note=f"taken from {H100}: set your own",
            created_at=now,
        )


def _create_teams_and_projects(now: datetime) -> dict[str, Team]:
    teams = {
        slug: Team.objects.create(slug=slug, name=name, tag=tag, colour=colour, weight=weight, created_at=now)
        for slug, name, tag, colour, weight in TEAMS
    }
    CostCentre.objects.bulk_create(
        CostCentre(code=code, name=name, postal_address=address, purchase_order=order, created_at=now)
        for code, name, address, order in COST_CENTRES
    )
    for team, slug, name, code in PROJECTS:
        project = Project.objects.create(team=teams[team], slug=slug, name=name, created_at=now)
        CostCentreShare.objects.create(
            project=project, code=code, valid_from=first_of_last_month(now), created_at=now
        )
    shared = Project.objects.get(slug=SHARED_PROJECT)
    for code, percent in SHARES_OF_PROJECT:
        CostCentreShare.objects.create(
            project=shared,
            code=code,
            percent=Decimal(percent),
            valid_from=first_of_this_month(now),
            created_at=now,
        )
    return teams


def _create_pools(teams: dict[str, Team], now: datetime) -> dict[str, Pool]:
    # Notice, grace and minimum runtime are short, so that a visitor can see a preemption within a minute.
    quick = {"notice_seconds": 15, "grace_seconds": 10, "minimum_runtime_seconds": 20, "created_at": now}
    shared = Pool.objects.create(slug="shared", name="Shared", kind="dynamic", approval_above_gpus=4, **quick)
    lab = Pool.objects.create(
        slug="climate-lab", name="Climate lab", kind="static", team=teams["climate"], **quick
    )
    CostCentreShare.objects.create(
        pool=lab, code=DEDICATED_COST_CENTRE, valid_from=first_of_last_month(now), created_at=now
    )
    return {"shared": shared, "climate-lab": lab}


def _create_hosts(pools: dict[str, Pool], now: datetime) -> None:
    for host in DEMO_HOSTS:
        Host.objects.create(
            name=host.name, pool=pools[host.pool], labels=dict(host.labels), simulated=True, created_at=now
        )


def _create_quotas(teams: dict[str, Team], pools: dict[str, Pool], now: datetime) -> None:
    for team, model, guaranteed, borrow in QUOTAS:
        Quota.objects.create(
            team=teams[team],
            pool=pools["shared"],
            model=model,
            guaranteed_slots=guaranteed * SLOTS_PER_GPU,
            borrow_limit_slots=borrow * SLOTS_PER_GPU,
            updated_at=now,
        )


def _create_prices_and_budgets(teams: dict[str, Team], now: datetime) -> None:
    start = first_of_last_month(now)
    for model, cost, price, note in PRICES:
        Price.objects.create(
            model=model,
            cost_per_gpu_hour=Decimal(cost),
            price_per_gpu_hour=Decimal(price),
            valid_from=start,
            note=note,
            created_at=now,
        )
    PriceFactor.objects.create(
        priority=Priority.LOW,
        factor=Decimal(LOW_PRIORITY_FACTOR),
        valid_from=first_of_this_month(now),
        note="low priority may wait longer",
        created_at=now,
    )
    this_month = now.date().replace(day=1)
    for slug, amount in (("imaging", "12000"), ("folding", "16000"), ("climate", "14000")):
        for month in (start.date(), this_month):
            Budget.objects.create(team=teams[slug], month=month, amount=Decimal(amount))
    Budget.objects.create(team=teams["folding"], month=this_month, measure="gpu_hours", amount=Decimal(9000))


def _create_templates() -> None:
    hour = 3600
    rows: tuple[tuple[str, str, str, str, str, int, str, int], ...] = (
        (
            "notebook-1",
            "Notebook, 1 GPU",
            "JupyterLab on one whole GPU.",
            "notebook",
            "interactive",
            1,
            "",
            4 * hour,
        ),
        (
            "notebook-slice",
            "Notebook, GPU slice",
            "JupyterLab on a 1g.10gb slice: cheap, for editing and small tests.",
            "notebook",
            "interactive",
            1,
            "1g.10gb",
            8 * hour,
        ),
        (
            "notebook-4",
            "Notebook, 4 GPUs",
            "JupyterLab on four GPUs of one host.",
            "notebook",
            "interactive",
            4,
            "",
            4 * hour,
        ),
        (
            "train",
            "Training job",
            "Writes a checkpoint on a notice, and resumes from it.",
            "job",
            "training",
            1,
            "",
            24 * hour,
        ),
    )
    for position, (slug, name, words, kind, type_, units, profile, seconds) in enumerate(rows):
        Template.objects.create(
            slug=slug,
            name=name,
            description=words,
            kind=kind,
            type=type_,
            units=units,
            profile=profile,
            command=job_scripts.training_command(steps=600, utilisation=85) if kind == "job" else "",
            max_runtime_seconds=seconds,
            position=position,
        )


def _create_users(teams: dict[str, Team], now: datetime) -> list[dict[str, str]]:
    sign_ins: list[dict[str, str]] = []
    for username, given, family, role, memberships in USERS:
        password = secrets.token_urlsafe(9)
        user = User(
            username=username,
            first_name=given,
            last_name=family,
            email=f"{username}@example.org",
            password=make_password(password),
            date_joined=now,
            operator=role == "operator",
            finance=role == "finance",
            auditor=role == "auditor",
        )
        user.save()
        EmailAddress.objects.create(user=user, email=user.email, verified=True, primary=True)
        for team, membership in memberships:
            Membership.objects.create(user=user, team=teams[team], role=membership, created_at=now)
        if username in DISPLAYED_USERS:
            words = (
                role
                or f"{'team lead' if memberships[0][1] == 'lead' else 'researcher'}, "
                f"{teams[memberships[0][0]].name}"
            )
            sign_ins.append({"role": words, "username": username, "password": password})
    return sign_ins


def _agent_specs(now: datetime) -> list[dict[str, str]]:
    """Return one agent for each host that ``./run demo`` starts.

    An agent has a join token only if its host has not joined yet.
    """
    local_host = DemoHost(LOCAL_HOST_NAME, "shared", simulate="")
    hosts = {
        host.name: host
        for host in Host.objects.filter(name__in=[planned.name for planned in (local_host, *DEMO_HOSTS)])
    }
    return [
        {
            "name": planned.name,
            "simulate": planned.simulate,
            "simulate_mig": planned.simulate_mig,
            "join_token": "" if host.credential_hash else scheduling.issue_join_token(host=host, now=now),
        }
        for planned in (local_host, *DEMO_HOSTS)
        if (host := hosts.get(planned.name)) is not None
    ]
