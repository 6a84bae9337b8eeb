"""The form that asks for GPUs: a notebook, a job or a reservation. Fields keep what was typed; the rules are the services'."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal import policy
from portal.hardware_request import MAX_COMPUTE_CAPABILITY, MAX_CPU_MILLI, MAX_MEMORY_MIB
from portal.models import User
from portal.reads.fleet import free_capacity, host_details
from portal.reads.fleet.free_capacity import FreeCapacity
from portal.reads.work import job_arrays, team_summaries, workload_details
from portal.services.calendar.recurring_reservations import WEEKDAYS
from portal.templatetags.gpupool import gpu_model, money
from portal.web.page.service_form import ServiceForm
from portal.wording import formatting
from scheduler.core.model.snapshot import Priority
from scheduler.models import JobArray, Pool, Project, Reservation, Workload, WorkloadType

REQUEST_KINDS = [("notebook", "Notebook"), ("job", "Job"), ("reservation", "Reservation")]
GPU_COUNT_CHOICES = [("1", "1"), ("2", "2"), ("4", "4"), ("8", "8"), ("other", "Other")]
REPEAT_CHOICES = [
    ("", "Once"),
    ("weekdays", "Every weekday"),
    ("daily", "Every day"),
    ("weekly", "Every week on that day"),
]
DEPENDENCY_CHOICES = [
    ("", "Any time"),
    ("ok", "Once it has finished"),
    ("any", "Once it has ended"),
    ("not_ok", "Only if it fails"),
]
LENGTH_UNIT_CHOICES = [("hours", "hours"), ("minutes", "minutes"), ("days", "days")]
SECONDS_PER_LENGTH_UNIT = {"minutes": 60, "hours": 3600, "days": 86_400}
MAX_DEPENDENCY_CHOICES = 50
MAX_LENGTH_IN_UNITS = 100_000
ANY_MODEL = ""
# Field of the form: its argument of the services, how many of that one of the field is, and the most.
SIZE_FIELDS: dict[str, tuple[str, int, int]] = {
    "cpus": ("cpu_milli", 1000, MAX_CPU_MILLI),
    "memory": ("memory_mib", 1024, MAX_MEMORY_MIB),
    "min_memory": ("min_memory_mib", 1024, MAX_MEMORY_MIB),
    "min_capability": ("min_compute_capability", 10, MAX_COMPUTE_CAPABILITY),
}

# Service argument: the field that shows what is wrong with it.
FIELD_FOR_ARGUMENT = {
    "labels_preferred": "prefer",
    "labels_required": "labels",
    "models": "target",
    "pool": "target",
    "profile": "target",
    **{argument: name for name, (argument, _, _) in SIZE_FIELDS.items()},
    "units": "units_other",
    "end": "length",
    "max_runtime_seconds": "length",
}


def _size_field(label: str, example: str) -> forms.DecimalField:
    """A size that need not be given."""
    return forms.DecimalField(
        label=label,
        required=False,
        error_messages={"invalid": f"{label} is not a number; allowed: such as {example}, or nothing."},
        widget=forms.NumberInput(
            attrs={"class": "input number", "step": "any", "min": "0", "placeholder": "any"}
        ),
    )


@dataclass(frozen=True)
class GpuRequestOptions:
    """What there is to choose from, read once for a page however often its form is made."""

    lines: list[FreeCapacity]
    projects: dict[str, Project]
    reservations: dict[str, Reservation]
    currency: str
    earlier: dict[str, Workload | JobArray]  # what a job can wait for
    beside: str  # the CPU and memory of the hosts, in words

    @classmethod
    def of(cls, user: User, now: datetime, currency: str) -> GpuRequestOptions:
        """What this person may choose at this moment."""
        projects = policy.launchable_projects(user).select_related("team").order_by("name")
        lines = free_capacity.free_capacity(user, now)
        return cls(
            lines,
            {str(project.pk): project for project in projects},
            {str(row.public_id): row for row in team_summaries.open_reservations(user, now)},
            currency,
            {str(row.public_id): row for row in _own_open_work(user)},
            _host_capacity_text({line.pool.pk: line.pool for line in lines}),
        )


class GpuRequestForm(ServiceForm):
    """One form for all three kinds; fields of other kinds are there and are not looked at."""

    argument_fields = FIELD_FOR_ARGUMENT

    kind = forms.ChoiceField(
        label="Kind", choices=REQUEST_KINDS, widget=forms.RadioSelect, initial="reservation"
    )
    name = forms.CharField(label="Name", required=False, max_length=200)
    project = forms.ChoiceField(label="Project")
    target = forms.ChoiceField(label="GPU", widget=forms.RadioSelect)
    second = forms.ChoiceField(label="Or else", required=False)
    third = forms.ChoiceField(label="Or else", required=False)
    count = forms.ChoiceField(label="GPUs", choices=GPU_COUNT_CHOICES, widget=forms.RadioSelect, initial="1")
    units_other = forms.IntegerField(label="How many", required=False)
    hosts = forms.IntegerField(
        label="Hosts", required=False, initial=1, help_text="As many GPUs on each of them."
    )
    nvlink = forms.BooleanField(label="Within one NVLink group", required=False)
    start = forms.DateTimeField(
        label="Start",
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": 300}, format="%Y-%m-%dT%H:%M"),
        input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M"],
        error_messages={
            "invalid": "This is not a date and time; allowed: such as 2026-03-02 09:00.",
            "required": "Start is empty; allowed: a date and time from now on.",
        },
    )
    length = forms.DecimalField(
        label="For",
        initial=4,
        required=False,
        error_messages={
            "invalid": f"For is not a number; allowed: more than 0, up to {MAX_LENGTH_IN_UNITS:,}."
        },
        widget=forms.NumberInput(attrs={"class": "input number", "step": "any"}),
    )
    length_unit = forms.ChoiceField(
        label="Unit",
        choices=LENGTH_UNIT_CHOICES,
        initial="hours",
        required=False,
        widget=forms.Select(attrs={"class": "input auto", "aria-label": "Unit of the length"}),
    )
    why = forms.CharField(
        label="Why",
        required=False,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="Whoever approves it reads this.",
    )
    may_exceed_guarantee = forms.BooleanField(
        label="Ask an operator to let it use what other teams are guaranteed", required=False
    )
    repeat = forms.ChoiceField(label="Repeat", choices=REPEAT_CHOICES, required=False)
    until = forms.DateField(
        label="Until",
        required=False,
        widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d"),
        help_text="The last day. All of it is reserved, or nothing.",
        error_messages={"invalid": "This is not a date; allowed: such as 2026-03-31."},
    )
    reservation = forms.ChoiceField(label="Inside a reservation", required=False)
    type = forms.ChoiceField(
        label="Workload type", choices=WorkloadType.choices, required=False, initial="training"
    )
    command = forms.CharField(
        label="Command",
        required=False,
        widget=forms.Textarea(attrs={"rows": 5, "class": "mono", "spellcheck": "false"}),
        help_text="Runs in a shell in your home folder. GPUPOOL_CHECKPOINT_DIR is where a checkpoint goes.",
    )
    priority = forms.ChoiceField(
        label="Priority",
        choices=[(p.name.lower(), p.name.capitalize()) for p in Priority],
        required=False,
        widget=forms.RadioSelect,
        initial="normal",
    )
    preemptible = forms.BooleanField(
        label="May be preempted: it can borrow GPUs, and resumes from its checkpoint",
        required=False,
        initial=True,
    )
    most_retries = forms.IntegerField(label="Retries after a failure", required=False, initial=0)
    if_member_ends = forms.ChoiceField(
        label="If it ends on one host",
        choices=[("restart", "All of it starts again"), ("end", "All of it ends")],
        required=False,
        help_text="On several hosts. It starts again as often as it may be retried; after a lost host by itself.",
    )
    labels = forms.CharField(
        label="Only on hosts with",
        required=False,
        max_length=300,
        help_text="Labels such as site=north, with commas.",
    )
    prefer = forms.CharField(
        label="Rather on hosts with",
        required=False,
        max_length=300,
        help_text="Labels such as rack=r1, with commas.",
    )
    spread = forms.BooleanField(label="Spread over hosts that share as little as can be", required=False)
    cpus = _size_field("CPU cores on each host", "64")
    memory = _size_field("Memory on each host (GiB)", "512")
    min_memory = _size_field("GPU memory at least (GiB)", "40")
    min_capability = _size_field("Compute capability at least", "8.0")
    wanted_by = forms.DateTimeField(
        label="Wanted by",
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M"],
        help_text="A wish: you are told here when it looks later.",
        error_messages={"invalid": "This is not a date and time; allowed: such as 2026-03-02 09:00."},
    )
    after = forms.ChoiceField(label="After another one", required=False)
    after_how = forms.ChoiceField(
        label="Starts", choices=DEPENDENCY_CHOICES[1:], required=False, initial="ok"
    )
    array = forms.CharField(
        label="Array",
        required=False,
        max_length=200,
        help_text="One task for each number, such as 0-9; %4 after it lets 4 run at once. GPUPOOL_ARRAY_INDEX says which.",
    )
    environment = forms.CharField(
        label="Environment",
        required=False,
        widget=forms.Textarea(attrs={"rows": 2, "class": "mono", "spellcheck": "false"}),
        help_text="One NAME=value on each line.",
    )

    def __init__(self, *args: Any, options: GpuRequestOptions, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lines, self.projects, self.reservations = options.lines, options.projects, options.reservations
        self.pools = {line.pool.slug: line.pool for line in self.lines}
        fields: dict[str, Any] = self.fields
        fields["start"].required = self.selected_kind == "reservation"
        fields["project"].choices = [(key, f"{p.name}, {p.team.name}") for key, p in self.projects.items()]
        fields["target"].choices = _target_choices(self.lines, options.currency)
        models = sorted({line.model for line in self.lines if line.model})
        for name in ("second", "third"):
            fields[name].choices = [("", "Nothing else"), *((model, gpu_model(model)) for model in models)]
        self.earlier = options.earlier
        self.beside = options.beside
        fields["after"].choices = [
            ("", "No"),
            *((key, _dependency_label(row)) for key, row in self.earlier.items()),
        ]
        fields["reservation"].choices = [
            ("", "No"),
            *((k, f"{r.name}, {r.project.name}") for k, r in self.reservations.items()),
        ]

    # -- checks that are about typing, not about rules --

    def clean_target(self) -> tuple[Pool, str, str]:
        """(pool, model or empty for any, profile)."""
        pool, model, profile = self.cleaned_data["target"].split("|")
        return self.pools[pool], model, profile

    def clean_start(self) -> datetime | None:
        """In any time zone a year that there is."""
        start: datetime | None = self.cleaned_data["start"]
        if start is not None and not 1 < start.year < 9999:
            raise forms.ValidationError(f"Start is {start:%Y-%m-%d %H:%M}; allowed: from the year 2 to 9998.")
        return start

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        data["units"] = self._units(data)
        data["seconds"] = self._seconds(data)
        data["pairs"] = self._pairs(data)
        data["preferred"] = self._labels(data, "prefer")
        data["required"] = self._labels(data, "labels")
        data["sizes"] = {argument: self._size(data, name) for name, (argument, _, _) in SIZE_FIELDS.items()}
        return data

    def _size(self, data: Mapping[str, Any], name: str) -> int:
        """As the services take it; 0 where nothing is given."""
        value, (_, factor, most) = data.get(name), SIZE_FIELDS[name]
        if value is None:
            return 0
        size = int(value * factor + Decimal("0.5")) if 0 < value <= most else 0
        if not 0 < size <= most:
            label = self.fields[name].label
            self.add_error(
                name,
                f"{label} is {_number_text(value)}; allowed: more than 0, up to {most // factor:,}, or nothing.",
            )
            return 0
        return size

    def _units(self, data: Mapping[str, Any]) -> int | None:
        if data.get("count") in ("", "other", None):
            if data.get("units_other") is None and "units_other" not in self.errors:
                self.add_error("units_other", "How many GPUs is empty; allowed: a whole number from 1.")
            return data.get("units_other")
        return int(data["count"])

    def _seconds(self, data: Mapping[str, Any]) -> int | None:
        length, unit = data.get("length"), data.get("length_unit") or "hours"
        if "length" in self.errors:
            return None
        if length is None or not 0 < length <= MAX_LENGTH_IN_UNITS:
            given = "empty" if length is None else _number_text(length)
            self.add_error(
                "length", f"For is {given}; allowed: more than 0, up to {MAX_LENGTH_IN_UNITS:,} {unit}."
            )
            return None
        return int(length * SECONDS_PER_LENGTH_UNIT[unit])

    def _labels(self, data: Mapping[str, Any], field: str) -> dict[str, str]:
        pairs = {}
        for part in filter(None, (part.strip() for part in (data.get(field) or "").split(","))):
            name, equals, value = part.partition("=")
            if not equals:
                self.add_error(
                    field, f"{ascii(part)[:40]} is no label; allowed: name=value, with commas between."
                )
                return {}
            pairs[name.strip()] = value.strip()
        return pairs

    def _models(self) -> list[str]:
        """In order of preference; none where any will do."""
        _, first, _ = self.cleaned_data["target"]
        wanted = [first, self.cleaned_data.get("second") or "", self.cleaned_data.get("third") or ""]
        return list(dict.fromkeys(filter(None, wanted))) if first else []

    def _pairs(self, data: Mapping[str, Any]) -> dict[str, str]:
        pairs = {}
        for number, line in enumerate((data.get("environment") or "").splitlines(), start=1):
            if not line.strip():
                continue
            name, equals, value = line.partition("=")
            if not equals:
                self.add_error("environment", f"Line {number} is {ascii(line)[:40]}; allowed: NAME=value.")
                return {}
            pairs[name.strip()] = value
        return pairs

    # -- what the services take --

    @property
    def selected_kind(self) -> str:
        """The kind, also of a form that is not valid."""
        given = self.data.get("kind") if self.is_bound else self.initial.get("kind")
        return given if given in dict(REQUEST_KINDS) else "reservation"

    @property
    def selected_project(self) -> Project:
        found: Project = self.projects[self.cleaned_data["project"]]
        return found

    def common(self) -> dict[str, Any]:
        """Arguments of every service: project, pool, name, units, models, profile."""
        pool, _, profile = self.cleaned_data["target"]
        return {
            "project": self.selected_project,
            "pool": pool,
            "name": self.cleaned_data["name"],
            "units": self.cleaned_data["units"],
            "models": self._models(),
            "profile": profile,
        }

    def for_reservation(self) -> dict[str, Any]:
        start = self.cleaned_data["start"]
        # So many hours, also over a change of the clock; zoned datetimes add by the clock.
        end = _end_or_latest(start.astimezone(UTC), timedelta(seconds=self.cleaned_data["seconds"]))
        return {
            **self.common(),
            **self.window_search_arguments(),
            "start": start,
            "end": end,
            "why": self.cleaned_data["why"],
        }

    def window_search_arguments(self) -> dict[str, Any]:
        """What is asked for, without its name and its window; also of a form whose start is not good."""
        pool, _, profile = self.cleaned_data["target"]
        return {
            "project": self.selected_project,
            "pool": pool,
            "units": self.cleaned_data["units"],
            "models": self._models(),
            "profile": profile,
            "may_exceed_guarantee": self.cleaned_data["may_exceed_guarantee"],
            **self.placed(),
        }

    def placed(self) -> dict[str, Any]:
        """On how many hosts and on which, of a job or a reservation."""
        data = self.cleaned_data
        hosts = 1 if data.get("hosts") is None else data["hosts"]
        return {"hosts": hosts, **self.placing(), "spread": data["spread"]}

    def placing(self) -> dict[str, Any]:
        """What it needs of its GPUs and of each host, and which it may be, of everything that is asked for."""
        data = self.cleaned_data
        return {
            "nvlink": data["nvlink"],
            "labels_required": data["required"],
            "labels_preferred": data["preferred"],
            **data["sizes"],
        }

    @property
    def more_is_used(self) -> bool:
        """Whether something stands, or is wrong, in the part of the form that is folded otherwise."""
        return self._are_used("after", "array", "wanted_by")

    @property
    def place_is_used(self) -> bool:
        """The same of the part that says what of each host, and which."""
        return self._are_used("labels", "prefer", "spread", *SIZE_FIELDS)

    def _are_used(self, *names: str) -> bool:
        return any(self[name].value() or self[name].errors for name in names)

    def field_for_argument(self, argument: str) -> str | None:
        """What is wrong with the number stands where it was chosen: the field for another one is hidden otherwise."""
        chosen = argument == "units" and self.cleaned_data.get("count") != "other"
        return "count" if chosen else super().field_for_argument(argument)

    @property
    def recurs(self) -> bool:
        """Whether it is a reservation on several days."""
        return self.selected_kind == "reservation" and bool(self.cleaned_data.get("repeat"))

    def for_series(self) -> dict[str, Any]:
        """The arguments of a recurring reservation; its hours are by the clock of the one who asks."""
        local = timezone.localtime(self.cleaned_data["start"])
        own_day = WEEKDAYS[local.weekday()]
        days = {"weekdays": list(WEEKDAYS[:5]), "daily": list(WEEKDAYS), "weekly": [own_day]}[
            self.cleaned_data["repeat"]
        ]
        zone = timezone.get_current_timezone_name()
        end = _end_or_latest(
            local, timedelta(seconds=self.cleaned_data["seconds"])
        )  # by the clock, as on the other days
        return {
            **self.for_reservation(),
            "end": end,
            "weekdays": days,
            "until": self.cleaned_data["until"],
            "time_zone": zone,
        }

    def for_notebook(self) -> dict[str, Any]:
        data = self.cleaned_data
        return {
            **self.common(),
            **self.placing(),
            "type": data["type"] or "interactive",
            "max_runtime_seconds": data["seconds"],
            "reservation": self.reservations.get(data["reservation"]),
        }

    def for_job(self) -> dict[str, Any]:
        data = self.cleaned_data
        return {
            **self.common(),
            "command": data["command"],
            **self.placed(),
            "type": data["type"] or "training",
            "priority": data["priority"] or "normal",
            "preemptible": data["preemptible"],
            "max_runtime_seconds": data["seconds"],
            "most_retries": data["most_retries"] or 0,
            "if_member_ends": data["if_member_ends"] or "restart",
            "reservation": self.reservations.get(data["reservation"]),
            "environment": data["pairs"],
            "wanted_by": data["wanted_by"],
            "after": [(data["after_how"] or "ok", self.earlier[data["after"]])] if data.get("after") else [],
        }


def _number_text(number: Decimal) -> str:
    """A number as a message repeats it; never written out where that would be millions of digits."""
    return f"{number:f}"[:30] if abs(number.adjusted()) < 30 else str(number)[:30]


def _own_open_work(user: User) -> list[Workload | JobArray]:
    """Jobs and arrays of one's own that have not ended."""
    return [
        *workload_details.own_open_workloads(user).filter(array=None)[:MAX_DEPENDENCY_CHOICES],
        *job_arrays.own_open_arrays(user)[:MAX_DEPENDENCY_CHOICES],
    ]


def _dependency_label(row: Workload | JobArray) -> str:
    return f"{row.name}, all tasks" if isinstance(row, JobArray) else row.name


def size_text(name: str, size: int) -> str:
    """A size as its field holds it; empty for none."""
    if not size:
        return ""
    text = f"{Decimal(size) / SIZE_FIELDS[name][1]:.4f}".rstrip("0").rstrip(".")
    return f"{size / 10:.1f}" if name == "min_capability" else text


def _host_capacity_text(pools: Mapping[int, Pool]) -> str:
    """``Its hosts have 64 CPU cores and 512 GiB of memory.``, of several pools each. One query; empty where none says."""
    found = host_details.host_sizes_by_pool(pools)
    subject = "Hosts of {}" if len(pools) > 1 else "The hosts"
    return " ".join(
        f"{subject.format(pool.name)} have {formatting.host_size_range(*found[pk])}."
        for pk, pool in pools.items()
        if pk in found
    )


def default_name(kind: str, user: User, now: datetime) -> str:
    """A name for those who don't want to think of one."""
    return f"{user.get_username()}-{timezone.localtime(now):%d%b-%H%M}".lower()


def default_values(now: datetime, lines: list[FreeCapacity]) -> dict[str, Any]:
    """A form that could be sent as it is: tomorrow at nine, or now, for four hours."""
    tomorrow = (timezone.localtime(now) + timedelta(days=1)).replace(
        hour=9, minute=0, second=0, microsecond=0
    )
    best = next((line for line in lines if line.free and not line.profile), lines[0] if lines else None)
    return {
        "start": tomorrow,
        "length": 4,
        "length_unit": "hours",
        "count": "1",
        "target": _target_value(best) if best else "",
        "priority": "normal",
        "preemptible": True,
        "hosts": 1,
        "most_retries": 0,
    }


def values_of_workload(workload: Workload, user: User) -> dict[str, Any]:
    """The fields of an earlier notebook or job, to launch it again with changes. Values of its environment may be secrets: only its
    owner gets them, anybody else the names."""
    wanted = [*workload.models_wanted, "", "", ""]
    model = wanted[0] or ANY_MODEL
    hours, rest = divmod(workload.max_runtime_seconds, 3600)
    return {
        "kind": workload.kind,
        "name": workload.name,
        "project": str(workload.project_id),
        "target": f"{workload.pool.slug}|{model}|{workload.profile}",
        "second": wanted[1],
        "third": wanted[2],
        **count_values(workload.units),
        "hosts": workload.hosts,
        "nvlink": workload.nvlink,
        "length": workload.max_runtime_seconds // 60 if rest else hours,
        "length_unit": "minutes" if rest else "hours",
        "type": workload.type,
        "command": workload.command,
        "priority": Priority(workload.priority).name.lower(),
        "preemptible": workload.preemptible,
        "most_retries": workload.most_retries,
        "if_member_ends": workload.if_member_ends,
        "labels": labels_text(workload.labels_required),
        "prefer": labels_text(workload.labels_preferred),
        "spread": workload.spread,
        **{
            name: size_text(name, getattr(workload, argument))
            for name, (argument, _, _) in SIZE_FIELDS.items()
        },
        "environment": "\n".join(
            f"{name}={value if workload.owner_id == user.pk else ''}"
            for name, value in workload.environment.items()
        ),
    }


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as the field that holds them."""
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def count_values(units: int) -> dict[str, Any]:
    """A number of units as the two fields that hold it."""
    return (
        {"count": str(units), "units_other": None}
        if str(units) in dict(GPU_COUNT_CHOICES)
        else {"count": "other", "units_other": units}
    )


def length_values(length: timedelta) -> dict[str, Any]:
    """A length as the two fields that hold it."""
    minutes = int(length.total_seconds() // 60)
    if minutes % 60:
        return {"length": minutes, "length_unit": "minutes"}
    return {"length": minutes // 60, "length_unit": "hours"}


def parse_uuid(text: str) -> uuid.UUID | None:
    """The UUID that a text is, or None."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _end_or_latest(start: datetime, length: timedelta) -> datetime:
    """The end; one that no calendar has is brought to its last year, which the service then refuses by name."""
    try:
        return start + length
    except OverflowError:
        return start.replace(year=9999)


def _target_value(line: FreeCapacity) -> str:
    return f"{line.pool.slug}|{line.model}|{line.profile}"


def target_values(lines: list[FreeCapacity]) -> set[str]:
    """Every value of the field ``target``."""
    return {value for value, _ in _target_choices(lines, "")}


def _target_choices(lines: list[FreeCapacity], currency: str) -> list[tuple[str, SafeString]]:
    several = len({line.pool.pk for line in lines}) > 1
    choices = []
    for line in lines:
        name = gpu_model(line.model) if not line.profile else f"{line.profile} of {gpu_model(line.model)}"
        where = f", {line.pool.name}" if several else ""
        price = f"{money(line.price, currency)}/h" if line.price is not None else "no price"
        choices.append(
            (_target_value(line), _target_label(name, where, f"{line.free} of {line.total} free now", price))
        )
    for slug, name in {line.pool.slug: line.pool.name for line in lines}.items():
        label = f"Any whole GPU of {name}" if several else "Any whole GPU"
        choices.append((f"{slug}||", _target_label(label, "", "", "")))
    return choices


def _target_label(name: str, where: str, free_text: str, price: str) -> SafeString:
    return format_html(
        '<span class="pick-line"><span><b>{}</b><span class="muted">{}</span></span>'
        '<span>{}</span><span class="muted">{}</span></span>',
        name,
        where,
        free_text,
        price,
    )
