"""Make sentences about the seals of audit records and about their stream."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from portal.wording.formatting import duration, with_count

FINDING_TEXTS = {
    "event_removed": "Audit record {event} was removed (seal {seal}).",
    "event_changed": "Audit record {event} was changed after it was sealed (seal {seal}).",
    "event_not_sealed": "Audit record {event} has no seal: it was inserted past the portal.",
    "seal_removed": "Seal {seal} was removed.",
    "seal_changed": "Seal {seal} was changed, or a seal before it was made again.",
}


def finding_sentence(finding: Mapping[str, Any]) -> str:
    """Return the sentence about a difference between the records and their seals.

    ``finding`` has the fields of AuditFinding.
    """
    return FINDING_TEXTS[finding["code"]].format(**finding)


def integrity_sentences(state: Mapping[str, Any], now: datetime) -> list[str]:
    """Return the sentences about the chain of seals and about the stream of records.

    ``state`` has the fields of AuditIntegrity.
    """
    if not state["seal"]:
        return ["No audit record is sealed yet. New records are sealed every minute."]
    sentences = [
        f"{with_count(state['seal'], 'seal')} chain the records by hash; "
        f"{with_count(state['unsealed'], 'record')} will be sealed within a minute."
    ]
    if state["checked_at"] is None:
        sentences.append("The seals have not been checked yet.")
    elif not state["findings"]:
        ago = _ago(state["checked_at"], now)
        sentences.append(f"The last check ended {ago}. It found no removed or changed record.")
    if state["undelivered"] is not None:
        sentences.append(_stream_sentence(state, now))
    return sentences


def _stream_sentence(state: Mapping[str, Any], now: datetime) -> str:
    waiting = with_count(state["undelivered"], "record")
    if state["failing_since"] is not None:
        since = _ago(state["failing_since"], now)
        return f"The receiver has failed since {since} ({state['failure']}). {waiting} wait; none is lost."
    if state["undelivered"]:
        return f"{waiting} wait for the receiver, the oldest since {_ago(state['undelivered_since'], now)}."
    return "The receiver has all sealed records."


def _ago(at: datetime, now: datetime) -> str:
    return f"{duration(max(now - at, timedelta()))} ago"
