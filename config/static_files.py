"""Serve one file of the Plotly package.

The package's folder has many files that no page uses. Collecting all of them would take half a minute.
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
    """A finder of static files that finds only `plotly/plotly.min.js`."""

    def __init__(self, app_names: Any = None, *args: Any, **kwargs: Any) -> None:
        # Find plotly without importing it, because the import would take 100 ms in every process.
        spec = find_spec("plotly")
        origin = spec.origin if spec is not None else None
        if origin is None:
            raise ModuleNotFoundError("plotly is not installed")
        self.storage = FileSystemStorage(location=Path(origin).parent / "package_data")
        self.storage.prefix = "plotly"  # type: ignore[attr-defined]

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        """Return the location of the file on the disk, or [] if ``path`` is another file.

        If ``find_all``, return a list with the location.
        """
        if path != f"plotly/{PLOTLY_FILE_NAME}":
            return []
        file_path = self.storage.path(PLOTLY_FILE_NAME)
        return [file_path] if find_all else file_path

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterable[Any]:
        """Return a list with the only file, as (path, storage)."""
        return [(PLOTLY_FILE_NAME, self.storage)]
