"""What a file system may hold up for ever (that of the homes) is asked beside the event loop, which goes on renewing leases."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class CallTimeout(Exception):
    """No answer in time, or one before it did not come yet."""


class BlockingCall:
    """One thread that asks, one question after the other. While one hangs nobody waits for the next."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._last_result: Future[Any] | None = None

    def ask(self, call: Callable[[], T], seconds: float) -> T:
        """What ``call`` gives or raises, as soon as it does. Raises CallTimeout after ``seconds``; at once while one before it hangs."""
        if self._last_result is None:
            try:
                threading.Thread(target=self._work, daemon=True, name=self._name).start()
            except RuntimeError:  # none is to be had just now
                raise CallTimeout from None
        elif not self._last_result.done():
            raise CallTimeout
        answer: Future[T] = Future()
        self._last_result = answer
        self._asked.put((call, answer))
        try:
            return answer.result(seconds)
        except TimeoutError:
            if answer.done():
                raise  # the call itself said so
            raise CallTimeout from None

    def _work(self) -> None:
        while True:
            call, answer = self._asked.get()
            try:
                answer.set_result(call())
            except Exception as problem:  # noqa: BLE001 - whoever asked gets it
                answer.set_exception(problem)
