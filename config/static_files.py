"""Serve one file of the Plotly package.

Collecting the whole folder of the package would take half a minute, for files that no page uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage

PLOTLY_FILE_NAME = "plotly.min.js"


class PlotlyFinder(BaseFinder):
    """A finder of `plotly/plotly.min.js` and no other file."""

    def __init__(self, app_names: Any = None, *args: Any, **kwargs: Any) -> None:
        # Do not import plotly: that would cost every process 100 ms.
        spec = find_spec("plotly")
        origin = spec.origin if spec is not None else None
        if origin is None:
            raise ModuleNotFoundError("plotly is not installed")
        self.storage = FileSystemStorage(location=Path(origin).parent / "package_data")
        self.storage.prefix = "plotly"  # type: ignore[attr-defined]

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        """Return the path of the file on the disk; [] for any other path."""
        if path != f"plotly/{PLOTLY_FILE_NAME}":
            return []
        file_path = self.storage.path(PLOTLY_FILE_NAME)
        return [file_path] if find_all else file_path

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterable[Any]:
        """Return the file as (path, storage)."""
        return [(PLOTLY_FILE_NAME, self.storage)]
