"""Request every endpoint as every role and as another tenant, and compare the status of each.

The short part requests the endpoints as the role that may do least and without authentication.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from drf_spectacular.generators import SchemaGenerator
from rest_framework.test import APIClient

from portal.api.base.throttling import ReadThrottle, WriteThrottle
from portal.models import NoticeMessage, Template
from portal.services.approvals import submissions
from portal.services.calendar import recurring_reservations, reservations
from portal.services.people import api_tokens, service_accounts
from portal.services.people.notice_channels import channels as notice_channels
from portal.services.work import launch
from scheduler.cycle import engine
from scheduler.cycle.recording import CycleRecorder
from scheduler.models import Gpu, Host, Recording, Storage, UnixIdentity, Volume, Workload
from telemetry.capacity.studies import create_study
from telemetry.models import HealthRule
from tests.portal.charged_january import charge_of, unusual_spend_of
from tests.telemetry.rows import alert_of, cost_centre, directory
from tests.world import H100, World

ROLES = ("member", "team mate", "lead", "other team", "stranger", "operator", "finance", "auditor")

# The status for each role, in the order of ROLES. All named objects belong to vision; "member" is their
# owner.
ALL = (200,) * 8
OWN_TEAM = (200, 200, 200, 404, 404, 200, 404, 200)
CHANGE = (200, 403, 200, 404, 404, 200, 404, 403)
OPERATORS = (403, 403, 403, 403, 403, 200, 403, 403)
ACCOUNT = (403, 403, 403, 404, 404, 200, 403, 403)  # operators protect accounts that they see
OPERATORS_MAKE = (403, 403, 403, 403, 403, 201, 403, 403)
FINANCE_MAKES = (403, 403, 403, 403, 403, 403, 201, 403)
MEMBERS_MAKE = (201, 201, 201, 400, 400, 403, 403, 403)
MEMBERS_TRY = (200, 200, 200, 400, 400, 403, 403, 403)

SOON, LATER = datetime.now(UTC) + timedelta(days=3), datetime.now(UTC) + timedelta(days=4)
SPLIT = {"gpu": 0, "geometry": "2x3g.40gb"}
WINDOW = {"start": SOON.isoformat(), "end": LATER.isoformat()}
SEVERAL = {**WINDOW, "weekdays": ["mon", "tue"], "until": f"{LATER + timedelta(days=14):%Y-%m-%d}"}
WORK = {"project": "vision/vision-main", "pool": "shared"}
JOB = {**WORK, "name": "x", "command": "x", "units": 1}
QUOTA = {"team": "vision", "pool": "shared", "model": "A100-40GB", "guaranteed_gpus": 3}
PRICE = {"model": H100, "cost": "1", "price": "2", "valid_from": SOON.isoformat()}
PRICE_FACTOR = {"priority": "low", "factor": "0.8", "valid_from": SOON.isoformat()}
CURRENCY = {"currency": "JPY", "first_month": f"{datetime.now(UTC).year + 1}-01-01"}
REFUND_LIMIT = {"pool": "shared", "forgiven_minutes": 30, "valid_from": SOON.isoformat()}
BILLING_ZONE = {"first_month": f"{LATER + timedelta(days=100):%Y-%m}-01", "time_zone": "Europe/Berlin"}
BILLING_MODE = {
    "team": "vision",
    "mode": "showback",
    "first_month": f"{datetime.now(UTC):%Y-%m}-01",
}
COST_SPLIT = {
    "project": "vision/vision-main",
    "shares": [{"code": "CC-1", "percent": "100"}],
    "valid_from": SOON.isoformat(),
}
TEAM_CHANNEL = (404, 404, 200, 404, 404, 200, 404, 404)
ADJUSTMENT = {
    "month": f"{datetime.now(UTC):%Y-%m}-01",
    "amount": "-1.00",
    "reason": "slow host",
    "cost_centre": "CC-9",
}
BUDGET = {"team": "vision", "month": f"{datetime.now(UTC):%Y-%m}-01", "amount": "1.00"}

# (method, URL): (body, the status for each role).
TABLE: dict[tuple[str, str], tuple[dict[str, Any], tuple[int, ...]]] = {
    ("GET", "me/"): ({}, ALL),
    ("PATCH", "me/"): ({"theme": "dark"}, ALL),
    ("GET", "people/"): ({}, ALL),
    ("POST", "people/"): ({"username": "ada", "email": "ada@example.org"}, OPERATORS_MAKE),
    ("POST", "people-import/"): ({"csv": "username,email\nada,ada@example.org\n"}, OPERATORS),
    ("POST", "people-import/preview/"): ({"csv": "username,email\nada,ada@example.org\n"}, OPERATORS),
    ("GET", "people/{username}/"): ({}, (200, 200, 200, 404, 404, 200, 200, 200)),
    ("GET", "people/{username}/tokens/"): ({}, ACCOUNT),
    ("GET", "people/{username}/effect/"): (
        {},
        (403, 403, 403, 404, 404, 400, 403, 403),
    ),  # the verb is missing
    ("POST", "people/{username}/roles/"): ({"finance": True}, ACCOUNT),
    ("POST", "people/{username}/close/"): ({}, ACCOUNT),
    ("POST", "people/{username}/open/"): ({}, ACCOUNT),
    ("POST", "people/{username}/end-sessions/"): ({}, ACCOUNT),
    ("POST", "people/{username}/revoke-tokens/"): ({}, ACCOUNT),
    ("POST", "people/{username}/reset-password/"): ({}, ACCOUNT),
    ("POST", "people/{username}/reset-second-factor/"): ({}, ACCOUNT),
    ("POST", "people/{username}/address/"): ({"email": "new@example.org"}, ACCOUNT),
    ("POST", "people/{username}/remove/"): ({}, ACCOUNT),
    ("POST", "people/{username}/stop-work/"): ({}, ACCOUNT),
    # The person is the member of the first column.
    ("GET", "people/{username}/unix-identity/"): ({}, (200, 403, 403, 404, 404, 200, 403, 200)),
    ("PUT", "people/{username}/unix-identity/"): ({"uid": 4102}, ACCOUNT),
    ("POST", "people/{username}/unix-identity/remove/"): ({}, ACCOUNT),
    ("PUT", "teams/{slug}/home-limit/"): (
        {"home_limit_gib": 5},
        (403, 403, 403, 404, 404, 200, 403, 403),
    ),
    ("GET", "identity/"): ({}, (403, 403, 403, 403, 403, 200, 403, 200)),
    # 409 for the operator: nobody could sign in any more.
    ("PUT", "identity/local-sign-in/"): ({"allowed": False}, (403, 403, 403, 403, 403, 409, 403, 403)),
    ("POST", "identity/providers/"): (
        {"name": "Corp", "issuer": "https://id.example.org", "client_id": "x"},
        OPERATORS_MAKE,
    ),
    # 404 and 400 for the operator: the world has no provider and no rule.
    ("PUT", "identity/providers/{slug}/"): ({"active": False}, (403, 403, 403, 403, 403, 404, 403, 403)),
    ("POST", "identity/providers/{slug}/remove/"): ({}, (403, 403, 403, 403, 403, 404, 403, 403)),
    ("POST", "identity/providers/{slug}/test/"): ({}, (403, 403, 403, 403, 403, 400, 403, 403)),
    ("POST", "identity/providers/{slug}/sync/"): ({}, (403, 403, 403, 403, 403, 400, 403, 403)),
    ("GET", "identity/providers/{slug}/sync/preview/"): ({}, (403, 403, 403, 403, 403, 400, 403, 403)),
    ("POST", "identity/rules/"): (
        {"provider": "corp", "claim": "groups", "value": "x", "team": "vision"},
        (403, 403, 403, 403, 403, 400, 403, 403),
    ),
    ("POST", "identity/rules/preview/"): ({}, OPERATORS),
    ("POST", "identity/rules/{id}/remove/"): ({}, (403, 403, 403, 403, 403, 404, 403, 403)),
    ("GET", "me/identities/"): ({}, ALL),
    ("POST", "me/identities/{id}/disconnect/"): ({}, (404,) * 8),
    ("GET", "me/sessions/"): ({}, ALL),
    ("POST", "me/sessions/end/"): ({}, ALL),
    ("POST", "me/sessions/{id}/end/"): ({}, (404,) * 8),
    ("GET", "me/second-factors/"): ({}, ALL),
    ("GET", "me/sign-ins/"): ({}, ALL),
    ("GET", "teams/"): ({}, ALL),
    ("GET", "projects/"): ({}, ALL),
    ("GET", "templates/"): ({}, ALL),
    ("GET", "tokens/"): ({}, ALL),
    ("POST", "tokens/"): ({"name": "x"}, (201,) * 8),
    ("POST", "tokens/{id}/revoke/"): ({}, (200, 404, 404, 404, 404, 404, 404, 404)),
    ("GET", "notice-channels/"): ({}, ALL),
    ("POST", "notice-channels/"): (
        {"name": "x", "kind": "mail", "topics": ["work"], "team": "vision", "address": "x@example.org"},
        (403, 403, 201, 400, 400, 201, 403, 403),
    ),
    ("GET", "notice-channels/{id}/"): ({}, TEAM_CHANNEL),
    ("PATCH", "notice-channels/{id}/"): ({"active": False}, TEAM_CHANNEL),
    ("POST", "notice-channels/{id}/remove/"): ({}, TEAM_CHANNEL),
    ("POST", "notice-channels/{id}/test/"): ({}, (404, 404, 201, 404, 404, 201, 404, 404)),
    ("GET", "notice-channels/{id}/messages/"): ({}, TEAM_CHANNEL),
    ("POST", "notice-messages/{id}/send-again/"): ({}, TEAM_CHANNEL),
    ("GET", "service-accounts/"): ({}, ALL),
    # An operator is no member of the team, so the operator cannot be the owner.
    ("POST", "service-accounts/"): (
        {"name": "bot", "team": "vision"},
        (403, 403, 201, 400, 400, 400, 403, 403),
    ),
    ("GET", "service-accounts/{name}/"): ({}, OWN_TEAM),
    ("PATCH", "service-accounts/{name}/"): ({"active": True}, CHANGE),
    ("GET", "service-accounts/{name}/tokens/"): ({}, CHANGE),
    ("POST", "service-accounts/{name}/tokens/"): ({"name": "x"}, (201, 403, 201, 404, 404, 201, 404, 403)),
    ("GET", "security-settings/"): ({}, ALL),
    ("PATCH", "security-settings/"): ({"token_days": 90}, OPERATORS),
    ("GET", "notifications/"): ({}, ALL),
    ("POST", "notifications/read/"): ({}, ALL),
    ("GET", "audit/"): ({}, ALL),
    ("GET", "audit/integrity/"): ({}, (403, 403, 403, 403, 403, 200, 403, 200)),
    ("GET", "pools/"): ({}, ALL),
    ("GET", "pools/{slug}/"): ({}, (200, 200, 200, 404, 404, 200, 200, 200)),
    ("PUT", "pools/{slug}/isolation/"): ({"isolation": "none"}, (403, 403, 403, 404, 404, 200, 403, 403)),
    ("PUT", "pools/{slug}/work/"): ({"perf_events": True}, (403, 403, 403, 404, 404, 200, 403, 403)),
    ("GET", "pools/{slug}/fairness/"): ({}, (200, 200, 200, 404, 404, 200, 200, 200)),
    ("GET", "pools/{slug}/removal/"): ({}, (403, 403, 403, 404, 404, 200, 403, 403)),
    # 409 for the operator: the pool still has a host.
    ("POST", "pools/{slug}/remove/"): ({}, (403, 403, 403, 404, 404, 409, 403, 403)),
    ("GET", "teams/{slug}/"): ({}, (200, 200, 200, 404, 404, 200, 200, 200)),
    ("GET", "teams/{slug}/removal/"): ({}, (403, 403, 403, 404, 404, 200, 403, 403)),
    # 409 for the operator: the team still has work.
    ("POST", "teams/{slug}/remove/"): ({}, (403, 403, 403, 404, 404, 409, 403, 403)),
    ("GET", "templates/{slug}/removal/"): ({}, (403, 403, 403, 403, 403, 200, 403, 403)),
    ("POST", "templates/{slug}/remove/"): ({}, (403, 403, 403, 403, 403, 200, 403, 403)),
    ("GET", "hosts/"): ({}, ALL),
    ("POST", "hosts/"): ({"pool": "shared", "name": "new"}, OPERATORS_MAKE),
    ("GET", "hosts/{name}/"): ({}, (200, 200, 200, 404, 404, 200, 200, 200)),
    ("GET", "hosts/{name}/removal/"): ({}, (403, 403, 403, 404, 404, 200, 403, 403)),
    ("POST", "hosts/{name}/remove/"): ({}, (403, 403, 403, 404, 404, 200, 403, 403)),
    ("POST", "hosts/{name}/move/preview/"): ({"pool": "shared"}, (403, 403, 403, 404, 404, 200, 403, 403)),
    ("POST", "hosts/{name}/move/"): ({"pool": "shared"}, (403, 403, 403, 404, 404, 200, 403, 403)),
    ("POST", "hosts/{name}/preview/"): ({"verb": "drain"}, (403, 403, 403, 404, 404, 200, 403, 403)),
    ("POST", "hosts/{name}/cordon/"): ({}, (403, 403, 403, 404, 404, 200, 403, 403)),
    ("POST", "hosts/{name}/drain/"): ({}, (403, 403, 403, 404, 404, 200, 403, 403)),
    ("POST", "hosts/{name}/return/"): ({}, (403, 403, 403, 404, 404, 409, 403, 403)),
    # 409 for the operator: the host is alive.
    ("POST", "hosts/{name}/attest-off/"): (
        {"why": "x"},
        (403, 403, 403, 404, 404, 409, 403, 403),
    ),
    ("POST", "hosts/{name}/revoke/"): ({}, (403, 403, 403, 404, 404, 200, 403, 403)),
    ("POST", "hosts/{name}/join-token/"): ({}, (403, 403, 403, 404, 404, 201, 403, 403)),
    ("POST", "hosts/{name}/maintenance/"): ({**WINDOW, "why": "x"}, (403, 403, 403, 404, 404, 201, 403, 403)),
    ("POST", "hosts/{name}/maintenance/cancel/"): ({"window": 1}, (403, 403, 403, 404, 404, 400, 403, 403)),
    ("GET", "hosts/{name}/health/"): ({}, (200, 200, 200, 404, 404, 200, 200, 200)),
    # 400: the period is missing.
    ("GET", "hosts/{name}/counters/"): ({}, (400, 400, 400, 404, 404, 400, 400, 400)),
    ("GET", "hosts/{name}/dcgm/"): ({}, (200, 200, 200, 404, 404, 200, 200, 200)),
    ("PUT", "hosts/{name}/dcgm/"): (
        {"url": "http://127.0.0.1:9400"},
        (403, 403, 403, 404, 404, 200, 403, 403),
    ),
    # 409 for the operator: the host has no dcgm-exporter.
    ("POST", "hosts/{name}/dcgm/remove/"): ({}, (403, 403, 403, 404, 404, 409, 403, 403)),
    ("GET", "hosts/{name}/events/"): ({}, (200, 200, 200, 404, 404, 200, 200, 200)),
    ("GET", "hosts/{name}/use/"): ({}, (200, 200, 200, 404, 404, 200, 200, 200)),
    ("GET", "hosts/{name}/diagnostics/"): ({}, (200, 200, 200, 404, 404, 200, 200, 200)),
    ("POST", "hosts/{name}/diagnose/"): ({"gpu": 0}, (403, 403, 403, 404, 404, 202, 403, 403)),
    ("GET", "hosts/{name}/geometry/"): ({}, (200, 200, 200, 404, 404, 200, 200, 200)),
    # 409 for the operator: the GPU does not support MIG.
    ("POST", "hosts/{name}/geometry/"): (SPLIT, (403, 403, 403, 404, 404, 409, 403, 403)),
    ("POST", "hosts/{name}/geometry/preview/"): (SPLIT, (403, 403, 403, 404, 404, 409, 403, 403)),
    ("POST", "hosts/{name}/geometry/withdraw/"): ({"gpu": 0}, (403, 403, 403, 404, 404, 409, 403, 403)),
    ("POST", "hosts/{name}/return-gpu/"): ({"gpu": 0}, (403, 403, 403, 404, 404, 409, 403, 403)),
    ("POST", "hosts/{name}/take-out-gpu/"): ({"gpu": 0}, (403, 403, 403, 404, 404, 200, 403, 403)),
    # 400 for the operator: the GPU is not missing.
    ("POST", "hosts/{name}/forget-gpu/"): (
        {"gpu": "GPU-x"},
        (403, 403, 403, 404, 404, 400, 403, 403),
    ),
    ("GET", "pools/{slug}/repair-policy/"): ({}, (200, 200, 200, 404, 404, 200, 200, 200)),
    ("PUT", "pools/{slug}/repair-policy/"): (
        {"stray_action": "end"},
        (403, 403, 403, 404, 404, 200, 403, 403),
    ),
    ("GET", "database-maintenance/"): ({}, (403, 403, 403, 403, 403, 200, 403, 200)),
    ("POST", "database-maintenance/"): (
        {"minutes": 5, "why": "a new version"},
        (403, 403, 403, 403, 403, 201, 403, 403),
    ),
    ("POST", "database-maintenance/end/"): ({}, (403, 403, 403, 403, 403, 409, 403, 403)),
    ("GET", "system/"): ({}, (403, 403, 403, 403, 403, 200, 403, 200)),
    ("GET", "retention/"): ({}, (403, 403, 403, 403, 403, 200, 403, 200)),
    ("PUT", "retention/"): ({"sample_days": 20}, OPERATORS),
    ("POST", "retention/preview/"): ({"sample_days": 20}, OPERATORS),
    ("GET", "alerts/"): ({}, ALL),
    ("GET", "alerts/{id}/"): ({}, OWN_TEAM),
    ("POST", "alerts/{id}/acknowledge/"): ({}, (403, 403, 403, 404, 404, 200, 404, 403)),
    ("POST", "alerts/{id}/snooze/"): ({"minutes": 60}, (403, 403, 403, 404, 404, 200, 404, 403)),
    ("GET", "pools/{slug}/alert-rules/"): ({}, (200, 200, 200, 404, 404, 200, 200, 200)),
    ("PUT", "pools/{slug}/alert-rules/{kind}/"): ({"begin": 95}, (403, 403, 403, 404, 404, 200, 403, 403)),
    # 409 for the operator: the rule has its default.
    ("POST", "pools/{slug}/alert-rules/{kind}/reset/"): ({}, (403, 403, 403, 404, 404, 409, 403, 403)),
    ("GET", "health-rules/"): ({}, ALL),
    ("POST", "health-rules/"): ({"code": "xid:999", "meaning": "x", "action": "note"}, OPERATORS_MAKE),
    ("GET", "health-rules/{code}/"): ({}, ALL),
    # 409 for the operator: the rule already has its original action.
    ("POST", "health-rules/{code}/reset/"): (
        {},
        (403, 403, 403, 403, 403, 409, 403, 403),
    ),
    # 409 for the operator: the rule is built in.
    ("POST", "health-rules/{code}/remove/"): (
        {},
        (403, 403, 403, 403, 403, 409, 403, 403),
    ),
    ("PUT", "health-rules/{code}/"): ({"action": "note", "repeats": 1, "window_seconds": 60}, OPERATORS),
    ("GET", "volumes/"): ({}, ALL),
    ("GET", "environments/"): ({}, ALL),
    ("GET", "workloads/"): ({}, ALL),
    ("GET", "workloads/{id}/"): ({}, OWN_TEAM),
    ("GET", "workloads/{id}/why/"): ({}, OWN_TEAM),
    # 400: the workload does not wait.
    ("GET", "workloads/{id}/why/{other}/"): (
        {},
        (400, 400, 400, 404, 404, 400, 404, 400),
    ),
    ("GET", "workloads/{id}/sooner/"): ({}, OWN_TEAM),
    ("GET", "workloads/{id}/windows/"): ({}, OWN_TEAM),
    ("GET", "workloads/{id}/logs/"): ({}, OWN_TEAM),
    ("GET", "workloads/{id}/use/"): ({}, OWN_TEAM),
    # 400: the workload has held no GPU.
    ("GET", "workloads/{id}/report/"): ({}, (400, 400, 400, 404, 404, 400, 404, 400)),
    ("POST", "workloads/{id}/cancel/"): ({}, CHANGE),
    ("POST", "workloads/{id}/extend/"): ({"seconds": 60}, CHANGE),
    ("POST", "workloads/{id}/keep/"): ({"seconds": 60}, CHANGE),
    ("POST", "workloads/{id}/relaunch/"): ({}, (201, 201, 201, 404, 404, 403, 404, 403)),
    ("POST", "workloads/{id}/open/"): ({}, (200, 403, 403, 404, 404, 403, 404, 403)),
    ("GET", "notebooks/"): ({}, ALL),
    ("POST", "notebooks/"): (WORK, MEMBERS_MAKE),
    ("POST", "notebooks/preview/"): (WORK, MEMBERS_TRY),
    ("GET", "jobs/"): ({}, ALL),
    ("POST", "jobs/"): (JOB, MEMBERS_MAKE),
    ("POST", "jobs/preview/"): (JOB, MEMBERS_TRY),
    ("GET", "arrays/"): ({}, ALL),
    ("POST", "arrays/"): ({**JOB, "array": "0-3%2"}, MEMBERS_MAKE),
    ("GET", "arrays/{id}/"): ({}, OWN_TEAM),
    ("POST", "arrays/{id}/cancel/"): ({}, CHANGE),
    ("GET", "queue/"): ({}, ALL),
    ("GET", "reservations/"): ({}, ALL),
    ("POST", "reservations/"): ({**WORK, **WINDOW, "name": "x", "units": 1}, MEMBERS_MAKE),
    ("POST", "reservations/preview/"): ({**WORK, **WINDOW, "units": 1}, MEMBERS_TRY),
    ("GET", "reservations/{id}/"): ({}, OWN_TEAM),
    ("POST", "reservations/{id}/cancel/"): ({}, CHANGE),
    ("POST", "reservations/{id}/shorten/"): ({"end": (SOON + timedelta(hours=1)).isoformat()}, CHANGE),
    ("POST", "reservations/{id}/change/"): ({"end": (SOON + timedelta(hours=1)).isoformat()}, CHANGE),
    ("GET", "series/"): ({}, ALL),
    ("POST", "series/"): ({**WORK, **SEVERAL, "name": "x", "units": 1}, MEMBERS_MAKE),
    ("POST", "series/preview/"): ({**WORK, **SEVERAL, "units": 1}, MEMBERS_TRY),
    ("GET", "series/{id}/"): ({}, OWN_TEAM),
    ("POST", "series/{id}/cancel/"): ({}, CHANGE),
    ("GET", "approvals/"): ({}, ALL),
    ("GET", "approvals/{id}/"): ({}, (404, 404, 200, 404, 404, 200, 404, 200)),
    ("GET", "approvals/{id}/effect/"): ({}, (403, 403, 403, 403, 403, 200, 403, 200)),
    ("POST", "approvals/{id}/approve/"): ({}, (404, 404, 403, 404, 404, 200, 404, 403)),
    ("POST", "approvals/{id}/decline/"): ({"comment": "no"}, (404, 404, 403, 404, 404, 200, 404, 403)),
    ("POST", "approvals/{id}/withdraw/"): ({}, (404, 404, 200, 404, 404, 403, 404, 403)),
    ("GET", "recordings/"): ({}, (403, 403, 403, 403, 403, 200, 403, 200)),
    ("GET", "recordings/{id}/"): ({}, (403, 403, 403, 403, 403, 200, 403, 200)),
    ("GET", "quotas/"): ({}, ALL),
    ("POST", "quotas/requests/"): (QUOTA, (403, 403, 202, 400, 400, 202, 403, 403)),
    ("POST", "budgets/requests/"): (BUDGET, (403, 403, 202, 400, 400, 403, 403, 403)),
    # 400: the period is missing. test_sample_files.py compares the samples that the roles get.
    ("GET", "right-sizing/"): ({}, ALL),
    ("GET", "demand-forecast/"): ({}, ALL),
    ("GET", "capacity-studies/"): ({}, (403, 403, 403, 403, 403, 200, 200, 200)),
    ("POST", "capacity-studies/"): (
        {"pool": "shared", "wait_limit_seconds": 3600},
        (403, 403, 403, 403, 403, 202, 403, 403),
    ),
    ("GET", "capacity-studies/{id}/"): ({}, (403, 403, 403, 403, 403, 200, 200, 200)),
    ("GET", "samples/"): ({}, (400,) * 8),
    # 400: the period is missing. test_rollup_files.py compares the rows that the roles get.
    ("GET", "rollups/"): ({}, (400,) * 8),
    ("GET", "cubes/"): ({}, (400,) * 8),
    ("GET", "usage/"): ({}, ALL),
    # 404: there is no answer with this name. test_utilisation_answers.py compares what the roles get.
    ("GET", "utilisation/{answer}/"): ({}, (404,) * 8),
    ("GET", "charges/"): ({}, ALL),
    ("GET", "charges/{id}/"): ({}, (200, 404, 200, 404, 404, 404, 200, 200)),
    ("GET", "chargeback/"): ({}, (200, 200, 200, 200, 403, 403, 200, 200)),
    ("GET", "statements/"): ({}, (403, 403, 403, 403, 403, 403, 200, 200)),
    ("GET", "statements/{month}/"): ({}, (404,) * 8),
    # 400 for finance: nothing is charged in 2199.
    ("GET", "statements/{month}/checks/"): ({}, (403, 403, 403, 403, 403, 403, 400, 400)),
    ("POST", "statements/{month}/checks/"): ({}, (403, 403, 403, 403, 403, 403, 400, 400)),
    ("POST", "statements/{month}/propose/"): ({}, (403, 403, 403, 403, 403, 403, 400, 403)),
    ("POST", "statements/{month}/close/"): ({}, (403, 403, 403, 403, 403, 403, 400, 403)),
    # 400 for finance and auditors: the address has a month without charges.
    ("GET", "statements/{month}/unusual-spend/"): ({}, (400,) * 8),
    ("POST", "unusual-spend/{id}/ask/"): (
        {"question": "a test"},
        (403, 404, 403, 404, 404, 404, 201, 403),
    ),
    ("POST", "unusual-spend/{id}/explain/"): (
        {"reason": "a test"},
        (403, 404, 201, 404, 404, 404, 201, 403),
    ),
    ("GET", "statements/{month}/export/"): ({}, (400,) * 8),
    ("GET", "statements/{month}/idle-payer/"): ({}, (403, 403, 403, 403, 403, 403, 200, 200)),
    ("PUT", "statements/{month}/idle-payer/"): (
        {"payer": "use"},
        (403, 403, 403, 403, 403, 403, 400, 403),
    ),
    ("GET", "cost-centre-statements/"): ({}, ALL),
    ("GET", "cost-centre-statements/{number}/"): ({}, (404,) * 8),
    ("GET", "adjustments/"): ({}, ALL),
    # 400: the directory has no cost centre CC-9.
    ("POST", "adjustments/"): (ADJUSTMENT, (403, 403, 403, 403, 403, 403, 400, 403)),
    ("GET", "adjustments/{number}/"): ({}, (404,) * 8),
    ("POST", "adjustments/{number}/approve/"): ({}, (404,) * 8),
    ("POST", "adjustments/{number}/reject/"): ({"note": "no"}, (404,) * 8),
    ("POST", "adjustments/{number}/withdraw/"): ({"reason": "wrong"}, (404,) * 8),
    ("GET", "billing/"): ({}, (403, 403, 403, 403, 403, 403, 200, 200)),
    ("PUT", "billing/"): ({"payment_days": 14}, (403, 403, 403, 403, 403, 403, 200, 403)),
    ("GET", "billing/modes/"): ({}, (403, 403, 403, 403, 403, 403, 200, 200)),
    ("POST", "billing/modes/"): (BILLING_MODE, (403, 403, 403, 400, 400, 403, 201, 403)),
    ("GET", "billing/zones/"): ({}, (403, 403, 403, 403, 403, 403, 200, 200)),
    ("POST", "billing/zones/"): (BILLING_ZONE, FINANCE_MAKES),
    ("GET", "refund-limits/"): ({}, ALL),
    ("POST", "refund-limits/"): (REFUND_LIMIT, FINANCE_MAKES),
    ("GET", "cost-centres/"): ({}, ALL),
    ("POST", "cost-centres/"): ({"code": "CC-9"}, FINANCE_MAKES),
    ("GET", "cost-centres/{centre}/"): ({}, (200, 200, 200, 404, 404, 200, 200, 200)),
    ("PUT", "cost-centres/{centre}/"): ({"name": "Imaging"}, (403, 403, 403, 404, 404, 403, 200, 403)),
    ("POST", "cost-centres/{centre}/retire/"): (
        {"retired_from": LATER.isoformat()},
        (403, 403, 403, 404, 404, 403, 409, 403),
    ),
    ("GET", "cost-centre-shares/"): ({}, ALL),
    ("POST", "cost-centre-shares/"): (COST_SPLIT, (403, 403, 403, 400, 400, 403, 409, 403)),
    ("POST", "cost-centre-import/"): ({"csv": "code\nCC-9\n"}, (403, 403, 403, 403, 403, 403, 200, 403)),
    ("POST", "cost-centre-import/preview/"): (
        {"csv": "code\nCC-9\n"},
        (403, 403, 403, 403, 403, 403, 200, 403),
    ),
    ("POST", "cost-centre-shares/preview/"): (COST_SPLIT, (403, 403, 403, 400, 400, 403, 200, 403)),
    ("GET", "prices/"): ({}, ALL),
    ("POST", "prices/"): (PRICE, FINANCE_MAKES),
    ("GET", "price-factors/"): ({}, ALL),
    ("POST", "price-factors/"): (PRICE_FACTOR, FINANCE_MAKES),
    ("GET", "currencies/"): ({}, ALL),
    ("POST", "currencies/"): (CURRENCY, FINANCE_MAKES),
    ("GET", "budgets/"): ({}, ALL),
    ("POST", "budgets/"): (BUDGET, (403, 403, 403, 400, 400, 403, 201, 403)),
}


@pytest.fixture
def named(today_world: World) -> dict[str, str]:
    """Create one object of each kind, in the team vision where it has a team. Return their names in URLs."""
    world, now = today_world, today_world.now
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "now": now,
    }
    directory("CC-1", since=now)
    cost_centre(world.vision, "CC-1", now)
    notebook = launch.launch_notebook(**fields, name="secret notebook")
    Workload.objects.filter(pk=notebook.pk, state="queued").update(state="running")
    array = launch.submit_array(**fields, name="secret sweep", command="x", units=1, array="0-2%1")
    window: dict[str, Any] = {"start": SOON, "end": LATER}
    held = reservations.request_reservation(**fields, name="secret window", units=1, models=[H100], **window)
    several: dict[str, Any] = {
        "weekdays": ["mon", "wed"],
        "until": (LATER + timedelta(days=14)).date(),
        **window,
    }
    recurring = recurring_reservations.request_series(
        **fields, name="secret course", units=1, models=[H100], **several
    )
    submission = submissions.request_quota_change(
        actor=world.vision.lead,
        team=world.vision.team,
        pool=world.shared,
        model=H100,
        guaranteed_gpus=9,
        why="secret",
        now=now,
    )
    storage = Storage.objects.create(key="secretstorage", listed_at=now)
    UnixIdentity.objects.create(
        person=world.vision.member, uid=4101, gid=4101, name="ada", home="/home/ada", changed_at=now
    )
    Volume.objects.create(storage=storage, name=world.vision.member.username, measured_at=now)
    Host.objects.filter(name="delta").update(storage=storage)
    token, _ = api_tokens.create_token(actor=world.vision.member, name="secret token", now=now)
    account = service_accounts.create_service_account(
        actor=world.vision.lead, team=world.vision.team, name="secret", owner=world.vision.member, now=now
    )
    channel, _ = notice_channels.create_channel(
        actor=world.vision.lead,
        team=world.vision.team,
        name="secret channel",
        kind="mail",
        topics=["work"],
        address="secret@example.org",
        now=now,
    )
    message = notice_channels.test_channel(actor=world.vision.lead, channel=channel, now=now)
    NoticeMessage.objects.filter(pk=message.pk).update(state="sent")
    Template.objects.create(
        slug="small", name="Small", kind="notebook", type="interactive", units=1, max_runtime_seconds=60
    )
    HealthRule.objects.get_or_create(
        code="xid:79", defaults={"meaning": "gone", "action": "cordon", "source": "vendor"}
    )
    engine.run_cycle("test", now, recorder=CycleRecorder())
    return {
        "recordings": str(Recording.objects.latest("pk").pk),
        "charges": str(charge_of(notebook, Gpu.objects.earliest("pk")).pk),
        "unusual-spend": str(unusual_spend_of(notebook).pk),
        "alerts": str(alert_of(notebook).public_id),
        "workloads": str(notebook.public_id),
        "reservations": str(held.public_id),
        "arrays": str(array.public_id),
        "series": str(recurring.public_id),
        "approvals": str(submission.public_id),
        "tokens": str(token.pk),
        "service-accounts": account.username,
        "notice-channels": str(channel.public_id),
        "notice-messages": str(message.public_id),
        "hosts": "delta",
        "pools": "vision-only",
        "teams": "vision",
        "people": world.vision.member.username,
        "identity": "9",
        "me": "9",
        "templates": "small",
        "health-rules": "xid:79",
        "statements": "2199-01",
        "utilisation": "weather",
        "cost-centre-statements": "2199-01/CC-9/1",
        "cost-centres": "CC-1",
        "adjustments": "2199-01-A1",
        "capacity-studies": str(create_study(world.shared, H100, 3_600, world.operator, now).public_id),
    }


@pytest.fixture
def ask(today_world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that sends a request as one of the roles and rolls back what it changes."""
    for throttle in (ReadThrottle, WriteThrottle):
        monkeypatch.setattr(throttle, "rate", "1000000/min")

    def call(role: str, method: str, address: str, body: dict[str, Any]) -> Any:
        client = APIClient()
        client.force_login(today_world.people[role])  # with a fresh proof of identity
        with transaction.atomic():
            Host.objects.filter(name="delta").update(
                last_sync_at=datetime.now(UTC)
            )  # otherwise, the host would become silent before the last request of the table
            answer = client.generic(
                method, f"/api/v1/{address}", data=_json(body), content_type="application/json"
            )
            transaction.set_rollback(True)
        return answer

    return call


def _json(body: dict[str, Any]) -> str:
    return json.dumps(body)


def _address(template: str, named: dict[str, str]) -> str:
    kind, _, rest = template.partition("/")
    if "{" not in rest:
        return template
    start, end = template.index("{"), template.index("}")
    return (
        template[:start]
        + named[kind]
        + template[end + 1 :].replace("{other}", named[kind]).replace("{kind}", "hot")
    )


def test_the_table_lists_every_endpoint() -> None:
    schema: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    verbs = ("get", "post", "put", "patch", "delete")
    real = {
        (verb.upper(), path.removeprefix("/api/v1/"))
        for path, entry in schema["paths"].items()
        for verb in verbs
        if verb in entry
    }
    assert set(TABLE) == real


@pytest.mark.parametrize(
    "role", [pytest.param(role, marks=[] if role == "stranger" else pytest.mark.long) for role in ROLES]
)
def test_every_endpoint_answers_a_role_with_the_status_in_the_table(
    today_world: World, named: dict[str, str], ask: Callable[..., Any], role: str
) -> None:
    wrong = []
    for (method, template), (body, expected) in TABLE.items():
        wanted = dict(zip(ROLES, expected, strict=True))[role]
        answer = ask(role, method, _address(template, named), body)
        if answer.status_code != wanted:
            wrong.append(
                f"{method} {template} as {role}: {answer.status_code}, wanted {wanted}:"
                f" {answer.content[:150]!r}"
            )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("role", ["other team", pytest.param("stranger", marks=pytest.mark.long)])
def test_lists_show_nothing_of_vision_to_other_tenants(
    today_world: World, named: dict[str, str], ask: Callable[..., Any], role: str
) -> None:
    lists = [template for (method, template), _ in TABLE.items() if method == "GET" and "{" not in template]
    for template in lists:
        page = ask(role, "GET", template, {}).content.decode()
        assert "secret" not in page, template
        assert "vision" not in page, template


def test_every_endpoint_answers_401_without_authentication(today_world: World, named: dict[str, str]) -> None:
    for (method, template), (body, _) in TABLE.items():
        answer = APIClient().generic(
            method, f"/api/v1/{_address(template, named)}", data=_json(body), content_type="application/json"
        )
        assert answer.status_code == 401, (method, template)
