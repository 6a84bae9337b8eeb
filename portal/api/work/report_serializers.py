"""Define the serializers of the report of a workload."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.api.base.fields import CurrencyAmount, NumbersField, ResponseSerializer, numbers_field
from portal.reads.work.run_reports import RunReportDetails
from portal.wording import run_report_texts
from telemetry.core.request_advice import Advice
from telemetry.core.run_report import UnitReport

SHARE_HELP = "from 0 to 1; null: not measured"


class ReportCostShape(ResponseSerializer):
    currency = serializers.CharField()
    amount = CurrencyAmount()


class ReportAttemptShape(ResponseSerializer):
    attempt = serializers.IntegerField(source="number")
    hosts = serializers.ListField(child=serializers.CharField())
    start = serializers.DateTimeField()
    end = serializers.DateTimeField(allow_null=True)
    end_code = serializers.CharField(help_text="reason code of its end")
    preempted = serializers.BooleanField()
    exit_code = serializers.IntegerField(allow_null=True)
    checkpoint_at = serializers.DateTimeField(allow_null=True)


class ReportGapShape(ResponseSerializer):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    code = serializers.CharField(help_text="reason code of the end of the attempt before")
    preempted = serializers.BooleanField()


class ReportAdviceShape(ResponseSerializer):
    code = serializers.CharField()
    headline = serializers.SerializerMethodField()
    evidence = serializers.SerializerMethodField(help_text="the numbers on which it rests, as sentences")
    numbers: NumbersField = numbers_field()

    def get_headline(self, advice: Advice) -> str:
        """Return what to ask for next time."""
        return run_report_texts.advice_headline(advice)

    def get_evidence(self, advice: Advice) -> str:
        """Return the sentences with the numbers on which the advice rests."""
        return run_report_texts.advice_evidence(advice)


class ReportPricedTimeShape(ResponseSerializer):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    bucket = serializers.CharField(help_text="how the time was used")
    model = serializers.CharField()
    seconds = serializers.IntegerField()
    gpus = serializers.FloatField()
    gpu_hours = serializers.FloatField()
    price = serializers.DecimalField(
        max_digits=18, decimal_places=6, allow_null=True, help_text="of a GPU-hour, with its factors"
    )
    charged = serializers.DecimalField(
        max_digits=18, decimal_places=6, help_text="price x gpus x seconds / 3600; 0 for lost work"
    )
    currency = serializers.CharField()


class ReportEarlierStartShape(ResponseSerializer):
    gpus = serializers.IntegerField(help_text="number of GPUs that the report advises")
    requests = serializers.IntegerField(
        help_text="number of compared requests in the same pool, in the 4 weeks before the run"
    )
    median_seconds = serializers.FloatField(help_text="median of their waits")
    waited_seconds = serializers.FloatField(help_text="wait of the run")
    earlier_seconds = serializers.FloatField(help_text="difference of both")


def _series_field(help_text: str) -> serializers.ListField:
    """Return a field with one value for each point. Null: not measured, or the unit was not held."""
    return serializers.ListField(child=serializers.FloatField(allow_null=True), help_text=help_text)


class ReportSeriesShape(ResponseSerializer):
    busy = _series_field("busy part of the time, in percent")
    empty = _series_field("part of the time without a process, in percent")
    utilisation = _series_field("mean, in percent")
    sm_active = _series_field("mean, in percent")
    tensor_active = _series_field("mean, in percent")
    memory_mib = _series_field("peak, in MiB")
    power_w = _series_field("mean, in watts")
    dram_active = _series_field("activity of the GPU's memory: mean, in percent")
    pcie_mib_s = _series_field("both directions: mean, in MiB/s")
    nvlink_mib_s = _series_field("both directions: mean, in MiB/s")


class ReportHostSeriesShape(ResponseSerializer):
    cpu_cores = _series_field("mean of the cores in use")
    host_memory_mib = _series_field("mean, in MiB, with the file cache")
    io_mib_s = _series_field("reads and writes of disks: mean, in MiB/s")
    network_mib_s = _series_field("both directions: mean, in MiB/s")


def _total_field(help_text: str) -> serializers.IntegerField:
    return serializers.IntegerField(allow_null=True, help_text=f"{help_text}; null: not measured")


class ReportTotalsShape(ResponseSerializer):
    io_read_bytes = _total_field("read from disks")
    io_written_bytes = _total_field("written to disks")
    network_rx_bytes = _total_field("received by its own network")
    network_tx_bytes = _total_field("sent by its own network")


class ReportGpuShape(ResponseSerializer):
    host = serializers.CharField()
    gpu = serializers.IntegerField(help_text="its index on that host")
    model = serializers.CharField()
    profile = serializers.CharField(help_text="profile of a slice; empty: the whole GPU")
    held_seconds = serializers.FloatField(source="sums.held_seconds")
    covered_seconds = serializers.FloatField(source="sums.covered_seconds", help_text="with samples")
    busy = serializers.FloatField(allow_null=True, help_text=SHARE_HELP)
    utilisation = serializers.FloatField(allow_null=True, help_text=SHARE_HELP)
    sm_active = serializers.FloatField(allow_null=True, help_text=SHARE_HELP)
    tensor_active = serializers.FloatField(allow_null=True, help_text=SHARE_HELP)
    memory_mib = serializers.IntegerField(help_text="memory of the unit")
    memory_peak_mib = serializers.IntegerField(allow_null=True)
    memory_peak_at = serializers.SerializerMethodField()
    energy_kwh = serializers.FloatField(allow_null=True)
    series = ReportSeriesShape()

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_memory_peak_at(self, unit: UnitReport) -> datetime | None:
        """Return the start of the minute or hour with the peak of the memory."""
        peak = unit.memory_peak_at
        return None if peak is None else datetime.fromtimestamp(peak, UTC)


class WorkloadReportShape(ResponseSerializer):
    id = serializers.UUIDField(source="workload.public_id")
    name = serializers.CharField(source="workload.name")
    state = serializers.CharField(source="workload.state")
    outcome = serializers.CharField(source="workload.outcome")
    start = serializers.DateTimeField(source="report.start")
    end = serializers.DateTimeField(
        source="report.until", help_text="time at which it last held a GPU, or now while it holds GPUs"
    )
    final = serializers.BooleanField(
        source="is_final", help_text="false: samples may still arrive and change the figures"
    )
    waited_seconds = serializers.SerializerMethodField(help_text="from its submission to its first GPU")
    gap_seconds = serializers.SerializerMethodField(help_text="time without GPUs between its attempts")
    attempts = ReportAttemptShape(many=True)
    gaps = ReportGapShape(many=True)
    asked_gpus = serializers.IntegerField()
    busy_at_once = serializers.IntegerField(
        allow_null=True, help_text="largest number of GPUs that were busy at the same time"
    )
    held_gpu_hours = serializers.FloatField()
    coverage = serializers.FloatField(allow_null=True, help_text="part of the held time with samples")
    utilisation = serializers.FloatField(allow_null=True, help_text=SHARE_HELP)
    sm_active = serializers.FloatField(allow_null=True, help_text=SHARE_HELP)
    tensor_active = serializers.FloatField(allow_null=True, help_text=SHARE_HELP)
    energy_kwh = serializers.FloatField(allow_null=True)
    cpu_seconds = serializers.FloatField(allow_null=True, help_text="null: not measured")
    memory_peak_mib = serializers.IntegerField(
        allow_null=True, help_text="highest peak of a host, including the file cache; null: not measured"
    )
    cost = serializers.SerializerMethodField(help_text="by currency; null: unknown or hidden")
    cost_hidden = serializers.BooleanField(
        help_text="true: you may not see its charges, because it is the work of others"
    )
    charge_lines = ReportPricedTimeShape(
        many=True, source="priced_times", help_text="empty if you may not see its charges"
    )
    earlier_start = ReportEarlierStartShape(
        allow_null=True, help_text="wait of requests for the advised number of GPUs; null: unknown"
    )
    charged_gpu_hours = serializers.FloatField()
    uncharged_gpu_hours = serializers.FloatField(help_text="GPU-hours of lost work, which are not charged")
    advice = ReportAdviceShape(many=True, source="report.advice")
    point_seconds = serializers.IntegerField(source="report.point_seconds")
    points = serializers.SerializerMethodField(help_text="starts of the points of the series")
    gpus = ReportGpuShape(many=True, source="report.units")
    host_totals = ReportTotalsShape(source="report.host_use.totals")
    host_series = ReportHostSeriesShape(
        source="report.host_use.series", help_text="of all its hosts together"
    )

    def get_waited_seconds(self, details: RunReportDetails) -> float:
        """Return the time from the submission to the first GPU."""
        return details.first_wait.total_seconds()

    def get_gap_seconds(self, details: RunReportDetails) -> float:
        """Return the time between the attempts of the workload."""
        return details.gap_time.total_seconds()

    @extend_schema_field(ReportCostShape(many=True, allow_null=True))
    def get_cost(self, details: RunReportDetails) -> Any:
        """Return the cost of the workload by currency, as on the pages of money."""
        if details.cost is None:
            return None
        rows = [{"currency": currency, "amount": amount} for currency, amount in sorted(details.cost.items())]
        return ReportCostShape(rows, many=True).data

    @extend_schema_field(serializers.ListField(child=serializers.DateTimeField()))
    def get_points(self, details: RunReportDetails) -> list[datetime]:
        """Return the starts of the points."""
        return [datetime.fromtimestamp(start, UTC) for start in details.report.points]
