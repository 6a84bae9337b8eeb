"""What the API takes and gives about notebooks, jobs and arrays."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from django.db.models import Q
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal import policy
from portal.api.base.fields import (
    ResponseSerializer,
    count_field,
    gpus_of_slots,
    name_field,
    numbers_field,
    slug_field,
)
from portal.api.base.views import PageQuery, StrictSerializer
from portal.reads.work import expected_starts, manual_stops
from portal.reads.work.expected_starts import StartRange, StartRecords
from portal.reads.work.workload_details import attempts_without_checkpoint
from portal.services.work import impossible_starts
from portal.services.work.request_checks import MAX_DEPENDENCIES, PRIORITY_NAMES
from portal.wording import expected_start_texts, outcome_texts
from scheduler.core.explain.start_ranges import EstimateAccuracy
from scheduler.core.what_if.alternatives import Alternative, ChangedField
from scheduler.models import Dependency, IfMemberEnds, JobArray, Pool, Workload, WorkloadKind, WorkloadType
from scheduler.state.states import WorkloadState


class WorkloadShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    kind = serializers.ChoiceField(choices=WorkloadKind.choices)
    type = serializers.ChoiceField(choices=WorkloadType.choices)
    name = serializers.CharField()
    pool = serializers.CharField(source="pool.slug")
    project = serializers.SerializerMethodField()
    owner = serializers.CharField(source="owner.username")
    state = serializers.ChoiceField(choices=[s.value for s in WorkloadState])
    outcome = serializers.CharField(help_text="a reason code once it has ended")
    units = serializers.IntegerField(help_text="on each host")
    hosts = serializers.IntegerField()
    models = serializers.ListField(child=serializers.CharField(), source="models_wanted")
    profile = serializers.CharField()
    min_memory_mib = serializers.IntegerField(help_text="of each GPU; 0: any")
    min_compute_capability = serializers.IntegerField(help_text="80 is 8.0; 0: any")
    nvlink = serializers.BooleanField()
    labels_required = serializers.DictField(child=serializers.CharField())
    labels_preferred = serializers.DictField(child=serializers.CharField())
    spread = serializers.BooleanField()
    cpu_milli = serializers.IntegerField(help_text="thousandths of a core on each host; 0: not limited")
    memory_mib = serializers.IntegerField(help_text="on each host; 0: not limited")
    command = serializers.CharField()
    priority = serializers.SerializerMethodField()
    preemptible = serializers.BooleanField()
    max_runtime_seconds = serializers.IntegerField()
    attempt = serializers.IntegerField()
    submitted_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    position = serializers.IntegerField(allow_null=True, help_text="1 is next in its pool")
    expected_start = serializers.DateTimeField(allow_null=True)
    likely_from = serializers.SerializerMethodField(
        help_text="while it waits; null while too little is known of past starts"
    )
    likely_by = serializers.SerializerMethodField(help_text="the upper end of the range; never a guarantee")
    wanted_by = serializers.DateTimeField(allow_null=True, help_text="when it should be done: a wish")
    reason_code = serializers.CharField()
    reason = serializers.SerializerMethodField(
        help_text="in words: why it waits, why it started, why it is told to go and by whom, or how it ended"
    )
    borrowed_gpus = serializers.SerializerMethodField()
    reservation = serializers.UUIDField(source="reservation.public_id", allow_null=True, default=None)
    checkpoint_at = serializers.DateTimeField(allow_null=True)
    array = serializers.UUIDField(
        source="array.public_id", allow_null=True, default=None, help_text="it is a task of this"
    )
    array_index = serializers.IntegerField(allow_null=True)
    simulated = serializers.BooleanField(help_text="part of the simulated history, never ran")

    def get_project(self, workload: Workload) -> str:
        """team/project."""
        return f"{workload.project.team.slug}/{workload.project.slug}"

    @extend_schema_field(serializers.ChoiceField(choices=list(PRIORITY_NAMES)))
    def get_priority(self, workload: Workload) -> str:
        """By name."""
        return next(name for name, number in PRIORITY_NAMES.items() if int(number) == workload.priority)

    def get_reason(self, workload: Workload) -> str:
        """In words."""
        context = cast(dict[str, Any], self.context)  # the answer's own
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
        """The lower end of the range in which it likely starts."""
        likely = self._likely(workload)
        return likely[0] if likely else None

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_likely_by(self, workload: Workload) -> datetime | None:
        """The upper end of that range."""
        likely = self._likely(workload)
        return likely[1] if likely else None

    def _likely(self, workload: Workload) -> StartRange | None:
        """Asks once per answer for the records of every pool, and not at all where nothing waits."""
        if (
            workload.state != WorkloadState.QUEUED
            or workload.expected_start is None
            or "now" not in self.context
        ):
            return None
        context = cast(dict[str, Any], self.context)  # the answer's own
        if "starts" not in context:
            context["starts"] = expected_starts.start_records_of_pools(
                Pool.objects.values_list("pk", flat=True), context["now"]
            )
        told: StartRecords = context["starts"]
        return told.likely(workload)

    def get_borrowed_gpus(self, workload: Workload) -> float:
        """Held above the guarantee; what has ended holds nothing."""
        return gpus_of_slots(0 if workload.state == WorkloadState.ENDED else workload.borrowed_slots) or 0.0


class HeldShape(ResponseSerializer):
    host = serializers.CharField()
    gpu = serializers.IntegerField(help_text="its index on that host")
    uuid = serializers.CharField()
    profile = serializers.CharField(help_text="of a slice; empty: the whole GPU")


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
        allow_null=True, help_text="when it last said that it had saved"
    )
    begins_anew = serializers.SerializerMethodField(
        help_text="its host has other homes than its last checkpoint lies in: it did not find that"
    )
    gpus = serializers.SerializerMethodField(help_text="UUIDs of what it holds or held")
    units = serializers.SerializerMethodField(help_text="the same by host and index")

    def get_begins_anew(self, run: Any) -> bool:
        """Of the whole attempt."""
        return run.attempt in self.context["begun_anew"]

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_gpus(self, run: Any) -> list[str]:
        """By UUID."""
        return sorted(allocation.unit.uuid for allocation in run.allocations.all())

    @extend_schema_field(HeldShape(many=True))
    def get_units(self, run: Any) -> list[dict[str, Any]]:
        """By index."""
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
        source="on_array.public_id", allow_null=True, default=None, help_text="instead: all its tasks"
    )
    condition = serializers.ChoiceField(choices=Dependency.Condition.choices)
    settled_at = serializers.DateTimeField(allow_null=True, help_text="when it had ended")


class WorkloadDetail(WorkloadShape):
    runs = serializers.SerializerMethodField()
    after = serializers.SerializerMethodField(help_text="what it waits or waited for")

    @extend_schema_field(AfterShape(many=True))
    def get_after(self, workload: Workload) -> Any:
        """In the order of their submission."""
        seen = policy.visible_workloads(self.context["user"])
        arrays = policy.visible_arrays(self.context["user"])
        rows = workload.dependencies.filter(Q(on__in=seen) | Q(on_array__in=arrays)).select_related(
            "on", "on_array"
        )
        rows = rows.order_by("on_id", "on_array_id")
        return AfterShape(rows, many=True).data

    @extend_schema_field(RunShape(many=True))
    def get_runs(self, workload: Workload) -> Any:
        """Every attempt's runs, newest first."""
        rows = (
            workload.runs.select_related("host")
            .prefetch_related("allocations__unit__gpu")
            .order_by("-attempt", "rank")[:100]
        )
        return RunShape(
            rows, many=True, context={**self.context, "begun_anew": attempts_without_checkpoint(rows)}
        ).data


class WorkloadQuery(PageQuery):
    state = serializers.ChoiceField(
        choices=[*(s.value for s in WorkloadState), "open"], required=False, help_text="open: not ended"
    )
    kind = serializers.ChoiceField(choices=WorkloadKind.choices, required=False)
    pool = slug_field(required=False)
    team = slug_field(required=False)
    mine = serializers.BooleanField(required=False, default=False)


class KindQuery(PageQuery):
    state = serializers.ChoiceField(
        choices=[*(s.value for s in WorkloadState), "open"], required=False, help_text="open: not ended"
    )
    pool = slug_field(required=False)
    mine = serializers.BooleanField(required=False, default=False)


class JobQuery(KindQuery):
    array = serializers.UUIDField(required=False, help_text="only the tasks of this array")


class _GpuRequestFields(StrictSerializer):
    project = slug_field(help_text="team/project, or the project alone where that names one")
    pool = slug_field()
    models = serializers.ListField(
        child=serializers.CharField(max_length=60),
        required=False,
        max_length=10,
        help_text="in order of preference; empty: any",
    )
    profile = serializers.CharField(
        max_length=30, required=False, allow_blank=True, help_text="empty: whole GPUs"
    )


class AfterWish(StrictSerializer):
    workload = serializers.UUIDField(required=False, help_text="earlier work that you may see")
    array = serializers.UUIDField(
        required=False,
        help_text="instead of a workload: ok once all its tasks finished, not_ok once all ended and some did not",
    )
    condition = serializers.ChoiceField(
        choices=Dependency.Condition.choices, default="ok", help_text="how it has to have ended"
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """One of the two."""
        if ("workload" in attrs) == ("array" in attrs):
            raise serializers.ValidationError(
                {"workload": "allowed: the id of a workload, or instead of it that of an array."}
            )
        return attrs


class PlacedWish(_GpuRequestFields):
    """Where it has to be, and where it would rather be."""

    min_memory_mib = count_field(0, required=False, help_text="of each GPU")
    min_compute_capability = count_field(0, required=False, help_text="80 is 8.0")
    nvlink = serializers.BooleanField(required=False, help_text="all units of a host in one NVLink group")
    labels_required = serializers.DictField(child=serializers.CharField(max_length=63), required=False)
    labels_preferred = serializers.DictField(
        child=serializers.CharField(max_length=63),
        required=False,
        help_text="hosts with more of them come first",
    )
    spread = serializers.BooleanField(required=False, help_text="over hosts that share as little as can be")
    cpu_milli = count_field(
        0,
        required=False,
        help_text="thousandths of a core beside the units of each host; 0: not limited and not counted",
    )
    memory_mib = count_field(
        0, required=False, help_text="beside the units of each host; 0: not limited and not counted"
    )


class NotebookWish(PlacedWish):
    template = slug_field(required=False, allow_null=True)
    name = name_field(required=False, allow_blank=True)
    units = count_field(1, required=False)
    type = serializers.ChoiceField(choices=WorkloadType.choices, required=False)
    max_runtime_seconds = count_field(1, required=False)
    reservation = serializers.UUIDField(required=False, allow_null=True)


class JobWish(PlacedWish):
    name = name_field()
    command = serializers.CharField(max_length=20_000)
    units = count_field(1)
    hosts = count_field(1, required=False)
    type = serializers.ChoiceField(choices=WorkloadType.choices, required=False)
    priority = serializers.ChoiceField(choices=list(PRIORITY_NAMES), required=False)
    preemptible = serializers.BooleanField(required=False)
    max_runtime_seconds = count_field(1, required=False)
    most_retries = count_field(0, required=False)
    if_member_ends = serializers.ChoiceField(
        choices=IfMemberEnds.choices,
        required=False,
        help_text="on several hosts: what becomes of it when one of its members ends",
    )
    reservation = serializers.UUIDField(required=False, allow_null=True)
    environment = serializers.DictField(
        child=serializers.CharField(max_length=4096, allow_blank=True), required=False
    )
    wanted_by = serializers.DateTimeField(
        required=False, allow_null=True, help_text="a wish; nothing holds it to it"
    )
    after = AfterWish(  # type: ignore[call-arg]  # with many=True the arguments are those of a list, which stubs do not know
        many=True,
        required=False,
        max_length=MAX_DEPENDENCIES,
        help_text="starts once all of these have ended as they have to",
    )


class ArrayWish(JobWish):
    """A job for each index, with GPUPOOL_ARRAY_INDEX in its environment."""

    array = serializers.CharField(
        max_length=200, help_text="such as 0-9, 1,3,5-9:2 or 0-99%4 (at most 4 at once)"
    )


class ArrayShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    name = serializers.CharField()
    pool = serializers.CharField(source="pool.slug")
    project = serializers.SerializerMethodField()
    owner = serializers.CharField(source="owner.username")
    indices = serializers.CharField()
    most_at_once = serializers.IntegerField(allow_null=True)
    created_at = serializers.DateTimeField()
    tasks = serializers.IntegerField(source="tasks_all")
    waiting = serializers.IntegerField()
    running = serializers.IntegerField(help_text="placed, starting, running or stopping")
    finished = serializers.IntegerField()
    cancelled = serializers.IntegerField()
    failed = serializers.IntegerField(help_text="ended otherwise")

    def get_project(self, array: JobArray) -> str:
        """team/project."""
        return f"{array.project.team.slug}/{array.project.slug}"


class SubmittedArray(ArrayShape):
    warning = serializers.SerializerMethodField(
        help_text="as of a job that was submitted; of each of its tasks"
    )

    def get_warning(self, array: JobArray) -> str:
        """In words."""
        first = array.tasks.select_related("pool", "project__team", "owner", "reservation").order_by("pk")[0]
        return impossible_starts.submission_warning(first, self.context["user"], self.context["now"])


class CancelledTasks(ResponseSerializer):
    cancelled = serializers.IntegerField(help_text="tasks that had not ended")


class RelaunchWish(StrictSerializer):
    name = name_field(required=False)
    units = count_field(1, required=False)
    models = serializers.ListField(child=serializers.CharField(max_length=60), required=False, max_length=10)
    max_runtime_seconds = count_field(1, required=False)


class AnotherWay(ResponseSerializer):
    """Another way to ask for nearly the same, found by the planner."""

    words = serializers.CharField()
    starts_now = serializers.BooleanField()
    expected_start = serializers.DateTimeField(allow_null=True)
    changed = serializers.ListField(child=serializers.ChoiceField(choices=[str(c) for c in ChangedField]))
    units = serializers.IntegerField(help_text="on each host")
    hosts = serializers.IntegerField()
    models = serializers.ListField(child=serializers.CharField())
    profile = serializers.CharField(allow_blank=True)
    max_runtime_seconds = serializers.IntegerField()
    preemptible = serializers.BooleanField()
    priority = serializers.ChoiceField(choices=list(PRIORITY_NAMES))


def alternative_body(other: Alternative) -> dict[str, Any]:
    """What ``AnotherWay`` shows."""
    start = other.expected_start
    return {
        "words": expected_start_texts.alternative_request_text(other),
        "starts_now": other.starts_now,
        "expected_start": None if start is None else datetime.fromtimestamp(start, UTC),
        "changed": [str(changed) for changed in other.changed],
        "units": other.ask.units,
        "hosts": other.ask.hosts,
        "models": list(other.ask.models),
        "profile": other.ask.profile,
        "max_runtime_seconds": other.max_runtime_seconds,
        "preemptible": other.preemptible,
        "priority": next(
            name for name, number in PRIORITY_NAMES.items() if int(number) == int(other.priority)
        ),
    }


class PastStartsShape(ResponseSerializer):
    """How good the expected starts of a pool were."""

    counted = serializers.IntegerField(help_text="of the latest that waited and started")
    median_error_seconds = serializers.IntegerField(allow_null=True, source="median_error")
    ranged = serializers.IntegerField(help_text="those that were told a range")
    in_time = serializers.IntegerField(help_text="of these, who started by its upper end")
    simulated = serializers.IntegerField(help_text="of those counted: the demo's simulated past")
    sentence = serializers.SerializerMethodField()

    def get_sentence(self, past: EstimateAccuracy) -> str:
        """In words."""
        return expected_start_texts.forecast_accuracy_text(past)


class Submitted(WorkloadShape):
    warning = serializers.SerializerMethodField(
        help_text="why it will not start before somebody grants more, or its hosts would not reach each other; else empty"
    )

    def get_warning(self, workload: Workload) -> str:
        """In words."""
        return impossible_starts.submission_warning(workload, self.context["user"], self.context["now"])


class PreviewShape(ResponseSerializer):
    starts_now = serializers.BooleanField()
    code = serializers.CharField()
    numbers = numbers_field()
    sentence = serializers.CharField()
    expected_start = serializers.DateTimeField(allow_null=True)
    likely_from = serializers.SerializerMethodField(help_text="null while too little is known of past starts")
    likely_by = serializers.SerializerMethodField(help_text="the upper end of the range; never a guarantee")
    sooner = serializers.SerializerMethodField(help_text="other ways to ask that would start sooner")
    never_starts = serializers.SerializerMethodField(
        help_text="whatever ends; submitting it is refused unless more may be granted"
    )
    may_be_granted = serializers.SerializerMethodField(
        help_text="it never starts unless its team is granted more"
    )
    gpus = serializers.FloatField()
    price_per_hour = serializers.DecimalField(max_digits=20, decimal_places=2, allow_null=True)
    longest_cost = serializers.DecimalField(max_digits=20, decimal_places=2, allow_null=True)
    currency = serializers.CharField()
    wish = serializers.CharField(help_text="a warning when it would be done later than wanted_by; else empty")
    warnings = serializers.ListField(
        child=serializers.CharField(), help_text="what is worth a second look and blocks nothing"
    )

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_likely_from(self, answer: dict[str, Any]) -> datetime | None:
        """The lower end of the range in which it would likely start."""
        return answer["likely"][0] if answer["likely"] else None

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_likely_by(self, answer: dict[str, Any]) -> datetime | None:
        """The upper end of that range."""
        return answer["likely"][1] if answer["likely"] else None

    def get_never_starts(self, answer: dict[str, Any]) -> bool:
        """The sentence says why."""
        return answer["never"] is not None

    def get_may_be_granted(self, answer: dict[str, Any]) -> bool:
        """Then it is queued all the same."""
        return answer["never"] is not None and answer["never"].may_be_granted

    @extend_schema_field(AnotherWay(many=True))
    def get_sooner(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        """Each found by the planner."""
        return list(AnotherWay([alternative_body(other) for other in answer["sooner"]], many=True).data)


class SecondsWish(StrictSerializer):
    seconds = count_field(1)


class OpenShape(ResponseSerializer):
    url = serializers.CharField(help_text="Opens the notebook once, within a minute.")


class LogQuery(StrictSerializer):
    offset = serializers.IntegerField(min_value=0, max_value=2**53, default=0, help_text="in bytes")
    attempt = count_field(1, required=False, help_text="the last one unless given")
    rank = count_field(0, required=False, default=0)


class LogShape(ResponseSerializer):
    text = serializers.CharField(allow_blank=True)
    next_offset = serializers.IntegerField(help_text="where to go on")
    ended = serializers.BooleanField(help_text="nothing more will come")


class QueueQuery(PageQuery):
    pool = slug_field(required=False)


class BlockerShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    name = serializers.CharField()
    owner = serializers.CharField(source="owner.username")
    state = serializers.CharField()
