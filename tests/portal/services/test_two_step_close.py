"""Test the close of a month by two people. The second closes exactly the lines that the first proposed."""

from __future__ import annotations

import datetime as dt
from datetime import timedelta

import pytest
from django.db import DatabaseError, IntegrityError, transaction

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent, Organisation, User
from portal.services.money import months
from portal.services.money.adjusting import decisions
from portal.services.money.adjusting.drafts import AdjustmentRequest
from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.rejection import OperationRejected
from scheduler.models import Workload
from telemetry.models import ChargedUntil, CloseProposal, Statement
from telemetry.money import statements
from telemetry.money.signing.statement_verification import verify_statement
from telemetry.reads.chargeback import charges_by
from tests.documents import table_rows
from tests.portal.charged_january import START, charged
from tests.portal.rejections import rejected
from tests.telemetry.rows import change_in_place, directory
from tests.world import World

__all__ = ["charged"]
pytestmark = pytest.mark.django_db
JANUARY = START.date()
NOW = START + timedelta(days=40)


@pytest.fixture
def second(world: World, charged: Workload) -> User:
    """Let two people close a month; return another person of finance."""
    Organisation.objects.update(two_step_close=True)
    return User.objects.create(username="finance-2", finance=True)


def propose(world: World, now: dt.datetime = NOW) -> CloseProposal:
    return months.propose_close(actor=world.finance, month=JANUARY, now=now, why="complete")


def test_another_person_closes_a_month_that_was_proposed(world: World, second: User) -> None:
    proposal = propose(world)
    statement = months.close_month(actor=second, month=JANUARY, now=NOW + timedelta(days=2))
    assert (statement.state, statement.proposed_by, statement.closed_by) == ("closed", world.finance, second)
    assert statement.proposed_at == proposal.proposed_at
    assert verify_statement(statement).problems == ()
    events = AuditEvent.objects.filter(verb__in=("propose_close", "close_month")).order_by("pk")
    assert [(event.verb, event.actor) for event in events] == [
        ("propose_close", world.finance),
        ("close_month", second),
    ]


def test_an_auditor_may_close_a_proposed_month_but_may_not_propose_one(world: World, second: User) -> None:
    auditor = world.people["auditor"]
    with pytest.raises(NotAllowed):
        months.propose_close(actor=auditor, month=JANUARY, now=NOW)
    propose(world)
    assert months.close_month(actor=auditor, month=JANUARY, now=NOW).closed_by == auditor


def test_an_auditor_may_not_close_a_month_in_one_step(world: World, second: User) -> None:
    Organisation.objects.update(two_step_close=False)
    with pytest.raises(NotAllowed):
        months.close_month(actor=world.people["auditor"], month=JANUARY, now=NOW)


def test_the_person_who_proposed_a_month_may_not_close_it(world: World, second: User) -> None:
    propose(world)
    with rejected("because you proposed it"):
        months.close_month(actor=world.finance, month=JANUARY, now=NOW)
    assert Statement.objects.get(month=JANUARY).state == "open"


def test_a_month_that_nobody_proposed_is_not_closed(world: World, second: User) -> None:
    with rejected("nobody proposed it in the last 3 days"):
        months.close_month(actor=second, month=JANUARY, now=NOW)


def test_a_proposal_expires_after_three_days(world: World, second: User) -> None:
    propose(world)
    with rejected("nobody proposed it"):
        months.close_month(actor=second, month=JANUARY, now=NOW + timedelta(days=3))
    propose(world, NOW + timedelta(days=3))
    statement = months.close_month(actor=second, month=JANUARY, now=NOW + timedelta(days=5))
    assert statement.state == "closed"


def test_lines_that_changed_after_the_proposal_must_be_proposed_again(world: World, second: User) -> None:
    propose(world)
    assert statements.set_idle_payer(JANUARY, "guarantee")
    with rejected("its lines have changed since the proposal"):
        months.close_month(actor=second, month=JANUARY, now=NOW)
    statements.set_idle_payer(JANUARY, "operator")
    assert months.close_month(actor=second, month=JANUARY, now=NOW).state == "closed"


def test_the_documented_steps_of_two_people_have_these_results(world: World, second: User) -> None:
    directory("CC-vision")
    shown, steps = {"fin-1": world.finance, "fin-2": second}, []
    proposed = propose(world)
    steps.append(["fin-1 proposes January", f"charged {proposed.charged:,.2f}"])
    credit = AdjustmentRequest(month=JANUARY, amount="-12.50", reason="x", cost_centre="CC-vision")
    row = decisions.propose_adjustment(actor=shown["fin-1"], request=credit, now=NOW)
    decisions.approve_adjustment(actor=shown["fin-2"], adjustment=row, now=NOW)
    now_charged = charges_by("team", JANUARY).charged
    steps.append(["fin-2 approves a credit of 12.50", f"charged {now_charged:,.2f}"])
    with pytest.raises(OperationRejected) as refused:
        months.close_month(actor=second, month=JANUARY, now=NOW)
    words = refusal_sentence(refused.value).replace(",", "")
    assert f"It was {proposed.charged:.2f} and is now {now_charged:.2f}" in words
    result = f"refused: it was {proposed.charged:,.2f} and is now {now_charged:,.2f}"
    steps.append(["fin-2 closes January", result])
    steps.append(["fin-1 proposes January", f"charged {propose(world).charged:,.2f}"])
    closed = months.close_month(actor=second, month=JANUARY, now=NOW)
    steps.append(["fin-2 closes January", closed.state])
    assert table_rows("two-people") == steps


def test_a_month_that_is_not_over_is_not_proposed(world: World, second: User) -> None:
    with pytest.raises(Invalid, match="a past month"):
        months.propose_close(actor=world.finance, month=JANUARY, now=START + timedelta(days=3))
    assert not CloseProposal.objects.exists()


def test_a_month_is_not_proposed_if_one_person_closes_it(world: World, second: User) -> None:
    Organisation.objects.update(two_step_close=False)
    with rejected("one person closes a month here"):
        propose(world)


def test_a_closed_month_is_not_proposed(world: World, second: User) -> None:
    propose(world)
    months.close_month(actor=second, month=JANUARY, now=NOW)
    with rejected("closed already"):
        propose(world)


def test_the_database_refuses_the_same_person_twice_and_changes_of_a_proposal(
    world: World, second: User
) -> None:
    proposal = propose(world)
    for change in (
        lambda: CloseProposal.objects.update(proposed_by=second),
        lambda: CloseProposal.objects.filter(pk=proposal.pk)._raw_delete(using="default"),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            change()
    statement = months.close_month(actor=second, month=JANUARY, now=NOW)
    with pytest.raises(IntegrityError), transaction.atomic():
        change_in_place(statement, proposed_by=second)


def test_a_month_whose_checks_fail_is_not_proposed(world: World, second: User) -> None:
    ChargedUntil.objects.filter(gpu__host=world.hosts["alpha"]).update(until=START + timedelta(days=9))
    with rejected("every GPU is charged to the end of the month"):
        propose(world)
    assert not CloseProposal.objects.exists()
