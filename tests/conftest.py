"""Fixtures shared by all tests. The database and Valkey are real; `./run test` or `./run services` starts them."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
from pathlib import Path

import pytest

NOW = dt.datetime(2026, 3, 18, 10, 0, tzinfo=dt.UTC)  # a Wednesday morning, with no change of clocks near

NEEDS = {
    "browser": ("Chromium", ("chromium", "chromium-browser", "google-chrome")),
    "sandbox": ("bubblewrap", ("bwrap",)),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, and count as skipped, what this system lacks a program for; in CI that is a failure."""
    missing = {mark: label for mark, (label, programs) in NEEDS.items() if not any(map(shutil.which, programs))}
    if "sandbox" not in missing and not _sandbox_works():
        missing["sandbox"] = "bubblewrap that may make user namespaces"
    for item in items:
        for mark, label in missing.items():
            if item.get_closest_marker(mark):
                reason = f"needs {label}"
                if os.environ.get("CI", "").lower() == "true":
                    item.add_marker(pytest.mark.usefixtures("refuse_to_skip_in_ci"))
                else:
                    item.add_marker(pytest.mark.skip(reason=reason))


def _sandbox_works() -> bool:
    command = ["bwrap", "--ro-bind", "/", "/", "--unshare-user", "--unshare-pid", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def refuse_to_skip_in_ci() -> None:
    """Fail where a test would have to be skipped."""
    pytest.fail("a program of the system is missing, and in CI nothing may be skipped", pytrace=False)


@pytest.fixture
def now() -> dt.datetime:
    """The instant at which a test takes place, aware, in UTC."""
    return NOW


@pytest.fixture
def root() -> Path:
    """The folder of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def empty_cache_between_tests(request: pytest.FixtureRequest) -> None:
    """Throttles and caches of one test must not meet the next."""
    if "db" in request.fixturenames or "transactional_db" in request.fixturenames:
        from django.core.cache import cache

        cache.clear()
