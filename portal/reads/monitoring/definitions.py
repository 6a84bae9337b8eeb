"""Define the metrics of the portal: names, labels and help texts. docs/telemetry.md has the same table.

Each label has few values: pools, GPU models, teams, and states and codes of closed lists. Only the metrics of
the part GPUS have labels of single hosts and GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricPart(StrEnum):
    """A part of the answer. ALWAYS is in each answer, MONEY needs a right, and GPUS must be requested."""

    ALWAYS = "always"
    MONEY = "money"
    GPUS = "gpus"


GAUGE, COUNTER = "gauge", "counter"
# Values by label values, in the order of the metric's labels. A value that is unknown is absent.
MetricValues = list[tuple[tuple[str, ...], float]]


@dataclass(frozen=True)
class MetricDefinition:
    name: str
    kind: str
    labels: tuple[str, ...]
    help_text: str
    part: MetricPart = MetricPart.ALWAYS


def _gauge(name: str, *labels: str, help_text: str) -> MetricDefinition:
    return MetricDefinition(name, GAUGE, labels, help_text)


def _counter(name: str, *labels: str, help_text: str) -> MetricDefinition:
    return MetricDefinition(name, COUNTER, labels, help_text)


def _money(name: str, *, help_text: str) -> MetricDefinition:
    return MetricDefinition(name, GAUGE, ("team", "currency"), help_text, MetricPart.MONEY)


def _gpu(name: str, kind: str = GAUGE, *, help_text: str) -> MetricDefinition:
    labels = ("pool", "model", "host", "gpu", "slice")
    return MetricDefinition(name, kind, labels, help_text, MetricPart.GPUS)


_DEFINITIONS = (
    _gauge(
        "gpupool_pool_gpus",
        "pool",
        "model",
        "state",
        help_text="GPUs by state: held, reserved (bound and not held), free, closed. A slice is a fraction.",
    ),
    _gauge("gpupool_gpus", "pool", "model", "repair_state", help_text="Number of GPUs by repair state."),
    _gauge("gpupool_hosts", "pool", "state", help_text="Number of hosts by the state that pages show."),
    _gauge("gpupool_hosts_disk_full", "pool", help_text="Number of hosts that report a full disk."),
    _gauge(
        "gpupool_team_gpus_held",
        "pool",
        "model",
        "team",
        help_text="GPUs that a team holds, with those of its reservations.",
    ),
    _gauge(
        "gpupool_team_gpus_guaranteed", "pool", "model", "team", help_text="GPUs that a quota guarantees."
    ),
    _gauge(
        "gpupool_health_events", "pool", "code", help_text="Hardware events of the last 24 hours by code."
    ),
    _gauge("gpupool_alerts", "pool", "kind", "state", help_text="Alerts that have not ended."),
    _gauge("gpupool_stray_processes", "pool", help_text="Processes on GPUs now that belong to no workload."),
    _gauge(
        "gpupool_workloads", "pool", "kind", "state", help_text="Number of workloads that have not ended."
    ),
    _gauge(
        "gpupool_queue_workloads", "pool", "reason", help_text="Waiting workloads by the reason for the wait."
    ),
    _gauge(
        "gpupool_queue_requested_units",
        "pool",
        help_text="GPUs or slices that the waiting workloads request.",
    ),
    _gauge(
        "gpupool_queue_oldest_timestamp_seconds",
        "pool",
        help_text="Time at which the workload that waits longest was queued. Absent while nothing waits.",
    ),
    _gauge("gpupool_engine_last_cycle_timestamp_seconds", help_text="Time of the last planning cycle."),
    _gauge("gpupool_engine_last_cycle_duration_seconds", help_text="Duration of the last planning cycle."),
    _gauge(
        "gpupool_ingest_waiting_batches", help_text="Sample batches on the stream. Absent without Valkey."
    ),
    _counter(
        "gpupool_ingest_batches_total", help_text="Sample batches of all hosts that are stored or given up."
    ),
    _gauge(
        "gpupool_telemetry_hosts_late",
        "pool",
        help_text="Hosts that answer and have GPUs, whose samples of the last 90 seconds are not stored.",
    ),
    _gauge(
        "gpupool_telemetry_complete_timestamp_seconds",
        "pool",
        help_text="Time up to which the samples of every host that answers are stored.",
    ),
    _counter(
        "gpupool_reading_faults_total",
        "pool",
        "kind",
        help_text="Readings that could not be stored as they arrived, since the start of the day (UTC).",
    ),
    _gauge("gpupool_rollups_timestamp_seconds", help_text="End of the last minute that is rolled up."),
    _gauge("gpupool_charges_complete_timestamp_seconds", help_text="Time up to which each GPU is charged."),
    _gauge(
        "gpupool_system_state",
        "check",
        "subject",
        "state",
        help_text="1 for the state of a check of the page System health, 0 for its other states.",
    ),
    _gauge(
        "gpupool_system_value",
        "check",
        "subject",
        "unit",
        help_text="Value of a check of the page System health. Absent if it is unknown.",
    ),
    _money("gpupool_team_month_charges", help_text="Charges of a team in this month so far."),
    _money(
        "gpupool_team_month_budget", help_text="Budget of a team for this month. Absent without a budget."
    ),
    _money("gpupool_team_month_forecast", help_text="Expected charges of a team at the end of the month."),
    _gpu("gpupool_gpu_held", help_text="1 if a workload holds the GPU or slice, otherwise 0."),
    _gpu(
        "gpupool_gpu_sample_timestamp_seconds", help_text="Time of the last sample, at most 90 seconds old."
    ),
    _gpu("gpupool_gpu_utilisation_ratio", help_text="Share of time in which a kernel ran."),
    _gpu("gpupool_gpu_sm_active_ratio", help_text="SM activity."),
    _gpu("gpupool_gpu_tensor_active_ratio", help_text="Tensor core activity."),
    _gpu("gpupool_gpu_memory_used_bytes", help_text="Memory in use."),
    _gpu("gpupool_gpu_memory_bytes", help_text="Memory of the GPU or slice."),
    _gpu("gpupool_gpu_power_watts", help_text="Power draw."),
    _gpu("gpupool_gpu_energy_joules_total", COUNTER, help_text="Energy since the driver was loaded."),
    _gpu("gpupool_gpu_temperature_celsius", help_text="Temperature of the GPU."),
    _gpu("gpupool_gpu_sm_clock_hertz", help_text="SM clock."),
    _gpu("gpupool_gpu_processes", help_text="Number of processes."),
    _gauge("gpupool_metrics_duration_seconds", help_text="Time in which this answer was computed."),
)
METRICS = {definition.name: definition for definition in _DEFINITIONS}
