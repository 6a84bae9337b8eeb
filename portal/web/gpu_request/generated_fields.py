"""Generate form fields from the declared fields of a request, and convert their values."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django import forms

from portal.wording.equivalent_commands import quantity_text
from portal.wording.formatting import number_text
from portal.wording.problems import request_problems
from scheduler.requests import PLACED_KINDS, Labels, RequestField, WorkloadRequest, request_fields

GENERATED_FIELDS = {each.form_field: each for each in request_fields(WorkloadRequest) if each.form_field}
# Units of the API, each with (factor, unit in the form, example in the form). The API's number is the form's
# number times the factor.
FORM_UNITS = {
    "thousandths of a core": (1000, "", "64"),
    "MiB": (1024, "GiB", "512"),
    "tenths": (10, "", "8.0"),
}


def fields_of_section(section: str) -> list[str]:
    """Return the names of the generated fields in one section of the form."""
    return [name for name, each in GENERATED_FIELDS.items() if each.form_section == section]


def is_shown(declared: RequestField, kind: str) -> bool:
    """Return True if the form shows the field for a kind of request."""
    return kind in declared.kinds and (declared.form_section != "several_hosts" or kind in PLACED_KINDS)


def generated_form_fields() -> dict[str, forms.Field]:
    """Return the generated form fields: one for each declaration that has a ``form_field``."""
    return {name: _form_field(declared) for name, declared in GENERATED_FIELDS.items()}


def _form_field(declared: RequestField) -> forms.Field:
    if declared.type is bool:
        return forms.BooleanField(label=declared.label, required=False)
    if declared.type == Labels:
        return forms.CharField(
            label=declared.label,
            required=False,
            max_length=300,
            help_text="Labels such as site=north, separated by commas.",
        )
    if not declared.unit:
        return forms.IntegerField(label=declared.label, required=False, initial=declared.default)
    _, unit, example = _form_unit(declared)
    label = f"{declared.label} ({unit})" if unit else declared.label
    return forms.DecimalField(
        label=label,
        required=False,
        error_messages={"invalid": request_problems.SIZE_IS_NO_NUMBER.format(label=label, example=example)},
        widget=forms.NumberInput(
            attrs={"class": "input number", "step": "any", "min": "0", "placeholder": "any"}
        ),
    )


def _form_unit(declared: RequestField) -> tuple[int, str, str]:
    return FORM_UNITS.get(declared.unit, (1, declared.unit, "1"))


def form_value(declared: RequestField, value: Any) -> Any:
    """Convert the value of a request to the value of its form field."""
    if declared.type == Labels:
        return ", ".join(f"{name}={text}" for name, text in sorted(value.items()))
    return (quantity_text(declared.unit, value) if value else "") if declared.unit else value


def request_value(form: forms.Form, name: str, data: Mapping[str, Any]) -> Any:
    """Convert the cleaned value of a form field to the value of a request.

    If the value is invalid, add an error to the form.
    """
    declared, value = GENERATED_FIELDS[name], data.get(name)
    if declared.type == Labels:
        return _labels(form, name, value or "")
    if value is None or not declared.unit:
        return declared.default if value is None else value
    factor = _form_unit(declared)[0]
    size = int(value * factor + Decimal("0.5")) if 0 < value <= declared.high else 0
    if not 0 < size <= declared.high:
        message = request_problems.SIZE_OUT_OF_BOUNDS.format(
            label=form.fields[name].label, given=number_text(value), most=declared.high // factor
        )
        form.add_error(name, message)
        return declared.default
    return size


def _labels(form: forms.Form, name: str, text: str) -> dict[str, str]:
    """Parse host labels from a text such as ``site=north, rack=2``.

    If a label is invalid, add an error to the form.
    """
    pairs = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        label, equals, value = part.partition("=")
        if not equals:
            form.add_error(name, request_problems.IS_NO_LABEL.format(given=ascii(part)[:40]))
            return {}
        pairs[label.strip()] = value.strip()
    return pairs
