"""Define the serializers of workloads and their runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from django.db.models import Q
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal import policy
from portal.api.base.fields import ResponseSerializer, gpus_of_slots
from portal.api.work.request_serializers import HardwareShape
from portal.reads.work import expected_starts, manual_stops
from portal.reads.work.expected_starts import StartRange, StartRecords
from portal.reads.work.workload_details import attempts_without_checkpoint
from portal.services.work import impossible_starts
from portal.wording import outcome_texts
from scheduler.models import Dependency, Pool, Workload, WorkloadKind, WorkloadType
from scheduler.requests import PRIORITY_NAMES
from scheduler.state.states import WorkloadState


class WorkloadShape(HardwareShape):
    id = serializers.UUIDField(source="public_id")
    kind = serializers.ChoiceField(choices=WorkloadKind.choices)
    type = serializers.ChoiceField(choices=WorkloadType.choices)
    name = serializers.CharField()
    pool = serializers.CharField(source="pool.slug")
    project = serializers.SerializerMethodField()
    owner = serializers.CharField(source="owner.username")
    state = serializers.ChoiceField(choices=[s.value for s in WorkloadState])
    outcome = serializers.CharField(help_text="a reason code once it has ended")
    command = serializers.CharField()
    priority = serializers.SerializerMethodField()
    preemptible = serializers.BooleanField()
    max_runtime_seconds = serializers.IntegerField()
    attempt = serializers.IntegerField()
    submitted_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    keep_until = serializers.DateTimeField(
        allow_null=True, help_text="until this time it is not stopped because it is idle"
    )
    position = serializers.IntegerField(allow_null=True, help_text="1 is next in its pool")
    expected_start = serializers.DateTimeField(allow_null=True)
    likely_from = serializers.SerializerMethodField(help_text="while it waits; null with too few past starts")
    likely_by = serializers.SerializerMethodField(help_text="the upper end of the range; never a guarantee")
    wanted_by = serializers.DateTimeField(allow_null=True, help_text="when it should be done: a preference")
    reason_code = serializers.CharField()
    reason = serializers.SerializerMethodField(
        help_text="a sentence: why it waits or started, why and by whom it is evicted, or how it ended"
    )
    borrowed_gpus = serializers.SerializerMethodField()
    reservation = serializers.UUIDField(source="reservation.public_id", allow_null=True, default=None)
    checkpoint_at = serializers.DateTimeField(allow_null=True)
    array = serializers.UUIDField(
        source="array.public_id", allow_null=True, default=None, help_text="the array of which it is a task"
    )
    array_index = serializers.IntegerField(allow_null=True)
    simulated = serializers.BooleanField(help_text="part of the simulated history, never ran")

    def get_project(self, workload: Workload) -> str:
        """Return the path of the project: ``team/project``."""
        return f"{workload.project.team.slug}/{workload.project.slug}"

    @extend_schema_field(serializers.ChoiceField(choices=list(PRIORITY_NAMES)))
    def get_priority(self, workload: Workload) -> str:
        """Return the name of the priority."""
        return next(name for name, number in PRIORITY_NAMES.items() if int(number) == workload.priority)

    def get_reason(self, workload: Workload) -> str:
        """Return a sentence that explains the present state of the workload."""
        context = cast(dict[str, Any], self.context)  # each response has its own dict, so rows can be cached
        if "stops" not in context:
            rows = self.instance if self.parent is None else self.parent.instance
            context["stops"] = manual_stops.manual_stops_of(
                [rows] if isinstance(rows, Workload) else cast(Any, rows) or ()
            )
        return outcome_texts.current_reason_sentence(
            workload, context["stops"].get(workload.pk), self.context.get("user")
        )

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_likely_from(self, workload: Workload) -> datetime | None:
        """Return the start of the range in which the workload likely starts.

        Return None if the workload does not wait, or if too few past starts are known for a range.
        """
        likely = self._likely(workload)
        return likely[0] if likely else None

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_likely_by(self, workload: Workload) -> datetime | None:
        """Return the end of the range in which the workload likely starts.

        Return None if the workload does not wait, or if too few past starts are known for a range.
        """
        likely = self._likely(workload)
        return likely[1] if likely else None

    def _likely(self, workload: Workload) -> StartRange | None:
        """Return the range in which the workload likely starts. Return None if the workload does not wait.

        One query reads the past starts in all pools, once per response. The query is skipped if no workload
        waits.
        """
        if (
            workload.state != WorkloadState.QUEUED
            or workload.expected_start is None
            or "now" not in self.context
        ):
            return None
        context = cast(dict[str, Any], self.context)  # each response has its own dict, so rows can be cached
        if "starts" not in context:
            context["starts"] = expected_starts.start_records_of_pools(
                Pool.objects.values_list("pk", flat=True), context["now"]
            )
        records: StartRecords = context["starts"]
        return records.likely(workload)

    def get_borrowed_gpus(self, workload: Workload) -> float:
        """Return the number of GPUs held above the team's guarantee; 0 for an ended workload."""
        return gpus_of_slots(0 if workload.state == WorkloadState.ENDED else workload.borrowed_slots) or 0.0


class HeldShape(ResponseSerializer):
    host = serializers.CharField()
    gpu = serializers.IntegerField(help_text="its index on that host")
    uuid = serializers.CharField()
    profile = serializers.CharField(help_text="profile of a slice; empty: the whole GPU")


class RunShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    attempt = serializers.IntegerField()
    rank = serializers.IntegerField()
    host = serializers.CharField(source="host.name")
    state = serializers.ChoiceField(choices=["placed", "starting", "running", "stopping", "ended"])
    step = serializers.CharField()
    placed_at = serializers.DateTimeField()
    running_at = serializers.DateTimeField(allow_null=True)
    ready_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    outcome = serializers.CharField()
    exit_code = serializers.IntegerField(allow_null=True)
    checkpoint_at = serializers.DateTimeField(
        allow_null=True, help_text="time of its last reported checkpoint"
    )
    begins_anew = serializers.SerializerMethodField(
        help_text="it started without its last checkpoint, because its host has other storage"
    )
    gpus = serializers.SerializerMethodField(help_text="UUIDs of the GPUs that it holds or held")
    units = serializers.SerializerMethodField(help_text="the units that it holds or held, by host and index")

    def get_begins_anew(self, run: Any) -> bool:
        """Return True if the attempt of this run started without the workload's last checkpoint."""
        return run.attempt in self.context["begun_anew"]

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_gpus(self, run: Any) -> list[str]:
        """Return the UUIDs of the run's units."""
        return sorted(allocation.unit.uuid for allocation in run.allocations.all())

    @extend_schema_field(HeldShape(many=True))
    def get_units(self, run: Any) -> list[dict[str, Any]]:
        """Return the units that the run holds or held, in order of the GPU index."""
        held = sorted(
            (each.unit for each in run.allocations.all()), key=lambda unit: (unit.gpu.index, unit.uuid)
        )
        return [
            {"host": run.host.name, "gpu": unit.gpu.index, "uuid": unit.uuid, "profile": unit.profile}
            for unit in held
        ]


class AfterShape(ResponseSerializer):
    workload = serializers.UUIDField(source="on.public_id", allow_null=True, default=None)
    array = serializers.UUIDField(
        source="on_array.public_id",
        allow_null=True,
        default=None,
        help_text="the array, if it depends on all tasks of an array",
    )
    condition = serializers.ChoiceField(choices=Dependency.Condition.choices)
    settled_at = serializers.DateTimeField(allow_null=True, help_text="when the dependency ended")


class WorkloadDetail(WorkloadShape):
    runs = serializers.SerializerMethodField()
    after = serializers.SerializerMethodField(help_text="its dependencies")

    @extend_schema_field(AfterShape(many=True))
    def get_after(self, workload: Workload) -> Any:
        """Return the dependencies that the user may see: first workloads, then arrays, oldest first."""
        seen = policy.visible_workloads(self.context["user"])
        arrays = policy.visible_arrays(self.context["user"])
        rows = workload.dependencies.filter(Q(on__in=seen) | Q(on_array__in=arrays)).select_related(
            "on", "on_array"
        )
        rows = rows.order_by("on_id", "on_array_id")
        return AfterShape(rows, many=True).data

    @extend_schema_field(RunShape(many=True))
    def get_runs(self, workload: Workload) -> Any:
        """Return the runs of every attempt, newest attempt first, at most 100."""
        rows = (
            workload.runs.select_related("host")
            .prefetch_related("allocations__unit__gpu")
            .order_by("-attempt", "rank")[:100]
        )
        return RunShape(
            rows, many=True, context={**self.context, "begun_anew": attempts_without_checkpoint(rows)}
        ).data


class Submitted(WorkloadShape):
    warning = serializers.SerializerMethodField(
        help_text="set if it needs a larger quota, or if its hosts cannot reach each other; else empty"
    )

    def get_warning(self, workload: Workload) -> str:
        """Return the warning that the workload may never start or that its hosts cannot communicate.

        The text is empty if there is no warning.
        """
        return impossible_starts.submission_warning(workload, self.context["user"], self.context["now"])


class OpenShape(ResponseSerializer):
    url = serializers.CharField(help_text="Opens the notebook once, within a minute.")


class LogShape(ResponseSerializer):
    text = serializers.CharField(allow_blank=True)
    next_offset = serializers.IntegerField(help_text="where to continue")
    ended = serializers.BooleanField(help_text="the log is complete")


class BlockerShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    name = serializers.CharField()
    owner = serializers.CharField(source="owner.username")
    state = serializers.CharField()
