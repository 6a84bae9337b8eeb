"""Count the statement lines of a month, for the progress of its close and the sizes of its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.models import ChargeBucketChoices
from telemetry.money.reconciliation import LineSums


@dataclass(frozen=True)
class LineCounts:
    """Counts of the statement lines of a month. The operator's idle lines are left out if teams pay for them.

    - ``lines`` and ``cost_centres``: all lines; lines without a cost centre count as one cost centre.
    - ``charged_lines``, ``charged_cost_centres``: lines of charged time; cost centres with a code.
    - ``unmapped``: lines of charged time with a charge and without a cost centre.
    - ``held``: slot-seconds of held time of the month; ``covered``: the part that samples cover.
    """

    lines: int
    cost_centres: int
    charged_lines: int
    charged_cost_centres: int
    unmapped: int
    held: int
    covered: float


def line_counts(sums: Sequence[LineSums]) -> LineCounts:
    """Return the numbers of a month's statement lines from its ``month_line_sums``."""
    shown = [line for line in sums if not line.shared_out]
    charged = [line for line in shown if line.bucket in CHARGED_BUCKETS or line.idle_share]
    held = [line for line in charged if line.bucket == ChargeBucketChoices.USED and line.is_own]
    return LineCounts(
        lines=sum(line.lines for line in shown),
        cost_centres=sums[0].cost_centres if sums else 0,
        charged_lines=sum(line.lines for line in charged),
        charged_cost_centres=sums[0].charged_cost_centres if sums else 0,
        unmapped=sum(line.not_free for line in charged if not line.has_cost_centre),
        held=sum(line.slot_seconds for line in held),
        covered=sum(line.covered_slot_seconds for line in held),
    )
