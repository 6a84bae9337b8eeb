"""Provide the fixtures of all tests.

The database and Valkey are real; `./run test` or `./run services` starts them.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from allauth.account.internal.flows.login import get_authentication_records, record_authentication
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.auth.signals import user_logged_in
from django.dispatch import receiver
from django.http import HttpRequest
from django.test import TransactionTestCase
from pytest_django.plugin import DjangoDbBlocker

from tools.paths import CANAILLE_VENV, find_program

NOW = dt.datetime(2026, 3, 18, 10, 0, tzinfo=dt.UTC)  # a Wednesday morning, not near a clock change

# No deadlines: a slow machine must not fail a property.
for profile, examples in (("short", 8), ("full", 100)):
    hypothesis.settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        print_blob=True,
    )
hypothesis.settings.load_profile("short")  # the long part runs with `--hypothesis-profile full`


@pytest.fixture(autouse=True)
def calendar_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the billing calendar once in each test, and keep none from the test before."""
    monkeypatch.setattr("telemetry.money.billing_months._cached", None)
    monkeypatch.setattr("telemetry.money.billing_months.CACHE_SECONDS", float("inf"))


@receiver(user_logged_in)
def record_forced_sign_in(request: HttpRequest, user: AbstractBaseUser, **details: object) -> None:
    """Record a password for ``Client.force_login``, which signs in without one.

    So such a session may make changes that need a fresh proof of identity, like any new session.
    """
    if not get_authentication_records(request, user):
        record_authentication(request, user, "password")


NEEDS = {
    "browser": ("Chromium", ("chromium", "chromium-browser", "google-chrome")),
    "sandbox": ("bubblewrap", ("bwrap",)),
    "prometheus": ("Prometheus with promtool", ("promtool",)),
    "nginx": ("nginx", ("nginx",)),
    "caddy": ("Caddy", ("caddy",)),
    "ldap": ("slapd", ("slapd",)),
}
# The worked examples run in an environment of their own: see examples/requirements.txt.
EXAMPLES = Path(__file__).resolve().parents[1] / ".gpupool" / "torch"
EXAMPLES_NEED = {"torch": "torch", "lightning": "lightning", "transformers": "transformers", "ray": "ray"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests by their shared rows. Skip those whose program this system lacks; in CI, fail them.

    This hook must run before that of pytest-xdist, which reads the groups of the tests.
    """
    _sort_by_shared_setup(items)
    missing = {
        mark: label for mark, (label, programs) in NEEDS.items() if not any(map(find_program, programs))
    }
    if "sandbox" not in missing and not _sandbox_works():
        missing["sandbox"] = "bubblewrap with the permission to make user namespaces"
    missing |= {
        mark: f"{package} in .gpupool/torch (examples/requirements.txt)"
        for mark, package in EXAMPLES_NEED.items()
        if not any(EXAMPLES.glob(f"lib/python*/site-packages/{package}/__init__.py"))
    }
    if not any(CANAILLE_VENV.glob("lib/python*/site-packages/canaille/__init__.py")):
        missing["canaille"] = "Canaille in .gpupool/canaille (tests/oidc/requirements.txt)"
    if "ldap" not in missing and importlib.util.find_spec("django_auth_ldap") is None:
        missing["ldap"] = "the packages of sign-in with LDAP (./run env --ldap)"
    for item in items:
        for mark, label in missing.items():
            if item.get_closest_marker(mark):
                reason = f"needs {label}"
                if os.environ.get("CI", "").lower() == "true":
                    item.add_marker(pytest.mark.usefixtures("refuse_to_skip_in_ci"))
                else:
                    item.add_marker(pytest.mark.skip(reason=reason))


def _sort_by_shared_setup(items: list[pytest.Item]) -> None:
    """Let the tests of a module with the same shared rows run in sequence and in one process.

    The rows are then written once. Without a group, pytest-xdist gives each process some of the tests, and
    each writes the rows. A test that commits writes its own rows. pytest-django places these tests behind the
    others. Tests with a fixture of their module, such as a server, are a group for the same reason.
    """
    from tests.world import commits, rows_of_test

    names = {item: rows.name if (rows := rows_of_test(item)) else "" for item in items}
    for item in items:
        shares_rows = names[item] and not commits(item, getattr(item, "fixturenames", ()))
        shared = names[item] if shares_rows else _fixture_of_module(item)
        if shared and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}:{shared}"))
    modules = itertools.groupby(items, key=lambda item: item.path)
    items[:] = [item for _, group in modules for item in sorted(group, key=names.__getitem__)]


def _fixture_of_module(item: pytest.Item) -> str:
    """Return the first fixture of a test that its module sets up once. An empty text if there is none."""
    information = getattr(item, "_fixtureinfo", None)
    found = information.name2fixturedefs if information else {}
    return min((name for name, each in found.items() if each and each[-1].scope == "module"), default="")


def _sandbox_works() -> bool:
    command = ["bwrap", "--ro-bind", "/", "/", "--unshare-user", "--unshare-pid", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def refuse_to_skip_in_ci() -> None:
    """Fail the test that uses this fixture: in CI, a missing program must not skip a test."""
    pytest.fail("a program of the system is missing, and in CI nothing may be skipped", pytrace=False)


@pytest.fixture(autouse=True, scope="session")
def tables_are_emptied_after_tests_that_commit() -> Iterator[None]:
    """Empty the tables with ``empty_tables`` instead of Django's flush after each test that commits.

    The flush is slow: it empties every table and recreates content types and permissions.
    """
    from tests.database import empty_tables

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", empty_tables)
        yield


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None, django_db_blocker: DjangoDbBlocker, django_db_modify_db_settings: None
) -> Iterator[None]:
    """Create the database as its owner, but run the tests with the database role of the application.

    A test then fails if the application's role lacks a privilege.
    """
    from django.db import connection

    from tests import database

    with django_db_blocker.unblock():
        name = database.create_test_database()
        as_owner = connection.settings_dict["OPTIONS"]["options"]
        with connection.cursor() as cursor:
            cursor.execute("SELECT FROM pg_roles WHERE rolname = %s", [database.PROGRAM_ROLE])
            has_role = cursor.rowcount == 1
        if has_role:
            database.use_database(name, f"{as_owner} -c role={database.PROGRAM_ROLE}")
    yield
    with django_db_blocker.unblock():
        database.use_database(name, as_owner)
        database.drop_test_database(name)


@pytest.fixture(scope="session")
def world_transaction(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """End the shared world's transaction before the test database is removed."""
    yield
    from tests.world import SHARED_WORLD

    with django_db_blocker.unblock():
        SHARED_WORLD.close()


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> None:
    """Open or close the shared world just before pytest-django begins the transaction of a test.

    If pytest-django renames its fixture, each test builds its own world, which is slower but correct.
    """
    if fixturedef.argname != "_django_db_helper":
        return
    from tests.world import SHARED_WORLD, is_transactional, rows_of_test, uses_shared_world

    wanted = uses_shared_world(request) and not is_transactional(request)
    with request.getfixturevalue("django_db_blocker").unblock():
        SHARED_WORLD.open(rows_of_test(request.node)) if wanted else SHARED_WORLD.close()


@pytest.fixture
def now() -> dt.datetime:
    """Return the time at which a test takes place, aware, in UTC."""
    return NOW


@pytest.fixture
def root() -> Path:
    """Return the folder of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def empty_cache_between_tests(request: pytest.FixtureRequest) -> None:
    """Clear the cache, so that throttles and cached values of one test do not affect the next."""
    if "db" in request.fixturenames or "transactional_db" in request.fixturenames:
        from django.core.cache import cache

        cache.clear()
