"""One small organisation that tests share: three teams, two pools, four hosts, quotas and the people around them.

``world()`` writes its rows through the ORM and answers a ``World`` that names them. Nothing runs and nothing waits in it.

- teams: vision, language, robotics; each with a project, a lead and two members
- everybody else: operator, finance, auditor, and a stranger who is in no team
- pool ``shared`` (dynamic): hosts alpha and beta (8 x H100-80GB each), gamma (6 x A100-40GB whole, 2 cut into MIG slices)
- pool ``vision-only`` (static, owned by vision): host delta (4 x A100-40GB)
- quotas in ``shared``: H100 8 / 4 / 2 GPUs and A100 2 / 2 / 2 GPUs guaranteed, borrowing without limit
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from django.db.backends.postgresql.psycopg_any import NumericRange

from portal.models import Membership, Organisation, User
from scheduler.core.model.slots import SLOTS_PER_GPU, WHOLE_GPU_PROFILE
from scheduler.models import Gpu, Host, HostStateChange, Leader, Pool, Project, Quota, Team, Unit
from scheduler.state.states import LeaseState

MONDAY = dt.datetime(2026, 3, 2, 9, 0, tzinfo=dt.UTC)
PASSWORD = "a long enough password"
H100, A100 = "H100-80GB", "A100-40GB"
MEMORY_MIB = {H100: 81_559, A100: 40_960}
CAPABILITY = {H100: 90, A100: 80}
MIG = "1g.5gb"
MIG_SLICES = 7
TEAMS = (("vision", "VIS", 8, 2), ("language", "LNG", 4, 2), ("robotics", "ROB", 2, 2))


@dataclass
class TeamOfWorld:
    """A team with its people: ``lead``, and ``members`` of which the first is the usual actor of a test."""

    team: Team
    project: Project
    lead: User
    members: list[User]

    @property
    def member(self) -> User:
        return self.members[0]


@dataclass
class World:
    now: dt.datetime
    organisation: Organisation
    vision: TeamOfWorld
    language: TeamOfWorld
    robotics: TeamOfWorld
    operator: User
    finance: User
    auditor: User
    stranger: User
    shared: Pool
    static: Pool
    hosts: dict[str, Host] = field(default_factory=dict)

    @property
    def teams(self) -> list[TeamOfWorld]:
        return [self.vision, self.language, self.robotics]

    @property
    def people(self) -> dict[str, User]:
        """One person per role, by the name of the role."""
        return {
            "member": self.vision.member,
            "lead": self.vision.lead,
            "operator": self.operator,
            "finance": self.finance,
            "auditor": self.auditor,
            "team mate": self.vision.members[1],
            "other team": self.language.member,
            "stranger": self.stranger,
        }


@pytest.fixture
def world(db: None) -> World:
    """The organisation on Monday 2 March 2026, 09:00 UTC."""
    return build_world(MONDAY)


def build_world(now: dt.datetime) -> World:
    """Write the organisation as of ``now``: its hosts are alive and have just synchronised."""
    organisation = Organisation.objects.create(name="Kestrel Labs", time_zone="UTC", currency="EUR")
    Leader.objects.get_or_create(id=1)
    teams = [make_team(slug, tag, colour, now) for colour, (slug, tag, _, _) in enumerate(TEAMS, start=1)]
    shared = Pool.objects.create(slug="shared", name="Shared", kind="dynamic", created_at=now)
    static = Pool.objects.create(
        slug="vision-only", name="Vision only", kind="static", team=teams[0].team, created_at=now
    )
    for each, (_, _, h100, a100) in zip(teams, TEAMS, strict=True):
        give_quota(each.team, shared, H100, h100, now)
        give_quota(each.team, shared, A100, a100, now)
    made = World(
        now=now,
        organisation=organisation,
        vision=teams[0],
        language=teams[1],
        robotics=teams[2],
        operator=make_user("operator", operator=True),
        finance=make_user("finance", finance=True),
        auditor=make_user("auditor", auditor=True),
        stranger=make_user("stranger"),
        shared=shared,
        static=static,
    )
    made.hosts = {
        "alpha": make_host("alpha", shared, [H100] * 8, now),
        "beta": make_host("beta", shared, [H100] * 8, now),
        "gamma": make_host("gamma", shared, [A100] * 8, now, cut=(6, 7)),
        "delta": make_host("delta", static, [A100] * 4, now),
    }
    return made


def make_user(username: str, **flags: bool) -> User:
    """An account whose password is ``PASSWORD``."""
    return User.objects.create_user(username, f"{username}@example.org", PASSWORD, **flags)


def make_team(slug: str, tag: str, colour: int, now: dt.datetime) -> TeamOfWorld:
    """A team with one project, one lead and two members, named after it: vision-lead, vision-1, vision-2."""
    team = Team.objects.create(slug=slug, name=slug.title(), tag=tag, colour=colour, created_at=now)
    project = Project.objects.create(
        team=team, slug=f"{slug}-main", name=f"{slug.title()} main", created_at=now
    )
    people = [make_user(f"{slug}-{who}") for who in ("lead", "1", "2")]
    for person in people:
        role = Membership.Role.LEAD if person is people[0] else Membership.Role.MEMBER
        Membership.objects.create(user=person, team=team, role=role, created_at=now)
    return TeamOfWorld(team=team, project=project, lead=people[0], members=people[1:])


def give_quota(
    team: Team, pool: Pool, model: str, gpus: int, now: dt.datetime, borrow_gpus: int | None = None
) -> Quota:
    """A guarantee of ``gpus`` whole GPUs of ``model``; ``borrow_gpus`` None means no limit above it."""
    limit = None if borrow_gpus is None else borrow_gpus * SLOTS_PER_GPU
    return Quota.objects.create(
        team=team,
        pool=pool,
        model=model,
        guaranteed_slots=gpus * SLOTS_PER_GPU,
        borrow_limit_slots=limit,
        updated_at=now,
    )


def make_host(
    name: str,
    pool: Pool,
    models: Sequence[str],
    now: dt.datetime,
    cut: Sequence[int] = (),
    cpu_milli: int = 64_000,
) -> Host:
    """A simulated host that is alive, with one GPU per entry of ``models``; those whose index is in ``cut`` have MIG slices."""
    host = Host.objects.create(
        pool=pool,
        name=name,
        labels={"rack": "r1"},
        simulated=True,
        isolation="plain",
        cpu_milli=cpu_milli,
        memory_mib=512_000,
        agent_version="1",
        boot_id=f"boot-of-{name}",
        agent_instance=f"instance-of-{name}",
        credential_hash="joined by the test",
        lease_state=LeaseState.ALIVE,
        last_sync_at=now,
        created_at=now,
    )
    HostStateChange.objects.create(
        host=host,
        lease_state=host.lease_state,
        admin_state=host.admin_state,
        repair_state=host.repair_state,
        at=now,
    )
    for index, model in enumerate(models):
        make_gpu(host, index, model, now, slices=MIG_SLICES if index in cut else 0)
    return host


def make_gpu(host: Host, index: int, model: str, now: dt.datetime, slices: int = 0) -> Gpu:
    """A GPU and its units: one whole, or ``slices`` MIG slices of equal size."""
    gpu = Gpu.objects.create(
        host=host,
        index=index,
        uuid=f"GPU-{host.name}-{index}",
        model=model,
        memory_mib=MEMORY_MIB[model],
        compute_capability=CAPABILITY[model],
        nvlink_group=0,
        created_at=now,
    )
    parts = slices or 1
    size = SLOTS_PER_GPU // parts
    for part in range(parts):
        first = gpu.first_slot + part * size
        Unit.objects.create(
            gpu=gpu,
            profile=MIG if slices else WHOLE_GPU_PROFILE,
            uuid=f"MIG-{host.name}-{index}-{part}" if slices else gpu.uuid,
            slots=NumericRange(first, first + size),
            memory_mib=gpu.memory_mib // parts,
            created_at=now,
        )
    return gpu


def units_of(host: Host, profile: str = WHOLE_GPU_PROFILE) -> list[Unit]:
    """A host's units of one profile, by GPU index."""
    found = Unit.objects.filter(gpu__host=host, profile=profile, retired_at__isnull=True)
    return list(found.select_related("gpu").order_by("gpu__index", "slots"))
