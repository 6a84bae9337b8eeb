"""Test that docs/telemetry.md lists the fields of DCGM that are read."""

from __future__ import annotations

from pathlib import Path

from telemetry.dcgm.fields import SAMPLE_FIELDS, SLOW_FIELDS, FieldSource

DOCUMENT = Path(__file__).parents[2] / "docs" / "telemetry.md"


def documented_rows(name: str) -> list[tuple[str, ...]]:
    table = DOCUMENT.read_text().partition(f"<!-- {name}:")[2].partition(f"<!-- /{name}")[0]
    return [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in table.splitlines()[3:]]


def field_names(source: FieldSource) -> str:
    return " + ".join(f"`{name}`" for name in source.fields)


def test_the_documented_fields_of_samples_are_those_of_the_code() -> None:
    assert documented_rows("dcgm-fields") == [
        (f"`{name}`", ", ".join(map(field_names, each)), "yes" if each[0].per_instance else "")
        for name, each in SAMPLE_FIELDS.items()
    ]


def test_the_documented_fields_of_slow_readings_are_those_of_the_code() -> None:
    assert documented_rows("dcgm-slow-fields") == [
        (f"`{name}`", field_names(source)) for name, source in SLOW_FIELDS.items()
    ]
