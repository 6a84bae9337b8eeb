"""Serve one file of Plotly's package: collecting its whole folder takes half a minute and is never used."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage

PLOTLY_FILE_NAME = "plotly.min.js"


class PlotlyFinder(BaseFinder):
    """Finds `plotly/plotly.min.js` and nothing else."""

    def __init__(self, app_names: Any = None, *args: Any, **kwargs: Any) -> None:
        # Found without importing plotly, which would cost every process 100 ms.
        spec = find_spec("plotly")
        origin = spec.origin if spec is not None else None
        if origin is None:
            raise ModuleNotFoundError("plotly is not installed")
        self.storage = FileSystemStorage(location=Path(origin).parent / "package_data")
        self.storage.prefix = "plotly"  # type: ignore[attr-defined]

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        """The file's place on disk; [] when this finder does not know the path."""
        if path != f"plotly/{PLOTLY_FILE_NAME}":
            return []
        place = self.storage.path(PLOTLY_FILE_NAME)
        return [place] if find_all else place

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterable[Any]:
        """The one file, as (path, storage)."""
        return [(PLOTLY_FILE_NAME, self.storage)]
