"""Define the request for GPUs.

The form, the API and the command line create this value. The rows of workloads and reservations store it.
Each field is declared once in this module, with its bounds, texts and command-line option. The serializers,
the form's fields, the checks, the row's values and the schema of the command line are generated from these
declarations.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime
from typing import Annotated, Any, Self, get_type_hints

from scheduler.core.model.slots import WHOLE_GPU_PROFILE
from scheduler.core.model.snapshot import Priority
from scheduler.models import (
    HardwareColumns,
    IfMemberEnds,
    JobArray,
    Pool,
    Project,
    Reservation,
    Workload,
    WorkloadType,
)

PRIORITY_NAMES = {priority.name.lower(): priority for priority in Priority}
PRIORITY_CHOICES = tuple((name, name) for name in PRIORITY_NAMES)
WORKLOAD_KINDS = ("notebook", "job")
PLACED_KINDS = ("job", "reservation")
REQUEST_KINDS = (*WORKLOAD_KINDS, "reservation")
MAX_MEMORY_MIB = 10_000_000
MIN_RUNTIME_SECONDS = 60
MAX_DEPENDENCIES = 20
Labels = Mapping[str, str]


@dataclass(frozen=True)
class RequestField:
    """The declaration of one field. ``request_fields`` fills in ``name``, ``type`` and ``default``."""

    help_text: str  # shown in the API and on the command line
    label: str = ""  # shown in forms and on pages
    low: int = 0  # lower bound of a number
    high: int = 2**31 - 1
    unit: str = ""
    max_length: int = 0  # characters of a text, or of each text in a list or mapping
    max_items: int = 0
    choices: tuple[tuple[str, str], ...] = ()  # pairs (value, label)
    format: str = ""  # the JSON schema's format of a string
    kinds: tuple[str, ...] = REQUEST_KINDS
    required_in: tuple[str, ...] = ()
    argument: str = ""  # the name in the API and in payloads, if it differs from the column's name
    option: str = ""  # the option of the command line, if it differs from the argument's name
    form_field: str = ""  # the name of the generated form field; empty: none is generated
    form_section: str = ""
    name: str = ""
    type: Any = None
    default: Any = None  # None can also mean that the field has no default


def _row_field(help_text: str, **more: Any) -> dict[str, RequestField]:
    """Return the metadata of a field whose value is a database row.

    The API and the command line identify the row by its slug.
    """
    return {"declared": RequestField(help_text=help_text, max_length=81, **more)}


@dataclass(frozen=True, kw_only=True)
class HardwareRequest:
    """The requested hardware of a workload or reservation. The fields are named as in ``HardwareColumns``."""

    units: Annotated[
        int,
        RequestField(
            help_text="Number of GPUs on each host.",
            low=1,
            high=10_000,
            required_in=PLACED_KINDS,
            option="--gpus",
        ),
    ]
    hosts: Annotated[
        int, RequestField(help_text="Number of hosts.", low=1, high=1_000, kinds=PLACED_KINDS)
    ] = 1
    models_wanted: Annotated[
        tuple[str, ...],
        RequestField(
            help_text="GPU models in order of preference, such as H100-80GB; empty: any.",
            max_length=60,
            max_items=10,
            argument="models",
            option="--model",
        ),
    ] = ()
    profile: Annotated[
        str, RequestField(help_text="A MIG slice, such as 1g.10gb; empty: whole GPUs.", max_length=30)
    ] = WHOLE_GPU_PROFILE
    min_memory_mib: Annotated[
        int,
        RequestField(
            help_text="Minimum memory of each GPU.",
            label="GPU memory at least",
            high=MAX_MEMORY_MIB,
            unit="MiB",
            option="--min-memory",
            form_field="min_memory",
            form_section="gpu",
        ),
    ] = 0
    min_compute_capability: Annotated[
        int,
        RequestField(
            help_text="Minimum compute capability of each GPU, such as 8.0 (A100) or 9.0 (H100).",
            label="Compute capability at least",
            high=1_000,
            unit="tenths",
            form_field="min_capability",
            form_section="gpu",
        ),
    ] = 0
    nvlink: Annotated[
        bool,
        RequestField(
            help_text="All GPUs of a host in one NVLink group.",
            label="Within one NVLink group",
            form_field="nvlink",
            form_section="amount",
        ),
    ] = False
    labels_required: Annotated[
        Labels,
        RequestField(
            help_text="Only hosts with these labels.",
            label="Only on hosts with",
            max_length=63,
            option="--label",
            form_field="labels",
            form_section="place",
        ),
    ] = field(default_factory=dict)
    cpu_milli: Annotated[
        int,
        RequestField(
            help_text="CPU cores on each host; default: not limited and not counted.",
            label="CPU cores on each host",
            high=10_000_000,
            unit="thousandths of a core",
            option="--cpus",
            form_field="cpus",
            form_section="host",
        ),
    ] = 0
    memory_mib: Annotated[
        int,
        RequestField(
            help_text="Memory on each host; default: not limited and not counted.",
            label="Memory on each host",
            high=MAX_MEMORY_MIB,
            unit="MiB",
            option="--memory",
            form_field="memory",
            form_section="host",
        ),
    ] = 0
    labels_preferred: Annotated[
        Labels,
        RequestField(
            help_text="Hosts with more of these labels are preferred.",
            label="Preferably on hosts with",
            max_length=63,
            option="--prefer",
            form_field="prefer",
            form_section="place",
        ),
    ] = field(default_factory=dict)
    spread: Annotated[
        bool,
        RequestField(
            help_text="Spread over hosts that share as few failure domains as possible.",
            label="Spread over hosts that share as few failure domains as possible",
            form_field="spread",
            form_section="several_hosts",
        ),
    ] = False

    @classmethod
    def from_row(cls, row: HardwareColumns) -> Self:
        """Return the request that the columns of a workload or reservation store."""
        return cls(**{each.name: getattr(row, each.name) for each in fields(cls) if hasattr(row, each.name)})

    def hardware_columns(self) -> dict[str, Any]:
        """Return the values of the columns of ``HardwareColumns``."""
        return {name: _column_value(getattr(self, name)) for name in HARDWARE_COLUMNS}

    def hardware_arguments(self) -> dict[str, Any]:
        """Return the hardware as JSON values, by their names in the API."""
        columns = self.hardware_columns()
        return {each.argument: columns[each.name] for each in request_fields(HardwareRequest)}


@dataclass(frozen=True, kw_only=True)
class WorkloadRequest(HardwareRequest):
    """A notebook or job that a person requests. The fields are named as the columns of ``Workload``."""

    kind: str
    # Fields that hold database rows are declared with ``metadata`` instead of ``Annotated``, because
    # django-stubs gives another meaning to ``Annotated`` models.
    project: Project = field(
        metadata=_row_field(
            help_text="TEAM/PROJECT, or the project alone if it is unique.", required_in=REQUEST_KINDS
        )
    )
    pool: Pool = field(metadata=_row_field(help_text="The slug of the pool.", required_in=REQUEST_KINDS))
    name: Annotated[str, RequestField(help_text="Its name.", max_length=80, required_in=PLACED_KINDS)]
    type: Annotated[
        str,
        RequestField(
            help_text="Type of the workload.", choices=tuple(WorkloadType.choices), kinds=WORKLOAD_KINDS
        ),
    ]
    max_runtime_seconds: Annotated[
        int,
        RequestField(
            help_text="Maximum runtime, such as 90m, 8h, 1d.",
            low=MIN_RUNTIME_SECONDS,
            unit="seconds",
            kinds=WORKLOAD_KINDS,
            option="--max-runtime",
        ),
    ]
    reservation: Annotated[
        Reservation | None,
        RequestField(help_text="ID of a reservation to run inside.", format="uuid", kinds=WORKLOAD_KINDS),
    ] = None
    command: Annotated[
        str,
        RequestField(
            help_text="The command, for a shell.", max_length=20_000, kinds=("job",), required_in=("job",)
        ),
    ] = ""
    environment: Annotated[
        Mapping[str, str],
        RequestField(help_text="Environment variables.", max_length=4096, kinds=("job",), option="--env"),
    ] = field(default_factory=dict)
    priority: Annotated[
        int, RequestField(help_text="Priority.", choices=PRIORITY_CHOICES, kinds=("job",))
    ] = int(Priority.NORMAL)
    preemptible: Annotated[
        bool,
        RequestField(
            help_text="Whether it may borrow GPUs and be preempted.",
            label="May be preempted: it can borrow GPUs, and resumes from its checkpoint",
            kinds=("job",),
            option="--preemptible/--no-preemptible",
            form_field="preemptible",
            form_section="job",
        ),
    ] = False
    most_retries: Annotated[
        int,
        RequestField(
            help_text="How often to retry after a failure.",
            label="Retries after a failure",
            high=10,
            kinds=("job",),
            form_field="most_retries",
            form_section="job",
        ),
    ] = 0
    if_member_ends: Annotated[
        str,
        RequestField(
            help_text="What to do when it ends on one of several hosts.",
            choices=tuple(IfMemberEnds.choices),
            kinds=("job",),
        ),
    ] = str(IfMemberEnds.RESTART)
    wanted_by: Annotated[
        datetime | None,
        RequestField(
            help_text="Deadline. Not guaranteed: you are notified if it is likely to end later.",
            format="date-time",
            kinds=("job",),
        ),
    ] = None
    after: Annotated[
        tuple[tuple[str, Workload | JobArray], ...],
        RequestField(
            help_text="Jobs and arrays that must end first, each as required: ok, any or not_ok.",
            format="dependency",
            max_items=MAX_DEPENDENCIES,
            kinds=("job",),
        ),
    ] = ()

    def columns(self) -> dict[str, Any]:
        """Return the values for the columns of ``Workload``.

        ``after`` is left out, because each dependency is stored in its own row.
        """
        return {
            each.name: _column_value(getattr(self, each.name))
            for each in fields(self)
            if each.name != "after"
        }

    def arguments(self) -> dict[str, Any]:
        """Return the values of all fields that this kind of workload has, by their names in the API."""
        declared = request_fields(WorkloadRequest, self.kind)
        return {each.argument: _column_value(getattr(self, each.name)) for each in declared}


@functools.cache
def request_fields(request: type[HardwareRequest], kind: str = "") -> tuple[RequestField, ...]:
    """Return the declared fields of a request, in their order.

    If ``kind`` is given, return only the fields that this kind of request has.
    """
    hints = get_type_hints(request, include_extras=True)
    found = []
    for each in fields(request):
        hint = hints[each.name]
        (declared,) = getattr(hint, "__metadata__", None) or (each.metadata.get("declared"),)
        if declared is None or (kind and kind not in declared.kinds):
            continue
        default = None if each.default is MISSING else each.default
        if each.default_factory is not MISSING:
            default = each.default_factory()
        found.append(
            replace(
                declared,
                name=each.name,
                argument=declared.argument or each.name,
                type=getattr(hint, "__origin__", hint),
                default=default,
            )
        )
    return tuple(found)


HARDWARE_COLUMNS = tuple(each.name for each in request_fields(HardwareRequest))


def _column_value(value: Any) -> Any:
    """Return a request's value in the type of its column: a dict for a mapping, a list for a tuple."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
