"""Define the serializers of pools, hosts and their health."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal import policy
from portal.api.base.fields import ResponseSerializer, count_field, slug_field
from portal.api.base.serializers import PageQuery, StrictSerializer
from portal.models import AuditEvent
from portal.reads.fleet import gpu_health, host_history
from portal.reads.fleet.host_details import host_state, last_rejected_agent
from portal.wording.host_texts import HOST_VERBS, WORKLOAD_EFFECTS
from scheduler.models import Host, RunsAs
from scheduler.state.isolation import ISOLATION_LEVELS, missing_levels
from scheduler.state.states import AdminState, LeaseState, RepairState
from telemetry.models import HealthRule

HOST_STATES = sorted(
    {"ready", "removed", "revoked", *LeaseState, *AdminState, *RepairState} - {"alive", "in_service", "well"}
)


class ModelShape(ResponseSerializer):
    model = serializers.CharField()
    gpus = serializers.IntegerField(help_text="GPUs in the pool")
    in_service_gpus = serializers.FloatField(help_text="GPUs on hosts that accept workloads")
    held_gpus = serializers.FloatField(help_text="held now; slices count as parts")
    free_gpus = serializers.FloatField(help_text="in service and free")
    free_in_parts_gpus = serializers.FloatField(
        help_text="free GPUs in MIG slices or shares, which form no whole GPU"
    )


class PoolShape(ResponseSerializer):
    slug = serializers.CharField()
    name = serializers.CharField()
    kind = serializers.ChoiceField(choices=["static", "dynamic"])
    team = serializers.CharField(
        source="team.slug", allow_null=True, default=None, help_text="owner of a static pool"
    )
    notice_seconds = serializers.IntegerField()
    grace_seconds = serializers.IntegerField()
    minimum_runtime_seconds = serializers.IntegerField()
    longest_runtime_seconds = serializers.IntegerField()
    approval_above_gpus = serializers.IntegerField()
    longest_reservation_seconds = serializers.IntegerField()
    reservation_horizon_seconds = serializers.IntegerField()
    idle_limit_seconds = serializers.IntegerField()
    isolation = serializers.ChoiceField(
        choices=ISOLATION_LEVELS, help_text="hosts with less isolation accept no new workloads"
    )
    runs_as = serializers.ChoiceField(
        choices=RunsAs.values, help_text="user of new work on its hosts: that of its team, or of its owner"
    )
    perf_events = serializers.BooleanField(help_text="work may use the system call perf_event_open")
    home_limit_gib = serializers.IntegerField(
        allow_null=True, help_text="largest size of a new home; null: no limit"
    )
    most_waiting_per_user = serializers.IntegerField(
        help_text="notebooks and jobs of one person in the queue"
    )
    most_waiting_per_team = serializers.IntegerField(help_text="notebooks and jobs of one team in the queue")
    models = ModelShape(many=True, source="model_counts")
    removed_at = serializers.DateTimeField(allow_null=True, help_text="null: it is not removed")


class HostShape(ResponseSerializer):
    name = serializers.CharField()
    pool = serializers.CharField(source="pool.slug")
    labels = serializers.DictField(child=serializers.CharField())
    simulated = serializers.BooleanField(help_text="its NVML readings are simulated")
    isolation = serializers.CharField()
    isolation_level = serializers.ChoiceField(
        choices=ISOLATION_LEVELS, help_text="the isolation that it provides"
    )
    person_users = serializers.BooleanField(help_text="it can run work as the Unix user of its owner")
    isolation_lacking = serializers.SerializerMethodField(
        help_text="levels that its pool demands and the host lacks"
    )
    lease_state = serializers.ChoiceField(choices=[s.value for s in LeaseState])
    admin_state = serializers.ChoiceField(choices=[s.value for s in AdminState])
    repair_state = serializers.ChoiceField(choices=[s.value for s in RepairState])
    state_reason = serializers.CharField()
    state = serializers.SerializerMethodField(help_text="the most important of these states")
    revoked_at = serializers.SerializerMethodField(
        help_text="when its agent's credential was revoked; null: it was not"
    )
    revoked_why = serializers.SerializerMethodField()
    last_sync_at = serializers.DateTimeField(allow_null=True)
    gpus = serializers.SerializerMethodField()
    cpu_milli = serializers.IntegerField(help_text="millicores; 0: not known")
    memory_mib = serializers.IntegerField(help_text="0: not known")
    disk_full_since = serializers.DateTimeField(
        allow_null=True, help_text="time since which its full disk stops new workloads; null: not full"
    )
    removed_at = serializers.DateTimeField(allow_null=True, help_text="null: it is not removed")

    @extend_schema_field(serializers.ChoiceField(choices=HOST_STATES))
    def get_state(self, host: Host) -> str:
        """Return the host's state under the name that the portal's pages use."""
        return "revoked" if self._revoked(host) and not host.removed_at else host_state(host)

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_revoked_at(self, host: Host) -> datetime | None:
        """Return the time at which the credential was revoked.

        Return None if no revocation is in force, for example because the agent has joined again.
        """
        deed = self._revoked(host)
        return deed.at if deed else None

    def get_revoked_why(self, host: Host) -> str:
        """Return the reason for the revocation of the credential. The text is empty without a revocation."""
        deed = self._revoked(host)
        return deed.why if deed else ""

    def _revoked(self, host: Host) -> AuditEvent | None:
        """Return the audit record of the revocation of the host's credential.

        Return None if the host has a credential. One query reads the revocations of all hosts, once per
        response. The query is skipped if every host has a credential.
        """
        if host.credential_hash:
            return None
        context = cast(dict[str, Any], self.context)  # each response has its own dict, so rows can be cached
        if "revoked" not in context:
            context["revoked"] = host_history.credential_revocations()
        found: dict[int, AuditEvent] = context["revoked"]
        return found.get(host.pk)

    @extend_schema_field(serializers.ListField(child=serializers.ChoiceField(choices=ISOLATION_LEVELS)))
    def get_isolation_lacking(self, host: Host) -> list[str]:
        """Return the isolation levels that the pool requires and the host lacks, lowest first."""
        return missing_levels(host.hardware.get("reported") or {}, host.pool.isolation)

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_gpus(self, host: Host) -> list[str]:
        """Return the model of each GPU of the host, in order of the GPU index."""
        return [
            gpu.model for gpu in sorted(host.gpus.all(), key=lambda gpu: gpu.index) if gpu.retired_at is None
        ]


class RefusedAgentShape(ResponseSerializer):
    at = serializers.DateTimeField()
    reason = serializers.CharField()
    boot_id = serializers.CharField(help_text="boot id of its machine; empty: not known")
    quarantined = serializers.SerializerMethodField(
        help_text="two agents use this host's credential: an operator must stop one"
    )

    def get_quarantined(self, kept: dict[str, Any]) -> bool:
        """Return True if the host is quarantined because two agents use its credential.

        A quarantined host gets no workloads and no commands.
        """
        return bool(kept.get("code"))


class WayShape(ResponseSerializer):
    way = serializers.CharField(help_text="such as NVLink")
    gpus = serializers.CharField(help_text="pairs of indices; all: every pair")


class OfGpusShape(ResponseSerializer):
    gpus = serializers.CharField(help_text="indices; empty: all GPUs")
    words = serializers.CharField(help_text="its links, its PCIe lanes, its NUMA node")


class AgentShape(ResponseSerializer):
    version = serializers.CharField(help_text="empty: it never joined")
    boot_id = serializers.CharField(help_text="for operators; empty for others")
    notes = serializers.ListField(
        child=serializers.CharField(), help_text="limitations of the host, as sentences"
    )
    network = serializers.CharField(
        help_text="network of workloads: private, internet or host; empty: not known"
    )
    address = serializers.CharField(
        help_text="address at which other hosts' workloads reach workloads on this host; empty: not known"
    )
    driver_version = serializers.CharField(help_text="empty if not known or simulated")
    cuda_version = serializers.CharField(help_text="newest version that the driver supports")
    users_per_team = serializers.BooleanField(help_text="workloads of each team run as a separate user")
    limits = serializers.ListField(
        child=serializers.CharField(),
        help_text="limits that it sets per workload: cpu, memory, pids, devices",
    )
    diagnostics = serializers.ListField(
        child=serializers.CharField(), help_text="names of the operator's own tools"
    )


class HostDetail(HostShape):
    agent = serializers.SerializerMethodField(help_text="the agent's report")
    refused_agent = serializers.SerializerMethodField(
        help_text="the last agent that used this host's name and was rejected, since the host joined"
    )
    between_gpus = serializers.SerializerMethodField(help_text="interconnects")
    of_gpus = serializers.SerializerMethodField(help_text="facts by GPU")

    @extend_schema_field(AgentShape)
    def get_agent(self, host: Host) -> Any:
        """Return the state of the host that its agent last reported."""
        reported = dict(host.hardware.get("reported") or {})
        if host.simulated:
            reported |= {"driver_version": "", "cuda_version": ""}
        knows = policy.may(self.context["user"], "host.change")
        words = ("network", "address", "driver_version", "cuda_version")
        return AgentShape(
            {
                "version": host.agent_version,
                "boot_id": host.boot_id if knows else "",
                "users_per_team": bool(reported.get("users_per_team")),
                **{name: reported.get(name) or "" for name in words},
                **{name: reported.get(name) or [] for name in ("notes", "limits", "diagnostics")},
            }
        ).data

    @extend_schema_field(RefusedAgentShape(allow_null=True))
    def get_refused_agent(self, host: Host) -> Any:
        """Return the time, the reason and the boot id of the last rejected agent.

        Return None if no agent was rejected since the host joined.
        """
        kept = last_rejected_agent(host)
        return RefusedAgentShape({"boot_id": "", **kept}).data if kept else None

    @extend_schema_field(WayShape(many=True))
    def get_between_gpus(self, host: Host) -> Any:
        """Return the interconnects between the host's GPUs."""
        return [{"way": way, "gpus": pairs} for way, pairs in gpu_health.interconnects(self._health(host))]

    @extend_schema_field(OfGpusShape(many=True))
    def get_of_gpus(self, host: Host) -> Any:
        """Return the links, PCIe lanes and NUMA nodes of the GPUs as text.

        Rows that apply to all GPUs come first.
        """
        return [
            {"gpus": gpus, "words": words} for gpus, words in gpu_health.topology_rows(self._health(host))
        ]

    def _health(self, host: Host) -> list[gpu_health.GpuHealth]:
        """Return the health of the host's GPUs. It is computed once per response."""
        context = cast(dict[str, Any], self.context)  # each response has its own dict, so rows can be cached
        if "health" not in context:
            context["health"] = gpu_health.gpu_health_of_host(host)
        found: list[gpu_health.GpuHealth] = context["health"]
        return found


class IsolationWish(StrictSerializer):
    isolation = serializers.ChoiceField(choices=ISOLATION_LEVELS)
    why = serializers.CharField(max_length=300, required=False, allow_blank=True)


class PoolWorkWish(StrictSerializer):
    runs_as = serializers.ChoiceField(choices=RunsAs.values, required=False)
    perf_events = serializers.BooleanField(required=False)
    home_limit_gib = serializers.IntegerField(required=False, allow_null=True, help_text="null: no limit")
    why = serializers.CharField(max_length=300, required=False, allow_blank=True)


class HostQuery(PageQuery):
    pool = slug_field(required=False)


class HostWish(StrictSerializer):
    pool = slug_field()
    name = serializers.CharField(max_length=63)
    labels = serializers.DictField(child=serializers.CharField(max_length=63), required=False)


class JoinShape(ResponseSerializer):
    host = serializers.CharField()
    token = serializers.CharField(help_text="Shown only once; valid for one agent.")
    good_until = serializers.DateTimeField()
    command = serializers.CharField(
        help_text="command for a machine where the agent is installed as a service"
    )
    checkout_command = serializers.CharField(help_text="command for a machine with a checkout of gpupool")
    simulated_as = serializers.CharField(
        help_text="options to append, so that its GPUs are simulated again; empty: its GPUs are real"
    )


class ReasonWish(StrictSerializer):
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class MaintenanceWish(StrictSerializer):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    why = serializers.CharField(max_length=300)


class MaintenanceShape(ResponseSerializer):
    id = serializers.IntegerField(source="pk")
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    reason = serializers.CharField()


class HostVerbTry(StrictSerializer):
    verb = serializers.ChoiceField(choices=list(HOST_VERBS))
    start = serializers.DateTimeField(required=False, help_text="start of the maintenance")
    end = serializers.DateTimeField(required=False, help_text="end of the maintenance")


class TouchedShape(ResponseSerializer):
    id = serializers.UUIDField(source="workload.public_id")
    kind = serializers.CharField(source="workload.kind")
    name = serializers.CharField(source="workload.name")
    team = serializers.CharField(source="workload.project.team.slug")
    owner = serializers.CharField(source="workload.owner.username")
    happens = serializers.ChoiceField(choices=list(WORKLOAD_EFFECTS.items()))
    begins_anew = serializers.BooleanField(
        help_text="its next host has other storage: it restarts without its checkpoint"
    )
    words = serializers.CharField(help_text="the effect on the workload, as text")
    by = serializers.DateTimeField(allow_null=True, help_text="latest end; null: at once")


class TouchedReservationShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    name = serializers.CharField()
    team = serializers.CharField(source="project.team.slug")
    owner = serializers.CharField(source="owner.username")
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()


class HostEffectShape(ResponseSerializer):
    verb = serializers.ChoiceField(choices=list(HOST_VERBS))
    text = serializers.CharField(help_text="the effect of the verb, as text")
    gpus = serializers.IntegerField(
        allow_null=True, help_text="GPUs that leave the pool or return to it; null: none"
    )
    work = TouchedShape(many=True, help_text="workloads on the host now, the earliest end first")
    reservations = TouchedReservationShape(
        many=True, help_text="active reservations on its GPUs; they get other GPUs, except those in unkept"
    )
    moved = TouchedReservationShape(
        many=True,
        allow_null=True,
        help_text="active and future reservations whose present or planned GPUs change; null: not checked",
    )
    unkept = TouchedReservationShape(
        many=True,
        allow_null=True,
        help_text="active and future reservations that can't be served without the host; null: not checked",
    )
    last_end = serializers.DateTimeField(allow_null=True, help_text="latest end of its present workloads")


class ChangedHostShape(HostShape):
    said = serializers.CharField(help_text="the new state, as a sentence")
    still_there = TouchedShape(many=True, help_text="workloads on the host now, the earliest end first")


class MadeMaintenanceShape(ResponseSerializer):
    id = serializers.IntegerField(source="window.pk")
    start = serializers.DateTimeField(source="window.start")
    end = serializers.DateTimeField(source="window.end")
    reason = serializers.CharField(source="window.reason")
    work = TouchedShape(many=True, help_text="workloads on the host now, and the effect of the window")
    reservations = TouchedReservationShape(
        many=True,
        help_text="active reservations on its GPUs in that time; they get other GPUs, except those in unkept",
    )
    moved = TouchedReservationShape(
        many=True, help_text="active and future reservations whose present or planned GPUs change"
    )
    unkept = TouchedReservationShape(
        many=True,
        help_text="active and future reservations that can't be served; owners and operators are notified",
    )


class RuleDoesShape(ResponseSerializer):
    action = serializers.ChoiceField(choices=HealthRule.Action.choices)
    repeats = serializers.IntegerField()
    window_seconds = serializers.IntegerField()
    counts = serializers.ChoiceField(choices=HealthRule.Counts.choices)


class HealthRuleShape(ResponseSerializer):
    code = serializers.CharField()
    meaning = serializers.CharField()
    action = serializers.ChoiceField(choices=HealthRule.Action.choices)
    repeats = serializers.IntegerField(
        help_text="number of events within the window that triggers the action"
    )
    window_seconds = serializers.IntegerField()
    counts = serializers.ChoiceField(
        choices=HealthRule.Counts.choices,
        help_text="people: a program can cause it, so all events of one person's workloads count as one",
    )
    source = serializers.CharField(help_text="who recommends it")  # type: ignore[assignment]
    elsewhere = serializers.CharField(help_text="differing recommendations, and their source")
    origin = serializers.ChoiceField(
        choices=HealthRule.Origin.choices, help_text="default: unchanged; changed, or added, by an operator"
    )
    default = serializers.SerializerMethodField(
        help_text="the rule after a reset; null: an operator added it"
    )

    @extend_schema_field(RuleDoesShape(allow_null=True))
    def get_default(self, rule: HealthRule) -> dict[str, object] | None:
        """Return the default values of the rule. Return None for a rule that an operator added."""
        if rule.origin == HealthRule.Origin.ADDED:
            return None
        return dict(zip(("action", "repeats", "window_seconds", "counts"), rule.default, strict=True))


class HealthRuleQuery(PageQuery):
    find = serializers.CharField(max_length=80, required=False, help_text="words of its code or meaning")
    action = serializers.ChoiceField(choices=HealthRule.Action.choices, required=False)
    changed = serializers.BooleanField(
        required=False, default=False, help_text="only rules that operators changed or added"
    )


class HealthRuleWish(StrictSerializer):
    action = serializers.ChoiceField(choices=HealthRule.Action.choices, required=False)
    repeats = count_field(1, required=False)
    window_seconds = count_field(1, required=False)
    counts = serializers.ChoiceField(choices=HealthRule.Counts.choices, required=False)
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class NewHealthRuleWish(StrictSerializer):
    code = serializers.CharField(max_length=40, help_text="such as xid:201 or ecc:double_bit")
    meaning = serializers.CharField(max_length=200)
    action = serializers.ChoiceField(choices=HealthRule.Action.choices)
    repeats = count_field(1, required=False, help_text="default: 1")
    window_seconds = count_field(1, required=False, help_text="default: an hour")
    counts = serializers.ChoiceField(
        choices=HealthRule.Counts.choices, required=False, help_text="default: events"
    )
    source = serializers.CharField(  # type: ignore[assignment]
        max_length=200, required=False, allow_blank=True, help_text="who recommends it"
    )
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")
