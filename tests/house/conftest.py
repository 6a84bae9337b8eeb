"""`./run` as a module, and as a command."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def house() -> ModuleType:
    """The program `./run`, loaded from its file, which has no suffix."""
    place = str(Path(__file__).resolve().parent.parent.parent / "run")
    loader = SourceFileLoader("gpupool_run", place)
    spec = importlib.util.spec_from_loader("gpupool_run", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpupool_run"] = module
    loader.exec_module(module)
    return module
