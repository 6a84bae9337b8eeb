"""What the API takes and gives about pools, hosts and their health."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.api.base import PageQuery, Strict
from portal.api.shapes.fields import Ser, count_field, slug_field
from scheduler.isolation import LEVELS, lacking
from scheduler.models import Host
from scheduler.states import AdminState, LeaseState, RepairState
from telemetry.models import HealthRule


class ModelShape(Ser):
    model = serializers.CharField()
    gpus = serializers.IntegerField(help_text="GPUs the pool has")
    in_service_gpus = serializers.FloatField(help_text="of these on hosts that take work")
    held_gpus = serializers.FloatField(help_text="held now, in parts of GPUs")
    free_gpus = serializers.FloatField(help_text="in service and held by nobody")
    free_in_parts_gpus = serializers.FloatField(help_text="of these in MIG slices or shares: no whole GPU can be made of them")


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
    isolation = serializers.ChoiceField(
        choices=LEVELS, help_text="hosts that keep workloads less apart take no new work"
    )
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
    isolation_lacking = serializers.SerializerMethodField(
        help_text="levels that its pool demands and it does not reach"
    )
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


class HealthRuleShape(Ser):
    code = serializers.CharField()
    meaning = serializers.CharField()
    action = serializers.ChoiceField(choices=HealthRule.Action.choices)
    repeats = serializers.IntegerField()
    window_seconds = serializers.IntegerField()
    counts = serializers.ChoiceField(
        choices=HealthRule.Counts.choices,
        help_text="people: a program can bring it about, so those of one person's work count as one",
    )
    source = serializers.CharField()  # type: ignore[assignment]
    elsewhere = serializers.CharField(help_text="where others do something else, and their source")


class HealthRuleWish(Strict):
    action = serializers.ChoiceField(choices=HealthRule.Action.choices)
    repeats = count_field(1)
    window_seconds = count_field(1)
    counts = serializers.ChoiceField(choices=HealthRule.Counts.choices, required=False, help_text="left out: as it was")
