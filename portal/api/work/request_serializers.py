"""Serializers of requests: bodies and queries that launch, change and list workloads."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from portal.api.base.fields import count_field, name_field, slug_field
from portal.api.base.serializers import PageQuery, StrictSerializer
from portal.services.work.request_checks import MAX_DEPENDENCIES, PRIORITY_NAMES
from scheduler.models import Dependency, IfMemberEnds, WorkloadKind, WorkloadType
from scheduler.state.states import WorkloadState


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
    project = slug_field(help_text="team/project, or the project alone if it is unique")
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
        help_text="instead of a workload; ok: all its tasks finished; not_ok: all ended, not all finished",
    )
    condition = serializers.ChoiceField(
        choices=Dependency.Condition.choices, default="ok", help_text="the required outcome"
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Require exactly one of the two."""
        if ("workload" in attrs) == ("array" in attrs):
            raise serializers.ValidationError(
                {"workload": "allowed: the id of a workload, or instead of it that of an array."}
            )
        return attrs


class PlacedWish(_GpuRequestFields):
    """The placement constraints and preferences."""

    min_memory_mib = count_field(0, required=False, help_text="of each GPU")
    min_compute_capability = count_field(0, required=False, help_text="80 is 8.0")
    nvlink = serializers.BooleanField(required=False, help_text="all units of a host in one NVLink group")
    labels_required = serializers.DictField(child=serializers.CharField(max_length=63), required=False)
    labels_preferred = serializers.DictField(
        child=serializers.CharField(max_length=63),
        required=False,
        help_text="hosts with more of these labels are preferred",
    )
    spread = serializers.BooleanField(
        required=False, help_text="on hosts that share as few failure domains as possible"
    )
    cpu_milli = count_field(
        0,
        required=False,
        help_text="millicores on each host, with the units; 0: not limited and not counted",
    )
    memory_mib = count_field(
        0, required=False, help_text="on each host, with the units; 0: not limited and not counted"
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
        help_text="on several hosts: the action when one of its members ends",
    )
    reservation = serializers.UUIDField(required=False, allow_null=True)
    environment = serializers.DictField(
        child=serializers.CharField(max_length=4096, allow_blank=True), required=False
    )
    wanted_by = serializers.DateTimeField(
        required=False, allow_null=True, help_text="a preference, not a limit"
    )
    after = AfterWish(  # type: ignore[call-arg]  # with many=True the arguments are those of a list, which stubs do not know
        many=True,
        required=False,
        max_length=MAX_DEPENDENCIES,
        help_text="it starts after all of these have the required outcome",
    )


class ArrayWish(JobWish):
    """A job for each index, with GPUPOOL_ARRAY_INDEX in its environment."""

    array = serializers.CharField(
        max_length=200, help_text="such as 0-9, 1,3,5-9:2 or 0-99%4 (at most 4 at once)"
    )


class RelaunchWish(StrictSerializer):
    name = name_field(required=False)
    units = count_field(1, required=False)
    models = serializers.ListField(child=serializers.CharField(max_length=60), required=False, max_length=10)
    max_runtime_seconds = count_field(1, required=False)


class SecondsWish(StrictSerializer):
    seconds = count_field(1)


class LogQuery(StrictSerializer):
    offset = serializers.IntegerField(min_value=0, max_value=2**53, default=0, help_text="in bytes")
    attempt = count_field(1, required=False, help_text="default: the last one")
    rank = count_field(0, required=False, default=0)


class QueueQuery(PageQuery):
    pool = slug_field(required=False)
