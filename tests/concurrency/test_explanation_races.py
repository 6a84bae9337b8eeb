"""Test an explanation of unusual spend that races with the close of its month, or with a search."""

from __future__ import annotations

import threading
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, transaction

from portal import locks
from portal.models import AuditEvent
from portal.services.money import unusual_spend
from scheduler.core.rejection import OperationRejected
from telemetry.models import Statement, StatementState, UnusualSpend, UnusualSpendExplanation
from telemetry.money import statements
from tests.concurrency.conftest import GUARDED, UNGUARDED, Meeting, race
from tests.concurrency.test_removal_races import meet_after
from tests.world import World

pytestmark = pytest.mark.django_db(transaction=True)
FEBRUARY = date(2026, 2, 1)


@pytest.fixture
def spend(world: World) -> UnusualSpend:
    return UnusualSpend.objects.create(
        statement=Statement.objects.create(month=FEBRUARY),
        kind="high_day",
        team=world.vision.team,
        project=world.vision.project,
        subject="fit",
        first_day=FEBRUARY,
        last_day=FEBRUARY,
        currency="EUR",
        amount=Decimal("412.80"),
        found_at=world.now,
    )


def explain(world: World, spend: UnusualSpend) -> UnusualSpendExplanation:
    return unusual_spend.explain_unusual_spend(
        actor=world.finance, spend=spend, reason="a demonstration", now=world.now
    )


def explain_while_closing(world: World, spend: UnusualSpend, patience: float) -> Any:
    """Race an explanation with a close that has begun. Return the answer of the explanation."""
    begun, meeting = threading.Event(), Meeting(2, patience)

    def close() -> None:
        with transaction.atomic():
            statements._transition(FEBRUARY, StatementState.OPEN, StatementState.CLOSING)
            begun.set()
            meeting.wait()
            statements._transition(FEBRUARY, StatementState.CLOSING, StatementState.CLOSED)

    def explain_then() -> Any:
        assert begun.wait(UNGUARDED)
        return explain(world, spend)

    closing = threading.Event()

    def close_then_tell() -> None:
        close()
        closing.set()

    def read_without_lock(pk: int) -> str:
        state = Statement.objects.get(pk=pk).state
        meeting.wait()
        assert closing.wait(UNGUARDED)
        return state

    with pytest.MonkeyPatch.context() as patch:
        if patience == UNGUARDED:
            patch.setattr(locks, "lock_statement_state", read_without_lock)
        closed, answer = race([close_then_tell, explain_then])
    assert closed is None
    return answer


def test_an_explanation_waits_for_the_close_of_its_month_and_is_refused(
    world: World, spend: UnusualSpend
) -> None:
    answer = explain_while_closing(world, spend, GUARDED)
    assert isinstance(answer, OperationRejected) and answer.code == "month_is_closed", answer
    assert not AuditEvent.objects.filter(verb="explain_unusual_spend").exists()


def test_without_the_lock_the_database_refuses_the_explanation(world: World, spend: UnusualSpend) -> None:
    """The database has a trigger that refuses the explanation. Its error is not written for people."""
    assert isinstance(explain_while_closing(world, spend, UNGUARDED), DatabaseError)


def test_a_search_for_unusual_spend_keeps_an_explained_row_or_the_explanation_is_refused(
    world: World, spend: UnusualSpend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unusual_spend, "search_unusual_spend", lambda *_: [])  # it is no longer unusual
    meet_after(monkeypatch, locks, "lock_unusual_spend", Meeting(2, GUARDED))
    found, answer = race(
        [
            lambda: unusual_spend.refresh_unusual_spend(spend.statement, world.now),
            lambda: explain(world, spend),
        ]
    )
    assert found == 0
    if UnusualSpend.objects.filter(pk=spend.pk).exists():
        assert isinstance(answer, UnusualSpendExplanation), answer
    else:
        assert isinstance(answer, OperationRejected) and answer.code == "spend_is_not_unusual", answer


def test_spend_that_a_search_for_unusual_spend_has_deleted_cannot_be_explained(
    world: World, spend: UnusualSpend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unusual_spend, "search_unusual_spend", lambda *_: [])
    unusual_spend.refresh_unusual_spend(spend.statement, world.now)
    with pytest.raises(OperationRejected) as refused:
        explain(world, spend)
    assert refused.value.code == "spend_is_not_unusual"
