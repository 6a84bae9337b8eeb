"""Test the pages of teams, people, tokens, notifications, preferences, audit and settings."""

from __future__ import annotations

import html

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.models import ApiToken, AuditEvent, Membership, Template, User
from portal.services.people.setup_code import new_setup_code
from scheduler.models import Pool, Team
from telemetry.models import HealthRule
from tests.seeds import first_cases
from tests.world import PASSWORD, World

pytestmark = pytest.mark.django_db

PAGES = [
    "teams",
    "people",
    "tokens",
    "notifications",
    "account",
    "audit",
    "settings",
    "templates",
    "health-rules",
    "alerts",
]


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.long  # in the short part, test_web_role_matrix.py requests the pages as one role
@pytest.mark.parametrize("page", PAGES)
def test_every_role_may_read_the_page(world: World, page: str) -> None:
    for user in world.people.values():
        assert signed_in(user).get(reverse(page)).status_code == 200


@pytest.mark.parametrize("page", PAGES)
def test_a_visitor_is_sent_to_sign_in(world: World, page: str) -> None:
    response = Client().get(reverse(page))
    assert response.status_code == 302
    assert "/accounts/login/" in response["Location"]


def test_an_operator_creates_a_team_and_a_lead_adds_a_member(world: World) -> None:
    operator = signed_in(world.operator)
    assert operator.post(reverse("teams"), {"name": "Weather", "tag": "WX", "weight": 1}).status_code == 302
    team = Team.objects.get(name="Weather")
    response = operator.post(
        reverse("team", args=[team.slug]), {"verb": "add_member", "user": "stranger", "role": "lead"}
    )
    assert response.status_code == 302
    lead = signed_in(world.stranger)
    name = world.language.member.username
    assert (
        lead.post(
            reverse("team", args=[team.slug]), {"verb": "add_member", "user": name, "role": "member"}
        ).status_code
        == 302
    )
    assert set(Membership.objects.filter(team=team).values_list("user__username", "role")) == {
        ("stranger", "lead"),
        (name, "member"),
    }
    assert AuditEvent.objects.filter(verb="add_member", team=team).count() == 2


def test_a_member_may_not_change_the_team_and_sees_why(world: World) -> None:
    response = signed_in(world.vision.member).post(
        reverse("team", args=[world.vision.team.slug]), {"verb": "create_project", "name": "Sneaky"}
    )
    assert response.status_code == 403
    assert b"Only a lead of the team" in response.content
    assert not world.vision.team.projects.filter(name="Sneaky").exists()


def test_the_settings_list_no_pool_of_another_team(world: World) -> None:
    def listed(user: User) -> set[str]:
        return {pool.slug for pool in signed_in(user).get(reverse("settings")).context["pools"]}

    assert world.static.slug in listed(world.vision.member)
    assert listed(world.language.member) == set(Pool.objects.filter(team=None).values_list("slug", flat=True))
    assert listed(world.operator) == set(Pool.objects.values_list("slug", flat=True))


def test_the_page_of_another_team_is_not_found(world: World) -> None:
    assert signed_in(world.stranger).get(reverse("team", args=[world.vision.team.slug])).status_code == 404


def test_an_invalid_name_is_refused_at_its_field_and_nothing_is_created(world: World) -> None:
    response = signed_in(world.operator).post(
        reverse("teams"), {"name": "abc\u202edef", "tag": "", "weight": 1}
    )
    assert response.status_code == 400
    assert "U+202E" in response.content.decode()
    assert not Team.objects.filter(tag="AB").exists()


def test_a_token_is_shown_once_and_works_until_revoked(world: World) -> None:
    client = signed_in(world.vision.member)
    page = client.post(reverse("tokens"), {"name": "laptop", "days": "30", "scopes": ["read"]})
    token = ApiToken.objects.get(user=world.vision.member)
    assert token.prefix in page.content.decode() and "gpp_" in page.content.decode()
    assert token.token_hash not in page.content.decode()
    assert client.get(reverse("tokens")).content.decode().count("gpp_") == 1  # only the prefix of the token
    client.post(reverse("tokens"), {"verb": "revoke", "token": token.pk})
    token.refresh_from_db()
    assert token.revoked_at is not None


def test_nobody_revokes_the_token_of_another_user(world: World) -> None:
    signed_in(world.vision.member).post(reverse("tokens"), {"name": "laptop", "days": "", "scopes": ["read"]})
    token = ApiToken.objects.get()
    response = signed_in(world.stranger).post(reverse("tokens"), {"verb": "revoke", "token": token.pk})
    assert response.status_code == 404
    token.refresh_from_db()
    assert token.revoked_at is None


def test_preferences_are_saved(world: World) -> None:
    member = world.vision.member
    response = signed_in(member).post(reverse("account"), {"time_zone": "Asia/Tokyo", "theme": "dark"})
    assert response.status_code == 302
    member.refresh_from_db()
    assert (member.time_zone, member.theme) == ("Asia/Tokyo", "dark")


@pytest.mark.parametrize("month", ["2026-13", "x", "2026-1"])
@pytest.mark.parametrize("file", [{}, {"format": "csv"}])
def test_the_audit_page_refuses_a_month_that_does_not_exist(
    world: World, month: str, file: dict[str, str]
) -> None:
    answer = signed_in(world.operator).get(reverse("audit"), {"money_of": month, **file})
    assert answer.status_code == 400
    text = html.unescape(answer.content.decode())
    assert f"money_of is '{month}'; allowed: a year and a month, such as 2026-10." in text
    assert "No change found" in text


def test_the_audit_page_shows_before_and_after_and_downloads_as_csv(world: World) -> None:
    client = signed_in(world.operator)
    client.post(reverse("team", args=[world.vision.team.slug]), {"verb": "rename", "name": "=Vision"})
    page = client.get(reverse("audit")).content.decode()
    assert "rename team" in page and "=Vision" in page
    rows = client.get(reverse("audit"), {"format": "csv"}).getvalue().decode()
    assert "rename_team" in rows
    assert ",'=Vision," in rows  # the quote makes a spreadsheet read it as text


def test_a_pool_limit_out_of_range_is_refused_with_what_is_allowed(world: World) -> None:
    client = signed_in(world.operator)
    values = {name: getattr(world.shared, name) or "" for name in _limits()}
    for wrong, allowed in (
        ("-5", "such as 90 s, 15 min, 2 h"),
        ("2 d", "a whole number from 0 to 86,400 seconds"),
    ):
        response = client.post(reverse("pool", args=["shared"]), values | {"notice_seconds": wrong})
        assert response.status_code == 400 and f"allowed: {allowed}" in response.content.decode()
    assert client.post(reverse("pool", args=["shared"]), values | {"notice_seconds": "45"}).status_code == 302
    assert Pool.objects.get(slug="shared").notice_seconds == 45


def test_a_static_pool_needs_its_owner(world: World) -> None:
    client = signed_in(world.operator)
    assert client.post(reverse("pool-new"), {"name": "Lab", "kind": "static", "team": ""}).status_code == 400
    assert (
        client.post(
            reverse("pool-new"), {"name": "Lab", "kind": "static", "team": world.vision.team.pk}
        ).status_code
        == 302
    )
    assert Pool.objects.get(name="Lab").team == world.vision.team


def test_health_rules_are_sorted_by_number(world: World) -> None:
    shown = signed_in(world.operator).get(reverse("health-rules")).content.decode()
    assert shown.index("<b>xid:8</b>") < shown.index("<b>xid:13</b>") < shown.index("<b>xid:100</b>")
    assert "Quarantine GPU</option>" in shown


def test_health_rules_are_folded_by_kind_until_a_filter_or_a_change_opens_a_group(world: World) -> None:
    client, address = signed_in(world.operator), reverse("health-rules")

    def opened(**query: str) -> set[str]:
        groups = client.get(address, query).context["groups"]
        assert groups
        return {group["title"] for group in groups if group["is_open"]}

    assert opened() == set()
    assert opened(saved="xid:79") == {"Xid errors of the driver"}
    assert opened(find="xid:79") == {"Xid errors of the driver"}
    listed = [rule.code for group in client.get(address).context["groups"] for rule, _ in group["rows"]]
    assert sorted(listed) == sorted(HealthRule.objects.values_list("code", flat=True))


def test_health_rules_are_filtered_by_text_and_action_and_a_saved_one_stays_visible(
    world: World,
) -> None:
    client, address = signed_in(world.operator), reverse("health-rules")
    page = client.get(address, {"find": "xid:79"}).content.decode()
    assert "<b>xid:79</b>" in page and "<b>xid:48</b>" not in page
    warns = client.get(address, {"does": "warn"}).content.decode()
    assert all(f"<b>{r.code}</b>" in warns for r in HealthRule.objects.filter(action="warn"))
    assert not any(f"<b>{r.code}</b>" in warns for r in HealthRule.objects.exclude(action="warn"))
    fields = {"code": "xid:79", "action": "warn", "repeats": "2", "window_seconds": "2 h"}
    response = client.post(f"{address}?does=cordon&find=xid", fields)
    assert response.headers["Location"] == f"{address}?find=xid&does=cordon&saved=xid%3A79#xid79"
    assert "Saved." in client.get(response.headers["Location"]).content.decode()
    assert "No rule matches" in client.get(address, {"find": "nothing of this name"}).content.decode()
    for query in ({"does": "nonsense"}, {"find": "x" * 200}):
        assert client.get(address, query).status_code == 200, query


def test_a_health_rule_is_changed_in_its_row_and_errors_are_shown_there(world: World) -> None:
    client, address = signed_in(world.operator), reverse("health-rules")
    assert "1 to 1,000 events, within 1 s to 30 d" in client.get(address).content.decode()
    fields = {"code": "xid:79", "action": "warn", "repeats": "2", "window_seconds": "2 h"}
    response = client.post(address, fields)
    assert response.headers["Location"] == f"{address}?saved=xid%3A79#xid79"
    assert "Saved." in client.get(response.headers["Location"]).content.decode()
    for field, value, message in (
        ("repeats", "1001", "repeats is 1001; allowed: a whole number from 1 to 1,000."),
        ("window_seconds", "31 d", "within is &#x27;31 d&#x27;; allowed: 1 s to 30 d."),
        ("window_seconds", "soon", "within is &#x27;soon&#x27;; allowed: such as 90 s"),
    ):
        refused = client.post(address, fields | {field: value})
        page = refused.content.decode()
        row = page.partition('id="xid79"')[2].partition("</tr>")[0]
        assert refused.status_code == 400 and message in row and f'value="{value}"' in row
    rule = HealthRule.objects.get(code="xid:79")
    assert (rule.action, rule.repeats, rule.window_seconds) == ("warn", 2, 7200)


def test_a_changed_health_rule_shows_its_original_and_can_be_reset(world: World) -> None:
    client, address = signed_in(world.operator), reverse("health-rules")
    assert "Reset" not in client.get(address).content.decode()
    client.post(
        address,
        {"code": "xid:109", "action": "warn", "repeats": "2", "window_seconds": "2 h", "counts": "events"},
    )
    shown = client.get(address, {"only": "changed"}).content.decode()
    assert "<b>xid:109</b>" in shown and "<b>xid:79</b>" not in shown
    assert "Default: Quarantine GPU, at 3 people&#x27;s work within 24 h." in " ".join(shown.split())
    assert "Reset xid:109" not in signed_in(world.vision.member).get(address).content.decode()
    assert client.post(address, {"verb": "reset", "code": "xid:109"}).status_code == 302
    assert HealthRule.objects.get(code="xid:109").origin == "default"
    second_response = client.post(address, {"verb": "reset", "code": "xid:109"})
    assert (
        second_response.status_code == 400
        and "xid:109 is at its default already." in second_response.content.decode()
    )


def test_a_health_rule_is_added_and_removed_on_its_page(world: World) -> None:
    client, address = signed_in(world.operator), reverse("health-rules")
    fields = {
        "verb": "add",
        "code": "xid:999",
        "meaning": "seen before a board died",
        "action": "warn",
        "repeats": "1",
        "window_seconds": "1 h",
        "counts": "events",
    }
    for field, value, message in (
        ("code", "XID9", "code is &#x27;XID9&#x27;; allowed: xid: and a number"),
        ("code", "xid:79", "it has a rule already"),
        ("repeats", "0", "repeats is 0; allowed: a whole number from 1 to 1,000"),
        ("action", "explode", "Select a valid choice"),
        ("code", "\0", "Null characters are not allowed"),
    ):
        refused = client.post(f"{address}?find=xid", fields | {field: value})
        panel = refused.content.decode().partition('id="add"')[2]
        assert refused.status_code == 400 and message in panel and "seen before a board died" in panel, field
    assert client.post(address, fields).headers["Location"] == f"{address}?saved=xid%3A999#xid999"
    assert "Added here." in client.get(address, {"only": "changed"}).content.decode()
    gone = client.post(address, {"verb": "remove", "code": "xid:999"}, follow=True).content.decode()
    assert "xid:999 has no rule any more" in gone and not HealthRule.objects.filter(code="xid:999").exists()
    assert signed_in(world.vision.member).post(address, fields).status_code == 403
    assert "Add a rule" not in signed_in(world.vision.member).get(address).content.decode()


def test_a_job_template_needs_a_command(world: World) -> None:
    client = signed_in(world.operator)
    values = {"name": "Fit", "kind": "job", "type": "training", "units": 2, "hosts": 1}
    values |= {"max_runtime_seconds": 3600, "command": ""}
    assert client.post(reverse("template-new"), values).status_code == 400
    assert client.post(reverse("template-new"), values | {"command": "python fit.py"}).status_code == 302
    assert Template.objects.get(name="Fit").units == 2


def test_a_new_installation_creates_its_first_operator_and_shows_the_next_steps(db: None) -> None:
    client = Client()
    values = {
        "organisation": "Acme",
        "time_zone": "UTC",
        "currency": "EUR",
        "username": "ada",
        "email": "ada@example.org",
    }
    assert client.get("/").headers["Location"] == reverse("first-run")
    assert "Setup code" in client.get(reverse("first-run")).content.decode()
    claimed = client.post(reverse("first-run"), values | {"password": PASSWORD, "setup_code": "0" * 32})
    assert claimed.status_code == 400 and "setup_code is not the current code" in claimed.content.decode()
    values["setup_code"] = new_setup_code(timezone.now()) or ""
    refused = client.post(reverse("first-run"), values | {"password": "x"})
    assert refused.status_code == 400 and "password: " not in refused.content.decode()
    assert not User.objects.exists()
    assert client.post(reverse("first-run"), values | {"password": PASSWORD}).status_code == 302
    page = client.get(reverse("first-run")).content.decode()
    steps = ["Make a pool", "Add a host", "Create a team", "Give it a quota", "Launch a notebook"]
    assert [page.index(f". {step}</h2>") for step in steps] == sorted(
        page.index(f". {step}</h2>") for step in steps
    )
    assert Client().post(
        reverse("first-run"), values | {"username": "eve", "password": PASSWORD}
    ).status_code in (
        302,
        403,
    )
    assert User.objects.get().operator


def _limits() -> list[str]:
    from portal.services.fleet.pools import POOL_LIMITS

    return list(POOL_LIMITS)


@pytest.mark.parametrize("name", first_cases(2, ["\0", "a\0b", "nobody", "x" * 10_000, "\u202e"]))
@pytest.mark.parametrize(
    ("page", "form"),
    [
        ("team", {"verb": "remove_member", "user": None}),
        ("team", {"verb": "project_active", "project": None, "active": "0"}),
    ],
)
def test_an_unknown_user_name_is_not_found(
    world: World, page: str, form: dict[str, str | None], name: str
) -> None:
    url = reverse(page, args=[Team.objects.order_by("pk")[0].slug] if page == "team" else [])
    fields = {field: name if value is None else value for field, value in form.items()}
    assert signed_in(world.operator).post(url, fields).status_code == 404


def test_users_cannot_change_their_email_address_themselves(world: World) -> None:
    member = signed_in(world.vision.member)
    answer = member.post(
        "/accounts/email/", {"email": world.operator.email or "o@example.org", "action_add": ""}
    )
    assert answer.status_code == 404
    assert member.get("/accounts/email/").status_code == 404
