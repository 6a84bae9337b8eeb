"""Implement the endpoints of GPU health: diagnostics, repairs, repair policy, and cancelled maintenance."""

from __future__ import annotations

from functools import partial
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery, StrictSerializer
from portal.api.base.views import ApiView
from portal.api.fleet import serializers as shapes
from portal.models import TokenScope
from portal.reads.fleet import gpu_health as reads
from portal.reads.fleet import host_history
from portal.services.fleet import gpu_repairs as verbs
from portal.services.fleet import hosts
from scheduler.models import Diagnostic, Host, StrayAction
from scheduler.state.states import DiagnosticState, RepairState
from telemetry.models import ReadingFault

DIAGNOSTIC_TOOLS_HELP = "auto, own, dcgm, or a name that hosts of the pool report"


class CheckShape(serializers.Serializer[Any]):
    name = serializers.CharField()
    passed = serializers.BooleanField(
        allow_null=True, help_text="null: the check only measures a value, or could not run"
    )
    numbers = serializers.DictField()
    detail = serializers.CharField()


class DiagnosticShape(serializers.Serializer[Any]):
    id = serializers.UUIDField(source="public_id")
    gpu = serializers.IntegerField(source="gpu.index")
    why = serializers.ChoiceField(choices=Diagnostic.Why.choices)
    state = serializers.ChoiceField(choices=[s.value for s in DiagnosticState])
    tool = serializers.CharField(help_text="dcgm, own, simulated, or the name of an operator's tool")
    simulated = serializers.BooleanField(help_text="nothing was measured")
    checks = CheckShape(many=True)
    detail = serializers.CharField()
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)


class GpuHealthShape(serializers.Serializer[Any]):
    gpu = serializers.IntegerField(source="gpu.index")
    uuid = serializers.CharField(source="gpu.uuid")
    model = serializers.CharField(source="gpu.model")
    repair_state = serializers.ChoiceField(choices=[s.value for s in RepairState], source="gpu.repair_state")
    reason = serializers.CharField(source="gpu.state_reason")
    last_diagnostic = DiagnosticShape(source="last", allow_null=True)


class MissingGpuShape(serializers.Serializer[Any]):
    gpu = serializers.IntegerField(
        source="index", help_text="its last reported index; another GPU may have it now"
    )
    uuid = serializers.CharField()
    model = serializers.CharField()
    missing_since = serializers.DateTimeField(allow_null=True, help_text="null: it was reported again")
    repair_state = serializers.ChoiceField(
        choices=[s.value for s in RepairState], help_text="its state before it went missing"
    )
    reason = serializers.CharField(source="state_reason")


class StrayShape(serializers.Serializer[Any]):
    gpu = serializers.IntegerField(source="gpu.index")
    pid = serializers.IntegerField()
    user = serializers.CharField()
    name = serializers.CharField()
    memory_mib = serializers.IntegerField(allow_null=True)
    run = serializers.CharField(help_text="its run, if that run does not hold this GPU")
    done = serializers.CharField(help_text="the host's action, or why there was none")
    first_seen = serializers.DateTimeField()


class HardwareEventShape(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    gpu = serializers.IntegerField(allow_null=True)
    code = serializers.CharField(help_text="such as xid:79")
    meaning = serializers.CharField(help_text="empty: no rule for the code")
    detail = serializers.CharField(help_text="names the process and its user only for operators and auditors")
    action = serializers.CharField(help_text="the rule's action, or held_back; empty: not processed yet")


class ReadingFaultShape(serializers.Serializer[Any]):
    reading = serializers.CharField(help_text="such as power_w; ts: the time of the sample")
    kind = serializers.ChoiceField(
        choices=ReadingFault.Kind.values,
        help_text="out_of_bounds: an impossible value, stored as unknown; counter: the energy is unknown",
    )
    source = serializers.ChoiceField(choices=ReadingFault.Source.values)  # type: ignore[assignment]
    count = serializers.IntegerField()
    last_at = serializers.DateTimeField()
    last_value = serializers.FloatField(
        allow_null=True, help_text="the value as it arrived; null: unknown or not finite"
    )


class HostHealthShape(serializers.Serializer[Any]):
    state_reason = serializers.CharField(help_text="why the host is not in service")
    revoked_at = serializers.DateTimeField(
        allow_null=True,
        help_text="when its credential was revoked; null: it was not revoked, or the agent has joined since",
    )
    revoked_why = serializers.CharField()
    gpus = GpuHealthShape(many=True)
    missing_gpus = MissingGpuShape(
        many=True, help_text="GPUs that the host stopped reporting and no operator removed"
    )
    events = HardwareEventShape(many=True, help_text="hardware events, newest first")
    strays = serializers.IntegerField(help_text="processes on its GPUs that belong to no workload")
    stray_processes = StrayShape(many=True, help_text="for operators and auditors; empty for others")
    reading_faults = ReadingFaultShape(
        many=True, help_text="readings of the last 7 days that could not be stored as they arrived"
    )
    maintenance = shapes.MaintenanceShape(many=True)


class HostHealthView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="hosts_health", responses=HostHealthShape)
    def get(self, request: Request, name: str) -> Response:
        """Return the health of a host's GPUs: repair, diagnostics, events, stray processes, maintenance."""
        host = _visible_host(self, name)
        found, revoked = reads.stray_processes(self.actor, host), host_history.credential_revocation(host)
        body = {
            "state_reason": host.state_reason,
            "revoked_at": revoked.at if revoked else None,
            "revoked_why": revoked.why if revoked else "",
            "gpus": reads.gpu_health_of_host(host),
            "missing_gpus": reads.missing_gpus(host),
            "events": reads.hardware_events(self.actor, host),
            "strays": found.count,
            "stray_processes": found.rows,
            "reading_faults": reads.reading_faults(host, self.now),
            "maintenance": reads.maintenance_windows(host, self.now),
        }
        return self.object_response(body, HostHealthShape)


class HostEventListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="hosts_events", parameters=[PageQuery], responses=page_schema(HardwareEventShape)
    )
    def get(self, request: Request, name: str) -> Response:
        """List every hardware event of a host, newest first. The endpoint ``health`` returns the last 20."""
        rows = reads.all_hardware_events(_visible_host(self, name))
        return self.list_response(
            rows,
            HardwareEventShape,
            self.validated_query(PageQuery),
            describe=partial(reads.visible_hardware_events, self.actor),
        )


class DiagnosticListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="hosts_diagnostics", parameters=[PageQuery], responses=page_schema(DiagnosticShape)
    )
    def get(self, request: Request, name: str) -> Response:
        """List the diagnostics of a host's GPUs, newest first."""
        rows = _visible_host(self, name).diagnostics.select_related("gpu").order_by("-created_at", "-pk")
        return self.list_response(rows, DiagnosticShape, self.validated_query(PageQuery))


class DiagnoseWish(StrictSerializer):
    gpu = serializers.IntegerField(
        min_value=0, required=False, help_text="its index; default: every free GPU"
    )
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class DiagnoseGpuView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="hosts_diagnose", request=DiagnoseWish, responses={202: DiagnosticShape(many=True)}
    )
    def post(self, request: Request, name: str) -> Response:
        """Run a diagnostic on one GPU of a host, or on all its idle GPUs. For operators."""
        host = _visible_host(self, name)
        given = self.validated_body(DiagnoseWish)
        made = [verbs.diagnose_gpu(**self.service_context, host=host, **given)] if "gpu" in given else None
        rows = made if made is not None else verbs.diagnose_host(**self.service_context, host=host, **given)
        return Response(DiagnosticShape(rows, many=True).data, status=202)


class GpuWish(StrictSerializer):
    gpu = serializers.IntegerField(min_value=0, help_text="its index")
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class ReturnGpuView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="hosts_return_gpu", request=GpuWish, responses=GpuHealthShape)
    def post(self, request: Request, name: str) -> Response:
        """Return a GPU to service, even if its diagnostic failed. For operators."""
        return _change_response(self, name, verbs.return_gpu)


class TakeOutGpuView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="hosts_take_out_gpu", request=GpuWish, responses=GpuHealthShape)
    def post(self, request: Request, name: str) -> Response:
        """Take a GPU out of service until it is returned; its workloads are requeued. For operators."""
        return _change_response(self, name, verbs.take_out_gpu)


class ForgottenGpuWish(StrictSerializer):
    gpu = serializers.CharField(max_length=80, help_text="its uuid, from missing_gpus")
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class ForgetGpuView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="hosts_forget_gpu", request=ForgottenGpuWish, responses=MissingGpuShape)
    def post(self, request: Request, name: str) -> Response:
        """Remove a missing GPU from the list; a later report adds it again. For operators."""
        gpu = verbs.forget_gpu(
            **self.service_context, host=_visible_host(self, name), **self.validated_body(ForgottenGpuWish)
        )
        gpu.refresh_from_db(fields=["missing_since"])
        return self.object_response(gpu, MissingGpuShape)


class CancelledWindowWish(StrictSerializer):
    window = serializers.IntegerField(min_value=1, help_text="its id")
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class CancelMaintenanceView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="hosts_cancel_maintenance",
        request=CancelledWindowWish,
        responses=shapes.MaintenanceShape,
    )
    def post(self, request: Request, name: str) -> Response:
        """Cancel an announced maintenance window. For operators."""
        host = _visible_host(self, name)
        return self.object_response(
            hosts.cancel_maintenance(
                **self.service_context, host=host, **self.validated_body(CancelledWindowWish)
            ),
            shapes.MaintenanceShape,
        )


class RepairPolicyShape(serializers.Serializer[Any]):
    stray_action = serializers.ChoiceField(choices=StrayAction.choices)
    diagnostic_tool = serializers.CharField(help_text=DIAGNOSTIC_TOOLS_HELP)
    diagnostic_seconds = serializers.IntegerField()
    diagnose_after_quarantine = serializers.BooleanField()
    diagnose_every_hours = serializers.IntegerField(help_text="interval for idle GPUs; 0: never")


class RepairPolicyWish(StrictSerializer):
    stray_action = serializers.ChoiceField(choices=StrayAction.choices, required=False)
    diagnostic_tool = serializers.CharField(max_length=40, required=False, help_text=DIAGNOSTIC_TOOLS_HELP)
    diagnostic_seconds = serializers.IntegerField(required=False)
    diagnose_after_quarantine = serializers.BooleanField(required=False)
    diagnose_every_hours = serializers.IntegerField(required=False)


class RepairPolicyView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="pools_repair_policy", responses=RepairPolicyShape)
    def get(self, request: Request, slug: str) -> Response:
        """Return a pool's repair policy: its actions for stray processes and suspect GPUs."""
        return self.object_response(
            get_visible_or_404(policy.visible_pools(self.actor), slug=slug), RepairPolicyShape
        )

    @extend_schema(
        operation_id="pools_change_repair_policy", request=RepairPolicyWish, responses=RepairPolicyShape
    )
    def put(self, request: Request, slug: str) -> Response:
        """Change a pool's repair policy; absent fields keep their values. For operators."""
        pool = get_visible_or_404(policy.visible_pools(self.actor), slug=slug)
        return self.object_response(
            verbs.change_repair_policy(
                **self.service_context, pool=pool, **self.validated_body(RepairPolicyWish)
            ),
            RepairPolicyShape,
        )


def _visible_host(view: ApiView, name: str) -> Host:
    return lookups.visible_host(view.actor, name, policy.visible_hosts(view.actor).select_related("pool"))


def _change_response(view: ApiView, name: str, verb: Any) -> Response:
    host = _visible_host(view, name)
    gpu = verb(**view.service_context, host=host, **view.validated_body(GpuWish))
    return view.object_response(
        next(each for each in reads.gpu_health_of_host(host) if each.gpu.pk == gpu.pk), GpuHealthShape
    )
