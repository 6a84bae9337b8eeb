"""Test teams, accounts, tokens, hosts, prices and health rules: permissions and audit records."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.utils import DatabaseError

from portal.errors import Invalid, NotAllowed
from portal.models import ApiToken, AuditEvent, Membership, Organisation, User
from portal.reads.fleet import health_rules
from portal.redis_state.access_revocation import ACCESS_CHANNEL
from portal.services.fleet import health_rules as health
from portal.services.fleet import host_effects, hosts, pools
from portal.services.money import budgets, rate_card
from portal.services.people import accounts, api_tokens, teams
from portal.services.people.setup_code import is_setup_code, new_setup_code
from portal.services.work import workload_preview
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Host, JoinToken, Team, Workload
from scheduler.state import nudge
from telemetry.models import Budget, CostCentre, HealthRule, Price
from telemetry.money.pricing.billing_currencies import load_billing_currencies
from tests.portal.rejections import rejected
from tests.world import H100, World

pytestmark = pytest.mark.django_db
GOOD = "correct horse battery staple"


def test_an_operator_creates_teams_accounts_and_members(world: World) -> None:
    team = teams.create_team(actor=world.operator, name="Speech  & Sound", now=world.now)
    assert (team.slug, team.tag) == ("speech-sound", "SP")
    user = accounts.create_user(actor=world.operator, username="ada", email="ada@example.org", now=world.now)
    assert not user.has_usable_password()
    teams.add_member(actor=world.operator, team=team, user=user, role="lead", now=world.now)
    project = teams.create_project(actor=user, team=team, name="Voices", now=world.now)
    assert project.team == team
    teams.remove_member(actor=user, team=team, user=user, now=world.now)
    with rejected():
        teams.remove_member(actor=world.operator, team=team, user=user, now=world.now)
    with rejected():
        teams.create_team(actor=world.operator, name="Speech  & Sound", now=world.now)


@pytest.mark.parametrize("role", ["member", "lead", "finance", "auditor", "stranger"])
def test_others_create_no_teams_accounts_or_hosts(world: World, role: str) -> None:
    actor = world.people[role]
    with pytest.raises(NotAllowed):
        teams.create_team(actor=actor, name="Mine", now=world.now)
    with pytest.raises(NotAllowed):
        accounts.create_user(actor=actor, username="x", email="x@example.org", now=world.now)
    with pytest.raises(NotAllowed):
        hosts.add_host(actor=actor, pool=world.shared, name="mine", now=world.now)
    with pytest.raises(NotAllowed):
        hosts.cordon_host(actor=actor, host=world.hosts["alpha"], why="", now=world.now)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"username": "a b"}, "username"),
        ({"username": "\0"}, "username"),
        ({"username": "x" * 151}, "username"),
        ({"username": "OPERATOR"}, "username"),
        ({"email": "nobody"}, "email"),
        ({"auditor": True, "operator": True}, "auditor"),
    ],
)
def test_an_invalid_account_is_refused_by_field(world: World, changes: dict[str, Any], field: str) -> None:
    fields = {"username": "ada", "email": "ada@example.org"} | changes
    with pytest.raises(Invalid) as refused:
        accounts.create_user(actor=world.operator, now=world.now, **fields)
    assert list(refused.value.fields) == [field]


def test_the_last_operator_cannot_be_removed(world: World) -> None:
    with rejected("last operator"):
        accounts.change_user(actor=world.operator, user=world.operator, operator=False, now=world.now)


def user_of_token(text: str, now: datetime) -> User | None:
    token = api_tokens.token_in_force(text, now)
    return token.user if token is not None else None


def test_a_closed_account_loses_its_tokens(world: World) -> None:
    _, text = api_tokens.create_token(actor=world.stranger, name="script", now=world.now)
    assert user_of_token(text, world.now) == world.stranger
    accounts.change_user(actor=world.operator, user=world.stranger, active=False, now=world.now)
    assert user_of_token(text, world.now) is None


def test_a_token_is_stored_as_a_hash_and_ends_when_revoked_or_expired(world: World) -> None:
    soon = world.now + timedelta(days=1)
    token, text = api_tokens.create_token(
        actor=world.vision.member, name="laptop", expires_at=soon, now=world.now
    )
    assert text.startswith("gpp_") and text not in str(ApiToken.objects.values())
    assert user_of_token(text, world.now) == world.vision.member
    assert user_of_token(text, soon) is None
    with pytest.raises(NotAllowed):
        api_tokens.revoke_token(actor=world.language.member, token=token, now=world.now)
    api_tokens.revoke_token(actor=world.vision.member, token=token, now=world.now)
    assert user_of_token(text, world.now) is None
    with pytest.raises(Invalid):
        api_tokens.create_token(actor=world.vision.member, name="late", expires_at=world.now, now=world.now)


def test_preferences_accept_known_time_zones_and_themes_only(world: World) -> None:
    changed = accounts.set_preferences(
        actor=world.auditor, time_zone="Europe/Berlin", theme="dark", now=world.now
    )
    assert (changed.time_zone, changed.theme) == ("Europe/Berlin", "dark")
    with pytest.raises(Invalid) as refused:
        accounts.set_preferences(actor=world.auditor, time_zone="Mars/Base", theme="pink", now=world.now)
    assert set(refused.value.fields) == {"time_zone", "theme"}


def test_the_first_run_setup_can_be_used_only_once(world: World) -> None:
    fields: dict[str, Any] = {
        "organisation": "Lab",
        "time_zone": "UTC",
        "currency": "usd",
        "username": "root",
        "email": "r@example.org",
        "password": GOOD,
        "setup_code": "",
        "now": world.now,
    }
    with rejected():
        accounts.first_run(**fields)
    assert new_setup_code(world.now) is None
    Membership.objects.all().delete()
    User.objects.all().delete()
    earlier, code = new_setup_code(world.now), new_setup_code(world.now)
    wrong = [{"setup_code": given} for given in ("", earlier, f"{code}0")]
    for changes in (*wrong, {"password": "short"}, {"password": "x\0" * 10}):
        with pytest.raises(Invalid) as refused:
            accounts.first_run(**fields | {"setup_code": code} | changes)
        assert list(refused.value.fields) == list(changes)
        assert changes.get("password", "~") not in str(refused.value.values)
    user = accounts.first_run(**fields | {"setup_code": f" {code} "})
    assert not is_setup_code(code or "")
    assert user.operator and Organisation.objects.get().name == "Lab"
    assert load_billing_currencies().of(date(2020, 1, 1)) == "USD"


def test_a_host_is_added_with_a_token_that_is_stored_as_a_hash(world: World) -> None:
    host, text = hosts.add_host(
        actor=world.operator, pool=world.shared, name="gpu-9", labels={"rack": "r2"}, now=world.now
    )
    assert host.lease_state == "joining"
    assert text not in str(JoinToken.objects.values())
    with rejected():
        hosts.add_host(actor=world.operator, pool=world.shared, name="gpu-9", now=world.now)
    for name in ("", "A b", "x" * 64, "-x", "a\0"):
        with pytest.raises(Invalid):
            hosts.add_host(actor=world.operator, pool=world.shared, name=name, now=world.now)
    assert Host.objects.filter(name="gpu-9").count() == 1


def test_a_host_is_taken_out_of_service_and_returned_with_reasons(world: World) -> None:
    alpha = world.hosts["alpha"]
    assert host_effects.host_verb_effect(alpha, "drain", world.now).gpus == 8
    hosts.cordon_host(actor=world.operator, host=alpha, why="a fan", now=world.now)
    assert (alpha.admin_state, alpha.state_reason) == ("cordoned", "a fan")
    with rejected("cordoned"):
        hosts.cordon_host(actor=world.operator, host=alpha, why="again", now=world.now)
    hosts.drain_host(actor=world.operator, host=alpha, why="repair", now=world.now)
    hosts.return_host(actor=world.operator, host=alpha, now=world.now)
    assert alpha.admin_state == "in_service"
    assert list(AuditEvent.objects.order_by("pk").values_list("verb", flat=True)) == [
        "cordon_host",
        "drain_host",
        "return_host",
    ]


def test_maintenance_is_in_the_future_and_ends_after_its_start(world: World) -> None:
    alpha = world.hosts["alpha"]
    hour = timedelta(hours=1)
    hosts.set_maintenance(
        actor=world.operator,
        host=alpha,
        start=world.now + hour,
        end=world.now + 2 * hour,
        why="bios",
        now=world.now,
    )
    for start, end in ((2, 1), (-3, -2), (1, 24 * 365)):
        with pytest.raises(Invalid):
            hosts.set_maintenance(
                actor=world.operator,
                host=alpha,
                start=world.now + start * hour,
                end=world.now + end * hour,
                why="x",
                now=world.now,
            )


def test_prices_are_set_by_finance_and_never_for_the_past(world: World) -> None:
    fields: dict[str, Any] = {
        "model": H100,
        "cost": "1.80",
        "price": "2.10",
        "valid_from": world.now,
        "now": world.now,
    }
    rate_card.set_price(actor=world.finance, **fields)
    with rejected():
        rate_card.set_price(actor=world.finance, **fields)
    with pytest.raises(NotAllowed):
        rate_card.set_price(actor=world.operator, **fields)
    for field, value in (
        ("cost", "-1"),
        ("cost", "NaN"),
        ("price", "1e99"),
        ("price", 1.5),
        ("model", "X"),
        ("valid_from", world.now - timedelta(days=1)),
    ):
        with pytest.raises(Invalid) as refused:
            rate_card.set_price(actor=world.finance, **(fields | {field: value}))
        assert list(refused.value.fields) == [field]
    assert Price.objects.count() == 1
    answer = workload_preview.preview_workload(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        now=world.now,
        name="x",
        command="x",
        units=2,
        models=[H100],
        max_runtime_seconds=3600,
    )
    assert str(answer["price_per_hour"]) == "4.20"


def test_a_budget_belongs_to_a_team_or_project_and_to_this_or_a_later_month(world: World) -> None:
    month = date(2026, 3, 1)
    budgets.set_budget(actor=world.finance, team=world.vision.team, month=month, amount="100", now=world.now)
    budgets.set_budget(
        actor=world.finance,
        team=world.vision.team,
        month=month,
        amount="200",
        action="refuse_new",
        now=world.now,
    )
    budgets.set_budget(
        actor=world.finance,
        team=world.vision.team,
        month=month,
        measure="gpu_hours",
        amount="500",
        now=world.now,
    )
    assert list(Budget.objects.order_by("amount").values_list("measure", "amount")) == [
        ("money", 200),
        ("gpu_hours", 500),
    ]
    for changes in (
        {"team": None},
        {"month": date(2026, 2, 1)},
        {"month": date(2026, 3, 2)},
        {"amount": "1.001"},
        {"action": "explode"},
        {"measure": "watts"},
        {"period": "week"},
        {"period": "quarter"},
        {"cost_centre": "CC-UNKNOWN"},
        {"team": None, "cost_centre": "CC-UNKNOWN"},
    ):
        fields: dict[str, Any] = {"team": world.vision.team, "month": month, "amount": "1"}
        with pytest.raises(Invalid):
            budgets.set_budget(actor=world.finance, now=world.now, **(fields | changes))


def test_a_removed_team_and_its_projects_get_no_budget(world: World) -> None:
    Team.objects.filter(pk=world.vision.team.pk).update(removed_at=world.now)
    fields: dict[str, Any] = {"actor": world.finance, "month": date(2026, 3, 1), "amount": "1"}
    for owner in ({"team": world.vision.team}, {"project": world.vision.project}):
        with pytest.raises(Invalid, match="team is Vision, which was removed"):
            budgets.set_budget(now=world.now, **fields, **owner)
    assert not Budget.objects.exists()


def test_a_budget_of_a_quarter_begins_in_its_first_month_and_may_be_of_a_cost_centre(world: World) -> None:
    CostCentre.objects.create(code="CC-77", created_at=world.now)
    fields: dict[str, Any] = {"actor": world.finance, "cost_centre": "CC-77", "amount": "5", "now": world.now}
    with pytest.raises(Invalid, match="allowed: the first month of a quarter"):
        budgets.set_budget(month=date(2026, 3, 1), period="quarter", **fields)
    budget = budgets.set_budget(month=date(2026, 1, 1), period="quarter", action="stop_running", **fields)
    assert (budget.cost_centre, budget.period, budget.action) == ("CC-77", "quarter", "stop_running")
    with pytest.raises(Invalid, match="allowed: the present period or a later one"):
        budgets.set_budget(month=date(2025, 10, 1), period="quarter", **fields)


def test_an_operator_changes_a_health_rule(world: World) -> None:
    rule = HealthRule.objects.get_or_create(
        code="xid:79", defaults={"meaning": "gone", "action": "cordon", "source": "vendor"}
    )[0]
    health.set_health_rule(
        actor=world.operator, code=rule.code, action="drain", repeats=2, window_seconds=60, now=world.now
    )
    rule.refresh_from_db()
    assert (rule.action, rule.repeats, rule.counts) == ("drain", 2, "events")
    health.set_health_rule(
        actor=world.operator,
        code=rule.code,
        action="drain",
        repeats=2,
        window_seconds=60,
        counts="people",
        now=world.now,
    )
    rule.refresh_from_db()
    assert rule.counts == "people"
    with pytest.raises(Invalid, match="counts is 'dogs'; allowed: events, people"):
        health.set_health_rule(
            actor=world.operator,
            code=rule.code,
            action="drain",
            repeats=2,
            window_seconds=60,
            counts="dogs",
            now=world.now,
        )
    with pytest.raises(Invalid):
        health.set_health_rule(
            actor=world.operator, code="xid:nope", action="drain", repeats=0, window_seconds=60, now=world.now
        )
    rule = health.set_health_rule(actor=world.operator, code=rule.code, action="warn", now=world.now)
    assert (rule.action, rule.repeats, rule.window_seconds, rule.counts) == ("warn", 2, 60, "people"), (
        "other fields do not change"
    )
    for code in ("xid:9999", "\0", "", "\ud800", None):
        with pytest.raises(Invalid, match="allowed: a code that has a rule"):
            health.set_health_rule(actor=world.operator, code=code, action="warn", now=world.now)
    with pytest.raises(Invalid, match="nothing to change is given"):
        health.set_health_rule(actor=world.operator, code=rule.code, now=world.now)


def test_each_rule_keeps_its_original_action_and_can_be_reset_to_it(world: World) -> None:
    """Check the rules that the migration created, with an action and the same original action."""
    assert {rule.origin for rule in HealthRule.objects.all()} == {"default"}
    assert HealthRule.objects.get(code="xid:109").default == ("quarantine_gpu", 3, 86_400, "people")
    assert HealthRule.objects.get(code="xid:79").default == ("cordon", 1, 3600, "events")
    fields: dict[str, Any] = {"actor": world.operator, "code": "xid:109", "now": world.now}
    with rejected("is at its default already"):
        health.reset_health_rule(**fields)
    for change in ({"action": "warn"}, {"repeats": 4}, {"window_seconds": 60}, {"counts": "events"}):
        assert health.set_health_rule(**fields, **change).origin == "changed"
        assert [rule.code for rule in health_rules.health_rules(changed=True)] == ["xid:109"]
        assert health.reset_health_rule(**fields, why="it was wrong").origin == "default"
    kept = AuditEvent.objects.filter(verb="reset_health_rule").latest("pk")
    assert (kept.target_name, kept.why, kept.before, kept.after) == (
        "xid:109",
        "it was wrong",
        {"action": "quarantine_gpu", "repeats": 3, "window_seconds": 86_400, "counts": "events"},
        {"action": "quarantine_gpu", "repeats": 3, "window_seconds": 86_400, "counts": "people"},
    )


def test_a_rule_can_be_added_for_a_new_code_and_only_added_rules_can_be_removed(world: World) -> None:
    fields: dict[str, Any] = {"actor": world.operator, "code": "xid:999", "now": world.now}
    made = health.add_health_rule(**fields, meaning="seen twice before a board died", action="warn")
    assert (made.origin, made.repeats, made.counts, made.source) == (
        "added",
        1,
        "events",
        "this organisation",
    )
    assert [rule.code for rule in health_rules.health_rules(changed=True)] == ["xid:999"]
    with rejected("it has a rule already"):
        health.add_health_rule(**fields, meaning="x", action="warn")
    with rejected("has no default"):
        health.reset_health_rule(**fields)
    for code in (
        "xid",
        "xid:01",
        "xid:99999",
        "XID:7",
        "xdi:7",
        "stray:process",
        "breaker:more",
        "xid:1\n",
        7,
    ):
        with pytest.raises(Invalid, match="code is .*; allowed: xid: and a number"):
            health.add_health_rule(**fields | {"code": code}, meaning="x", action="warn")
    with pytest.raises(Invalid) as all_of_it:
        health.add_health_rule(
            **fields | {"code": "xid:998"}, meaning="", action="explode", repeats=0, window_seconds=0
        )
    assert set(all_of_it.value.fields) == {"meaning", "action", "repeats", "window_seconds"}
    health.remove_health_rule(**fields)
    assert not HealthRule.objects.filter(code="xid:999").exists()
    assert (
        AuditEvent.objects.get(verb="remove_health_rule").before["meaning"]
        == "seen twice before a board died"
    )
    with rejected("is built in"):
        health.remove_health_rule(**fields | {"code": "xid:79"})
    assert HealthRule.objects.filter(code="xid:79").exists()


@pytest.mark.parametrize("role", ["member", "lead", "finance", "auditor"])
def test_only_an_operator_changes_health_rules(world: World, role: str) -> None:
    fields: dict[str, Any] = {"actor": world.people[role], "code": "xid:79", "now": world.now}
    for verb, more in (
        (health.set_health_rule, {"action": "note"}),
        (health.reset_health_rule, {}),
        (health.remove_health_rule, {}),
        (health.add_health_rule, {"code": "xid:999", "meaning": "x", "action": "note"}),
    ):
        with pytest.raises(NotAllowed):
            verb(**fields | more)  # type: ignore[operator]
    assert not AuditEvent.objects.filter(verb__contains="health_rule").exists()


@pytest.mark.parametrize(
    "statement", ["UPDATE portal_auditevent SET why = 'x'", "DELETE FROM portal_auditevent"]
)
def test_audit_events_cannot_be_changed_or_deleted(world: World, statement: str) -> None:
    teams.create_team(actor=world.operator, name="A", now=world.now)
    with (
        pytest.raises(DatabaseError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
    assert AuditEvent.objects.get().why == ""


def test_a_service_that_fails_leaves_no_audit_record(world: World) -> None:
    with rejected():
        teams.remove_member(actor=world.operator, team=world.vision.team, user=world.stranger, now=world.now)
    assert not AuditEvent.objects.exists() and not Workload.objects.exists()


def test_an_operator_sets_the_capacity_reserved_for_critical_work(world: World) -> None:
    pools.change_pool(actor=world.operator, pool=world.shared, now=world.now, spare_gpus=14)
    assert (world.shared.spare_slots, world.shared.spare_gpus) == (14 * SLOTS_PER_GPU, 14)
    assert AuditEvent.objects.get().after == {"spare_slots": 14 * SLOTS_PER_GPU}
    with pytest.raises(Invalid, match="spare_gpus"):
        pools.change_pool(actor=world.operator, pool=world.shared, now=world.now, spare_gpus=-1)
    # The pool has 16 H100 and 7 A100, partly as slices. 14 GPUs are kept for critical work.
    for units, starts in ((10, True), (12, False)):
        fields = {"units": units // 2, "hosts": 2, "models": [H100], "name": "fit", "command": "true"}
        answer = workload_preview.preview_workload(
            actor=world.vision.member,
            project=world.vision.project,
            pool=world.shared,
            now=world.now,
            **fields,
        )
        assert answer["starts_now"] is starts, answer


def test_the_edge_checks_access_again_when_a_permission_is_removed(
    world: World, django_capture_on_commit_callbacks: Any
) -> None:
    with nudge.redis_connection().pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(ACCESS_CHANNEL)
        heard.get_message(timeout=1)
        with django_capture_on_commit_callbacks(execute=True):
            teams.remove_member(
                actor=world.operator, team=world.vision.team, user=world.vision.member, now=world.now
            )
        assert heard.get_message(timeout=2) is not None
        with django_capture_on_commit_callbacks(execute=True):
            accounts.change_user(actor=world.operator, user=world.stranger, active=False, now=world.now)
        assert heard.get_message(timeout=2) is not None
