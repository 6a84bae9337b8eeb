"""Implement the endpoint of the use of a workload's runs and of its processes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.fields import ResponseSerializer
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.views import ApiView
from portal.models import TokenScope
from scheduler.state.states import WorkloadState
from telemetry.reads.usage.process_use import workload_processes
from telemetry.reads.usage.run_use import last_run_use

NOT_MEASURED = "null: not measured"


class LastRunUseShape(ResponseSerializer):
    attempt = serializers.IntegerField()
    host = serializers.CharField()
    at = serializers.DateTimeField(allow_null=True, help_text="time of the reading; null: there is none")
    cpu_seconds = serializers.FloatField(allow_null=True, help_text=f"since its start; {NOT_MEASURED}")
    memory_mib = serializers.IntegerField(allow_null=True, help_text=f"with the file cache; {NOT_MEASURED}")
    memory_peak_mib = serializers.IntegerField(allow_null=True, help_text=NOT_MEASURED)
    io_read_bytes = serializers.IntegerField(allow_null=True, help_text=f"from disks; {NOT_MEASURED}")
    io_written_bytes = serializers.IntegerField(allow_null=True, help_text=f"to disks; {NOT_MEASURED}")
    network_rx_bytes = serializers.IntegerField(
        allow_null=True, help_text="received by its own network; null: not measured, or it has none"
    )
    network_tx_bytes = serializers.IntegerField(allow_null=True, help_text="sent by its own network")


class ProcessUseShape(ResponseSerializer):
    host = serializers.CharField()
    gpu = serializers.IntegerField(help_text="its index on that host")
    profile = serializers.CharField(help_text="profile of a slice; empty: the whole GPU")
    pid = serializers.IntegerField()
    name = serializers.CharField(help_text="name of the program")
    sm_percent = serializers.FloatField(allow_null=True, help_text=f"share of the SMs; {NOT_MEASURED}")
    memory_mib = serializers.IntegerField(allow_null=True, help_text=f"GPU memory; {NOT_MEASURED}")


class WorkloadUseShape(ResponseSerializer):
    runs = LastRunUseShape(many=True, help_text="of the newest attempt, one for each host")
    processes = ProcessUseShape(
        many=True,
        allow_null=True,
        help_text="on its GPUs now; null: it has ended, or you may not read its log",
    )


class WorkloadUseView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="workloads_use", responses=WorkloadUseShape)
    def get(self, request: Request, id: UUID) -> Response:
        """Return the CPU, memory, disk and network use of a workload's runs, and its processes on GPUs."""
        workload = get_visible_or_404(policy.visible_workloads(self.actor), public_id=id)
        processes = None
        # The name of a process says what the program does, as the log does.
        if workload.state != WorkloadState.ENDED and policy.may(self.actor, "workload.logs", workload):
            processes = workload_processes(workload, self.now)
        body: dict[str, Any] = {"runs": last_run_use(workload), "processes": processes}
        return self.object_response(body, WorkloadUseShape)
