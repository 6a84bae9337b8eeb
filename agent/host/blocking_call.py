"""Runs calls that may block forever in a thread.

The event loop, which renews the leases of the running workloads, then never waits longer than a timeout.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class CallTimeout(Exception):
    """The call did not return in time, or an earlier call still hangs."""


class BlockingCall:
    """A thread that runs one call at a time. While a call hangs, further calls fail at once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._last_result: Future[Any] | None = None

    def run(self, call: Callable[[], T], seconds: float) -> T:
        """Run ``call`` in the thread. Return its result, or raise its exception.

        Raises CallTimeout after ``seconds``, or at once while an earlier call hangs.
        """
        if self._last_result is None:
            try:
                threading.Thread(target=self._work, daemon=True, name=self._name).start()
            except RuntimeError:  # no thread available
                raise CallTimeout from None
        elif not self._last_result.done():
            raise CallTimeout
        answer: Future[T] = Future()
        self._last_result = answer
        self._calls.put((call, answer))
        try:
            return answer.result(seconds)
        except TimeoutError:
            if answer.done():
                raise  # the call itself raised this TimeoutError
            raise CallTimeout from None

    def _work(self) -> None:
        while True:
            call, answer = self._calls.get()
            try:
                answer.set_result(call())
            except Exception as problem:  # noqa: BLE001 - passed to the caller
                answer.set_exception(problem)
