"""Test that templates have few lines and no long lines."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = sorted([*(ROOT / "templates").rglob("*.html"), *(ROOT / "tests").rglob("templates/*.html")])
MAX_COLUMNS = 160
MAX_LINES = 80


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_template_has_short_lines_and_few_of_them(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    too_long = [number for number, line in enumerate(lines, start=1) if len(line) > MAX_COLUMNS]
    assert not too_long, f"lines over {MAX_COLUMNS} characters: {too_long}"
    assert len(lines) <= MAX_LINES, (
        f"{len(lines)} lines; allowed: {MAX_LINES}. Move a part to a template of its own."
    )
