"""Define the result of one attempt to send a message."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attempt:
    """The result of an attempt. ``text`` says what the receiver answered, or why there was no answer.

    ``reached`` is False if the receiver could not be reached: then its other messages are not tried now.
    ``gone`` is True if the receiver said that it wants no more messages.
    """

    sent: bool
    text: str
    reached: bool = True
    gone: bool = False
