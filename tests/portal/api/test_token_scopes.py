"""Test that each endpoint declares the scope that it needs, and refuses tokens without it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.test import APIClient

from portal.api.base.views import ApiView
from portal.models import ApiToken, TokenScope, User
from portal.services.people import api_tokens, service_accounts
from tests.world import World

pytestmark = pytest.mark.django_db
JOB = {"project": "vision/vision-main", "pool": "shared", "name": "train", "command": "true", "units": 1}


def api_views(patterns: Any = None) -> Iterator[type[ApiView]]:
    """Yield the class of each route of the site that is an endpoint of the API."""
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        if isinstance(pattern, URLResolver):
            yield from api_views(pattern.url_patterns)
        elif isinstance(pattern, URLPattern):
            view = getattr(pattern.callback, "cls", None)
            if view is not None and issubclass(view, ApiView):
                yield view


def client_with(user: User, *scopes: str) -> APIClient:
    _, text = api_tokens.create_token(actor=user, name="scoped", scopes=scopes, now=datetime.now(UTC))
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    return client


def test_each_endpoint_declares_its_scope() -> None:
    views = set(api_views())
    assert len(views) > 150
    undeclared = [view.__name__ for view in views if "scope" not in vars(view)]
    assert undeclared == []
    only_reading = {"get", "head", "options"}
    for view in views:
        writes = {name for name in view.http_method_names if hasattr(view, name)} - only_reading
        if not writes:
            assert view.scope == TokenScope.READ, view.__name__
        elif view.scope == TokenScope.READ:
            assert writes == {"post"} and "Preview" in view.__name__, view.__name__


def test_a_token_does_only_what_its_scopes_allow(today_world: World) -> None:
    reader = client_with(today_world.vision.member, "read")
    assert reader.get("/api/v1/workloads/").status_code == 200
    assert reader.post("/api/v1/jobs/preview/", JOB).status_code == 200
    refused = reader.post("/api/v1/jobs/", JOB)
    assert refused.status_code == 403
    message = refused.json()["errors"][0]["message"]
    assert "has the scopes: read" in message and "needs the scope submit" in message
    submitter = client_with(today_world.vision.member, "submit")
    assert submitter.post("/api/v1/jobs/", JOB).status_code == 201
    assert submitter.get("/api/v1/workloads/").status_code == 403
    operator = client_with(today_world.operator, "read", "submit")
    assert operator.post("/api/v1/hosts/alpha/cordon/", {"why": "x"}).status_code == 403
    manager = client_with(today_world.operator, "manage")
    assert manager.post("/api/v1/hosts/alpha/cordon/", {"why": "x"}).status_code == 200
    finance = client_with(today_world.finance, "manage")
    budget = {"team": "vision", "month": f"{datetime.now(UTC):%Y-%m}-01", "amount": "1.00"}
    assert finance.post("/api/v1/budgets/", budget).status_code == 403
    assert client_with(today_world.finance, "finance").post("/api/v1/budgets/", budget).status_code == 201
    member = client_with(today_world.vision.member, "manage")
    assert member.post("/api/v1/hosts/alpha/return/", {}).status_code == 403, "a scope gives no right"


def test_a_method_that_an_endpoint_lacks_is_answered_405(today_world: World) -> None:
    operator = client_with(today_world.operator, *TokenScope.values)
    assert operator.post("/api/v1/security-settings/", {}).status_code == 405


def test_a_token_of_the_api_makes_tokens_within_its_own_limits(today_world: World) -> None:
    member = client_with(today_world.vision.member, "submit")
    made = member.post("/api/v1/tokens/", {"name": "child"}).json()
    assert made["scopes"] == ["submit"] and made["user"] == today_world.vision.member.username
    assert ApiToken.objects.get(name="child").parent == ApiToken.objects.get(name="scoped")
    wider = member.post("/api/v1/tokens/", {"name": "wide", "scopes": ["read"]})
    assert wider.status_code == 400 and wider.json()["errors"][0]["field"] == "scopes"
    usual = client_with(today_world.vision.member, "read", "submit", "manage")
    assert usual.post("/api/v1/tokens/", {"name": "usual"}).json()["scopes"] == ["read", "submit"]


def test_service_accounts_are_managed_by_their_owner_and_leads_of_their_team(today_world: World) -> None:
    lead = client_with(today_world.vision.lead, *TokenScope.values)
    wish = {"name": "ci", "team": "vision", "owner": today_world.vision.member.username, "purpose": "nightly"}
    made = lead.post("/api/v1/service-accounts/", wish)
    assert (made.status_code, made.json()["owner"]) == (201, today_world.vision.member.username)
    owner = client_with(today_world.vision.member, *TokenScope.values)
    token = owner.post("/api/v1/service-accounts/ci/tokens/", {"name": "pipeline"}).json()
    assert token["user"] == "ci" and token["scopes"] == ["read", "submit"]
    robot = APIClient()
    robot.credentials(HTTP_AUTHORIZATION=f"Bearer {token['token']}")
    assert robot.get("/api/v1/me/").json()["username"] == "ci"
    assert robot.post("/api/v1/jobs/", JOB).status_code == 201
    mate = client_with(today_world.vision.members[1], *TokenScope.values)
    assert mate.get("/api/v1/service-accounts/ci/").json()["purpose"] == "nightly"
    assert mate.patch("/api/v1/service-accounts/ci/", {"active": False}).status_code == 403
    assert mate.post(f"/api/v1/tokens/{token['id']}/revoke/", {}).status_code == 404
    stranger = client_with(today_world.stranger, *TokenScope.values)
    assert stranger.get("/api/v1/service-accounts/ci/").status_code == 404
    assert stranger.get("/api/v1/service-accounts/").json()["count"] == 0
    assert lead.post(f"/api/v1/tokens/{token['id']}/revoke/", {}).status_code == 200
    assert robot.get("/api/v1/me/").status_code == 401
    assert lead.patch("/api/v1/service-accounts/ci/", {"owner": "nobody"}).status_code == 400
    assert lead.patch("/api/v1/service-accounts/ci/", {"active": False}).json()["active"] is False
    assert lead.get("/api/v1/service-accounts/ci/tokens/").json()["count"] == 1


def test_the_tokens_of_a_service_account_are_listed_only_to_people_who_may_change_it(
    today_world: World,
) -> None:
    service_accounts.create_service_account(
        actor=today_world.vision.lead, team=today_world.vision.team, name="ci", now=datetime.now(UTC)
    )
    mate = client_with(today_world.vision.members[1], *TokenScope.values)
    assert mate.get("/api/v1/service-accounts/ci/tokens/").status_code == 403


def test_operators_change_the_settings_of_security(today_world: World) -> None:
    operator, member = (
        client_with(user, *TokenScope.values) for user in (today_world.operator, today_world.vision.member)
    )
    address = "/api/v1/security-settings/"
    assert member.get(address).json() == {
        "token_days": 365,
        "separate_approver": None,
        "separate_approver_in_force": False,
        "leaver_work": "stop",
        "second_factor_for": "nobody",
        "step_up_minutes": 10,
    }
    assert member.patch(address, {"token_days": 10}).status_code == 403
    changed = operator.patch(address, {"separate_approver": True}, format="json").json()
    assert changed["separate_approver_in_force"] is True and changed["token_days"] == 365
    back = operator.patch(address, {"separate_approver": None, "token_days": 90}, format="json").json()
    assert (back["separate_approver"], back["token_days"]) == (None, 90)
    changed = operator.patch(address, {"leaver_work": "reservation"}, format="json").json()
    assert (changed["leaver_work"], changed["token_days"]) == ("reservation", 90)
    refused = operator.patch(address, {"leaver_work": "never"}, format="json")
    assert refused.status_code == 400 and "hand_over" in refused.content.decode()
