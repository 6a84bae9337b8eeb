"""Define the form that requests a notebook, job or reservation.

The form checks only the syntax of values. The services check all rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django import forms
from django.utils import timezone

from portal.services.calendar.recurring_reservations import WEEKDAYS
from portal.web.components.quantities import gpu_model
from portal.web.gpu_request.field_values import (
    FIELD_FOR_ARGUMENT,
    GPU_COUNT_CHOICES,
    LENGTH_UNIT_CHOICES,
    MAX_LENGTH_IN_UNITS,
    REQUEST_KINDS,
    SECONDS_PER_LENGTH_UNIT,
    end_or_latest,
)
from portal.web.gpu_request.generated_fields import (
    GENERATED_FIELDS,
    fields_of_section,
    generated_form_fields,
    is_shown,
    request_value,
)
from portal.web.gpu_request.options import GpuRequestOptions, dependency_label, target_choices
from portal.web.page.service_form import ServiceForm
from portal.wording.formatting import number_text
from portal.wording.pages import request_pages
from portal.wording.problems import request_problems
from scheduler.core.model.snapshot import Priority
from scheduler.models import Pool, Project, WorkloadType
from scheduler.requests import PLACED_KINDS


class GpuRequestForm(ServiceForm):
    """One form for notebooks, jobs and reservations. The fields of the kinds not chosen are ignored."""

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
        label="Hosts", required=False, initial=1, help_text="The number of GPUs is per host."
    )
    start = forms.DateTimeField(
        label="Start",
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": 300}, format="%Y-%m-%dT%H:%M"),
        input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M"],
        error_messages={
            "invalid": request_problems.TIME_INVALID,
            "required": request_problems.START_EMPTY,
        },
    )
    length = forms.DecimalField(
        label="For",
        initial=4,
        required=False,
        error_messages={"invalid": request_problems.LENGTH_IS_NO_NUMBER.format(most=MAX_LENGTH_IN_UNITS)},
        widget=forms.NumberInput(attrs={"class": "input number", "step": "any"}),
    )
    length_unit = forms.ChoiceField(
        label="Unit",
        choices=LENGTH_UNIT_CHOICES,
        initial="hours",
        required=False,
        widget=forms.Select(attrs={"class": "input auto", "aria-label": request_pages.UNIT_OF_LENGTH}),
    )
    why = forms.CharField(
        label="Why",
        required=False,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="For the approver.",
    )
    may_exceed_guarantee = forms.BooleanField(
        label="Ask an operator for permission to use guarantees of other teams", required=False
    )
    repeat = forms.ChoiceField(label="Repeat", choices=request_pages.REPEAT_CHOICES, required=False)
    until = forms.DateField(
        label="Until",
        required=False,
        widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d"),
        help_text="The last day. All occurrences are reserved, or none.",
        error_messages={"invalid": request_problems.DATE_INVALID},
    )
    reservation = forms.ChoiceField(label="Inside a reservation", required=False)
    type = forms.ChoiceField(
        label="Workload type", choices=WorkloadType.choices, required=False, initial="training"
    )
    command = forms.CharField(
        label="Command",
        required=False,
        widget=forms.Textarea(attrs={"rows": 5, "class": "mono", "spellcheck": "false"}),
        help_text="Runs in a shell in your home folder. Write checkpoints to GPUPOOL_CHECKPOINT_DIR.",
    )
    priority = forms.ChoiceField(
        label="Priority",
        choices=[(p.name.lower(), p.name.capitalize()) for p in Priority],
        required=False,
        widget=forms.RadioSelect,
        initial="normal",
    )
    if_member_ends = forms.ChoiceField(
        label="If it ends on one host",
        choices=request_pages.MEMBER_END_CHOICES,
        required=False,
        help_text="For several hosts. It restarts while retries are left, and always after a lost host.",
    )
    wanted_by = forms.DateTimeField(
        label="Wanted by",
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M"],
        help_text="A preference. The preview warns you if the expected end is later.",
        error_messages={"invalid": request_problems.TIME_INVALID},
    )
    after = forms.ChoiceField(label="After another workload", required=False)
    after_how = forms.ChoiceField(
        label="Starts", choices=request_pages.DEPENDENCY_CHOICES[1:], required=False, initial="ok"
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
        fields.update(generated_form_fields())
        fields["start"].required = self.selected_kind == "reservation"
        fields["project"].choices = [(key, f"{p.name}, {p.team.name}") for key, p in self.projects.items()]
        fields["target"].choices = target_choices(self.lines, options.currency)
        models = sorted({line.model for line in self.lines if line.model})
        for name in ("second", "third"):
            fields[name].choices = [("", "No other model"), *((model, gpu_model(model)) for model in models)]
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
        """Return (pool, model, profile). An empty model means any model."""
        pool, model, profile = self.cleaned_data["target"].split("|")
        return self.pools[pool], model, profile

    def clean_start(self) -> datetime | None:
        """Return the start. Reject the years 1 and 9999, which overflow when the time zone is converted."""
        start: datetime | None = self.cleaned_data["start"]
        if start is not None and not 1 < start.year < 9999:
            raise forms.ValidationError(request_problems.START_OUT_OF_RANGE.format(start=start))
        return start

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        data["units"] = self._units(data)
        data["seconds"] = self._seconds(data)
        data["pairs"] = self._pairs(data)
        data["generated"] = {
            declared.argument: request_value(self, name, data) for name, declared in GENERATED_FIELDS.items()
        }
        return data

    def _units(self, data: Mapping[str, Any]) -> int | None:
        if data.get("count") in ("", "other", None):
            if data.get("units_other") is None and "units_other" not in self.errors:
                self.add_error("units_other", request_problems.UNITS_EMPTY)
            return data.get("units_other")
        return int(data["count"])

    def _seconds(self, data: Mapping[str, Any]) -> int | None:
        length, unit = data.get("length"), data.get("length_unit") or "hours"
        if "length" in self.errors:
            return None
        if length is None or not 0 < length <= MAX_LENGTH_IN_UNITS:
            given = "empty" if length is None else number_text(length)
            message = request_problems.LENGTH_OUT_OF_BOUNDS.format(
                given=given, most=MAX_LENGTH_IN_UNITS, unit=unit
            )
            self.add_error("length", message)
            return None
        return int(length * SECONDS_PER_LENGTH_UNIT[unit])

    def _models(self) -> list[str]:
        """Return the accepted models in order of preference. An empty list means any model."""
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
                self.add_error(
                    "environment", request_problems.IS_NO_VARIABLE.format(line=number, given=ascii(line)[:40])
                )
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
        """Return the arguments that all services take: project, pool, name, units, models, profile."""
        pool, _, profile = self.cleaned_data["target"]
        return {
            "project": self.selected_project,
            "pool": pool,
            "name": self.cleaned_data["name"],
            "units": self.cleaned_data["units"],
            "models": self._models(),
            "profile": profile,
        }

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the service of the chosen kind."""
        if self.recurs:
            return self.for_series()
        kinds = {"notebook": self.for_notebook, "job": self.for_job, "reservation": self.for_reservation}
        return kinds[self.selected_kind]()

    def for_reservation(self) -> dict[str, Any]:
        """Return the arguments of ``request_reservation``."""
        start = self.cleaned_data["start"]
        # Add the length in UTC, so that it is right if the clock changes between start and end.
        end = end_or_latest(start.astimezone(UTC), timedelta(seconds=self.cleaned_data["seconds"]))
        return {
            **self.common(),
            **self.window_search_arguments(),
            "start": start,
            "end": end,
            "why": self.cleaned_data["why"],
        }

    def window_search_arguments(self) -> dict[str, Any]:
        """Return the arguments of a search for free windows. They do not contain the form's start."""
        pool, _, profile = self.cleaned_data["target"]
        return {
            "project": self.selected_project,
            "pool": pool,
            "units": self.cleaned_data["units"],
            "models": self._models(),
            "profile": profile,
            "may_exceed_guarantee": self.cleaned_data["may_exceed_guarantee"],
            **self.generated(),
        }

    def generated(self) -> dict[str, Any]:
        """Return the arguments that the chosen kind takes from generated fields, and the number of hosts."""
        data, kind = self.cleaned_data, self.selected_kind
        hosts = {"hosts": 1 if data.get("hosts") is None else data["hosts"]} if kind in PLACED_KINDS else {}
        return hosts | {
            declared.argument: data["generated"][declared.argument]
            for declared in GENERATED_FIELDS.values()
            if is_shown(declared, kind)
        }

    @property
    def sections(self) -> dict[str, list[forms.BoundField]]:
        """Return the generated fields by section of the form."""
        names = {declared.form_section for declared in GENERATED_FIELDS.values()}
        return {name: [self[field] for field in fields_of_section(name)] for name in names}

    @property
    def more_is_used(self) -> bool:
        """Return True if the page must show the section "more", because a field has a value or an error."""
        return self._are_used("after", "array", "wanted_by")

    @property
    def place_is_used(self) -> bool:
        """Return True if a field in the sections about hosts and placement has a value or an error."""
        sections = ("host", "gpu", "place", "several_hosts")
        return self._are_used(*(name for section in sections for name in fields_of_section(section)))

    def _are_used(self, *names: str) -> bool:
        return any(self[name].value() or self[name].errors for name in names)

    def field_for_argument(self, argument: str) -> str | None:
        """Return the field that shows an error of a service's argument.

        Errors of ``units`` appear at the field in which the user chose the number: ``count`` or
        ``units_other``.
        """
        chosen = argument == "units" and self.cleaned_data.get("count") != "other"
        return "count" if chosen else super().field_for_argument(argument)

    @property
    def recurs(self) -> bool:
        """Return True if the form requests a recurring reservation."""
        return self.selected_kind == "reservation" and bool(self.cleaned_data.get("repeat"))

    def for_series(self) -> dict[str, Any]:
        """Return the arguments of ``request_series``. The start and the end are local times of the user."""
        local = timezone.localtime(self.cleaned_data["start"])
        start_day = WEEKDAYS[local.weekday()]
        days = {"weekdays": list(WEEKDAYS[:5]), "daily": list(WEEKDAYS), "weekly": [start_day]}[
            self.cleaned_data["repeat"]
        ]
        zone = timezone.get_current_timezone_name()
        # Add the length in local time, so that every occurrence ends at the same local hour.
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
            **self.generated(),
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
            **self.generated(),
            "type": data["type"] or "training",
            "priority": data["priority"] or "normal",
            "max_runtime_seconds": data["seconds"],
            "if_member_ends": data["if_member_ends"] or "restart",
            "reservation": self.reservations.get(data["reservation"]),
            "environment": data["pairs"],
            "wanted_by": data["wanted_by"],
            "after": [(data["after_how"] or "ok", self.earlier[data["after"]])] if data.get("after") else [],
        }
