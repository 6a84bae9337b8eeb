"""Build the sentences about the number of GPUs: the smallest that keeps a wait, and the error of a replay."""

from __future__ import annotations

from decimal import Decimal

from portal.wording.chargeback.overview_texts import Finding, amount_text
from portal.wording.formatting import duration
from portal.wording.pages import capacity_pages as texts


def size_finding(
    model: str, gpus: int | None, *, smallest: bool, extra: Decimal | None, currency: str, limit: int
) -> Finding:
    """Return the smallest number of GPUs that keeps the wait, with its cost against the present number.

    ``gpus`` is None if no replayed number keeps it. ``smallest`` is True if no smaller number was replayed.
    """
    if gpus is None:
        return Finding(texts.NONE_KEEPS.format(model=model))
    main = texts.RECOMMENDED.format(gpus=f"{gpus:,}", model=model, wait=duration(limit))
    more = []
    if extra is not None and extra != 0:
        text = texts.SAVED if extra < 0 else texts.EXTRA
        more.append(text.format(cost=amount_text(abs(extra), currency)))
    elif extra is not None:
        more.append(texts.AS_NOW)
    if smallest:
        more.append(texts.SMALLEST_KEEPS)
    return Finding(main, " ".join(more))


def trust_sentence(
    gpus: int, replayed: float | None, recorded: float | None, error: float | None, trusted: bool
) -> str:
    """Return the comparison of the replayed and the recorded waits (seconds) with the present number."""
    if error is None:
        return texts.NO_TRUST
    main = texts.TRUST.format(gpus=f"{gpus:,}", replayed=duration(replayed), recorded=duration(recorded))
    verdict = texts.TRUSTED if trusted else texts.NOT_TRUSTED
    return f"{main} {verdict.format(error=f'{error * 100:.0f} %')}"
