"""Build the texts of messages to notice channels."""

from __future__ import annotations

from collections.abc import Sequence

from portal.wording.formatting import with_count

MAX_SUBJECT = 120
ADDRESS_UNREADABLE = "no key of this installation fits the address; remove the channel and create a new one"


def subject(sentences: Sequence[str]) -> str:
    """Return the subject: the sentence of the notice, or the number of notices of a digest."""
    if len(sentences) != 1:
        return with_count(len(sentences), "notice")
    sentence = sentences[0]
    if len(sentence) <= MAX_SUBJECT:
        return sentence.rstrip(".")
    return f"{sentence[:MAX_SUBJECT].rsplit(' ', 1)[0]} …"
