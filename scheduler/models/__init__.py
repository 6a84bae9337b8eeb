"""Define the scheduler's database models, one file per concept. This package has no business rules."""

from scheduler.models.commands import Command
from scheduler.models.decisions import Decision, Recording, RecordingPart, StartEstimate
from scheduler.models.hardware_columns import HardwareColumns
from scheduler.models.hosts import Gpu, Host, JoinToken, Storage, Unit, Volume
from scheduler.models.leader import ClockReading, Leader
from scheduler.models.outages import DatabaseMaintenance, EdgeContact
from scheduler.models.pools import DiagnosticTool, Pool, RunsAs, StrayAction
from scheduler.models.quotas import BudgetGate, DecayedUse, GuaranteeChange, Quota
from scheduler.models.repairs import (
    Diagnostic,
    GeometryChange,
    GpuStateChange,
    HostStateChange,
    MaintenanceWindow,
)
from scheduler.models.reservations import BoundUnit, Reservation, Series
from scheduler.models.runs import Allocation, Run
from scheduler.models.teams import PRIORITIES, Project, Team
from scheduler.models.unix_identities import UnixIdentity
from scheduler.models.workloads import (
    Dependency,
    IfMemberEnds,
    JobArray,
    Workload,
    WorkloadKind,
    WorkloadType,
)

__all__ = [
    "Allocation",
    "BoundUnit",
    "BudgetGate",
    "ClockReading",
    "Command",
    "DatabaseMaintenance",
    "DecayedUse",
    "Decision",
    "Dependency",
    "Diagnostic",
    "DiagnosticTool",
    "GeometryChange",
    "EdgeContact",
    "Gpu",
    "GpuStateChange",
    "GuaranteeChange",
    "HardwareColumns",
    "Host",
    "HostStateChange",
    "IfMemberEnds",
    "JobArray",
    "JoinToken",
    "Leader",
    "MaintenanceWindow",
    "PRIORITIES",
    "Pool",
    "Project",
    "Quota",
    "Recording",
    "RecordingPart",
    "Reservation",
    "Run",
    "RunsAs",
    "Series",
    "StartEstimate",
    "Storage",
    "StrayAction",
    "Team",
    "Unit",
    "UnixIdentity",
    "Volume",
    "Workload",
    "WorkloadKind",
    "WorkloadType",
]
