"""Test the checks of the installation: their states, and that page, API and metrics show the same ones."""

from __future__ import annotations

import datetime as dt
import html
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from portal.errors import NotAllowed
from portal.models import AuditProgress, AuditSeal, DirectorySync, IdentityProvider, User
from portal.processes.reports import PROCESS_KEY, PROCESS_ROLES, ProcessReport
from portal.reads.system import process_checks
from portal.reads.system.checks import HealthCheck, HealthLimit, HealthState
from portal.reads.system.health import system_health
from portal.redis_state.log_loss import LOG_LOSS_KEY
from portal.redis_state.serving_edge import ACTIVE_EDGE_KEY
from portal.services.people.identity.providers import create_provider
from portal.wording import system_texts
from scheduler.models import ClockReading, Host, Leader
from scheduler.state import nudge
from telemetry.models import ReadingFault
from tests.portal.web.work_samples import signed_in
from tests.world import World

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def clean_redis() -> Iterator[None]:
    """Delete what other tests of this process left in Redis."""
    connection = nudge.redis_connection()
    for key in [*connection.scan_iter(match=f"{PROCESS_KEY}*"), LOG_LOSS_KEY, ACTIVE_EDGE_KEY]:
        connection.delete(key)
    yield


@pytest.fixture
def no_redis() -> Iterator[None]:
    nudge.redis_connection.cache_clear()
    with override_settings(REDIS_URL="unix:///nowhere/at/all"):
        yield
    nudge.redis_connection.cache_clear()


def check(world: World, kind: str, subject: str = "", *, now: dt.datetime | None = None) -> HealthCheck:
    found = system_health(world.operator, now or world.now).checks
    [one] = [each for each in found if (each.check, each.subject) == (kind, subject)]
    return one


def state(world: World, kind: str, subject: str = "", *, now: dt.datetime | None = None) -> str:
    return str(check(world, kind, subject, now=now).state)


def test_a_limit_says_from_which_value_a_state_is_worse() -> None:
    rising, falling = HealthLimit(10, 20, "s"), HealthLimit(0.2, 0.05, "share", falling=True)
    assert [str(rising.state_of(value)) for value in (10, 11, 21, None)] == [
        "good",
        "attention",
        "bad",
        "unknown",
    ]
    assert [str(falling.state_of(value)) for value in (0.2, 0.1, 0.01)] == ["good", "attention", "bad"]
    assert rising.text == "attention above 10 seconds, bad above 20 seconds"
    assert falling.text == "attention below 20 %, bad below 5 %"
    assert HealthLimit(None, None).text == "none"


def add_directory(world: World) -> None:
    settings = {
        "url": "ldaps://ldap.example.org",
        "bind_dn": "cn=portal,dc=example",
        "user_base": "dc=example",
    }
    given = {"name": "Corp", "kind": "ldap", "secret": "very secret", "directory": settings}
    create_provider(actor=world.operator, now=world.now, **given)


def test_directories_are_judged_by_their_last_sync(world: World) -> None:
    add_directory(world)
    assert (state(world, "directory", "Corp"), check(world, "directory", "Corp").text) == (
        "unknown",
        system_texts.NEVER_SYNCED,
    )
    counts = {"people": 1, "closed": 0, "joined": 0, "left": 0}
    given = {"provider": "corp", "outcome": "done", "created_at": world.now, **counts}
    DirectorySync.objects.create(**given, text="0 accounts were closed.")
    assert (state(world, "directory", "Corp"), check(world, "directory", "Corp").text) == (
        "good",
        "0 accounts were closed.",
    )
    later = world.now + dt.timedelta(hours=27)
    assert state(world, "directory", "Corp", now=later) == "attention"
    DirectorySync.objects.create(**{**given, "outcome": "refused"}, text="Nothing was changed.")
    assert state(world, "directory", "Corp") == "bad"
    IdentityProvider.objects.update(active=False)
    assert "directory" not in {each.check for each in system_health(world.operator, world.now).checks}


def test_every_kind_of_check_has_texts_and_every_text_a_check(world: World) -> None:
    add_directory(world)
    with override_settings(GPUPOOL_EDGE_STANDBY=True):
        found = system_health(world.operator, world.now).checks
    assert {each.check for each in found} == set(system_texts.CHECK_TEXTS)
    for each in found:
        assert each.label and each.text and each.limit
        assert bool(each.advice) == (each.state != HealthState.GOOD)
        assert each.link.startswith("/") or not each.link


def test_a_role_without_a_process_is_bad_and_another_version_needs_attention(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {state(world, "process", role) for role in PROCESS_ROLES} == {"bad"}
    ProcessReport("beat").send()
    assert (check(world, "process", "beat").value, state(world, "process", "beat")) == (1, "good")
    monkeypatch.setattr(process_checks, "VERSION", "9.9")
    assert state(world, "process", "beat") == "attention"


def test_processes_queues_and_logs_are_unknown_without_redis(world: World, no_redis: None) -> None:
    with override_settings(GPUPOOL_EDGE_STANDBY=True):
        found = system_health(world.operator, world.now).checks
    of_redis = [
        each for each in found if each.check in ("process", "queue", "stream", "logs", "serving_edge")
    ]
    assert len(of_redis) == 5 + 5 + 3
    assert {(each.state, each.value) for each in of_redis} == {("unknown", None)}


def test_one_edge_must_serve_if_several_run(world: World) -> None:
    assert "serving_edge" not in {each.check for each in system_health(world.operator, world.now).checks}
    with override_settings(GPUPOOL_EDGE_STANDBY=True):
        assert state(world, "serving_edge") == "bad"
        nudge.redis_connection().set(ACTIVE_EDGE_KEY, "gpus-1:8471")
        found = check(world, "serving_edge")
    assert (found.state, found.text) == ("good", "gpus-1:8471")


def test_lost_logs_are_bad(world: World) -> None:
    assert state(world, "logs") == "good"
    nudge.redis_connection().set(LOG_LOSS_KEY, "1")
    assert state(world, "logs") == "bad"


def test_waiting_tasks_are_counted_by_queue(world: World) -> None:
    key = "gpupool:celery:money"
    nudge.redis_connection().rpush(key, *["task"] * 101)
    try:
        assert (check(world, "queue", "money").value, state(world, "queue", "money")) == (101, "attention")
        assert check(world, "queue", "engine").value == 0
    finally:
        nudge.redis_connection().delete(key)


def test_the_engine_is_judged_by_its_lease_and_its_last_cycle(world: World) -> None:
    assert state(world, "cycle") == "unknown"
    Leader.objects.update_or_create(
        pk=1, defaults={"holder": "engine-1", "renewed_at": world.now, "last_cycle_at": world.now}
    )
    assert (state(world, "leader"), state(world, "cycle")) == ("good", "good")
    later = world.now + dt.timedelta(seconds=40)
    assert check(world, "leader", now=later).text == "engine-1 · 40 seconds"
    assert (state(world, "leader", now=later), state(world, "cycle", now=later)) == ("bad", "attention")


def test_the_lag_of_the_audit_stream_is_the_age_of_the_oldest_seal_that_waits(
    world: World, settings: Any
) -> None:
    assert state(world, "audit_stream") == "unknown"  # there is no receiver
    settings.GPUPOOL_AUDIT_STREAM = "https://siem.example.org/audit"
    for number, minutes in ((1, 90), (2, 10), (3, 1)):
        at = world.now - dt.timedelta(minutes=minutes)
        AuditSeal.objects.create(
            number=number, sealed_at=at, events=2, highest_event=number, previous="", digest=""
        )
    progress, _ = AuditProgress.objects.update_or_create(
        pk=1, defaults={"delivered_seal": 0, "failure": "status 503"}
    )
    found = check(world, "audit_stream")
    assert (found.value, found.state) == (5400, "bad")
    assert found.text == "1 h 30 min · 6 records · status 503" and "GPUPOOL_AUDIT_STREAM" in found.advice
    for delivered, expected in ((1, "attention"), (2, "good"), (3, "good")):
        AuditProgress.objects.filter(pk=progress.pk).update(delivered_seal=delivered)
        assert state(world, "audit_stream") == expected
    assert (check(world, "audit_stream").value, check(world, "audit_stream").text) == (0, "no record waits")


def test_silent_hosts_and_full_disks_need_attention(world: World) -> None:
    assert (state(world, "hosts_silent"), state(world, "hosts_full")) == ("good", "good")
    Host.objects.filter(name="alpha").update(lease_state="silent", disk_full=True, credential_hash="x")
    assert (check(world, "hosts_silent").value, check(world, "hosts_full").value) == (1, 1)
    assert (state(world, "hosts_silent"), state(world, "hosts_full")) == ("attention", "attention")
    Host.objects.filter(name="alpha").update(credential_hash="")  # revoked
    assert state(world, "hosts_silent") == "good"


def test_wrong_clocks_of_hosts_are_shown_for_an_hour(world: World) -> None:
    assert state(world, "host_clocks") == "good"
    fault = ReadingFault.objects.create(
        host=world.hosts["alpha"],
        day=world.now.date(),
        source="nvml",
        reading="ts",
        kind="clock_corrected",
        count=1,
        last_at=world.now,
        last_value=-7,
    )
    assert (check(world, "host_clocks").value, state(world, "host_clocks")) == (7, "attention")
    ReadingFault.objects.filter(pk=fault.pk).update(kind="clock_refused")
    assert state(world, "host_clocks") == "bad"
    assert state(world, "host_clocks", now=world.now + dt.timedelta(minutes=61)) == "good"


def test_a_step_of_the_servers_clock_is_shown_for_a_day(world: World) -> None:
    ClockReading.objects.all().delete()
    assert state(world, "server_clock") == "unknown"
    row = ClockReading.objects.create(pk=1, wall=world.now, machine="m", uptime=1.0)
    assert state(world, "server_clock") == "good"
    ClockReading.objects.filter(pk=row.pk).update(set_at=world.now)
    assert state(world, "server_clock", now=world.now + dt.timedelta(hours=23)) == "attention"
    assert state(world, "server_clock", now=world.now + dt.timedelta(hours=25)) == "good"


def test_the_database_and_the_disk_are_measured(world: World, settings: Any, tmp_path: Path) -> None:
    assert state(world, "database_clock") == "good"
    assert (check(world, "database_size").value or 0) > 1_000_000
    assert 0 < (check(world, "database_connections").value or 0) < 1
    assert 0 < (check(world, "state_disk").value or 0) < 1
    settings.GPUPOOL_STATE = tmp_path / "missing"
    assert state(world, "state_disk") == "unknown"


def test_missing_partitions_are_bad_before_samples_are_lost(world: World) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT telemetry_make_partitions(%s, %s)", [world.now.date(), 3])
    ahead = check(world, "partitions").value
    assert ahead is not None and ahead >= 2
    last = world.now + dt.timedelta(days=ahead)
    assert state(world, "partitions") == "good"
    assert state(world, "partitions", now=last - dt.timedelta(days=1)) == "attention"
    assert state(world, "partitions", now=last) == "bad"


def test_old_rollups_are_unknown_while_no_host_answers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from portal.reads.system import data_checks
    from telemetry.reads.usage_filters import DataFreshness

    old = world.now - dt.timedelta(hours=4)
    monkeypatch.setattr(data_checks, "data_freshness", lambda: DataFreshness(old, old, False))
    assert (state(world, "rollups"), state(world, "charges")) == ("bad", "bad")
    Host.objects.update(lease_state="silent")
    assert (state(world, "rollups"), state(world, "charges")) == ("unknown", "bad")


def certificate(path: Path, now: dt.datetime, days: float) -> str:
    """Write a certificate that ends after ``days``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpus.example.org")])
    built = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - dt.timedelta(days=90),
        not_valid_after=now + dt.timedelta(days=days),
    ).sign(key, hashes.SHA256())
    path.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    return str(path)


def test_certificates_are_judged_by_the_days_until_their_end(
    world: World, settings: Any, tmp_path: Path
) -> None:
    assert state(world, "certificate") == "unknown"
    days = {"a": 60.5, "b": 20.5, "c": 3.5, "d": -1.5}
    paths = {name: certificate(tmp_path / f"{name}.pem", world.now, left) for name, left in days.items()}
    empty = tmp_path / "empty.pem"
    empty.write_text("no certificate")
    missing = str(tmp_path / "missing.pem")
    chain = tmp_path / "chain.pem"
    chain.write_text(Path(paths["a"]).read_text() + Path(paths["b"]).read_text())
    settings.GPUPOOL_CERTIFICATES = (*paths.values(), str(empty), missing, str(chain))
    assert [state(world, "certificate", path) for path in paths.values()] == [
        "good",
        "attention",
        "bad",
        "bad",
    ]
    assert check(world, "certificate", str(empty)).text == system_texts.NO_CERTIFICATE
    assert check(world, "certificate", missing).text == system_texts.UNREADABLE
    assert {state(world, "certificate", str(empty)), state(world, "certificate", missing)} == {"unknown"}
    assert check(world, "certificate", str(chain)).text == "20 days"
    assert check(world, "certificate", paths["d"]).text.startswith("ended 36 h")


def test_backups_are_judged_by_their_age_and_their_verification(
    world: World, settings: Any, tmp_path: Path
) -> None:
    assert (state(world, "backup"), check(world, "backup").text) == ("unknown", system_texts.NOT_SET)
    settings.GPUPOOL_BACKUPS = str(tmp_path / "backups")
    assert (state(world, "backup"), check(world, "backup").text) == ("unknown", system_texts.UNREADABLE)
    place = tmp_path / "backups" / "20260101T000000Z"
    (tmp_path / "backups" / "wal").mkdir(parents=True)
    assert (state(world, "backup"), check(world, "backup").text) == ("bad", system_texts.NO_BACKUP)
    place.mkdir()
    (place / "manifest.json").write_text(json.dumps({"finished_at": world.now.isoformat()}))
    assert (state(world, "backup"), state(world, "backup_verified")) == ("good", "bad")
    (place / "verified.json").write_text("{}")
    assert state(world, "backup_verified") == "good"
    later = world.now + dt.timedelta(hours=30)
    assert state(world, "backup", now=later) == "attention"
    assert state(world, "backup", now=world.now + dt.timedelta(hours=80)) == "bad"
    (place / "manifest.json").write_text("broken")
    assert state(world, "backup") == "unknown"


def test_page_api_and_metrics_show_the_same_checks(
    world: World, client_of: Callable[[User], APIClient]
) -> None:
    names = {(each.check, each.subject) for each in system_health(world.operator, world.now).checks}
    answer = client_of(world.auditor).get("/api/v1/system/").json()
    assert {(each["check"], each["subject"]) for each in answer["checks"]} == names
    assert answer["state"] == "bad"
    page = html.unescape(signed_in(world.operator).get("/system/").content.decode())
    for each in answer["checks"]:
        assert each["label"] in page and each["limit"] in page
    metrics = client_of(world.auditor).get("/metrics").content.decode()
    for name, subject in names:
        states = [
            line for line in metrics.splitlines() if f'state{{check="{name}",subject="{subject}",' in line
        ]
        assert sorted(line[-3:] for line in states) == ["0.0", "0.0", "0.0", "1.0"], name


def test_checks_in_the_worst_state_are_first(world: World, no_redis: None) -> None:
    Host.objects.filter(name="alpha").update(lease_state="silent", credential_hash="x")
    order = [HealthState.BAD, HealthState.ATTENTION, HealthState.UNKNOWN, HealthState.GOOD]
    states = [each.state for each in system_health(world.operator, world.now).checks]
    assert states == sorted(states, key=order.index) and len(set(states)) > 1


def test_the_number_of_queries_is_fixed(world: World) -> None:
    with CaptureQueriesContext(
        connection,
    ) as before:
        system_health(world.operator, world.now)
    Host.objects.update(lease_state="silent")
    with CaptureQueriesContext(connection) as after:
        system_health(world.operator, world.now)
    assert len(before) == len(after) <= 9


@pytest.mark.parametrize("role", ["member", "lead", "finance", "stranger"])
def test_other_roles_do_not_see_the_health(world: World, role: str) -> None:
    with pytest.raises(NotAllowed, match="Only operators and auditors see the health"):
        system_health(world.people[role], world.now)
