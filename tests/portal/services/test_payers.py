"""Test refund limits and the payer of idle time."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent
from portal.reads.money import chargeback as reads
from portal.services.money import months, refund_limits
from portal.wording.money_texts import refund_limit_text, refund_sentence
from telemetry.models import RefundLimit, Statement
from telemetry.money.charges import charge_all_gpus
from telemetry.money.statements import create_missing_statements
from tests.portal.rejections import rejected
from tests.telemetry.rows import at, price
from tests.world import A100, H100, World

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
NOT_FINANCE = ("member", "lead", "operator", "auditor", "stranger")


def problem(verb: Any, **fields: Any) -> dict[str, str]:
    """Return the problems by field that the service finds."""
    with pytest.raises(Invalid) as refused:
        verb(**fields)
    return refused.value.fields


# -- refund limits ------------------------------------------------------------------------------------------


def refund_fields(world: World, **other: Any) -> dict[str, Any]:
    fields = {"actor": world.finance, "pool": world.shared, "forgiven_minutes": 30}
    return fields | {"valid_from": world.now, "now": world.now} | other


def test_finance_sets_a_refund_limit_and_the_audit_log_keeps_it(world: World) -> None:
    refund_limits.set_refund_limit(**refund_fields(world, why="shorter jobs"))
    row = RefundLimit.objects.get()
    assert (row.pool, row.forgiven_minutes, row.valid_from) == (world.shared, 30, world.now)
    event = AuditEvent.objects.get(verb="set_refund_limit")
    assert event.after == {"pool": "shared", "forgiven_minutes": 30, "valid_from": world.now.isoformat()}
    assert (event.actor, event.why) == (world.finance, "shorter jobs")


@pytest.mark.parametrize("role", NOT_FINANCE)
def test_only_finance_sets_refund_limits_and_the_payer_of_idle_time(world: World, role: str) -> None:
    actor = world.people[role]
    with pytest.raises(NotAllowed, match="Only finance"):
        refund_limits.set_refund_limit(**refund_fields(world, actor=actor))
    with pytest.raises(NotAllowed, match="Only finance"):
        months.set_idle_payer(actor=actor, month=date(2026, 3, 1), payer="use", now=world.now)


@pytest.mark.parametrize("minutes", [-1, 10_081, 1.5, "60", None, True])
def test_a_refund_limit_is_a_whole_number_of_minutes_up_to_a_week(world: World, minutes: Any) -> None:
    found = problem(refund_limits.set_refund_limit, **refund_fields(world, forgiven_minutes=minutes))
    assert "allowed: a whole number from 0 to 10,080 minutes" in found["forgiven_minutes"]


def test_a_refund_limit_may_not_begin_in_the_past(world: World) -> None:
    early = world.now - timedelta(seconds=1)
    found = problem(refund_limits.set_refund_limit, **refund_fields(world, valid_from=early))
    assert found == {
        "valid_from": "valid_from is 2026-03-02T08:59:59+00:00; allowed: 2026-03-02T09:00:00+00:00 or later. "
        "Stopped work keeps its limit."
    }


def test_a_pool_has_one_refund_limit_from_each_time(world: World) -> None:
    refund_limits.set_refund_limit(**refund_fields(world))
    with rejected("Shared has a refund limit from that time already"):
        refund_limits.set_refund_limit(**refund_fields(world, forgiven_minutes=20))
    refund_limits.set_refund_limit(**refund_fields(world, pool=world.static))
    assert RefundLimit.objects.count() == 2


def test_the_rate_card_shows_the_refund_limits_of_visible_pools(world: World) -> None:
    refund_limits.set_refund_limit(**refund_fields(world, valid_from=world.now + HOUR))
    rows = reads.refund_limit_rows(world.language.member, world.now)
    assert [(row["pool"].slug, row["now"]) for row in rows] == [("shared", "at most the last 60 minutes")]
    assert rows[0]["later"] == [{"text": "at most the last 30 minutes", "from": world.now + HOUR}]
    assert len(reads.refund_limit_rows(world.vision.member, world.now)) == 2


@pytest.mark.parametrize(
    ("minutes", "short", "sentence"),
    [
        (None, "all work since the last checkpoint", "Its work since its last checkpoint is not charged."),
        (0, "nothing", "It is charged until its stop."),
        (
            1,
            "at most the last 1 minute",
            "Its work since its last checkpoint is not charged, but at most the last 1 minute before its "
            "stop.",
        ),
        (
            720,
            "at most the last 12 h",
            "Its work since its last checkpoint is not charged, but at most the last 12 h before its stop.",
        ),
    ],
)
def test_people_read_how_much_of_stopped_work_is_not_charged(
    minutes: int | None, short: str, sentence: str
) -> None:
    assert (refund_limit_text(minutes), refund_sentence(minutes)) == (short, sentence)


# -- the payer of idle time ---------------------------------------------------------------------------------


def test_finance_chooses_the_payer_with_a_preview_per_team(world: World) -> None:
    for model in (H100, A100):
        price(model, "1", since=at(0, day=1))
    charge_all_gpus(at(10, 5))
    month = date(2026, 3, 1)
    effects = {row["team"]: row for row in reads.idle_payer_effects(month)}
    assert set(effects) == {"Vision", "Language", "Robotics", ""}
    totals = {
        payer: sum(row[payer] for row in effects.values()) for payer in ("operator", "guarantee", "use")
    }
    assert len(set(totals.values())) == 1 and totals["operator"] == effects[""]["operator"] > 0
    assert effects["Vision"]["guarantee"] > effects["Robotics"]["guarantee"] > 0 == effects["Vision"]["use"]
    months.set_idle_payer(actor=world.finance, month=month, payer="guarantee", now=at(10, 5), why="agreed")
    assert Statement.objects.get(month=month).idle_payer == "guarantee"
    event = AuditEvent.objects.get(verb="set_idle_payer")
    assert (event.before, event.after) == ({"idle_payer": "operator"}, {"idle_payer": "guarantee"})
    assert event.why == "agreed"


@pytest.mark.parametrize("month", [date(2026, 2, 1), date(2026, 4, 1)])
def test_the_payer_is_chosen_only_for_months_with_charges(world: World, month: date) -> None:
    found = problem(months.set_idle_payer, actor=world.finance, month=month, payer="use", now=world.now)
    assert found == {"month": f"month is {month:%Y-%m}; allowed: 2026-03 to 2026-03."}
    assert not Statement.objects.exists()


def test_the_payer_of_a_closed_month_is_fixed(world: World) -> None:
    create_missing_statements([date(2026, 3, 1)])
    Statement.objects.update(state="closing")
    Statement.objects.update(state="closed")
    with rejected("March 2026 is closed; the payer of its idle time can.t be changed"):
        months.set_idle_payer(actor=world.finance, month=date(2026, 3, 1), payer="use", now=world.now)
