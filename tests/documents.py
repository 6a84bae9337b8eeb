"""Read the marked parts of the documentation, which tests compare with what the code does."""

from __future__ import annotations

from tests.architecture.sources import ROOT


def marked_part(name: str, document: str = "money.md") -> str:
    """Return the text between ``<!-- NAME: ... -->`` and ``<!-- /NAME -->`` of a page in docs/."""
    text = (ROOT / "docs" / document).read_text()
    return text.split(f"<!-- {name}: ")[1].split("-->", 1)[1].split(f"<!-- /{name} -->")[0]


def table_rows(name: str, document: str = "money.md") -> list[list[str]]:
    """Return the cells of each row of the table in a marked part, without its heading."""
    lines = [line for line in marked_part(name, document).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
