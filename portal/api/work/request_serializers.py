"""Define the serializers of requests: bodies and queries that launch, change and list workloads."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from portal.api.base.fields import ResponseSerializer, count_field, name_field, slug_field
from portal.api.base.serializers import PageQuery, StrictSerializer
from portal.wording.problems import request_problems
from scheduler.models import Dependency, WorkloadKind
from scheduler.requests import (
    MAX_DEPENDENCIES,
    HardwareRequest,
    Labels,
    RequestField,
    WorkloadRequest,
    request_fields,
)
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


def _request_field(declared: RequestField, required: bool) -> serializers.Field[Any, Any, Any, Any]:
    """Return the serializer field for a field of ``scheduler.requests``."""
    unit = f" Unit: {declared.unit}." if declared.unit else ""
    more: dict[str, Any] = {"required": required, "help_text": f"{declared.help_text}{unit}"}
    if declared.choices:
        return serializers.ChoiceField(choices=declared.choices, **more)
    if declared.type is bool:
        return serializers.BooleanField(**more)
    if declared.type is int:
        return count_field(min(declared.low, 1), **more)
    if declared.type == Labels:
        return serializers.DictField(child=serializers.CharField(max_length=declared.max_length), **more)
    if declared.max_items:
        item = serializers.CharField(max_length=declared.max_length)
        return serializers.ListField(child=item, max_length=declared.max_items, **more)
    if declared.format == "uuid":
        return serializers.UUIDField(allow_null=True, **more)
    if declared.format == "date-time":
        return serializers.DateTimeField(allow_null=True, **more)
    return serializers.CharField(max_length=declared.max_length, allow_blank=not required, **more)


class _GeneratedFields(serializers.Serializer[Any]):
    """A serializer whose fields are generated from ``scheduler.requests`` for a request of ``kind``.

    A subclass may add or replace fields. If ``optional`` is not empty, only the fields that it lists are
    generated, and no generated field is required. Fields in ``without`` are not generated.
    """

    kind: ClassVar[str] = ""
    optional: ClassVar[tuple[str, ...]] = ()
    without: ClassVar[tuple[str, ...]] = ()

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Return the generated fields and the fields that the class declares."""
        generated = {
            each.argument: _request_field(each, self.kind in each.required_in and not self.optional)
            for each in request_fields(WorkloadRequest, self.kind)
            if each.argument not in self.without and (not self.optional or each.argument in self.optional)
        }
        return generated | super().get_fields()


class RequestSerializer(StrictSerializer, _GeneratedFields):
    """The body of a request for GPUs."""


class HardwareShape(ResponseSerializer):
    """The hardware that a workload or reservation asked for."""

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Return the fields that the class declares and the fields of a hardware request."""
        fields = super().get_fields()
        for each in request_fields(HardwareRequest):
            given = _request_field(each, required=True)
            more: dict[str, Any] = {"help_text": given.help_text}
            if each.argument != each.name:
                more["source"] = each.name
            if isinstance(given, serializers.ListField | serializers.DictField):
                more["child"] = serializers.CharField()
            fields[each.argument] = type(given)(**more)
        return fields


class AfterWish(StrictSerializer):
    workload = serializers.UUIDField(required=False, help_text="an earlier workload that you may see")
    array = serializers.UUIDField(
        required=False,
        help_text="an array instead of a workload. ok: all finished; not_ok: all ended, not all finished",
    )
    condition = serializers.ChoiceField(
        choices=Dependency.Condition.choices, default="ok", help_text="the required outcome"
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Require either ``workload`` or ``array``, not both."""
        if ("workload" in attrs) == ("array" in attrs):
            raise serializers.ValidationError({"workload": request_problems.WORKLOAD_OR_ARRAY})
        return attrs


class NotebookWish(RequestSerializer):
    kind = "notebook"
    template = slug_field(required=False, allow_null=True)


class JobWish(RequestSerializer):
    kind = "job"
    environment = serializers.DictField(
        child=serializers.CharField(max_length=4096, allow_blank=True), required=False
    )
    after = AfterWish(  # type: ignore[call-arg]  # many=True adds arguments that the stubs do not know
        many=True,
        required=False,
        max_length=MAX_DEPENDENCIES,
        help_text="the job starts after every dependency has the required outcome",
    )


class ArrayWish(JobWish):
    """A job that runs once for each index. GPUPOOL_ARRAY_INDEX in its environment is the index."""

    array = serializers.CharField(
        max_length=200, help_text="such as 0-9, 1,3,5-9:2 or 0-99%4 (at most 4 at once)"
    )


class RelaunchWish(RequestSerializer):
    kind = "job"
    optional = ("name", "units", "models", "max_runtime_seconds")
    name = name_field(required=False)


class SecondsWish(StrictSerializer):
    seconds = count_field(1)


class LogQuery(StrictSerializer):
    offset = serializers.IntegerField(min_value=0, max_value=2**53, default=0, help_text="in bytes")
    attempt = count_field(1, required=False, help_text="default: the last attempt")
    rank = count_field(0, required=False, default=0)


class QueueQuery(PageQuery):
    pool = slug_field(required=False)
