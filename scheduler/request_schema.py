"""Build the JSON schema of a request for GPUs. The command line generates its options from the schema."""

from __future__ import annotations

from typing import Any

from scheduler.requests import Labels, RequestField, WorkloadRequest, request_fields


def request_schema() -> dict[str, Any]:
    """Return the JSON schema with all fields of notebook, job and reservation requests.

    ``x-kinds`` lists the kinds of requests that have the field. ``x-unit`` is the unit of a number.
    ``x-option`` is the option on the command line, if its name differs from the field's name.
    """
    declared = request_fields(WorkloadRequest)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": WorkloadRequest.__name__,
        "$comment": "Generated: ./run manage request_schema > cli/request_schema.json",
        "type": "object",
        "properties": {each.argument: _property(each) for each in declared},
    }


def _property(declared: RequestField) -> dict[str, Any]:
    found = {"description": declared.help_text, **_value_schema(declared), "x-kinds": list(declared.kinds)}
    optional = {"x-unit": declared.unit, "x-option": declared.option}
    return found | {name: value for name, value in optional.items() if value}


def _value_schema(declared: RequestField) -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string"}
    if declared.max_length:
        text["maxLength"] = declared.max_length
    if declared.choices:
        return {"type": "string", "enum": [value for value, _ in declared.choices]}
    if declared.type is bool:
        return {"type": "boolean"}
    if declared.type is int:
        return {"type": "integer", "minimum": declared.low, "maximum": declared.high}
    if declared.type == Labels:
        return {"type": "object", "additionalProperties": text}
    if declared.max_items:
        items = {"type": "object"} if declared.format else text
        return {"type": "array", "items": items, "maxItems": declared.max_items}
    if declared.format:
        return {"type": ["string", "null"], "format": declared.format}
    return text
