"""Test the search for unusual spend, the reasons that people give, and who may see and explain it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent, Notification, User
from portal.notices.delivery import write_notices
from portal.policy import visible_unusual_spend
from portal.reads.money.unusual_spend import unusual_overview
from portal.services.money.unusual_spend import (
    ask_about_spend,
    explain_unusual_spend,
    refresh_unusual_spend,
    search_next_month,
)
from portal.wording.pages.money.unusual_texts import finding
from scheduler.models import Gpu, Reservation
from telemetry.models import (
    BillingZone,
    Charge,
    ChargeCell,
    Price,
    Statement,
    StatementLine,
    StatementLineDay,
    StatementState,
    UnusualSpend,
    UnusualSpendExplanation,
    UnusualSpendSearch,
)
from tests.portal.rejections import rejected
from tests.portal.web.work_samples import reserve
from tests.world import H100, World, world_fixture

pytestmark = pytest.mark.django_db
MARCH, FEBRUARY, JANUARY = date(2026, 3, 1), date(2026, 2, 1), date(2026, 1, 1)
SPIKE = date(2026, 3, 19)


def line_of(world: World, month: date, **changes: Any) -> StatementLine:
    """Return the statement line of vision's training in a month. Create the line if it is missing.

    ``changes`` are the columns in which the wanted line differs.
    """
    statement, _ = Statement.objects.get_or_create(month=month, defaults={"currency": "EUR"})
    columns: dict[str, Any] = {
        "statement": statement,
        "pool": world.shared,
        "team": world.vision.team,
        "project": world.vision.project,
        "cost_centre": "CC-vision",
        "workload_type": "training",
        "model": H100,
        "bucket": "used",
        "currency": "EUR",
        **changes,
    }
    return StatementLine.objects.get_or_create(**columns)[0]


def charge_day(line: StatementLine, day: date, cents: str, user: User, name: str = "fit") -> None:
    """Add a charge of one day to a statement line. ``user`` caused the charge with a workload named ``name``.

    The cell and the day of the line are written too. A cell is the part of a line that one person, workload
    and day caused.
    """
    amount = Decimal(cents)
    sums = {"charged_cents": amount, "slot_seconds": 840 * 3600}
    ChargeCell.objects.create(
        line=line, statement=line.statement, user=user, day=day, workload_name=name, **sums
    )
    row, made = StatementLineDay.objects.get_or_create(
        line=line, statement=line.statement, day=day, defaults=sums
    )
    if not made:
        row.charged_cents += amount
        row.slot_seconds += 840 * 3600
        row.save()
    line.charged_cents += amount
    line.slot_seconds += 840 * 3600
    line.save()


def ledger_line(world: World, reservation: Reservation | None = None) -> None:
    """Create a charge line of an unused hour on 3 March."""
    Charge.objects.create(
        pool=world.shared,
        month=MARCH,
        bucket="reserved_unused",
        day=date(2026, 3, 3),
        start=datetime(2026, 3, 3, 9, tzinfo=UTC),
        end=datetime(2026, 3, 3, 10, tzinfo=UTC),
        slots=840,
        slot_seconds=840 * 3600,
        gpu=Gpu.objects.earliest("pk"),
        model=H100,
        reservation=reservation,
        project=world.vision.project,
        cost=0,
        charged=60,
        created_at=world.now,
    )


def write_spiked(world: World) -> Statement:
    """Charge 70 a day to vision's member from January on, and 412.80 on 19 March."""
    day = JANUARY
    while day <= date(2026, 3, 25):
        line = line_of(world, day.replace(day=1))
        charge_day(line, day, "412.80" if day == SPIKE else "70.00", world.vision.member)
        day += timedelta(days=1)
    return Statement.objects.get(month=MARCH)


spiked = world_fixture(write_spiked)


def now_of(world: World) -> Any:
    return world.now.replace(year=2026, month=3, day=25)


def test_a_high_day_is_found_for_the_narrowest_subject(world: World, spiked: Statement) -> None:
    assert refresh_unusual_spend(spiked, now_of(world)) == 1
    found = UnusualSpend.objects.get()
    assert (found.kind, found.subject, found.user) == ("high_day", "fit", world.vision.member)
    assert (found.first_day, found.last_day, found.amount, found.usual) == (
        SPIKE,
        SPIKE,
        Decimal("412.80"),
        Decimal("70.00"),
    )
    [row] = unusual_overview(world.finance, MARCH).open
    assert row.title == "fit cost 412.80 EUR on 19 Mar, usually 70.00"
    assert row.curve[-1] == 412.8 and len(row.curve) == 28
    assert f"day={SPIKE}" in row.url and f"project={world.vision.project.pk}" in row.url


def test_reserved_time_that_nobody_took_is_found_with_its_hours(world: World) -> None:
    reservation = reserve(world, world.vision, "nightly", hours=24, length=2)
    line = line_of(world, MARCH, bucket="reserved_unused", workload_type="")
    charge_day(line, date(2026, 3, 3), "60.00", world.vision.member, "")
    ledger_line(world, reservation)
    refresh_unusual_spend(line.statement, now_of(world))
    found = UnusualSpend.objects.get()
    assert (found.kind, found.project, found.amount) == ("not_taken", world.vision.project, Decimal("60.00"))
    [row] = unusual_overview(world.finance, MARCH).open
    assert row.title.endswith("did not take 100 % of its reserved time")
    assert "1 window, 3 Mar to 3 Mar. Nothing ran in any of them." in row.detail


def test_a_new_price_and_a_new_project_need_no_explanation_by_a_person(
    world: World, spiked: Statement
) -> None:
    start = world.now.replace(year=2026, month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    for moment, price in ((start, "2.35"), (start.replace(month=3), "2.40")):
        Price.objects.create(
            model=H100, cost_per_gpu_hour=1, price_per_gpu_hour=price, valid_from=moment, created_at=moment
        )
    new = line_of(world, MARCH, team=world.language.team, project=world.language.project)
    charge_day(new, date(2026, 3, 5), "307.40", world.language.member)
    refresh_unusual_spend(spiked, now_of(world))
    rows = {row.spend.kind: row for row in unusual_overview(world.finance, MARCH).self_explained}
    charged = 24 * Decimal(70) + Decimal("412.80") + Decimal("307.40")
    effect = (charged * (1 - Decimal("2.35") / Decimal("2.40"))).quantize(Decimal("0.01"))
    assert rows["new_price"].spend.amount == effect
    assert rows["new_price"].title == f"{H100} from 2.35 to 2.40 since 1 Mar: +{effect} EUR of the charges"
    assert "new since 5 Mar: 307.40 EUR" in rows["new_project"].title


def test_a_new_price_begins_on_its_billing_day(world: World, spiked: Statement) -> None:
    """At 06:00 UTC on 20 March, 19 March is not over in Los Angeles."""
    created = datetime(2026, 1, 1, tzinfo=UTC)
    BillingZone.objects.create(
        first_month=FEBRUARY, time_zone="America/Los_Angeles", created_at=created, created_by=world.finance
    )
    for moment, price in ((created, "2.35"), (datetime(2026, 3, 20, 5, tzinfo=UTC), "4.70")):
        Price.objects.create(
            model=H100, cost_per_gpu_hour=1, price_per_gpu_hour=price, valid_from=moment, created_at=moment
        )
    refresh_unusual_spend(spiked, datetime(2026, 3, 20, 6, tzinfo=UTC))
    found = UnusualSpend.objects.get(kind="new_price")
    assert (found.first_day, found.last_day) == (SPIKE, SPIKE)


def test_the_search_for_unusual_spend_is_repeated_each_hour_and_keeps_explained_rows(
    world: World, spiked: Statement
) -> None:
    now = now_of(world)
    assert [search_next_month(now) for _ in range(4)][3] is None
    assert UnusualSpendSearch.objects.count() == 3
    found = UnusualSpend.objects.get(statement=spiked)
    explain_unusual_spend(actor=world.finance, spend=found, reason="a deadline", now=now)
    ChargeCell.objects.filter(day=SPIKE).update(charged_cents=70)
    later = now + timedelta(hours=1)
    assert [search_next_month(later) for _ in range(3)] == [0, 0, 0]
    assert UnusualSpend.objects.get().pk == found.pk


def test_a_month_is_searched_once_more_after_its_close(world: World, spiked: Statement) -> None:
    now = now_of(world)
    while search_next_month(now) is not None:
        pass
    closed_at = now + timedelta(minutes=10)
    Statement.objects.filter(pk=spiked.pk).update(state=StatementState.CLOSED, closed_at=closed_at)
    later = closed_at + timedelta(minutes=1)
    assert search_next_month(later) is not None
    assert spiked.unusual_spend_search.searched_at == later
    assert search_next_month(later) is None


def test_spend_that_is_no_longer_unusual_is_deleted(world: World, spiked: Statement) -> None:
    refresh_unusual_spend(spiked, now_of(world))
    ChargeCell.objects.filter(day=SPIKE).update(charged_cents=70)
    refresh_unusual_spend(spiked, now_of(world))
    assert not UnusualSpend.objects.exists()


def explain(actor: User, spend: UnusualSpend, reason: str = "a deadline") -> UnusualSpendExplanation:
    return explain_unusual_spend(actor=actor, spend=spend, reason=reason, now=spend.found_at)


def test_finance_and_the_lead_of_the_team_explain_and_the_reason_is_audited(
    world: World, spiked: Statement
) -> None:
    refresh_unusual_spend(spiked, now_of(world))
    spend = UnusualSpend.objects.get()
    explain(world.vision.lead, spend, "a test run")
    explain(world.finance, spend)
    overview = unusual_overview(world.finance, MARCH)
    [row] = overview.explained
    assert row.explanation is not None and row.explanation.reason == "a deadline"
    assert overview.counts == (0, 1)
    events = AuditEvent.objects.filter(verb="explain_unusual_spend").order_by("pk")
    assert [(event.actor, event.why) for event in events] == [
        (world.vision.lead, "a test run"),
        (world.finance, "a deadline"),
    ]
    with pytest.raises(Invalid, match="reason"):
        explain(world.finance, spend, "")
    for user in (world.vision.member, world.auditor, world.language.lead, world.operator):
        with pytest.raises(NotAllowed):
            explain(user, spend)


def test_finance_asks_the_lead_with_a_prepared_question_that_becomes_a_notice(
    world: World, spiked: Statement
) -> None:
    refresh_unusual_spend(spiked, now_of(world))
    spend = UnusualSpend.objects.get()
    address, client = reverse("unusual-spend", args=[spend.pk]), Client()
    client.force_login(world.finance)
    page = client.get(address)
    [row] = unusual_overview(world.finance, MARCH).open
    draft = page.context["question"].initial["question"]
    assert row.title in draft and row.detail in draft and "March 2026" in draft
    assert world.vision.lead in page.context["people"]
    asked = client.post(address, {"verb": "ask", "question": draft}, follow=True).content.decode()
    assert "A notice with your question" in asked and f"{world.finance.username} asked" in asked
    write_notices(timezone.now())
    notices = Notification.objects.filter(kind="spend_question")
    assert world.vision.lead.pk in notices.values_list("user", flat=True)
    assert world.language.lead.pk not in notices.values_list("user", flat=True)
    client.force_login(world.vision.lead)
    listed = client.get(reverse("notifications")).content.decode()
    assert f"{world.finance.username} asks about a charge: Is this" in listed and address in listed
    assert "Send the question" not in client.get(address).content.decode()
    for user in (world.vision.lead, world.auditor):
        with pytest.raises(NotAllowed):
            ask_about_spend(actor=user, spend=spend, question="why?", now=spend.found_at)


def test_the_finding_does_not_mention_counts_of_zero() -> None:
    assert finding(2, 0, 0, closed=False) == ("2 things to explain before closing.", "")
    assert finding(0, 1, 2, closed=False)[1] == "1 explained by people, 2 need no reason."


def test_spend_that_belongs_to_nobody_has_nobody_to_ask(world: World, spiked: Statement) -> None:
    refresh_unusual_spend(spiked, now_of(world))
    User.objects.exclude(pk=world.finance.pk).update(is_active=False)
    with rejected("belongs to no active person"):
        ask_about_spend(
            actor=world.finance, spend=UnusualSpend.objects.get(), question="why?", now=now_of(world)
        )


def test_each_role_sees_unusual_spend_only_if_it_sees_the_charges(world: World, spiked: Statement) -> None:
    refresh_unusual_spend(spiked, now_of(world))
    seen = {
        name: visible_unusual_spend(user).count()
        for name, user in {
            "finance": world.finance,
            "auditor": world.auditor,
            "lead": world.vision.lead,
            "member": world.vision.member,
            "other lead": world.language.lead,
            "operator": world.operator,
        }.items()
    }
    assert seen == {"finance": 1, "auditor": 1, "lead": 1, "member": 1, "other lead": 0, "operator": 0}


def test_nothing_in_a_closed_month_is_explained_any_more(world: World, spiked: Statement) -> None:
    refresh_unusual_spend(spiked, now_of(world))
    spend = UnusualSpend.objects.get()
    Statement.objects.filter(pk=spiked.pk).update(state="closing")
    Statement.objects.filter(pk=spiked.pk).update(state="closed")
    with rejected("closed already"):
        explain(world.finance, spend)
    with pytest.raises(DatabaseError, match="is closed"), transaction.atomic():
        UnusualSpendExplanation.objects.create(
            spend=spend, reason="late", author=world.finance, at=spend.found_at
        )
    overview = unusual_overview(world.finance, MARCH, closed=True)
    assert not overview.open[0].may_explain and overview.finding[0] == "1 thing without a reason."


def test_the_overview_runs_at_most_five_queries_however_much_is_found(
    world: World, spiked: Statement
) -> None:
    refresh_unusual_spend(spiked, now_of(world))
    spend = UnusualSpend.objects.get()
    for number in range(30):
        spend.pk, spend.subject = None, f"fit-{number}"
        spend.save()
        explain(world.finance, spend)
    with CaptureQueriesContext(connection) as asked:
        assert len(unusual_overview(world.vision.lead, MARCH).rows) == 31
    assert len(asked) <= 5


def test_page_and_api_show_and_explain_the_same(world: World, spiked: Statement) -> None:
    ledger_line(world)
    refresh_unusual_spend(spiked, now_of(world))
    spend, client = UnusualSpend.objects.get(), Client()
    client.force_login(world.vision.lead)
    page = reverse("unusual-spend", args=[spend.pk])
    assert client.post(page, {"reason": "x"}).status_code == 400
    assert client.post(page, {"reason": "a paper deadline"}).status_code == 302
    assert "a paper deadline" in client.get(page).content.decode()
    answer = client.get("/api/v1/statements/2026-03/unusual-spend/").json()
    [row] = answer["results"]
    assert (row["amount"], row["usual"], row["explanation"]["reason"]) == (
        "412.80",
        "70.00",
        "a paper deadline",
    )
    made = client.post(
        f"/api/v1/unusual-spend/{spend.pk}/explain/", {"reason": "a second one"}, "application/json"
    )
    assert made.status_code == 201 and made.json()["author"] == world.vision.lead.username
    client.force_login(world.language.lead)
    assert client.get(page).status_code == 404
