"""Read the sheets of a workbook (XLSX)."""

from __future__ import annotations

import re
import zipfile
from typing import Any
from xml.etree import ElementTree

NAMESPACE = {"s": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}


def sheets_of(book: zipfile.ZipFile) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each sheet. A row maps a column's letter to a text, number or formula result."""
    names = re.findall(r'<sheet name="([^"]+)"', book.read("xl/workbook.xml").decode())
    found: dict[str, list[dict[str, Any]]] = {}
    for number, name in enumerate(names, 1):
        tree = ElementTree.fromstring(book.read(f"xl/worksheets/sheet{number}.xml"))
        found[name] = [
            {re.sub(r"\d", "", cell.get("r", "")): value_of(cell) for cell in row.iterfind("s:c", NAMESPACE)}
            for row in tree.iterfind(".//s:row", NAMESPACE)
        ]
    return found


def value_of(cell: ElementTree.Element) -> str | float:
    """Return the text or the number of a cell. A formula has its stored result."""
    if cell.get("t") == "inlineStr":
        return "".join(part.text or "" for part in cell.iter(f"{{{NAMESPACE['s']}}}t"))
    return float(cell.findtext("s:v", "", NAMESPACE))
