"""Read the report of a workload: its use, its waits, its attempts and its cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from portal import policy
from portal.models import User
from portal.reads.money import cost_totals
from portal.reads.work.priced_times import PricedTime, priced_times
from scheduler.models import Allocation, Run, Workload
from scheduler.state.states import WorkloadState
from telemetry.core.amounts import round_amount
from telemetry.core.charge_model import PREEMPTION_END_CODES
from telemetry.core.currencies import smallest_unit
from telemetry.core.request_advice import Advice
from telemetry.core.run_report import UnitReport, busy_at_once, mean_of
from telemetry.reads.usage_filters import to_gpu_hours
from telemetry.reads.wait_times import usual_wait
from telemetry.reports.build import WorkloadReport
from telemetry.reports.stored import workload_report

# A report compares the wait of the run with those of requests for fewer GPUs in this time before the run, if
# there are at least MIN_COMPARED_REQUESTS.
COMPARED_WAITS = timedelta(days=28)
MIN_COMPARED_REQUESTS = 5
UNCHARGED_BUCKETS = ("preempted", "hardware_lost")


@dataclass(frozen=True)
class ReportAttempt:
    """The time in which one attempt held units. ``end`` is None while it holds them.

    ``end_code`` is the reason code of its end, and ``preempted`` is True if it was preempted.
    """

    number: int
    hosts: tuple[str, ...]
    start: datetime
    end: datetime | None
    end_code: str
    outcome: str
    exit_code: int | None
    checkpoint_at: datetime | None

    @property
    def preempted(self) -> bool:
        return self.end is not None and self.end_code in PREEMPTION_END_CODES


@dataclass(frozen=True)
class ReportGap:
    """The time between two attempts, in which the workload held no unit."""

    start: datetime
    end: datetime
    code: str
    preempted: bool


@dataclass(frozen=True)
class EarlierStart:
    """The wait of the run, and the median wait of requests for the number of GPUs that the report advises."""

    gpus: int
    requests: int
    median_seconds: float
    waited_seconds: float

    @property
    def earlier_seconds(self) -> float:
        """Return how much longer the run waited than half of these requests."""
        return self.waited_seconds - self.median_seconds


@dataclass(frozen=True)
class RunReportDetails:
    """A workload's report with everything that its page, the API and the command line show.

    ``cost`` is the cost that the money pages show for the workload; None means unknown. ``charge_lines`` are
    its charges by day and bucket, and ``priced_times`` has them by time and price. If ``cost_hidden``, the
    viewer may not see the charges, and all three are empty. ``earlier_start`` is None if the report
    does not advise fewer GPUs, if there are too few requests to compare, or if they waited longer.
    ``charged_seconds`` and ``uncharged_seconds`` are slot-seconds, without and of lost work. ``host_seconds``
    is the sum over its runs of the time on their hosts.
    """

    workload: Workload
    report: WorkloadReport
    attempts: list[ReportAttempt]
    gaps: list[ReportGap]
    cost: cost_totals.CurrencySums | None
    charge_lines: list[dict[str, Any]]
    priced_times: list[PricedTime]
    cost_hidden: bool
    charged_seconds: int
    uncharged_seconds: int
    cpu_seconds: float | None
    memory_peak_mib: int | None
    host_seconds: float
    earlier_start: EarlierStart | None = None

    @property
    def first_wait(self) -> timedelta:
        """Return the time from the submission to the first units, as in the waiting times of the pool."""
        return self.attempts[0].start - self.workload.submitted_at

    @property
    def gap_time(self) -> timedelta:
        """Return the time between the attempts of the workload."""
        return sum((gap.end - gap.start for gap in self.gaps), timedelta(0))

    @property
    def is_final(self) -> bool:
        """Return True if no late sample can change the figures any more.

        The simulated past does not change.
        """
        return self.report.frozen_at is not None or self.workload.simulated

    @property
    def asked_gpus(self) -> int:
        return self.workload.units * self.workload.hosts

    @property
    def charged_gpu_hours(self) -> float:
        """Return the charged GPU-hours, without lost work."""
        return to_gpu_hours(self.charged_seconds)

    @property
    def uncharged_gpu_hours(self) -> float:
        """Return the GPU-hours of lost work, which are not charged."""
        return to_gpu_hours(self.uncharged_seconds)

    @property
    def working(self) -> list[UnitReport]:
        """Return the units that were busy in at least one point."""
        return [unit for unit in self.report.units if unit.was_busy]

    @property
    def busy_at_once(self) -> int | None:
        return busy_at_once(self.report.units)

    @property
    def held_gpu_hours(self) -> float:
        """Return the hours of held units. A slice counts as one unit."""
        return sum(unit.sums.held_seconds for unit in self.report.units) / 3600

    @property
    def coverage(self) -> float | None:
        return mean_of(self.report.units, "covered_seconds")

    @property
    def utilisation(self) -> float | None:
        return mean_of(self.report.units, "utilisation_seconds")

    @property
    def sm_active(self) -> float | None:
        return mean_of(self.report.units, "sm_active_seconds")

    @property
    def tensor_active(self) -> float | None:
        return mean_of(self.report.units, "tensor_active_seconds")

    @property
    def memory_peak_unit(self) -> UnitReport | None:
        """Return the unit with the highest peak of its memory; None if no memory was measured."""
        known = [unit for unit in self.report.units if unit.memory_peak_mib is not None]
        return max(known, key=lambda unit: unit.memory_peak_mib or 0) if known else None

    @property
    def energy_kwh(self) -> float | None:
        """Return the measured energy; None if one of the units has none, because the sum is then unknown."""
        energies = [unit.energy_kwh for unit in self.report.units]
        return None if None in energies else sum(energy for energy in energies if energy is not None)

    @property
    def mean_cores(self) -> float | None:
        """Return the mean number of busy CPU cores on each of its hosts."""
        if self.cpu_seconds is None or not self.host_seconds:
            return None
        return self.cpu_seconds / self.host_seconds

    def cost_with(self, advice: Advice) -> cost_totals.CurrencySums | None:
        """Return the cost of the same time with fewer GPUs; None if it is unknown, or for other advice."""
        if self.cost is None or advice.code != "fewer_gpus":
            return None
        busy, asked = Decimal(advice.numbers["busy"]), Decimal(advice.numbers["asked"])
        return {
            currency: round_amount(amount * busy / asked, smallest_unit(currency))
            for currency, amount in self.cost.items()
        }


def run_report(workload: Workload, viewer: User, now: datetime) -> RunReportDetails | None:
    """Return the report of a workload; None if the workload has held no unit.

    Charges that the viewer may not see are left out. Runs a fixed number of queries.
    """
    report = workload_report(workload, now)
    if report is None:
        return None
    attempts, runs = _attempts(workload)
    ended = workload.state == WorkloadState.ENDED
    cpu = [run.cpu_seconds for run in runs] if ended else [None]
    memory = [run.memory_peak_mib for run in runs] if ended else [None]
    details = RunReportDetails(
        workload=workload,
        report=report,
        attempts=attempts,
        gaps=_gaps(attempts),
        **_charges(workload, viewer, now),
        cpu_seconds=None if None in cpu else sum(value for value in cpu if value is not None),
        memory_peak_mib=None if None in memory else max(value for value in memory if value is not None),
        host_seconds=sum(_host_seconds(run, now) for run in runs),
    )
    return replace(details, earlier_start=_earlier_start(details))


def _earlier_start(details: RunReportDetails) -> EarlierStart | None:
    gpus = next((each.numbers["busy"] for each in details.report.advice if each.code == "fewer_gpus"), 0)
    usual = usual_wait(details.workload, gpus, COMPARED_WAITS) if gpus else None
    if usual is None or usual.requests < MIN_COMPARED_REQUESTS:
        return None
    waited = details.first_wait.total_seconds()
    found = EarlierStart(gpus, usual.requests, usual.median_seconds, waited)
    return found if found.earlier_seconds > 0 else None


def _charges(workload: Workload, viewer: User, now: datetime) -> dict[str, Any]:
    """Return the fields of the report about charges: hours for everybody, amounts for those who see them."""
    lines = cost_totals.charge_lines_of(workload.pk)
    charged = sum(line["seconds"] for line in lines if not _is_lost(line))
    hours = {
        "charged_seconds": charged,
        "uncharged_seconds": sum(line["seconds"] for line in lines) - charged,
    }
    if not policy.charge_right(viewer)(workload):
        return {"cost": None, "charge_lines": [], "priced_times": [], "cost_hidden": True, **hours}
    costs = cost_totals.workload_costs([workload.pk], now, cost_totals.prices(now))
    return {
        "cost": costs.get(workload.pk),
        "charge_lines": lines,
        "priced_times": priced_times(workload.pk),
        "cost_hidden": False,
        **hours,
    }


def _is_lost(line: dict[str, Any]) -> bool:
    return line["bucket"] in UNCHARGED_BUCKETS


def _attempts(workload: Workload) -> tuple[list[ReportAttempt], list[Run]]:
    """Return the attempts that held units in order, and their runs."""
    runs: dict[int, Run] = {}
    holds: dict[int, list[Allocation]] = {}
    rows = Allocation.objects.filter(workload=workload).select_related("run__host")
    for hold in rows.order_by("run__attempt", "run__rank", "pk"):
        runs[hold.run_id] = hold.run
        holds.setdefault(hold.run.attempt, []).append(hold)
    return [_attempt(number, some) for number, some in holds.items()], list(runs.values())


def _attempt(number: int, holds: list[Allocation]) -> ReportAttempt:
    runs = list({hold.run_id: hold.run for hold in holds}.values())
    ends = [hold.period.upper for hold in holds]
    codes = [hold.end_code for hold in holds if hold.end_code]
    preempted = next((code for code in codes if code in PREEMPTION_END_CODES), "")
    return ReportAttempt(
        number=number,
        hosts=tuple(dict.fromkeys(run.host.name for run in runs)),
        start=min(hold.period.lower for hold in holds),
        end=None if None in ends else max(ends),
        end_code=preempted or next(iter(codes), ""),
        outcome=next((run.outcome for run in runs if run.outcome), ""),
        exit_code=next((run.exit_code for run in runs if run.exit_code is not None), None),
        checkpoint_at=max((run.checkpoint_at for run in runs if run.checkpoint_at), default=None),
    )


def _gaps(attempts: list[ReportAttempt]) -> list[ReportGap]:
    return [
        ReportGap(before.end, after.start, before.end_code, before.preempted)
        for before, after in zip(attempts, attempts[1:], strict=False)
        if before.end is not None and before.end < after.start
    ]


def _host_seconds(run: Run, now: datetime) -> float:
    return max(0.0, ((run.ended_at or now) - run.placed_at).total_seconds())
