"""Test that docs/telemetry.md has the kinds of alerts with their subjects and default thresholds."""

from __future__ import annotations

from pathlib import Path

from cli.commands.alerts import KIND_NAMES
from telemetry.core.alerts.kinds import ALERT_KINDS, MINUTES, MOMENTARY_KINDS, AlertKindDefinition

SUBJECTS = {"workload": "job", "gpu": "GPU"}


def time_text(minutes: float) -> str:
    return f"{minutes / 60:g} h" if minutes > 60 and minutes % 60 == 0 else f"{minutes:g} min"


def threshold_text(definition: AlertKindDefinition, value: float, minutes: int) -> str:
    unit = {"seconds": "s", "errors": "error" if value == 1 else "errors"}.get(
        definition.unit, definition.unit
    )
    text = time_text(value) if definition.unit == MINUTES else f"{value:g} {unit}"
    return text if definition.kind in MOMENTARY_KINDS else f"{text} for {time_text(minutes)}"


def test_the_help_of_the_command_line_names_every_kind() -> None:
    assert ", ".join(ALERT_KINDS) == KIND_NAMES


def test_the_table_of_alerts_has_every_kind_with_its_defaults(root: Path) -> None:
    text = (root / "docs" / "telemetry.md").read_text()
    table = text.split("<!-- alert-kinds", 1)[1].split("<!-- /alert-kinds", 1)[0]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in table.splitlines()
        if line.startswith("| `")
    ]
    assert [(kind, subject, begins, ends) for kind, subject, _, begins, ends in rows] == [
        (
            f"`{kind}`",
            SUBJECTS.get(each.subject.value, each.subject.value),
            threshold_text(each, each.defaults.begin, each.defaults.begin_minutes),
            threshold_text(each, each.defaults.end, each.defaults.end_minutes),
        )
        for kind, each in ALERT_KINDS.items()
    ]
