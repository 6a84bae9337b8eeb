"""Test that the OpenAPI schema is exact, and that the documentation lists every endpoint.

Responses to requests that are generated from the schema must match it, for every role.
"""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import transaction
from django.test import Client
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi import checks as openapi

from portal.api.base.throttling import ReadThrottle, WriteThrottle
from portal.models import ApiToken, Template
from portal.services.approvals import submissions
from portal.services.calendar import recurring_reservations, reservations
from portal.services.people import api_tokens
from portal.services.work import launch
from scheduler.models import Gpu
from telemetry.models import HealthRule, Price
from tests.portal.charged_january import charge_of
from tests.world import H100, World

CHECKED = [
    schemathesis.checks.not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_schema_conformance,
]
EXAMPLES = 3
ROLES = ("member", "lead", "operator", "finance", "auditor", "stranger")


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """Return the schema as it is served."""
    found: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    return found


def operations(schema: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Yield the method, path and operation of each endpoint in the schema."""
    verbs = ("get", "post", "put", "patch", "delete")
    return [
        (verb.upper(), path, entry[verb])
        for path, entry in schema["paths"].items()
        for verb in verbs
        if verb in entry
    ]


def test_the_schema_is_generated_without_a_warning(schema: dict[str, Any]) -> None:
    assert not GENERATOR_STATS._warn_cache and not GENERATOR_STATS._error_cache


def test_every_operation_documents_its_error_responses(schema: dict[str, Any]) -> None:
    for method, path, operation in operations(schema):
        wanted = {"400", "401", "403", "404", "429"} | (set() if method == "GET" else {"409", "415"})
        assert wanted <= set(operation["responses"]), (method, path)
        assert operation["description"], (method, path)


def test_the_documentation_lists_every_endpoint_and_no_other(schema: dict[str, Any]) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "api.md").read_text()
    documented = set(
        re.findall(r"^\| (GET|POST|PUT|PATCH|DELETE) \| `([^`]+)` \| (.+?) \|$", text, re.MULTILINE)
    )
    real = {
        (method, path, operation["description"].splitlines()[0])
        for method, path, operation in operations(schema)
    }
    assert documented == real, f"missing: {sorted(real - documented)}; gone: {sorted(documented - real)}"


@pytest.mark.django_db
def test_the_schema_and_its_page_need_no_other_host() -> None:
    assert Client().get("/api/schema/").status_code == 200
    page = Client().get("/api/docs/")
    assert page.status_code == 200
    foreign = re.findall(r"(?:src|href)=[\"']((?:https?:)?//[^\"']+)", page.content.decode())
    assert foreign == []


@pytest.fixture
def crowded(today_world: World) -> dict[str, str]:
    """Create one object of each kind that a URL can name."""
    world, now = today_world, today_world.now
    Template.objects.create(
        slug="small", name="Small", kind="notebook", type="interactive", units=1, max_runtime_seconds=3600
    )
    HealthRule.objects.get_or_create(
        code="xid:79", defaults={"meaning": "gone", "action": "cordon", "source": "vendor"}
    )
    Price.objects.create(
        model=H100, cost_per_gpu_hour="1.5", price_per_gpu_hour="2", valid_from=now, created_at=now
    )
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "now": now,
    }
    job = launch.submit_job(**fields, name="train", command="x", units=2)
    window: dict[str, Any] = {"start": now + timedelta(days=1), "end": now + timedelta(days=2)}
    held = reservations.request_reservation(**fields, name="held", units=1, models=[H100], **window)
    array = launch.submit_array(**fields, name="sweep", command="x", units=1, array="0-2%1")
    several: dict[str, Any] = {
        "weekdays": ["mon", "wed"],
        "until": (now + timedelta(days=14)).date(),
        **window,
    }
    recurring = recurring_reservations.request_series(
        **fields, name="course", units=1, models=[H100], **several
    )
    submission = submissions.request_quota_change(
        actor=world.vision.lead,
        team=world.vision.team,
        pool=world.shared,
        model=H100,
        guaranteed_gpus=9,
        now=now,
    )
    return {
        "workloads": str(job.public_id),
        "reservations": str(held.public_id),
        "arrays": str(array.public_id),
        "series": str(recurring.public_id),
        "approvals": str(submission.public_id),
        "hosts": "alpha",
        "pools": "shared",
        "health-rules": "xid:79",
        "statements": "2026-01",
        "charges": str(charge_of(job, Gpu.objects.earliest("pk")).pk),
    }


REAL = {
    "project": "vision/vision-main",
    "pool": "shared",
    "team": "vision",
    "model": H100,
    "models": [H100],
    "template": "small",
}


def insert_real_names(case: Any, names: dict[str, str]) -> None:
    """Replace some generated names by names of existing objects, so that not every request fails with 404."""
    choice = random.Random(repr((case.path_parameters, case.body)))
    kind = case.operation.path.removeprefix("/api/v1/").partition("/")[0]
    if case.path_parameters and kind in names and choice.random() < 0.7:
        for name in case.path_parameters:
            case.path_parameters[name] = names[kind]
    if isinstance(case.body, dict) and choice.random() < 0.7:
        for name, value in REAL.items():
            if name in case.body:
                case.body[name] = value


@pytest.mark.long
@pytest.mark.timeout(900)
def test_responses_to_generated_requests_match_the_schema_for_every_role(
    schema: dict[str, Any], today_world: World, crowded: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for throttle in (ReadThrottle, WriteThrottle):
        monkeypatch.setattr(throttle, "rate", "1000000/min")
    for signal in (request_started, request_finished):
        # Django closes its connections at both signals, which would end the transaction of the test.
        monkeypatch.setattr(signal, "send", lambda **named: [])
    tokens = {}
    for role in ROLES:
        user = today_world.people[role]
        _, tokens[user.pk] = api_tokens.create_token(actor=user, name="schema", now=datetime.now(UTC))
    loaded = schemathesis.openapi.from_dict(schema)
    loaded.app = get_wsgi_application()
    quiet = settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    statuses = set()
    for found in loaded.get_all_operations():
        operation = found.ok()

        @quiet
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            insert_real_names(case, crowded)
            for user_id, token in tokens.items():
                if case.operation.path.startswith("/api/v1/tokens/") and case.path_parameters:
                    case.path_parameters["id"] = ApiToken.objects.get(user_id=user_id).pk
                with transaction.atomic():
                    answer = case.call_and_validate(
                        headers={"Authorization": f"Bearer {token}"},
                        checks=CHECKED,
                        base_url="http://testserver",
                    )
                    transaction.set_rollback(True)
                statuses.add(answer.status_code)

        ask()
    assert {200, 404} <= statuses, "some requests name an existing object"
