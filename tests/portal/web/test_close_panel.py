"""Test the panel with the progress of a close, and the list of months that are not closed yet."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal

import pytest
from django.db import connection
from django.db.models import Q
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.models import Notification, Organisation
from portal.notices.delivery import write_notices
from portal.notices.page_addresses import notice_path
from portal.reads.money.chargeback import statement_of
from portal.reads.money.closing.close_panel import ClosePanel, ReadMonth, close_panel
from portal.reads.money.closing.waiting_months import can_be_settled, waiting_months
from portal.reads.money.export_counts import export_counts
from portal.reads.money.unusual_spend import unusual_overview
from portal.wording.pages.money import close_texts, export_texts
from scheduler.models import Workload
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.exports.focus.rehearsal import check_rehearsed_files
from telemetry.models import Charge, ChargedUntil, MonthRehearsal, Statement, StatementLine
from telemetry.money.closing import rehearsals
from telemetry.money.closing.statement_months import load_statement_months
from telemetry.money.reconciliation import month_line_sums
from telemetry.reads.overview.line_counts import line_counts
from tests.portal.charged_january import START, charged, unusual_spend_of
from tests.portal.web.test_month_close import chargeback_page, client_of, close_page, rehearse
from tests.world import World

__all__ = ["charged"]
pytestmark = pytest.mark.django_db
JANUARY = START.date()
NOW = START + timedelta(days=40)
BALANCED = {"difference": Decimal("0.00")}


def read_month() -> ReadMonth:
    return ReadMonth(
        statement_of(JANUARY), month_line_sums(JANUARY), load_statement_months(), two_people=False
    )


def panel(world: World, difference: str = "0.00") -> ClosePanel:
    equation = {"difference": Decimal(difference)}
    found = close_panel(world.finance, JANUARY, NOW, read_month(), closed=False, equation=equation)
    assert found is not None
    return found


def month_of(rehearsal: MonthRehearsal | None) -> date | None:
    return rehearsal.statement.month if rehearsal else None


def states(found: ClosePanel) -> dict[str, str]:
    return {check.text: check.state for check in found.checks}


def test_a_panel_shows_quick_figures_and_the_last_rehearsal(world: World, charged: Workload) -> None:
    assert states(panel(world))["The checks of a close have not run yet: they run each night"] == "unknown"
    tonight = rehearsals.rehearse_next_month(NOW)
    assert tonight is not None and states(panel(world))[close_texts.FOCUS] == "unknown"
    check_rehearsed_files(tonight)
    found = panel(world)
    assert set(states(found).values()) == {"passes"}
    assert states(found)["The checks of a close pass"] == "passes"
    assert states(panel(world, "0.01"))["The equation adds up to the cost of the GPUs"] == "fails"
    StatementLine.objects.filter(bucket="used").update(cost_centre="")
    assert states(panel(world))["Every charged line has a cost centre"] == "fails"


def test_a_broken_rule_of_focus_is_shown_and_keeps_no_month_open(world: World, charged: Workload) -> None:
    tonight = rehearsals.rehearse_next_month(NOW)
    assert tonight is not None
    focus = check_rehearsed_files(tonight).focus
    assert focus is not None and focus["rows"] > 0 and focus["broken"] == []
    tonight.focus = {"rows": 5, "broken": ["CostAndUsage: BilledCost: not null: 1 rows"]}
    tonight.save()
    found = panel(world)
    [line] = [check for check in found.checks if check.text == close_texts.FOCUS]
    assert (line.state, line.figure, line.blocks) == ("fails", "1 broken rule", False)
    page = close_page(world.finance)
    assert "BilledCost: not null: 1 rows" in page and "5 of 5 pass" in found.finding


def test_unusual_spend_without_an_explanation_is_counted_and_blocks_nothing(
    world: World, charged: Workload
) -> None:
    row = unusual_spend_of(charged)
    row.statement = Statement.objects.get(month=JANUARY)
    row.save()
    unusual = unusual_overview(world.finance, JANUARY)
    found = close_panel(
        world.finance, JANUARY, NOW, read_month(), closed=False, equation=BALANCED, unusual=unusual
    )
    assert found is not None
    [check] = [check for check in found.checks if check.state == "open"]
    assert check.figure == "1 of 1 to explain"
    assert found.steps[0]["detail"] == "3 of 5 pass"  # the line of unusual spend does not count
    assert "3 of 5 pass" in found.finding


def test_the_panel_adds_two_queries_to_the_page(world: World, charged: Workload) -> None:
    rehearsals.rehearse_next_month(NOW)
    read = read_month()
    with CaptureQueriesContext(connection) as asked:
        assert close_panel(world.finance, JANUARY, NOW, read, closed=False, equation=BALANCED)
    assert len(asked) == 2


def test_only_roles_that_see_all_charges_get_the_panel(world: World, charged: Workload) -> None:
    read = read_month()
    assert close_panel(world.auditor, JANUARY, NOW, read, closed=False, equation=BALANCED) is not None
    for user in (world.vision.lead, world.operator):
        assert close_panel(user, JANUARY, NOW, read, closed=False, equation=BALANCED) is None
    assert close_panel(world.finance, JANUARY, NOW, read, closed=True, equation=BALANCED) is None


def test_the_page_shows_steps_signatures_and_waiting_months(world: World, charged: Workload) -> None:
    Organisation.objects.update(two_step_close=True)
    rehearse(world.finance)
    page = " ".join(chargeback_page(world.finance).split())
    assert "2nd signature <b>finance</b> or an auditor" in page
    assert "January 2026</a>" in page and "to be closed." in page
    assert "Close January" not in " ".join(chargeback_page(world.vision.lead).split())


def test_the_home_page_of_finance_lists_the_months_that_wait(world: World, charged: Workload) -> None:
    answer = client_of(world.finance).get("/")
    assert JANUARY in answer.context["money"]["spending"]["waiting"]
    assert "January 2026</a>" in answer.content.decode()


def test_the_nightly_rehearsal_runs_once_a_night_for_each_open_month(world: World, charged: Workload) -> None:
    night = NOW.replace(hour=2, minute=0)
    months = []
    while (found := rehearsals.rehearse_next_month(night)) is not None:
        months.append(found.statement.month)
    assert months == sorted(Statement.objects.values_list("month", flat=True))
    assert rehearsals.rehearse_next_month(night + timedelta(hours=20)) is None
    assert month_of(rehearsals.rehearse_next_month(night + timedelta(days=1))) == JANUARY


def test_a_rehearsal_in_progress_is_not_started_again_within_an_hour(world: World, charged: Workload) -> None:
    for statement in Statement.objects.all():
        MonthRehearsal.objects.create(statement=statement, started_at=NOW)
    assert rehearsals.rehearse_next_month(NOW + timedelta(minutes=59)) is None
    assert month_of(rehearsals.rehearse_next_month(NOW + timedelta(minutes=61))) == JANUARY


def test_finance_is_told_once_and_again_each_week_that_a_month_waits(world: World, charged: Workload) -> None:
    def told() -> list[int]:
        rows = Notification.objects.filter(user=world.finance, kind="month_waits").order_by("pk")
        return [row.numbers["weeks"] for row in rows if row.numbers["month"] == JANUARY.isoformat()]

    over = START + timedelta(days=31)
    for now in (over + timedelta(hours=1), over + timedelta(days=2), over + timedelta(days=8)):
        write_notices(now)
    assert told() == [0, 1]
    assert not Notification.objects.filter(user=world.vision.lead, kind="month_waits").exists()
    Statement.objects.filter(month=JANUARY).update(state="closing")
    assert JANUARY not in waiting_months(over + timedelta(days=8))


def test_a_month_is_announced_when_it_is_charged_to_its_end_or_a_day_later(
    world: World, charged: Workload
) -> None:
    over = START + timedelta(days=31)
    assert can_be_settled(JANUARY, over + timedelta(minutes=5))
    ChargedUntil.objects.filter(gpu__host=world.hosts["alpha"]).update(until=START + timedelta(days=3))
    assert not can_be_settled(JANUARY, over + timedelta(minutes=5))
    assert can_be_settled(JANUARY, over + timedelta(days=1))


def test_a_notice_about_a_waiting_month_leads_to_its_close(world: World, charged: Workload) -> None:
    from portal.wording.notices.notice_texts import notice_sentence

    write_notices(timezone.now())
    notice = Notification.objects.filter(kind="month_waits", numbers__month="2026-01-01").first()
    assert notice is not None and notice_path(notice) == "/chargeback/2026-01/close/"
    numbers = {"month": "2026-01-01", "weeks": 2}
    assert notice_sentence("month_waits", numbers) == (
        "January 2026 is over and has waited for 2 weeks to be closed."
    )


def test_the_menu_of_exports_counts_filtered_charge_lines_only_in_a_small_month(
    world: World, charged: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Charge.objects.filter(month=JANUARY).count()
    of_team = Charge.objects.filter(month=JANUARY, team=world.vision.team).count()
    where = {"team": world.vision.team.pk}
    assert 1 < of_team < whole
    assert export_counts(world.finance, JANUARY, {}).charge_lines == whole
    assert export_counts(world.finance, JANUARY, where).charge_lines == of_team
    monkeypatch.setattr("portal.reads.money.export_counts.MAX_COUNTED_LINES", whole - 1)
    assert export_counts(world.finance, JANUARY, {}).charge_lines == whole
    assert export_counts(world.finance, JANUARY, where).charge_lines is None
    assert export_counts(world.vision.lead, JANUARY, {}).charge_lines is None
    assert export_texts.rows_text(whole, whole - 1) == f"more than {whole - 1} rows"
    assert export_texts.rows_text(None, whole - 1) == "a row for each charge line"


def test_the_numbers_of_a_month_count_each_cost_centre_once(world: World, charged: Workload) -> None:
    shown = StatementLine.objects.filter(statement__month=JANUARY, shared_out=False)
    charged_lines = shown.filter(Q(bucket__in=CHARGED_BUCKETS) | Q(idle_share=True))
    shown.filter(bucket="used").update(cost_centre="")
    counts = line_counts(month_line_sums(JANUARY))
    assert counts.lines == shown.count() and counts.charged_lines == charged_lines.count()
    assert counts.cost_centres == len(set(shown.values_list("cost_centre", flat=True)))
    codes = set(charged_lines.values_list("cost_centre", flat=True)) - {""}
    assert counts.charged_cost_centres == len(codes)
    assert counts.unmapped == shown.filter(bucket="used").exclude(charged_cents=0).count() > 0
