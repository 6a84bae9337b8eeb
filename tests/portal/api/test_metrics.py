"""Test the metrics of the portal: their values, rights, tokens and number of queries."""

from __future__ import annotations

import datetime as dt
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families
from rest_framework.test import APIClient

from portal.errors import NotAllowed
from portal.models import User
from portal.reads.fleet.host_details import host_state
from portal.reads.monitoring.definitions import COUNTER, METRICS, MetricPart
from portal.reads.monitoring.exposition import metrics_text
from portal.reads.people.staff_dashboard import money_dashboard
from portal.reads.work.queue import queue_totals
from portal.services.people import api_tokens
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Gpu, Host, Pool, Team
from scheduler.reads import capacity
from telemetry.models import HealthEvent
from telemetry.reads.live_readings import live_unit_readings
from telemetry.reads.usage_filters import data_freshness
from tests.portal.api.monitored_world import MEASURED_GPUS, fill_monitored_world
from tests.telemetry.rows import hold, workload
from tests.world import A100, H100, World, make_host, make_user, units_of, world_fixture
from tools.paths import find_program

Values = dict[tuple[str, ...], float]  # by label values, in the order of the labels of the definition
URL = "/metrics"


def write_monitored(world: World) -> None:
    fill_monitored_world(world, world.now)


monitored = world_fixture(write_monitored)


def parsed(text: str) -> dict[str, Values]:
    """Return the values of each metric in the text. The official parser of Prometheus reads it."""
    found: dict[str, Values] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in METRICS[sample.name].labels)
            assert labels not in found.setdefault(sample.name, {}), (sample.name, labels)
            found[sample.name][labels] = sample.value
    return found


def values_of(world: World, viewer: User | None = None, *, include_gpus: bool = False) -> dict[str, Values]:
    return parsed(metrics_text(viewer or world.auditor, world.now, include_gpus=include_gpus))


def docs_table(root: Path) -> dict[str, tuple[str, tuple[str, ...], str, str]]:
    """Return (kind, labels, meaning, part) by metric in the table of docs/telemetry.md."""
    text = (root / "docs" / "telemetry.md").read_text()
    table = text.partition("<!-- portal-metrics:")[2].partition("<!-- /portal-metrics -->")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|(?: ([\w, ]+))? \| (\w+) \| (.+) \|$", table, re.M)
    return {
        name: (kind, tuple(filter(None, labels.split(", "))), meaning, part)
        for name, kind, labels, part, meaning in rows
    }


def test_docs_list_each_metric_with_its_labels_and_help_text(root: Path) -> None:
    assert docs_table(root) == {
        each.name: (each.kind, each.labels, each.help_text, str(each.part)) for each in METRICS.values()
    }


def test_metric_names_follow_the_conventions_of_prometheus() -> None:
    units = ("_milliseconds", "_percent", "_mib", "_kib", "_bytes_used", "_mhz", "_mj", "_minutes")
    for name, metric in METRICS.items():
        assert re.fullmatch(r"gpupool(_[a-z]+)+", name), name
        assert name.endswith("_total") == (metric.kind == COUNTER), name
        assert not name.endswith(units), name
        assert metric.help_text.endswith("."), name
        assert all(re.fullmatch(r"[a-z_]+", label) for label in metric.labels), name


@pytest.mark.django_db
def test_every_metric_has_a_value_in_a_pool_with_work_and_trouble(world: World, monitored: None) -> None:
    found = values_of(world, include_gpus=True)
    assert found.keys() == METRICS.keys()


@pytest.mark.prometheus
@pytest.mark.django_db
def test_promtool_finds_no_fault_in_the_metrics(world: World, monitored: None) -> None:
    text = metrics_text(world.auditor, world.now, include_gpus=True)
    command = [str(find_program("promtool")), "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.django_db
def test_the_numbers_of_gpus_are_those_of_the_pool_page(world: World, monitored: None) -> None:
    found = values_of(world)
    expected: Values = {}
    for pool in Pool.objects.all():
        for each in capacity.pool_occupancy(pool, world.now):
            of = {
                "held": each.held,
                "reserved": each.bound_unused,
                "free": each.free,
                "closed": each.closed,
            }
            expected |= {(pool.slug, each.model, state): slots / SLOTS_PER_GPU for state, slots in of.items()}
    assert found["gpupool_pool_gpus"] == expected
    assert expected["shared", H100, "held"] == 3
    assert expected["shared", H100, "reserved"] == 1
    assert expected["shared", H100, "closed"] == 3  # one GPU out of service, two on the silent host
    assert expected["vision-only", A100, "closed"] == 4
    assert found["gpupool_gpus"]["shared", H100, "out"] == 1
    assert sum(found["gpupool_gpus"].values()) == Gpu.objects.filter(retired_at=None).count()


@pytest.mark.django_db
def test_the_states_of_hosts_are_those_of_their_pages(world: World, monitored: None) -> None:
    found = values_of(world)["gpupool_hosts"]
    for host in Host.objects.select_related("pool"):
        assert found[host.pool.slug, host_state(host)] >= 1
    assert sum(found.values()) == Host.objects.count()
    assert found["vision-only", "cordoned"] == 1
    assert found["shared", "silent"] == 1
    assert found["shared", "draining"] == 0
    assert values_of(world)["gpupool_hosts_disk_full"] == {("shared",): 1, ("vision-only",): 0}


@pytest.mark.django_db
def test_the_queue_metrics_equal_the_queue_page(world: World, monitored: None) -> None:
    found, totals = values_of(world), queue_totals(world.operator)
    assert sum(found["gpupool_queue_workloads"].values()) == totals.waiting
    assert sum(found["gpupool_queue_requested_units"].values()) == totals.gpus_wanted
    assert found["gpupool_queue_workloads"] == {
        ("shared", "waits_for_units"): 2,
        ("shared", "not_planned"): 1,
    }
    oldest = world.now - dt.timedelta(minutes=40)
    assert found["gpupool_queue_oldest_timestamp_seconds"] == {("shared",): oldest.timestamp()}
    running = sum(v for labels, v in found["gpupool_workloads"].items() if labels[2] == "running")
    assert running == totals.running
    assert found["gpupool_workloads"]["shared", "notebook", "running"] == 1
    assert found["gpupool_workloads"]["vision-only", "job", "queued"] == 0
    assert not any(state == "ended" for _, _, state in found["gpupool_workloads"])


@pytest.mark.django_db
def test_the_metrics_of_a_team_equal_its_held_and_guaranteed_gpus(world: World, monitored: None) -> None:
    found = values_of(world)
    held = capacity.held_by_team([team.team.pk for team in world.teams], world.now)
    for team in world.teams:
        slots = held.get((team.team.pk, world.shared.pk, H100), 0)
        assert found["gpupool_team_gpus_held"]["shared", H100, team.team.slug] == slots / SLOTS_PER_GPU
    assert found["gpupool_team_gpus_held"]["shared", H100, "robotics"] == 2  # the whole reservation
    assert found["gpupool_team_gpus_guaranteed"]["shared", H100, "vision"] == 8


@pytest.mark.django_db
def test_the_amounts_are_those_of_the_finance_panel(world: World, monitored: None) -> None:
    found, panel = values_of(world), money_dashboard(world.auditor, world.now)
    assert panel is not None and panel.spent > 0
    for name, column in (
        ("gpupool_team_month_charges", "spent"),
        ("gpupool_team_month_budget", "budget"),
        ("gpupool_team_month_forecast", "forecast"),
    ):
        amounts = {(line.team.slug, "EUR"): getattr(line, column) for line in panel.teams}
        assert found[name] == {of: float(amount) for of, amount in amounts.items() if amount is not None}
    assert ("robotics", "EUR") not in found["gpupool_team_month_budget"]


@pytest.mark.django_db
def test_the_readings_of_gpus_are_those_of_the_pages_in_base_units(world: World, monitored: None) -> None:
    found, live = values_of(world, include_gpus=True), live_unit_readings(world.now)
    assert len(found["gpupool_gpu_held"]) == len(live)
    assert sum(found["gpupool_gpu_held"].values()) == sum(unit.allocation is not None for unit in live)
    first = ("shared", H100, "alpha", "0", "")
    expected = {
        "gpupool_gpu_utilisation_ratio": 0.5,
        "gpupool_gpu_sm_active_ratio": 0.4,
        "gpupool_gpu_tensor_active_ratio": 0.1,
        "gpupool_gpu_memory_used_bytes": 1024 * 1024 * 1024,
        "gpupool_gpu_power_watts": 300,
        "gpupool_gpu_energy_joules_total": 9_000,
        "gpupool_gpu_temperature_celsius": 61,
        "gpupool_gpu_sm_clock_hertz": 1_755_000_000,
        "gpupool_gpu_processes": 2,
    }
    assert {name: found[name][first] for name in expected} == pytest.approx(expected)
    # A reading that is unknown is absent. It is not zero.
    assert all(len(found[name]) == MEASURED_GPUS for name in expected)
    slices = {labels[4] for labels in found["gpupool_gpu_memory_bytes"] if labels[4]}
    assert len(slices) == 14 and "MIG-gamma-6-0" in slices


@pytest.mark.django_db
def test_late_hosts_and_the_age_of_figures_show_whether_telemetry_works(
    world: World, monitored: None
) -> None:
    found, fresh = values_of(world), data_freshness()
    assert fresh.rolled_up_until is not None and fresh.charged_until is not None
    assert found["gpupool_rollups_timestamp_seconds"] == {(): fresh.rolled_up_until.timestamp()}
    assert found["gpupool_charges_complete_timestamp_seconds"] == {(): fresh.charged_until.timestamp()}
    # Beta and gamma answer without samples. Epsilon does not answer, so it is not late.
    assert found["gpupool_telemetry_hosts_late"] == {("shared",): 2, ("vision-only",): 1}
    [(pool, complete)] = found["gpupool_telemetry_complete_timestamp_seconds"].items()
    assert pool == ("shared",) and 0 < world.now.timestamp() - complete <= 10
    later = parsed(metrics_text(world.auditor, world.now + dt.timedelta(minutes=5)))
    assert later["gpupool_telemetry_hosts_late"]["shared",] == 3
    assert found["gpupool_ingest_batches_total"] == {(): 1}
    assert found["gpupool_ingest_waiting_batches"] == {(): 0}


@pytest.mark.django_db
def test_the_length_of_the_stream_is_absent_while_valkey_does_not_answer(
    world: World, monitored: None, settings: Any
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    found = values_of(world)
    assert "gpupool_ingest_waiting_batches" not in found
    assert found["gpupool_ingest_batches_total"] == {(): 1}


@pytest.mark.django_db
def test_faults_are_counted_from_the_start_of_the_day(world: World, monitored: None) -> None:
    assert values_of(world)["gpupool_reading_faults_total"]["shared", "out_of_bounds"] == 3
    tomorrow = parsed(metrics_text(world.auditor, world.now + dt.timedelta(days=1)))
    assert tomorrow["gpupool_reading_faults_total"]["shared", "out_of_bounds"] == 0


@pytest.mark.django_db
def test_codes_without_a_rule_share_one_label(world: World, monitored: None) -> None:
    for number in range(20):
        HealthEvent.objects.create(
            host=world.hosts["alpha"],
            event_id=f"made-{number}",
            source="nvml",
            code=f"made:{number}",
            at=world.now,
            received_at=world.now,
        )
    found = values_of(world)["gpupool_health_events"]
    assert found == {("shared", "xid:79"): 2, ("shared", "other"): 21}


@pytest.mark.django_db
def test_quotes_and_line_breaks_in_names_stay_in_their_label(world: World) -> None:
    model = 'H100 "80\\GB"\nSXM'
    Gpu.objects.filter(host__name="delta").update(model=model)
    assert ("vision-only", model, "well") in values_of(world)["gpupool_gpus"]


@pytest.mark.django_db
def test_the_number_of_queries_does_not_depend_on_the_number_of_objects(
    world: World, monitored: None
) -> None:
    def queries(*, include_gpus: bool = False) -> int:
        with CaptureQueriesContext(connection) as made:
            metrics_text(world.auditor, world.now, include_gpus=include_gpus)
        return len(made)

    queries()  # fills the cache of billing months
    before = queries()
    for number in range(5):
        host = make_host(f"more-{number}", world.shared, [H100] * 8, world.now)
        hold(workload(world, world.language), units_of(host)[0], world.now - dt.timedelta(hours=1))
        workload(world, world.vision, state="queued", reason_code=f"reason-{number}")
        Team.objects.create(slug=f"more-{number}", name=f"More {number}", tag="M", created_at=world.now)
    assert queries() == before <= 33
    assert queries(include_gpus=True) == before + 1


@pytest.mark.django_db
@pytest.mark.parametrize("role", ["member", "lead", "finance", "stranger"])
def test_other_roles_do_not_see_the_metrics(world: World, role: str) -> None:
    with pytest.raises(NotAllowed, match="Only operators and auditors may read the metrics"):
        metrics_text(world.people[role], world.now)


@pytest.mark.django_db
def test_amounts_need_the_right_to_see_all_charges(world: World, monitored: None) -> None:
    money = {name for name, metric in METRICS.items() if metric.part == MetricPart.MONEY}
    gpus = {name for name, metric in METRICS.items() if metric.part == MetricPart.GPUS}
    assert values_of(world, world.operator).keys() == METRICS.keys() - money - gpus
    assert values_of(world, world.auditor).keys() == METRICS.keys() - gpus
    both = make_user("both", operator=True, finance=True)
    assert values_of(world, both).keys() == METRICS.keys() - gpus


@pytest.mark.django_db
def test_the_answer_is_prometheus_text_for_every_accept_header(
    today_world: World, client_of: Callable[[User], APIClient]
) -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    for header in (accept, "text/plain", "application/xml", ""):
        answer = client_of(today_world.operator).get(URL, HTTP_ACCEPT=header)
        assert answer.status_code == 200
        assert answer["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "gpupool_gpus" in parsed(answer.content.decode())


@pytest.mark.django_db
def test_single_gpus_are_in_the_answer_only_on_request(
    today_world: World, client_of: Callable[[User], APIClient]
) -> None:
    client = client_of(today_world.operator)
    assert "gpupool_gpu_held" not in parsed(client.get(URL).content.decode())
    found = parsed(client.get(URL, {"include": "gpus"}).content.decode())
    assert len(found["gpupool_gpu_held"]) == 8 + 8 + 6 + 14 + 4


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"include": "hosts"}, "include is 'hosts'; allowed: gpus."),
        ({"gpus": "1"}, "gpus is '1': this request has no such field; allowed: include."),
    ],
)
def test_an_unknown_parameter_is_refused_with_what_is_allowed(
    today_world: World, client_of: Callable[[User], APIClient], query: dict[str, str], message: str
) -> None:
    answer = client_of(today_world.operator).get(URL, query)
    assert (answer.status_code, answer.json()["errors"][0]["message"]) == (400, message)


@pytest.mark.django_db
def test_a_request_without_a_valid_token_is_refused(today_world: World) -> None:
    now, unknown = (
        today_world.now,
        "The token is unknown, revoked or expired; make a new one under API tokens.",
    )
    revoked, revoked_text = api_tokens.create_token(actor=today_world.operator, name="old", now=now)
    api_tokens.revoke_token(actor=today_world.operator, token=revoked, now=now)
    for header in (f"Bearer {revoked_text}", "Bearer gpp_wrong", "Bearer", "Bearer a b"):
        answer = APIClient().get(URL, HTTP_AUTHORIZATION=header)
        assert (answer.status_code, answer.json()["errors"][0]["message"]) == (401, unknown), header
        assert answer["WWW-Authenticate"].startswith("Bearer")
    assert APIClient().get(URL).status_code == 401


@pytest.mark.django_db
def test_an_expired_token_is_refused_with_its_expiry(today_world: World) -> None:
    created, expiry = today_world.now - dt.timedelta(days=2), today_world.now - dt.timedelta(days=1)
    token, text = api_tokens.create_token(
        actor=today_world.operator, name="prometheus", now=created, expires_at=expiry
    )
    answer = APIClient().get(URL, HTTP_AUTHORIZATION=f"Bearer {text}")
    assert answer.status_code == 401
    message = answer.json()["errors"][0]["message"]
    assert message == (
        f"Authorization is {token.prefix}…, a token that expired on {expiry.isoformat(timespec='seconds')}; "
        "allowed: a token in force; make a new one under API tokens."
    )
    assert text not in message
    api_tokens.revoke_token(actor=today_world.operator, token=token, now=today_world.now)
    again = APIClient().get(URL, HTTP_AUTHORIZATION=f"Bearer {text}")
    assert "expired on" not in again.json()["errors"][0]["message"]


@pytest.mark.django_db
def test_a_session_or_a_role_without_the_right_gets_no_metrics(
    today_world: World, client_of: Callable[[User], APIClient]
) -> None:
    browser = Client()
    browser.force_login(today_world.operator)
    assert browser.get(URL).status_code == 401
    answer = client_of(today_world.vision.lead).get(URL)
    assert answer.status_code == 403
    assert answer.json()["errors"][0]["message"] == "Only operators and auditors may read the metrics."
