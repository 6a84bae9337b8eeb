"""Test that no API response contains the primary key of a row. Objects have a name or a public id."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from rest_framework.test import APIClient

from portal.api.base.throttling import ReadThrottle, WriteThrottle
from portal.notices import delivery
from portal.services.approvals import submissions
from portal.services.calendar import recurring_reservations, reservations
from portal.services.work import launch
from scheduler.cycle import engine
from scheduler.models import Decision, Reservation, Workload
from scheduler.sweeps import dependency_release
from tests.portal.api.test_role_matrix import JOB, ROLES, SEVERAL, TABLE, WINDOW, WORK
from tests.world import H100, World, build_world

pytestmark = pytest.mark.long

FIRST = 91_000_000  # primary keys start here, so that they differ from counts
OF_A_ROW = re.compile(r"(?<![0-9A-Za-z.-])91[0-9]{6}(?![0-9A-Za-z-])")
OWN_LISTS = (
    "tokens/",
    "notifications/",
    "recordings/",
)  # these lists may show numeric ids: they list the user's own objects, or only operators may read them


@pytest.fixture
def world(db: None) -> Iterator[World]:
    """Return the organisation as of now, with primary keys that are larger than every other number."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE NONE")  # only the owner of a table may change its sequence
        cursor.execute("SELECT schemaname || '.' || sequencename, COALESCE(last_value, 1) FROM pg_sequences")
        before = [row for row in cursor.fetchall() if row[0].startswith("public.")]
        for place, (name, _) in enumerate(before):
            cursor.execute("SELECT setval(%s, %s)", [name, FIRST + 10_000 * place])
        yield build_world(datetime.now(UTC))
        for name, last in before:  # a rollback does not restore sequences
            cursor.execute("SELECT setval(%s, %s)", [name, last])


def submitted(world: World, team: Any, name: str, **also: Any) -> Workload:
    fields: dict[str, Any] = {
        "actor": team.member,
        "project": team.project,
        "pool": world.shared,
        "name": name,
        "command": "true",
        "units": 1,
        "models": [H100],
        "max_runtime_seconds": 3600,
        "now": world.now,
    }
    return launch.submit_job(**(fields | also))


def cause_every_reason(world: World) -> None:
    """Create conflicts between teams that produce as many different reasons as possible.

    For example, borrowed work is evicted, and other work waits behind the evicting work.
    """
    language, vision = world.language, world.vision
    lent = [submitted(world, language, f"borrows {n}", units=8) for n in range(2)]
    engine.run_cycle("test", world.now - timedelta(hours=1))
    Workload.objects.filter(pk__in=[each.pk for each in lent]).update(state="running", started_at=world.now)
    needs = submitted(world, vision, "needs its own", units=8, preemptible=False)
    submitted(world, vision, "behind", units=8, hosts=2, after=[("any", needs)])
    sweep = launch.submit_array(
        actor=language.member,
        project=language.project,
        pool=world.shared,
        name="sweep",
        command="true",
        units=4,
        now=world.now,
        models=[H100],
        array="0-3%2",
    )
    submitted(world, language, "collects", after=[("ok", sweep)])
    window: dict[str, Any] = {
        "start": world.now + timedelta(days=3),
        "end": world.now + timedelta(days=3, hours=4),
    }
    fields: dict[str, Any] = {
        "actor": vision.member,
        "project": vision.project,
        "pool": world.shared,
        "now": world.now,
    }
    small = reservations.request_reservation(**fields, name="small", units=2, models=[H100], **window)
    assert isinstance(small, Reservation)
    reservations.request_reservation(**fields, name="large", units=8, models=[H100], **window)
    recurring_reservations.request_series(
        **fields,
        name="course",
        units=1,
        models=[H100],
        weekdays=["mon"],
        until=(world.now + timedelta(days=14)).date(),
        **window,
    )
    submissions.request_quota_change(
        actor=vision.lead, team=vision.team, pool=world.shared, model=H100, guaranteed_gpus=9, now=world.now
    )
    for second in range(3):
        dependency_release.release_dependents(world.now)
        engine.run_cycle("test", world.now + timedelta(seconds=second))
    delivery.write_notices(world.now + timedelta(seconds=5))


def row_ids_in(answer: Any, template: str) -> list[str]:
    """Return the primary keys in a response, each with the text around it."""
    text = json.dumps(answer.json()) if answer.content else ""
    if template.startswith(OWN_LISTS):
        text = re.sub(r'"id": [0-9]+', "", text)
    return [text[max(0, m.start() - 60) : m.end() + 10] for m in OF_A_ROW.finditer(text)]


def shown_to(world: World, roles: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Send the reading requests of these roles. Return the number of answers and the primary keys in them."""
    for throttle in (ReadThrottle, WriteThrottle):
        monkeypatch.setattr(throttle, "rate", "1000000/min")
    cause_every_reason(world)
    assert Decision.objects.filter(kind="evicted").exists(), "the scenario causes no eviction"
    lists = [template for (method, template), _ in TABLE.items() if method == "GET" and "{" not in template]
    work = [
        f"workloads/{row.public_id}/{part}"
        for row in Workload.objects.order_by("pk")
        for part in ("", "why/", "sooner/", "report/")
    ]
    previews: list[tuple[str, dict[str, Any]]] = [
        ("jobs/preview/", {**JOB, "models": [H100], "units": 8, "hosts": 2}),
        ("notebooks/preview/", {**WORK, "units": 8}),
        ("reservations/preview/", {**WORK, **WINDOW, "units": 8, "hosts": 2}),
        ("series/preview/", {**WORK, **SEVERAL, "units": 8}),
    ]
    found: list[str] = []
    answered = 0
    for role in roles:
        client = APIClient()
        client.force_authenticate(world.people[role])
        for template in [*lists, *work]:
            answer = client.get(f"/api/v1/{template}")
            answered += answer.status_code == 200
            found += [f"{role}: {template}: {each}" for each in row_ids_in(answer, template)]
        for template, body in previews:
            team = "language" if role == "other team" else "vision"
            request_body = body | {"project": f"{team}/{team}-main"}
            answer = client.post(
                f"/api/v1/{template}", json.dumps(request_body), content_type="application/json"
            )
            found += [f"{role}: {template}: {each}" for each in row_ids_in(answer, template)]
    return answered, found


def test_no_response_shows_a_primary_key_to_operators(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators see the work of every team, so their answers are the fullest."""
    answered, found = shown_to(world, ["operator"], monkeypatch)
    assert answered > 40
    assert not found, "\n".join(found[:40])


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_response_shows_a_primary_key_to_any_role(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    answered, found = shown_to(world, ROLES, monkeypatch)
    assert answered > 200
    assert not found, "\n".join(found[:40])
