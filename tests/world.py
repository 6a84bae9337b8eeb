"""Provide the organisation that tests share: three teams, two pools, four hosts, quotas and people.

``build_world`` writes the rows with bulk inserts and returns a ``World`` that names them. Nothing runs and
nothing is queued.

- teams: vision, language, robotics; each with a project, a lead and two members
- other people: operator, finance, auditor, and a stranger without a team
- pool ``shared`` (dynamic): hosts alpha and beta (8 x H100-80GB each), gamma (6 x A100-40GB whole, 2 cut into
  MIG slices)
- pool ``vision-only`` (static, owned by vision): host delta (4 x A100-40GB)
- quotas in ``shared``: H100 8 / 4 / 2 GPUs and A100 2 / 2 / 2 GPUs guaranteed, borrowing without limit
"""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.contrib.auth.hashers import make_password
from django.db import connection, transaction
from django.db.backends.postgresql.psycopg_any import NumericRange

from portal.models import Membership, Organisation, User
from scheduler import services
from scheduler.core.model.slots import SLOTS_PER_GPU, WHOLE_GPU_PROFILE
from scheduler.models import Gpu, Host, HostStateChange, Leader, Pool, Project, Quota, Team, Unit, Workload
from scheduler.requests import WorkloadRequest
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
    """A team with its ``lead`` and its ``members``. The first member is the usual actor in tests."""

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
        """Return one person per role, by the name of the role."""
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


@dataclass(frozen=True)
class WorldRows:
    """Rows that a fixture adds to the world. ``write`` writes them and returns the value of the fixture.

    ``after`` are the rows of another fixture, which must be written first. None if no such rows are needed.
    """

    name: str
    write: Callable[[World], Any]
    after: WorldRows | None = None

    @property
    def chain(self) -> list[WorldRows]:
        """Return these rows and all rows that must be written before them, in the order of writing."""
        return [*(self.after.chain if self.after else ()), self]


class SharedWorld:
    """One world in an open transaction, so that consecutive tests share it.

    The transaction also contains the rows of one chain of fixtures (``WorldRows``). Each test that shares
    the world runs inside a savepoint, which is rolled back after the test. ``tests/conftest.py`` closes the
    transaction before a test that needs other rows.
    """

    def __init__(self) -> None:
        self._transaction: transaction.Atomic | None = None
        self._chain: list[WorldRows] = []
        self._pickled = b""
        self.values: dict[str, Any] = {}  # by name of a fixture in the chain; new objects in each copy

    @property
    def is_open(self) -> bool:
        return self._transaction is not None

    def open(self, rows: WorldRows | None = None) -> None:
        """Begin a transaction and write the world and ``rows`` in it. Do nothing if these are open."""
        chain = rows.chain if rows else []
        if connection.closed_in_transaction or chain != self._chain:  # a test may have closed the connection
            self.close()
        if self._transaction is not None:
            return
        self._transaction = transaction.atomic()
        self._transaction.__enter__()
        world = build_world(MONDAY)
        values = {each.name: each.write(world) for each in chain}
        with connection.cursor() as cursor:
            # Run the deferred triggers now: some tests alter tables, which pending triggers would prevent.
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        self._chain, self._pickled = chain, pickle.dumps((world, values))

    def close(self) -> None:
        """Roll the world's transaction back. Do nothing if none is open."""
        if self._transaction is None:
            return
        transaction.set_rollback(True)
        self._transaction.__exit__(None, None, None)
        self._transaction, self._chain = None, []

    def copy(self) -> World:
        """Return a World with new model objects for the same rows, so that a test may change the objects."""
        copied: World
        copied, self.values = pickle.loads(self._pickled)
        return copied


SHARED_WORLD = SharedWorld()


def world_fixture(write: Callable[[World], Any], after: Any = None) -> Any:
    """Return a fixture that adds rows to the world. Consecutive tests share these rows.

    ``write`` adds the rows and returns the value of the fixture. Both must depend on the world only.
    ``after`` is another fixture made by this function, whose rows ``write`` needs.
    """
    name = write.__name__.removeprefix("write_")
    rows = WorldRows(name, write, after.world_rows if after else None)

    def value(request: pytest.FixtureRequest, world: World) -> Any:
        if rows.after is not None:
            request.getfixturevalue(rows.after.name)
        shared = SHARED_WORLD.is_open and not is_transactional(request)
        return SHARED_WORLD.values[name] if shared and name in SHARED_WORLD.values else write(world)

    value.__doc__ = write.__doc__
    value.world_rows = rows  # type: ignore[attr-defined]
    fixture = pytest.fixture(value, name=name)
    fixture.world_rows = rows
    return fixture


def rows_of_test(node: Any) -> WorldRows | None:
    """Return the shared rows of a test: the longest chain of rows of its fixtures. None if it has no rows."""
    fixtures = getattr(node, "_fixtureinfo", None)
    definitions = [each[-1] for each in fixtures.name2fixturedefs.values() if each] if fixtures else []
    found = [rows for each in definitions if (rows := getattr(each.func, "world_rows", None))]
    return max(found, key=lambda rows: len(rows.chain), default=None)


def is_transactional(request: pytest.FixtureRequest) -> bool:
    """Return True if the test commits, so that it cannot share a transaction."""
    return commits(request.node, request.fixturenames)


def commits(node: Any, fixture_names: Sequence[str]) -> bool:
    """Return True if the test ``node``, which uses the named fixtures, commits."""
    marker = node.get_closest_marker("django_db")
    marked = marker is not None and bool(marker.kwargs.get("transaction"))
    return marked or bool({"transactional_db", "live_server"} & set(fixture_names))


def uses_shared_world(request: pytest.FixtureRequest) -> bool:
    """Return True if the test uses the fixture ``world`` of this module, not a fixture of another module."""
    definitions = request.node._fixtureinfo.name2fixturedefs.get("world", ())
    return any(definition.func.__module__ == __name__ for definition in definitions[-1:])


@pytest.fixture
def world(request: pytest.FixtureRequest, world_transaction: None, db: None) -> World:
    """Return the organisation on Monday 2 March 2026, 09:00 UTC."""
    if SHARED_WORLD.is_open and not is_transactional(request):
        return SHARED_WORLD.copy()
    return build_world(MONDAY)


def build_world(now: dt.datetime) -> World:
    """Write the organisation as of ``now``: its hosts are alive and have just synchronised."""
    organisation = Organisation.objects.create(name="Kestrel Labs", time_zone="UTC")
    Leader.objects.get_or_create(id=1)
    teams = make_teams(TEAMS, now)
    shared = Pool.objects.create(slug="shared", name="Shared", kind="dynamic", created_at=now)
    static = Pool.objects.create(
        slug="vision-only", name="Vision only", kind="static", team=teams[0].team, created_at=now
    )
    Quota.objects.bulk_create(
        quota_row(each.team, shared, model, gpus, now)
        for each, (_, _, h100, a100) in zip(teams, TEAMS, strict=True)
        for model, gpus in ((H100, h100), (A100, a100))
    )
    operator, finance, auditor, stranger = make_users(
        ("operator", {"operator": True}),
        ("finance", {"finance": True}),
        ("auditor", {"auditor": True}),
        ("stranger", {}),
    )
    return World(
        now=now,
        organisation=organisation,
        vision=teams[0],
        language=teams[1],
        robotics=teams[2],
        operator=operator,
        finance=finance,
        auditor=auditor,
        stranger=stranger,
        shared=shared,
        static=static,
        hosts={
            "alpha": make_host("alpha", shared, [H100] * 8, now),
            "beta": make_host("beta", shared, [H100] * 8, now),
            "gamma": make_host("gamma", shared, [A100] * 8, now, cut=(6, 7)),
            "delta": make_host("delta", static, [A100] * 4, now),
        },
    )


def make_users(*accounts: tuple[str, dict[str, bool]]) -> list[User]:
    """Create accounts, each given as name and role flags. Their password is ``PASSWORD``."""
    password = make_password(PASSWORD)
    return User.objects.bulk_create(
        User(username=name, email=f"{name}@example.org", password=password, **flags)
        for name, flags in accounts
    )


def make_user(username: str, **flags: bool) -> User:
    """Create one account, whose password is ``PASSWORD``."""
    return make_users((username, flags))[0]


def make_teams(names: Sequence[tuple[str, str, int, int]], now: dt.datetime) -> list[TeamOfWorld]:
    """Create a team for each row in ``names``, with a project, a lead and two members.

    A row begins with (slug, tag). Its other columns are ignored. User names begin with the slug: vision-1.
    """
    teams = Team.objects.bulk_create(
        Team(slug=slug, name=slug.title(), tag=tag, colour=colour, created_at=now)
        for colour, (slug, tag, *_) in enumerate(names, start=1)
    )
    projects = Project.objects.bulk_create(
        Project(team=team, slug=f"{team.slug}-main", name=f"{team.name} main", created_at=now)
        for team in teams
    )
    people = make_users(*((f"{team.slug}-{suffix}", {}) for team in teams for suffix in ("lead", "1", "2")))
    made = [
        TeamOfWorld(
            team=team, project=project, lead=people[3 * index], members=people[3 * index + 1 : 3 * index + 3]
        )
        for index, (team, project) in enumerate(zip(teams, projects, strict=True))
    ]
    Membership.objects.bulk_create(
        Membership(
            user=person,
            team=each.team,
            role=Membership.Role.LEAD if person is each.lead else Membership.Role.MEMBER,
            created_at=now,
        )
        for each in made
        for person in (each.lead, *each.members)
    )
    return made


def make_team(slug: str, tag: str, colour: int, now: dt.datetime) -> TeamOfWorld:
    """Create one team with one project, one lead and two members."""
    made = make_teams([(slug, tag, 0, 0)], now)[0]
    Team.objects.filter(pk=made.team.pk).update(colour=colour)
    made.team.colour = colour
    return made


def quota_row(
    team: Team, pool: Pool, model: str, gpus: int, now: dt.datetime, borrow_gpus: int | None = None
) -> Quota:
    """Return an unsaved guarantee of ``gpus`` whole GPUs.

    If ``borrow_gpus`` is None, the team may borrow without limit beyond the guarantee.
    """
    limit = None if borrow_gpus is None else borrow_gpus * SLOTS_PER_GPU
    return Quota(
        team=team,
        pool=pool,
        model=model,
        guaranteed_slots=gpus * SLOTS_PER_GPU,
        borrow_limit_slots=limit,
        updated_at=now,
    )


def give_quota(
    team: Team, pool: Pool, model: str, gpus: int, now: dt.datetime, borrow_gpus: int | None = None
) -> Quota:
    """Create a guarantee, see ``quota_row``."""
    row = quota_row(team, pool, model, gpus, now, borrow_gpus)
    row.save()
    return row


def make_host(
    name: str,
    pool: Pool,
    models: Sequence[str],
    now: dt.datetime,
    cut: Sequence[int] = (),
    cpu_milli: int = 64_000,
) -> Host:
    """Create a live simulated host with one GPU per entry of ``models``; GPUs in ``cut`` have slices."""
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
    make_gpus(
        host, [(index, model, MIG_SLICES if index in cut else 0) for index, model in enumerate(models)], now
    )
    return host


def make_gpus(host: Host, gpus: Sequence[tuple[int, str, int]], now: dt.datetime) -> list[Gpu]:
    """Create GPUs, given as (index, model, slices), and their units.

    If ``slices`` is 0, a GPU has one whole unit. Otherwise it has ``slices`` equal MIG slices.
    """
    made = Gpu.objects.bulk_create(
        Gpu(
            host=host,
            pool_id=host.pool_id,
            index=index,
            uuid=f"GPU-{host.name}-{index}",
            model=model,
            memory_mib=MEMORY_MIB[model],
            compute_capability=CAPABILITY[model],
            nvlink_group=0,
            created_at=now,
        )
        for index, model, _ in gpus
    )
    Unit.objects.bulk_create(
        unit
        for gpu, (_, _, slices) in zip(made, gpus, strict=True)
        for unit in unit_rows(host, gpu, slices, now)
    )
    return made


def unit_rows(host: Host, gpu: Gpu, slices: int, now: dt.datetime) -> list[Unit]:
    """Return the unsaved units of one GPU: one whole unit if ``slices`` is 0, otherwise ``slices`` slices."""
    parts = slices or 1
    size = SLOTS_PER_GPU // parts
    return [
        Unit(
            gpu=gpu,
            profile=MIG if slices else WHOLE_GPU_PROFILE,
            uuid=f"MIG-{host.name}-{gpu.index}-{part}" if slices else gpu.uuid,
            slots=NumericRange(gpu.first_slot + part * size, gpu.first_slot + (part + 1) * size),
            memory_mib=gpu.memory_mib // parts,
            created_at=now,
        )
        for part in range(parts)
    ]


def make_gpu(host: Host, index: int, model: str, now: dt.datetime, slices: int = 0) -> Gpu:
    """Create one GPU with its units, see ``make_gpus``."""
    return make_gpus(host, [(index, model, slices)], now)[0]


def units_of(host: Host, profile: str = WHOLE_GPU_PROFILE) -> list[Unit]:
    """Return a host's units of one profile, ordered by GPU index."""
    found = Unit.objects.filter(gpu__host=host, profile=profile, retired_at__isnull=True)
    return list(found.select_related("gpu").order_by("gpu__index", "slots"))


def queue_workload(*, owner: User, now: dt.datetime, **fields: Any) -> Workload:
    """Queue a workload with these fields of its request."""
    return services.queue_workload(WorkloadRequest(**fields), owner=owner, now=now)


def preview_workload(*, owner: User, now: dt.datetime, **fields: Any) -> dict[str, Any]:
    """Preview a job with these fields of its request."""
    named = {"kind": "job", "type": "training", "name": "what if", **fields}
    return services.preview_workload(WorkloadRequest(**named), owner=owner, now=now)
