"""Test how operators enter, change and remove the dcgm-exporter of a host, and what everybody sees of it."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent
from portal.services.fleet.dcgm_targets import remove_dcgm_target, set_dcgm_target
from portal.wording.host_texts import DCGM_PROBLEMS, FAULT_KINDS, READING_LABELS, READING_SOURCES
from scheduler.core.rejection import OperationRejected
from telemetry.core.reading_bounds import UnitLimits, reading_bounds
from telemetry.dcgm.fields import SLOW_FIELDS, SLOW_READINGS_OF_AGENTS
from telemetry.ingest.usage_rows import HOST_VALUES, RUN_VALUES
from telemetry.models import DcgmTarget, ReadingFault
from tests.portal.web.work_samples import signed_in
from tests.telemetry.rows import at
from tests.world import World

pytestmark = pytest.mark.django_db
URL = "http://alpha:9400/metrics"


def page(world: World, role: str = "operator") -> str:
    return signed_in(world.people[role]).get(reverse("host", args=["alpha"])).content.decode()


def post(world: World, **fields: str) -> Any:
    return signed_in(world.operator).post(reverse("host-dcgm", args=["alpha"]), fields, follow=True)


def test_an_operator_enters_changes_and_removes_it_on_the_page_with_audit_records(world: World) -> None:
    assert "No dcgm-exporter is read for this host." in page(world)
    assert "dcgm-exporter" not in page(world, "member")
    assert "is read every 30 seconds" in post(world, url="http://alpha:9400").content.decode()
    assert DcgmTarget.objects.get().url == URL
    assert URL in page(world) and "not yet" in page(world, "member")
    post(world, url="https://alpha/x")
    assert "no longer read" in post(world, verb="remove").content.decode()
    assert not DcgmTarget.objects.exists()
    events = AuditEvent.objects.filter(verb__contains="dcgm").order_by("pk")
    assert [(event.verb, event.before, event.after) for event in events] == [
        ("set_dcgm_target", None, {"url": URL}),
        ("set_dcgm_target", {"url": URL}, {"url": "https://alpha/x"}),
        ("remove_dcgm_target", {"url": "https://alpha/x"}, None),
    ]


def test_a_bad_url_is_refused_with_its_value_and_what_is_allowed(world: World) -> None:
    answer = post(world, url="http://me:secret@alpha/")
    assert answer.status_code == 400
    shown = answer.content.decode()
    assert "me:secret@alpha" in shown and "allowed: http or https" in shown
    assert post(world, url="").status_code == 400
    assert not DcgmTarget.objects.exists()


def test_only_operators_change_it(world: World) -> None:
    host = world.hosts["alpha"]
    for who in (world.vision.lead, world.auditor, world.finance):
        with pytest.raises(NotAllowed):
            set_dcgm_target(actor=who, host=host, url=URL, now=world.now)
        with pytest.raises(NotAllowed):
            remove_dcgm_target(actor=who, host=host, now=world.now)
    with pytest.raises(OperationRejected):
        remove_dcgm_target(actor=world.operator, host=host, now=world.now)
    with pytest.raises(Invalid):
        set_dcgm_target(actor=world.operator, host=host, url=7, now=world.now)  # type: ignore[arg-type]


def test_a_changed_url_clears_the_results_of_the_previous_url(world: World) -> None:
    host = world.hosts["alpha"]
    set_dcgm_target(actor=world.operator, host=host, url=URL, now=world.now)
    DcgmTarget.objects.update(succeeded_at=at(8), fields_read=43, problem="timeout", due_at=at(11))
    set_dcgm_target(actor=world.operator, host=host, url="http://beta", now=world.now)
    target = DcgmTarget.objects.get()
    assert (target.succeeded_at, target.fields_read, target.problem) == (None, None, "")
    assert target.due_at == world.now


def test_the_page_and_the_api_show_the_last_result(world: World) -> None:
    host = world.hosts["alpha"]
    set_dcgm_target(actor=world.operator, host=host, url=URL, now=world.now)
    DcgmTarget.objects.update(
        scraped_at=at(9), succeeded_at=at(8), problem="redirect", fields_read=43, units_read=8
    )
    DcgmTarget.objects.update(unreadable_lines=2, refused_gpus=1)
    shown = page(world, "auditor")
    for text in (DCGM_PROBLEMS["redirect"], "43, of 8 GPUs", "Lines that can&#x27;t be read", "Refused GPUs"):
        assert text.replace("&#x27;", "'") in shown
    answer = signed_in(world.operator).get("/api/v1/hosts/alpha/dcgm/").json()
    assert (answer["url"], answer["problem"], answer["problem_text"]) == (
        URL,
        "redirect",
        DCGM_PROBLEMS["redirect"],
    )
    assert (answer["fields_read"], answer["unreadable_lines"], answer["refused_gpus"]) == (43, 2, 1)
    empty = signed_in(world.operator).get("/api/v1/hosts/beta/dcgm/").json()
    assert (empty["url"], empty["scraped_at"], empty["fields_read"]) == ("", None, None)


def test_every_problem_reading_and_fault_has_a_text() -> None:
    assert set(DCGM_PROBLEMS) == set(DcgmTarget.Problem.values)
    of_uses = {
        *(f"run_{name}" for name in RUN_VALUES),
        *(f"host_{name}" for name in HOST_VALUES),
        *("process_sm_percent", "process_memory_mib"),
    }
    slow = {*SLOW_FIELDS, *SLOW_READINGS_OF_AGENTS}
    assert {*reading_bounds(UnitLimits()), *slow, *of_uses, "ts", "line", "gpu"} == set(READING_LABELS)
    assert set(FAULT_KINDS) == set(ReadingFault.Kind.values)
    assert set(READING_SOURCES) == set(ReadingFault.Source.values)
