"""What the API takes and gives. Services check the values; these check the shape and describe it in the schema."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from django.db.models import Q
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal import policy, wording
from portal.api.base import Numbers, PageQuery, Record, Strict, told_numbers
from portal.models import Membership, Notification, Submission, SubmissionState
from portal.selectors import starts
from portal.selectors.queue import Ahead, AnotherTime
from portal.selectors.starts import Likely, Starts
from portal.services.asks import Placing
from portal.services.money import BUDGET_ACTIONS, IDLE_PAYERS
from portal.services.series import WEEKDAYS, clock_changes_of
from portal.services.workloads import MOST_DEPENDENCIES, PRIORITY_NAMES
from scheduler.core.estimates import PastStarts
from scheduler.core.explain import Alternative, Changed
from scheduler.core.model import SLOTS_PER_GPU
from scheduler.isolation import LEVELS, lacking
from scheduler.models import (
    Dependency,
    Host,
    IfMemberEnds,
    JobArray,
    Pool,
    Project,
    Quota,
    Reservation,
    Series,
    Workload,
    WorkloadKind,
    WorkloadType,
)
from scheduler.states import AdminState, LeaseState, RepairState, ReservationState, WorkloadState
from telemetry.models import Bucket, Charge, HealthRule, Price

MOST_INT = 2**31 - 1
Ser = serializers.Serializer[Any]


def count_field(low: int = 0, **more: Any) -> serializers.IntegerField:
    """A whole number; its real upper limit is the pool's and is said by the service."""
    return serializers.IntegerField(min_value=low, max_value=MOST_INT, **more)


def name_field(**more: Any) -> serializers.CharField:
    """A name as people type it."""
    return serializers.CharField(max_length=80, **more)


def slug_field(**more: Any) -> serializers.CharField:
    """The word by which a thing stands in addresses."""
    return serializers.CharField(max_length=81, **more)


def number_map() -> Numbers:
    """A reason's numbers: names and JSON values."""
    return Numbers(child=serializers.JSONField(allow_null=True))


def gpus_of(slots: int | None) -> float | None:
    """Slots as GPUs."""
    return None if slots is None else round(slots / SLOTS_PER_GPU, 4)


# -- people and teams --------------------------------------------------------------------------------------------------


class TeamShape(Ser):
    slug = serializers.CharField()
    name = serializers.CharField()
    tag = serializers.CharField()
    colour = serializers.IntegerField(help_text="1 to 8, of the palette")
    weight = serializers.IntegerField()


class RoleShape(Ser):
    team = serializers.CharField(source="team.slug")
    role = serializers.ChoiceField(choices=Membership.Role.choices)


class MeShape(Ser):
    username = serializers.CharField()
    email = serializers.CharField()
    operator = serializers.BooleanField()
    finance = serializers.BooleanField()
    auditor = serializers.BooleanField()
    time_zone = serializers.CharField()
    theme = serializers.ChoiceField(choices=["system", "light", "dark"])
    teams = RoleShape(many=True, source="memberships")


class MeChange(Strict):
    time_zone = serializers.CharField(max_length=60, required=False, allow_blank=True)
    theme = serializers.ChoiceField(choices=["system", "light", "dark"], required=False)


class ProjectShape(Ser):
    path = serializers.SerializerMethodField(help_text="team/project: how requests name it")
    name = serializers.CharField()
    team = serializers.CharField(source="team.slug")
    active = serializers.BooleanField()

    def get_path(self, project: Project) -> str:
        """As requests name it."""
        return f"{project.team.slug}/{project.slug}"


class TokenShape(Ser):
    id = serializers.IntegerField()
    name = serializers.CharField()
    prefix = serializers.CharField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)


class TokenMade(TokenShape):
    token = serializers.CharField(help_text="Shown this once.")


class TokenWish(Strict):
    name = name_field()
    expires_at = serializers.DateTimeField(required=False, allow_null=True)


class NotificationShape(Ser):
    id = serializers.IntegerField()
    kind = serializers.CharField()
    sentence = serializers.SerializerMethodField()
    numbers = number_map()
    at = serializers.DateTimeField()
    read_at = serializers.DateTimeField(allow_null=True)

    def get_sentence(self, row: Notification) -> str:
        """In words."""
        return wording.notice(row.kind, row.numbers, self.context.get("user"))


class ReadWish(Strict):
    ids = serializers.ListField(child=count_field(1), required=False, max_length=1000, help_text="Empty: all of them.")


class ReadAnswer(Ser):
    read = serializers.IntegerField()


class AuditShape(Ser):
    at = serializers.DateTimeField()
    actor = serializers.CharField(source="actor_name")
    verb = serializers.CharField()
    target = serializers.CharField()
    target_name = serializers.CharField()
    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    before = Record(child=serializers.JSONField(allow_null=True), allow_null=True)
    after = Record(child=serializers.JSONField(allow_null=True), allow_null=True)
    why = serializers.CharField()
    via = serializers.CharField()


class AuditQuery(PageQuery):
    verb = serializers.CharField(max_length=60, required=False)
    target = serializers.CharField(max_length=120, required=False)


# -- pools and hosts ---------------------------------------------------------------------------------------------------


class ModelShape(Ser):
    model = serializers.CharField()
    gpus = serializers.IntegerField(help_text="GPUs the pool has")
    in_service_gpus = serializers.FloatField(help_text="of these on hosts that take work")
    held_gpus = serializers.FloatField(help_text="held now, in parts of GPUs")
    free_gpus = serializers.FloatField(help_text="in service and held by nobody")


class PoolShape(Ser):
    slug = serializers.CharField()
    name = serializers.CharField()
    kind = serializers.ChoiceField(choices=["static", "dynamic"])
    team = serializers.CharField(source="team.slug", allow_null=True, default=None, help_text="owner of a static pool")
    notice_seconds = serializers.IntegerField()
    grace_seconds = serializers.IntegerField()
    minimum_runtime_seconds = serializers.IntegerField()
    longest_runtime_seconds = serializers.IntegerField()
    approval_above_gpus = serializers.IntegerField()
    longest_reservation_seconds = serializers.IntegerField()
    reservation_horizon_seconds = serializers.IntegerField()
    idle_limit_seconds = serializers.IntegerField()
    isolation = serializers.ChoiceField(choices=LEVELS, help_text="hosts that keep workloads less apart take no new work")
    most_waiting_per_user = serializers.IntegerField(help_text="notebooks and jobs of one person in the queue")
    most_waiting_per_team = serializers.IntegerField(help_text="notebooks and jobs of one team in the queue")
    models = ModelShape(many=True, source="model_counts")


class HostShape(Ser):
    name = serializers.CharField()
    pool = serializers.CharField(source="pool.slug")
    labels = serializers.DictField(child=serializers.CharField())
    simulated = serializers.BooleanField(help_text="its NVML readings are simulated")
    isolation = serializers.CharField()
    isolation_level = serializers.ChoiceField(choices=LEVELS, help_text="how well it keeps workloads apart")
    isolation_lacking = serializers.SerializerMethodField(help_text="levels that its pool demands and it does not reach")
    lease_state = serializers.ChoiceField(choices=[s.value for s in LeaseState])
    admin_state = serializers.ChoiceField(choices=[s.value for s in AdminState])
    repair_state = serializers.ChoiceField(choices=[s.value for s in RepairState])
    state_reason = serializers.CharField()
    last_sync_at = serializers.DateTimeField(allow_null=True)
    gpus = serializers.SerializerMethodField()

    @extend_schema_field(serializers.ListField(child=serializers.ChoiceField(choices=LEVELS)))
    def get_isolation_lacking(self, host: Host) -> list[str]:
        """The lowest first; empty: it has what its pool demands."""
        return lacking(host.hardware.get("reported") or {}, host.pool.isolation)

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_gpus(self, host: Host) -> list[str]:
        """The models of its GPUs, by index."""
        return [gpu.model for gpu in sorted(host.gpus.all(), key=lambda gpu: gpu.index) if gpu.retired_at is None]


class IsolationWish(Strict):
    isolation = serializers.ChoiceField(choices=LEVELS)
    why = serializers.CharField(max_length=300, required=False, allow_blank=True)


class HostQuery(PageQuery):
    pool = slug_field(required=False)


class HostWish(Strict):
    pool = slug_field()
    name = serializers.CharField(max_length=63)
    labels = serializers.DictField(child=serializers.CharField(max_length=63), required=False)


class JoinShape(Ser):
    host = serializers.CharField()
    token = serializers.CharField(help_text="Shown this once; good for one agent within 15 minutes.")


class ReasonWish(Strict):
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class MaintenanceWish(Strict):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    why = serializers.CharField(max_length=300)


class MaintenanceShape(Ser):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    reason = serializers.CharField()


# -- workloads ---------------------------------------------------------------------------------------------------------


class WorkloadShape(Ser):
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
    likely_from = serializers.SerializerMethodField(help_text="while it waits; null while too little is known of past starts")
    likely_by = serializers.SerializerMethodField(help_text="the upper end of the range; never a guarantee")
    wanted_by = serializers.DateTimeField(allow_null=True, help_text="when it should be done: a wish")
    reason_code = serializers.CharField()
    reason = serializers.SerializerMethodField(help_text="why it waits, or why it started, in words")
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
        return wording.reason(workload.reason_code, workload.reason_numbers, self.context.get("user"))

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

    def _likely(self, workload: Workload) -> Likely | None:
        """Asks once per answer for the records of every pool, and not at all where nothing waits."""
        if workload.state != WorkloadState.QUEUED or workload.expected_start is None or "now" not in self.context:
            return None
        context = cast(dict[str, Any], self.context)  # the answer's own
        if "starts" not in context:
            context["starts"] = starts.of_pools(Pool.objects.values_list("pk", flat=True), context["now"])
        told: Starts = context["starts"]
        return told.likely(workload)

    def get_borrowed_gpus(self, workload: Workload) -> float:
        """Held above the guarantee."""
        return gpus_of(workload.borrowed_slots) or 0.0


class RunShape(Ser):
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
    gpus = serializers.SerializerMethodField(help_text="UUIDs of what it holds or held")

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_gpus(self, run: Any) -> list[str]:
        """By UUID."""
        return sorted(allocation.unit.uuid for allocation in run.allocations.all())


class AfterShape(Ser):
    workload = serializers.UUIDField(source="on.public_id", allow_null=True, default=None)
    array = serializers.UUIDField(source="on_array.public_id", allow_null=True, default=None, help_text="instead: all its tasks")
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
        rows = workload.dependencies.filter(Q(on__in=seen) | Q(on_array__in=arrays)).select_related("on", "on_array")
        rows = rows.order_by("on_id", "on_array_id")
        return AfterShape(rows, many=True).data

    @extend_schema_field(RunShape(many=True))
    def get_runs(self, workload: Workload) -> Any:
        """Every attempt's runs, newest first."""
        rows = (
            workload.runs.select_related("host")
            .prefetch_related("allocations__unit")
            .order_by("-attempt", "rank")[:100]
        )
        return RunShape(rows, many=True).data


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


class _AskWish(Strict):
    project = slug_field(help_text="team/project, or the project alone where that names one")
    pool = slug_field()
    models = serializers.ListField(
        child=serializers.CharField(max_length=60),
        required=False,
        max_length=10,
        help_text="in order of preference; empty: any",
    )
    profile = serializers.CharField(max_length=30, required=False, allow_blank=True, help_text="empty: whole GPUs")


class NotebookWish(_AskWish):
    template = slug_field(required=False, allow_null=True)
    name = name_field(required=False, allow_blank=True)
    units = count_field(1, required=False)
    type = serializers.ChoiceField(choices=WorkloadType.choices, required=False)
    max_runtime_seconds = count_field(1, required=False)
    reservation = serializers.UUIDField(required=False, allow_null=True)


class AfterWish(Strict):
    workload = serializers.UUIDField(required=False, help_text="earlier work that you may see")
    array = serializers.UUIDField(
        required=False, help_text="instead of a workload: ok once all its tasks finished, not_ok once all ended and some did not"
    )
    condition = serializers.ChoiceField(
        choices=Dependency.Condition.choices, default="ok", help_text="how it has to have ended"
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """One of the two."""
        if ("workload" in attrs) == ("array" in attrs):
            raise serializers.ValidationError({"workload": "allowed: the id of a workload, or instead of it that of an array."})
        return attrs


class _Placed(_AskWish):
    """Where it has to be, and where it would rather be."""

    min_memory_mib = count_field(0, required=False)
    min_compute_capability = count_field(0, required=False)
    nvlink = serializers.BooleanField(required=False)
    labels_required = serializers.DictField(child=serializers.CharField(max_length=63), required=False)
    labels_preferred = serializers.DictField(
        child=serializers.CharField(max_length=63), required=False, help_text="hosts with more of them come first"
    )
    spread = serializers.BooleanField(required=False, help_text="over hosts that share as little as can be")


class JobWish(_Placed):
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
        choices=IfMemberEnds.choices, required=False, help_text="on several hosts: what becomes of it when one of its members ends"
    )
    reservation = serializers.UUIDField(required=False, allow_null=True)
    environment = serializers.DictField(child=serializers.CharField(max_length=4096, allow_blank=True), required=False)
    wanted_by = serializers.DateTimeField(required=False, allow_null=True, help_text="a wish; nothing holds it to it")
    after = AfterWish(  # type: ignore[call-arg]  # with many=True the arguments are those of a list, which stubs do not know
        many=True,
        required=False,
        max_length=MOST_DEPENDENCIES,
        help_text="starts once all of these have ended as they have to",
    )


class ArrayWish(JobWish):
    """A job for each index, with GPUPOOL_ARRAY_INDEX in its environment."""

    array = serializers.CharField(max_length=200, help_text="such as 0-9, 1,3,5-9:2 or 0-99%4 (at most 4 at once)")


class ArrayShape(Ser):
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


class CancelledTasks(Ser):
    cancelled = serializers.IntegerField(help_text="tasks that had not ended")


class RelaunchWish(Strict):
    name = name_field(required=False)
    units = count_field(1, required=False)
    models = serializers.ListField(child=serializers.CharField(max_length=60), required=False, max_length=10)
    max_runtime_seconds = count_field(1, required=False)


class AnotherWay(Ser):
    """Another way to ask for nearly the same, found by the planner."""

    words = serializers.CharField()
    starts_now = serializers.BooleanField()
    expected_start = serializers.DateTimeField(allow_null=True)
    changed = serializers.ListField(child=serializers.ChoiceField(choices=[str(c) for c in Changed]))
    units = serializers.IntegerField(help_text="on each host")
    hosts = serializers.IntegerField()
    models = serializers.ListField(child=serializers.CharField())
    profile = serializers.CharField(allow_blank=True)
    max_runtime_seconds = serializers.IntegerField()
    preemptible = serializers.BooleanField()
    priority = serializers.ChoiceField(choices=list(PRIORITY_NAMES))


def another_way(other: Alternative) -> dict[str, Any]:
    """What ``AnotherWay`` shows."""
    start = other.expected_start
    return {
        "words": wording.another_way(other),
        "starts_now": other.starts_now,
        "expected_start": None if start is None else datetime.fromtimestamp(start, UTC),
        "changed": [str(changed) for changed in other.changed],
        "units": other.ask.units,
        "hosts": other.ask.hosts,
        "models": list(other.ask.models),
        "profile": other.ask.profile,
        "max_runtime_seconds": other.max_runtime_seconds,
        "preemptible": other.preemptible,
        "priority": next(name for name, number in PRIORITY_NAMES.items() if int(number) == int(other.priority)),
    }


class PastStartsShape(Ser):
    """How good the expected starts of a pool were."""

    counted = serializers.IntegerField(help_text="of the latest that waited and started")
    median_error_seconds = serializers.IntegerField(allow_null=True, source="median_error")
    ranged = serializers.IntegerField(help_text="those that were told a range")
    in_time = serializers.IntegerField(help_text="of these, who started by its upper end")
    simulated = serializers.IntegerField(help_text="of those counted: the demo's simulated past")
    sentence = serializers.SerializerMethodField()

    def get_sentence(self, past: PastStarts) -> str:
        """In words."""
        return wording.past_starts(past)


class AheadShape(Ser):
    id = serializers.UUIDField(source="workload.public_id")
    name = serializers.CharField(source="workload.name")
    owner = serializers.CharField(source="workload.owner.username")
    rule = serializers.CharField(source="part", help_text="the part of the order that decides")
    because = serializers.SerializerMethodField()

    def get_because(self, row: Ahead) -> str:
        """The rule in a few words."""
        return wording.FIRST_BECAUSE[row.part]


class WithoutShape(Ser):
    starts_now = serializers.BooleanField()
    code = serializers.CharField()
    numbers = number_map()
    sentence = serializers.CharField()


class WhyThemShape(Ser):
    rule = serializers.CharField(help_text="what decides between the two")
    numbers = number_map()
    sentence = serializers.CharField()
    without = WithoutShape(help_text="what the plan would say if the other one was not there")


class FairnessShape(Ser):
    """One team of a pool."""

    team = serializers.CharField(source="team.slug")
    guaranteed_gpus = serializers.FloatField(source="guaranteed")
    held_gpus = serializers.FloatField(source="held")
    borrowed_gpus = serializers.FloatField(source="borrowed")
    waiting_gpus = serializers.FloatField(source="waiting")
    past_gpu_hours = serializers.FloatField(source="gpu_hours", help_text="each halved every half-life of the pool")
    weight = serializers.IntegerField()
    share_of_use = serializers.FloatField(source="share", help_text="its part of all past use, 0 to 1")
    fair_part = serializers.FloatField(source="fair_share", help_text="the part that its weight stands for, 0 to 1")
    ratio = serializers.FloatField(allow_null=True, help_text="share of use by fair part; the lowest borrows next")


class PreviewShape(Ser):
    starts_now = serializers.BooleanField()
    code = serializers.CharField()
    numbers = number_map()
    sentence = serializers.CharField()
    expected_start = serializers.DateTimeField(allow_null=True)
    likely_from = serializers.SerializerMethodField(help_text="null while too little is known of past starts")
    likely_by = serializers.SerializerMethodField(help_text="the upper end of the range; never a guarantee")
    sooner = serializers.SerializerMethodField(help_text="other ways to ask that would start sooner")
    gpus = serializers.FloatField()
    price_per_hour = serializers.DecimalField(max_digits=20, decimal_places=2, allow_null=True)
    longest_cost = serializers.DecimalField(max_digits=20, decimal_places=2, allow_null=True)
    currency = serializers.CharField()
    wish = serializers.CharField(help_text="a warning when it would be done later than wanted_by; else empty")


    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_likely_from(self, answer: dict[str, Any]) -> datetime | None:
        """The lower end of the range in which it would likely start."""
        return answer["likely"][0] if answer["likely"] else None

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_likely_by(self, answer: dict[str, Any]) -> datetime | None:
        """The upper end of that range."""
        return answer["likely"][1] if answer["likely"] else None

    @extend_schema_field(AnotherWay(many=True))
    def get_sooner(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        """Each found by the planner."""
        return list(AnotherWay([another_way(other) for other in answer["sooner"]], many=True).data)


class SecondsWish(Strict):
    seconds = count_field(1)


class OpenShape(Ser):
    url = serializers.CharField(help_text="Opens the notebook once, within a minute.")


class LogQuery(Strict):
    offset = serializers.IntegerField(min_value=0, max_value=2**53, default=0, help_text="in bytes")
    attempt = count_field(1, required=False, help_text="the last one unless given")
    rank = count_field(0, required=False, default=0)


class LogShape(Ser):
    text = serializers.CharField(allow_blank=True)
    next_offset = serializers.IntegerField(help_text="where to go on")
    ended = serializers.BooleanField(help_text="nothing more will come")


class BlockerShape(Ser):
    id = serializers.UUIDField(source="public_id")
    name = serializers.CharField()
    owner = serializers.CharField(source="owner.username")
    state = serializers.CharField()


class DecisionShape(Ser):
    at = serializers.DateTimeField()
    kind = serializers.ChoiceField(choices=["placed", "evicted", "refused", "restarted", "ended"])
    code = serializers.CharField()
    sentence = serializers.SerializerMethodField()

    def get_sentence(self, row: Any) -> str:
        """In words."""
        return wording.decision(row.kind, row.code, row.numbers, self.context.get("user"))


class WhyShape(Ser):
    state = serializers.ChoiceField(choices=[s.value for s in WorkloadState])
    code = serializers.CharField()
    numbers = number_map()
    sentence = serializers.CharField()
    position = serializers.IntegerField(allow_null=True)
    expected_start = serializers.DateTimeField(allow_null=True)
    likely_from = serializers.DateTimeField(allow_null=True, help_text="null while too little is known of past starts")
    likely_by = serializers.DateTimeField(allow_null=True, help_text="the upper end of the range; never a guarantee")
    past_starts = PastStartsShape(help_text="how good the expected starts of its pool were")
    ahead = AheadShape(many=True, help_text="those that wait, too, have their turn first and that you may see; the nearest 10")
    ahead_more = serializers.IntegerField(help_text="how many others have their turn first")
    blockers = BlockerShape(many=True, help_text="those that you may see")
    hidden_blockers = serializers.IntegerField(help_text="how many more there are")
    decisions = DecisionShape(many=True, help_text="newest first, at most 20")


class QueueQuery(PageQuery):
    pool = slug_field(required=False)


# -- reservations ------------------------------------------------------------------------------------------------------


class ReservationShape(Ser):
    id = serializers.UUIDField(source="public_id")
    name = serializers.CharField()
    pool = serializers.CharField(source="pool.slug")
    project = serializers.SerializerMethodField()
    owner = serializers.CharField(source="owner.username")
    units = serializers.IntegerField(help_text="on each host")
    hosts = serializers.IntegerField()
    models = serializers.ListField(child=serializers.CharField(), source="models_wanted")
    profile = serializers.CharField()
    nvlink = serializers.BooleanField()
    labels_required = serializers.DictField(child=serializers.CharField())
    labels_preferred = serializers.DictField(child=serializers.CharField())
    spread = serializers.BooleanField()
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    state = serializers.ChoiceField(choices=[s.value for s in ReservationState])
    series = serializers.UUIDField(
        source="series.public_id", allow_null=True, default=None, help_text="the recurring one it is an occurrence of"
    )
    reason_code = serializers.CharField(help_text="why it has begun and has no GPUs; empty when all is well")
    reason = serializers.SerializerMethodField(help_text="the same in words")
    created_at = serializers.DateTimeField()

    def get_project(self, reservation: Reservation) -> str:
        """team/project."""
        return f"{reservation.project.team.slug}/{reservation.project.slug}"

    def get_reason(self, reservation: Reservation) -> str:
        """In words; empty when all is well."""
        return wording.reason(reservation.reason_code, reservation.reason_numbers) if reservation.reason_code else ""


class ReservationQuery(PageQuery):
    state = serializers.ChoiceField(choices=[*(s.value for s in ReservationState), "open"], required=False)
    pool = slug_field(required=False)
    mine = serializers.BooleanField(required=False, default=False)


class ReservationWish(_Placed):
    name = name_field()
    units = count_field(1, help_text="on each host")
    hosts = count_field(1, required=False)
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    may_exceed_guarantee = serializers.BooleanField(
        required=False, help_text="ask an operator to let it use what other teams are guaranteed"
    )
    why = serializers.CharField(max_length=1000, required=False, allow_blank=True)


class WindowWish(_Placed):
    units = count_field(1, help_text="on each host")
    hosts = count_field(1, required=False)
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    may_exceed_guarantee = serializers.BooleanField(required=False)


class WindowShape(Ser):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()


class AnotherTimeShape(WindowShape):
    """A window in which a reservation would fit now, within what the team is guaranteed."""

    words = serializers.CharField()
    needs_approval = serializers.BooleanField(help_text="above what the pool confirms at once")
    request = ReservationWish(help_text="as reservations_request takes it")  # type: ignore[assignment]


def another_time(other: AnotherTime) -> dict[str, Any]:
    """What ``AnotherTimeShape`` shows."""
    workload = other.workload
    request = {
        "project": f"{workload.project.team.slug}/{workload.project.slug}",
        "pool": workload.pool.slug,
        "name": workload.name,
        "models": workload.models_wanted,
        **{name: getattr(workload, name) for name in ("units", "hosts", "profile", *Placing.__optional_keys__)},
        "start": other.start,
        "end": other.end,
    }
    words = wording.another_time(workload, other.start, other.end, other.needs_approval)
    window = {"start": other.start, "end": other.end}
    return {**window, "words": words, "needs_approval": other.needs_approval, "request": request}


class ReservationPreview(Ser):
    fits = serializers.BooleanField()
    code = serializers.CharField()
    numbers = number_map()
    sentence = serializers.CharField()
    windows = serializers.SerializerMethodField(help_text="the first that fit")
    needs_approval = serializers.BooleanField()
    gpus = serializers.FloatField()
    price_per_hour = serializers.DecimalField(max_digits=20, decimal_places=2, allow_null=True)
    price = serializers.DecimalField(max_digits=20, decimal_places=2, allow_null=True)
    currency = serializers.CharField()
    warnings = serializers.ListField(child=serializers.CharField())

    @extend_schema_field(WindowShape(many=True))
    def get_windows(self, answer: Any) -> Any:
        """As objects."""
        return WindowShape([{"start": start, "end": end} for start, end in answer["windows"]], many=True).data


class EndWish(Strict):
    end = serializers.DateTimeField()


class ChangeWish(Strict):
    """Another window: ``start`` alone moves it as it is, ``end`` alone changes its length."""

    start = serializers.DateTimeField(required=False)
    end = serializers.DateTimeField(required=False)
    why = serializers.CharField(max_length=1000, required=False, allow_blank=True)


class _Recurs(Strict):
    weekdays = serializers.ListField(child=serializers.ChoiceField(choices=list(WEEKDAYS)), max_length=7)
    until = serializers.DateField(help_text="the last day on which one may begin")
    time_zone = serializers.CharField(
        max_length=60, required=False, help_text="whose clock start and end are read by; UTC unless given"
    )


class SeriesWish(ReservationWish, _Recurs):
    """``start`` and ``end`` are those of the first occurrence."""


class SeriesTry(WindowWish, _Recurs):
    """The same without a name."""


class SeriesShape(Ser):
    id = serializers.UUIDField(source="public_id")
    name = serializers.CharField()
    pool = serializers.CharField(source="pool.slug")
    project = serializers.SerializerMethodField()
    owner = serializers.CharField(source="owner.username")
    weekdays = serializers.SerializerMethodField()
    starts_at = serializers.SerializerMethodField(help_text="HH:MM by the clock of its time zone")
    ends_at = serializers.SerializerMethodField(help_text="HH:MM; not after starts_at: on the next day")
    time_zone = serializers.CharField()
    first_day = serializers.DateField()
    last_day = serializers.DateField()
    clock_changes = serializers.SerializerMethodField(
        help_text="what is different where the clock of its time zone is put forward or back"
    )
    occurrences = serializers.SerializerMethodField()

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_clock_changes(self, series: Series) -> list[str]:
        """In words, in order."""
        return clock_changes_of(series)

    def get_project(self, series: Series) -> str:
        """team/project."""
        return f"{series.project.team.slug}/{series.project.slug}"

    def get_starts_at(self, series: Series) -> str:
        """To the minute."""
        return f"{series.starts_at:%H:%M}"

    def get_ends_at(self, series: Series) -> str:
        """To the minute."""
        return f"{series.ends_at:%H:%M}"

    @extend_schema_field(serializers.ListField(child=serializers.ChoiceField(choices=list(WEEKDAYS))))
    def get_weekdays(self, series: Series) -> list[str]:
        """By their short names."""
        return [WEEKDAYS[day] for day in series.weekdays]

    @extend_schema_field(ReservationShape(many=True))
    def get_occurrences(self, series: Series) -> Any:
        """In order."""
        rows = series.occurrences.select_related("pool", "project__team", "owner", "series").order_by("start", "pk")
        return ReservationShape(rows, many=True).data


class SeriesPreview(Ser):
    occurrences = serializers.IntegerField()
    fits = serializers.BooleanField(help_text="all of them")
    sentence = serializers.CharField(help_text="which one does not, and why")
    clock_changes = serializers.ListField(
        child=serializers.CharField(), help_text="what is different where the clock is put forward or back"
    )
    windows = serializers.SerializerMethodField(help_text="the first that would do instead of that one")
    needs_approval = serializers.BooleanField()
    gpus = serializers.FloatField(help_text="of each occurrence")
    price_per_hour = serializers.DecimalField(max_digits=20, decimal_places=2, allow_null=True)
    price = serializers.DecimalField(max_digits=20, decimal_places=2, allow_null=True, help_text="of all occurrences")
    currency = serializers.CharField()

    @extend_schema_field(WindowShape(many=True))
    def get_windows(self, answer: Any) -> Any:
        """As objects."""
        return WindowShape([{"start": start, "end": end} for start, end in answer["windows"]], many=True).data


class GivenUp(Ser):
    given_up = serializers.IntegerField(help_text="occurrences that were not over")


class SubmissionShape(Ser):
    id = serializers.UUIDField(source="public_id")
    kind = serializers.ChoiceField(choices=Submission.Kind.choices)
    team = serializers.CharField(source="team.slug")
    pool = serializers.CharField(source="pool.slug", allow_null=True, default=None)
    author = serializers.CharField(source="author.username")
    what = serializers.SerializerMethodField()
    why = serializers.CharField()
    payload = serializers.SerializerMethodField()
    state = serializers.ChoiceField(choices=SubmissionState.choices)
    created_at = serializers.DateTimeField()
    reservation = serializers.UUIDField(source="reservation.public_id", allow_null=True, default=None)
    decision = serializers.SerializerMethodField()

    @extend_schema_field(Record(child=serializers.JSONField(allow_null=True)))
    def get_payload(self, row: Submission) -> dict[str, Any]:
        """What was asked for, its project as team/project."""
        context = cast(dict[str, Any], self.context)  # the answer's own
        if "projects" not in context:
            found = Project.objects.values_list("pk", "team__slug", "slug")
            context["projects"] = {pk: f"{team}/{slug}" for pk, team, slug in found}
        project = context["projects"].get(row.payload.get("project"))
        return told_numbers(row.payload) | ({"project": project} if project else {})

    def get_what(self, row: Submission) -> str:
        """In words."""
        return wording.submission_what(row.kind, row.payload)

    @extend_schema_field(
        {
            "type": "object",
            "nullable": True,
            "properties": {
                "by": {"type": "string"},
                "approved": {"type": "boolean"},
                "comment": {"type": "string"},
                "at": {"type": "string", "format": "date-time"},
            },
            "required": ["by", "approved", "comment", "at"],
        }
    )
    def get_decision(self, row: Submission) -> dict[str, Any] | None:
        """Who decided and why, once somebody has."""
        approval = getattr(row, "approval", None)
        if approval is None:
            return None
        return {
            "by": approval.decided_by.username,
            "approved": approval.approved,
            "comment": approval.comment,
            "at": approval.decided_at.isoformat(),
        }


class ReservationAnswer(Ser):
    """Exactly one of the two is not null."""

    reservation = ReservationShape(allow_null=True)
    submission = SubmissionShape(allow_null=True)


class SeriesAnswer(Ser):
    """Exactly one of the two is not null."""

    series = SeriesShape(allow_null=True)
    submission = SubmissionShape(allow_null=True)


# -- approvals and quotas ----------------------------------------------------------------------------------------------


class SubmissionQuery(PageQuery):
    state = serializers.ChoiceField(choices=SubmissionState.choices, required=False)
    kind = serializers.ChoiceField(choices=Submission.Kind.choices, required=False)


class EffectShape(Ser):
    fits = serializers.BooleanField()
    code = serializers.CharField()
    sentence = serializers.CharField()
    capacity_gpus = serializers.FloatField(required=False)
    guaranteed_before_gpus = serializers.FloatField(required=False)
    guaranteed_after_gpus = serializers.FloatField(required=False)
    free_before_gpus = serializers.FloatField(required=False)
    free_after_gpus = serializers.FloatField(required=False)
    team_before_gpus = serializers.FloatField(required=False)
    team_after_gpus = serializers.FloatField(required=False)
    gpus = serializers.FloatField(required=False)
    evicted = BlockerShape(many=True, required=False)
    overlapping = ReservationShape(many=True, required=False)


class ApproveWish(Strict):
    comment = serializers.CharField(max_length=1000, required=False, allow_blank=True, default="")
    changes = serializers.DictField(
        child=serializers.JSONField(allow_null=True), required=False, help_text="fields of the payload"
    )


class DeclineWish(Strict):
    comment = serializers.CharField(max_length=1000)


class QuotaShape(Ser):
    team = serializers.CharField(source="team.slug")
    pool = serializers.CharField(source="pool.slug")
    model = serializers.CharField()
    guaranteed_gpus = serializers.SerializerMethodField()
    borrow_limit_gpus = serializers.SerializerMethodField(help_text="above the guarantee; null: no limit")
    gpu_hours = serializers.IntegerField(allow_null=True, help_text="worth of the guarantee in a period; null: no end")
    period = serializers.ChoiceField(choices=Quota.Period.values, source="hours_period")
    when_used_up = serializers.ChoiceField(choices=Quota.WhenUsedUp.choices)
    gpu_hours_used = serializers.FloatField(help_text="in the period, counted every minute; 0 without gpu_hours")
    used_up = serializers.BooleanField(source="hours_used_up")
    updated_at = serializers.DateTimeField()

    def get_guaranteed_gpus(self, quota: Quota) -> float:
        """In GPUs."""
        return gpus_of(quota.guaranteed_slots) or 0.0

    @extend_schema_field(serializers.FloatField(allow_null=True))
    def get_borrow_limit_gpus(self, quota: Quota) -> float | None:
        """In GPUs."""
        return gpus_of(quota.borrow_limit_slots)


class QuotaQuery(PageQuery):
    pool = slug_field(required=False)
    team = slug_field(required=False)


class QuotaWish(Strict):
    team = slug_field()
    pool = slug_field()
    model = serializers.CharField(max_length=60)
    guaranteed_gpus = count_field(0)
    borrow_limit_gpus = count_field(0, required=False, allow_null=True)
    gpu_hours = count_field(1, required=False, allow_null=True, help_text="worth of the guarantee in a period")
    period = serializers.ChoiceField(choices=Quota.Period.values, required=False)
    when_used_up = serializers.ChoiceField(choices=Quota.WhenUsedUp.choices, required=False)
    why = serializers.CharField(max_length=1000, required=False, allow_blank=True)


# -- use and money -----------------------------------------------------------------------------------------------------


class UsageQuery(Strict):
    start = serializers.DateTimeField(required=False, help_text="a week ago unless given")
    end = serializers.DateTimeField(required=False, help_text="now unless given")
    by = serializers.ChoiceField(choices=["team", "project", "user", "type", "model"], default="team")


class UsageLine(Ser):
    name = serializers.CharField()
    gpu_hours = serializers.FloatField(help_text="held")
    used_gpu_hours = serializers.FloatField(
        allow_null=True, help_text="utilisation x held where samples speak; null: unknown"
    )
    coverage = serializers.FloatField(allow_null=True, help_text="part of the held time that samples speak for, 0 to 1")


class UsageShape(Ser):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    by = serializers.ChoiceField(choices=["team", "project", "user", "type", "model"])
    lines = UsageLine(many=True)


class ChargeQuery(PageQuery):
    month = serializers.RegexField(r"^20[0-9]{2}-(0[1-9]|1[0-2])$", required=False, help_text="such as 2026-03")
    team = slug_field(required=False)
    bucket = serializers.ChoiceField(choices=Bucket.values, required=False)


class ChargeShape(Ser):
    id = serializers.IntegerField()
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    pool = serializers.CharField(source="pool.slug")
    bucket = serializers.ChoiceField(choices=Bucket.values)
    model = serializers.CharField()
    gpu_hours = serializers.SerializerMethodField()
    team = serializers.CharField(source="team_name")
    project = serializers.CharField(source="project_name")
    user = serializers.CharField(source="user_name")
    workload = serializers.CharField(source="workload_name")
    workload_type = serializers.CharField()
    cost_centre = serializers.CharField()
    charged = serializers.DecimalField(max_digits=18, decimal_places=6)
    corrects = serializers.IntegerField(source="corrects_id", allow_null=True)
    simulated = serializers.BooleanField()

    def get_gpu_hours(self, charge: Charge) -> float:
        """Slot-seconds as GPU-hours."""
        return round(charge.slot_seconds / SLOTS_PER_GPU / 3600, 6)


class StatementShape(Ser):
    month = serializers.DateField()
    state = serializers.ChoiceField(choices=["open", "closing", "closed"])
    idle_payer = serializers.ChoiceField(choices=list(IDLE_PAYERS))
    currency = serializers.CharField()
    checks = serializers.JSONField()
    totals = serializers.JSONField()
    digest = serializers.CharField()
    closed_at = serializers.DateTimeField(allow_null=True)
    closed_by = serializers.CharField(source="closed_by.username", allow_null=True, default=None)


class PriceShape(Ser):
    pool = serializers.CharField(source="pool.slug", allow_null=True, default=None)
    model = serializers.CharField()
    cost = serializers.SerializerMethodField(help_text="the owner's cost; null for those who don't see all charges")
    price = serializers.DecimalField(max_digits=12, decimal_places=6, source="price_per_gpu_hour")
    valid_from = serializers.DateTimeField()
    note = serializers.SerializerMethodField(help_text="how the cost was worked out; empty where that is not shown")

    def get_note(self, price: Price) -> str:
        """Beside the cost only."""
        return price.note if policy.sees_owner_cost(self.context["user"]) else ""

    @extend_schema_field(serializers.DecimalField(max_digits=12, decimal_places=6, allow_null=True))
    def get_cost(self, price: Price) -> str | None:
        """For finance, operators and auditors."""
        return f"{price.cost_per_gpu_hour:.6f}" if policy.sees_owner_cost(self.context["user"]) else None


class PriceWish(Strict):
    pool = slug_field(required=False, allow_null=True)
    model = serializers.CharField(max_length=60)
    cost = serializers.DecimalField(max_digits=12, decimal_places=6, min_value=0)
    price = serializers.DecimalField(max_digits=12, decimal_places=6, min_value=0)
    valid_from = serializers.DateTimeField()
    note = serializers.CharField(max_length=300, required=False, allow_blank=True)


class BudgetShape(Ser):
    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    project = serializers.CharField(source="project.slug", allow_null=True, default=None)
    month = serializers.DateField()
    amount = serializers.DecimalField(max_digits=14, decimal_places=2)
    action = serializers.ChoiceField(choices=list(BUDGET_ACTIONS))


class BudgetWish(Strict):
    team = slug_field(required=False, allow_null=True)
    project = slug_field(required=False, allow_null=True)
    month = serializers.DateField(help_text="its first day")
    amount = serializers.DecimalField(max_digits=14, decimal_places=2, min_value=0)
    action = serializers.ChoiceField(choices=list(BUDGET_ACTIONS), required=False)


class HealthRuleShape(Ser):
    code = serializers.CharField()
    meaning = serializers.CharField()
    action = serializers.ChoiceField(choices=HealthRule.Action.choices)
    repeats = serializers.IntegerField()
    window_seconds = serializers.IntegerField()
    source = serializers.CharField()  # type: ignore[assignment]
    elsewhere = serializers.CharField(help_text="where others do something else, and their source")


class HealthRuleWish(Strict):
    action = serializers.ChoiceField(choices=HealthRule.Action.choices)
    repeats = count_field(1)
    window_seconds = count_field(1)


class TemplateShape(Ser):
    slug = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    kind = serializers.ChoiceField(choices=WorkloadKind.choices)
    type = serializers.ChoiceField(choices=WorkloadType.choices)
    units = serializers.IntegerField()
    hosts = serializers.IntegerField(help_text="so many units on each")
    profile = serializers.CharField()
    max_runtime_seconds = serializers.IntegerField()
