"""Races are run with threads that each have a connection of their own, so their rows are committed for real."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from django.db import connections

from tests.world import MONDAY, World, build_world

T = TypeVar("T")


@pytest.fixture
def world(transactional_db: None) -> World:
    """The organisation on Monday morning, committed."""
    return build_world(MONDAY)


def race(functions: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Run all at the same time; each answer, or what it raised, in the order given."""
    answers: list[T | Exception] = [RuntimeError("did not end")] * len(functions)
    start = threading.Barrier(len(functions))

    def run(number: int) -> None:
        try:
            start.wait(10)
            answers[number] = functions[number]()
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            answers[number] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return answers


GUARDED = 1.0  # seconds that a racer waits for one that a guard keeps out
UNGUARDED = 30.0  # and for one that nothing keeps out: only a busy machine makes it wait at all


class Meeting:
    """A place in the code where racers wait for each other, for as long as is worth waiting: a guard that keeps one of them out
    lets the other go on alone."""

    def __init__(self, racers: int, patience: float) -> None:
        self._barrier = threading.Barrier(racers)
        self._patience = patience

    def wait(self) -> None:
        try:
            self._barrier.wait(self._patience)
        except threading.BrokenBarrierError:
            return  # the others were kept out
