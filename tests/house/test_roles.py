"""Test that the program's database role can change rows but not the schema."""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.utils import ProgrammingError


@pytest.mark.django_db
def test_tests_run_as_the_program_role_and_not_as_the_owner() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        assert cursor.fetchone() == ("gpupool_app",)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE mine (id int)",
        "DROP TABLE portal_user",
        "ALTER TABLE portal_auditevent DISABLE TRIGGER ALL",
    ],
)
def test_the_program_role_cannot_change_the_schema(statement: str) -> None:
    with (
        connection.cursor() as cursor,
        pytest.raises(ProgrammingError, match="permission denied|must be owner"),
    ):
        cursor.execute(statement)


@pytest.mark.django_db
def test_security_definer_functions_have_a_fixed_search_path() -> None:
    """Check the search path. Without it, a caller's temporary table could replace a table of the schema."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT proname, proconfig FROM pg_proc WHERE prosecdef AND pronamespace = 'public'::regnamespace"
        )
        found = dict(cursor.fetchall())
    assert len(found) >= 2
    assert {tuple(settings or ()) for settings in found.values()} == {("search_path=public, pg_temp",)}, found


@pytest.mark.django_db(transaction=True)
def test_transactional_tests_find_empty_tables() -> None:
    from portal.models import User

    assert not User.objects.exists()
    User.objects.create(username="somebody")
