"""Provide fixtures and helpers for races: each thread has its own connection, so rows are committed."""

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
    """Return the committed organisation on Monday morning."""
    return build_world(MONDAY)


def race(functions: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Run all functions at the same time. Returns their results or exceptions, in the given order."""
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


GUARDED = 1.0  # seconds to wait for a racer that a guard blocks
UNGUARDED = 30.0  # seconds to wait for a racer that nothing blocks; only a busy machine needs them


class Meeting:
    """A point in the code where the racing threads wait for each other, at most ``patience`` seconds.

    If a guard (e.g. a lock) blocks one thread, the others continue without it.
    """

    def __init__(self, racers: int, patience: float) -> None:
        self._barrier = threading.Barrier(racers)
        self._patience = patience

    def wait(self) -> None:
        try:
            self._barrier.wait(self._patience)
        except threading.BrokenBarrierError:
            return  # a guard blocked the others
