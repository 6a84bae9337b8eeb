"""The form that requests a notebook, job or reservation. It checks syntax; services check the rules."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django import forms
from django.utils import timezone

from portal.services.calendar.recurring_reservations import WEEKDAYS
from portal.web.components.quantities import gpu_model
from portal.web.gpu_request.field_values import (
    DEPENDENCY_CHOICES,
    FIELD_FOR_ARGUMENT,
    GPU_COUNT_CHOICES,
    LENGTH_UNIT_CHOICES,
    MAX_LENGTH_IN_UNITS,
    REPEAT_CHOICES,
    REQUEST_KINDS,
    SECONDS_PER_LENGTH_UNIT,
    SIZE_FIELDS,
    end_or_latest,
    number_text,
)
from portal.web.gpu_request.options import GpuRequestOptions, dependency_label, target_choices
from portal.web.page.service_form import ServiceForm
from scheduler.core.model.snapshot import Priority
from scheduler.models import Pool, Project, WorkloadType


def _size_field(label: str, example: str) -> forms.DecimalField:
    """Return an optional field for a size."""
    return forms.DecimalField(
        label=label,
        required=False,
        error_messages={"invalid": f"{label} is not a number; allowed: such as {example}, or nothing."},
        widget=forms.NumberInput(
            attrs={"class": "input number", "step": "any", "min": "0", "placeholder": "any"}
        ),
    )


class GpuRequestForm(ServiceForm):
    """One form for all three kinds. Fields of the other kinds are ignored."""

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
        help_text="On several hosts. It restarts while retries are left; after a lost host always.",
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
        help_text=(
            "One task per number, such as 0-9; 0-9%4 runs 4 at once. GPUPOOL_ARRAY_INDEX is the number."
        ),
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
        fields["target"].choices = target_choices(self.lines, options.currency)
        models = sorted({line.model for line in self.lines if line.model})
        for name in ("second", "third"):
            fields[name].choices = [("", "Nothing else"), *((model, gpu_model(model)) for model in models)]
        self.earlier = options.earlier
        self.beside = options.beside
        fields["after"].choices = [
            ("", "No"),
            *((key, dependency_label(row)) for key, row in self.earlier.items()),
        ]
        fields["reservation"].choices = [
            ("", "No"),
            *((k, f"{r.name}, {r.project.name}") for k, r in self.reservations.items()),
        ]

    # -- syntax checks --

    def clean_target(self) -> tuple[Pool, str, str]:
        """Return (pool, model or empty for any, profile)."""
        pool, model, profile = self.cleaned_data["target"].split("|")
        return self.pools[pool], model, profile

    def clean_start(self) -> datetime | None:
        """Return the start. Reject years that overflow in some time zone."""
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
        """Return a size in the unit of the service; 0 if the field is empty or invalid."""
        value, (_, factor, most) = data.get(name), SIZE_FIELDS[name]
        if value is None:
            return 0
        size = int(value * factor + Decimal("0.5")) if 0 < value <= most else 0
        if not 0 < size <= most:
            label = self.fields[name].label
            self.add_error(
                name,
                f"{label} is {number_text(value)}; "
                f"allowed: more than 0, up to {most // factor:,}, or nothing.",
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
            text = "empty" if length is None else number_text(length)
            self.add_error(
                "length", f"For is {text}; allowed: more than 0, up to {MAX_LENGTH_IN_UNITS:,} {unit}."
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
        """Return the accepted models in order of preference; empty if any model will do."""
        _, first, _ = self.cleaned_data["target"]
        models = [first, self.cleaned_data.get("second") or "", self.cleaned_data.get("third") or ""]
        return list(dict.fromkeys(filter(None, models))) if first else []

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

    # -- arguments of the services --

    @property
    def selected_kind(self) -> str:
        """Return the chosen kind, even if the form is invalid."""
        kind = self.data.get("kind") if self.is_bound else self.initial.get("kind")
        return kind if kind in dict(REQUEST_KINDS) else "reservation"

    @property
    def selected_project(self) -> Project:
        project: Project = self.projects[self.cleaned_data["project"]]
        return project

    def common(self) -> dict[str, Any]:
        """Return the arguments of every service: project, pool, name, units, models, profile."""
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
        """Return the arguments of ``request_reservation``."""
        start = self.cleaned_data["start"]
        # Add in UTC: the length counts real hours, also across a change to summer time.
        end = end_or_latest(start.astimezone(UTC), timedelta(seconds=self.cleaned_data["seconds"]))
        return {
            **self.common(),
            **self.window_search_arguments(),
            "start": start,
            "end": end,
            "why": self.cleaned_data["why"],
        }

    def window_search_arguments(self) -> dict[str, Any]:
        """Return the arguments without name and window; works if the start is invalid."""
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
        """Return the placement arguments of a job or reservation: number of hosts, requirements, spread."""
        data = self.cleaned_data
        hosts = 1 if data.get("hosts") is None else data["hosts"]
        return {"hosts": hosts, **self.placing(), "spread": data["spread"]}

    def placing(self) -> dict[str, Any]:
        """Return the requirements on GPUs and hosts that every kind of request can have."""
        data = self.cleaned_data
        return {
            "nvlink": data["nvlink"],
            "labels_required": data["required"],
            "labels_preferred": data["preferred"],
            **data["sizes"],
        }

    @property
    def more_is_used(self) -> bool:
        """Return True if a field in the section "more" has a value or an error, so that it must be open."""
        return self._are_used("after", "array", "wanted_by")

    @property
    def place_is_used(self) -> bool:
        """Return True if a field in the section about hosts has a value or an error."""
        return self._are_used("labels", "prefer", "spread", *SIZE_FIELDS)

    def _are_used(self, *names: str) -> bool:
        return any(self[name].value() or self[name].errors for name in names)

    def field_for_argument(self, argument: str) -> str | None:
        """Return the field that shows an error; for ``units`` the field where the number was chosen."""
        chosen = argument == "units" and self.cleaned_data.get("count") != "other"
        return "count" if chosen else super().field_for_argument(argument)

    @property
    def recurs(self) -> bool:
        """Return True if it is a recurring reservation."""
        return self.selected_kind == "reservation" and bool(self.cleaned_data.get("repeat"))

    def for_series(self) -> dict[str, Any]:
        """Return the arguments of a recurring reservation; its hours are local times of the user."""
        local = timezone.localtime(self.cleaned_data["start"])
        start_day = WEEKDAYS[local.weekday()]
        days = {"weekdays": list(WEEKDAYS[:5]), "daily": list(WEEKDAYS), "weekly": [start_day]}[
            self.cleaned_data["repeat"]
        ]
        zone = timezone.get_current_timezone_name()
        # Add in local time, so that every occurrence ends at the same local hour.
        end = end_or_latest(local, timedelta(seconds=self.cleaned_data["seconds"]))
        return {
            **self.for_reservation(),
            "end": end,
            "weekdays": days,
            "until": self.cleaned_data["until"],
            "time_zone": zone,
        }

    def for_notebook(self) -> dict[str, Any]:
        """Return the arguments of ``launch_notebook``."""
        data = self.cleaned_data
        return {
            **self.common(),
            **self.placing(),
            "type": data["type"] or "interactive",
            "max_runtime_seconds": data["seconds"],
            "reservation": self.reservations.get(data["reservation"]),
        }

    def for_job(self) -> dict[str, Any]:
        """Return the arguments of ``submit_job``."""
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
