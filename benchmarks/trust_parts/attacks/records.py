"""Attack the records in the database, with the rights of the application or of the owner."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.trust_parts.attacks.registry import attack, control, defended
from benchmarks.trust_parts.attacks.target import AttackTarget, rows_with

SECRET_TEXT = "a-value-that-must-be-encrypted"


def _as_application(target: AttackTarget, statement: str) -> str:
    """Run a statement with the role of the application. Return the error; empty if it is permitted."""
    return _run(target, "DATABASE_URL", statement)


def _run(target: AttackTarget, url: str, *statements: str) -> str:
    import psycopg

    place = target.site.folder / "site" / "environment.json"
    with psycopg.connect(json.loads(place.read_text())[url]) as connection:
        try:
            for statement in statements:
                connection.execute(statement)  # type: ignore[call-overload]
        except psycopg.Error as error:
            return str(error) or type(error).__name__
    return ""


def _sealed_events(target: AttackTarget) -> list[int]:
    from portal.models import SealedAuditEvent

    return list(
        target.run_in_database(
            lambda: list(SealedAuditEvent.objects.order_by("-pk").values_list("event_id", flat=True)[:20])
        )
    )


def _verification(target: AttackTarget) -> Any:
    return target.manage("verify_audit")


@attack("audit records changed or removed with the rights of the application")
def audit_changed_by_the_application(target: AttackTarget) -> None:
    control(_as_application(target, "SELECT count(*) FROM portal_auditevent") == "", "it reads the records")
    for statement in (
        "DELETE FROM portal_auditevent",
        "UPDATE portal_auditevent SET verb = 'nothing'",
        "TRUNCATE portal_auditevent",
        "DELETE FROM portal_auditseal",
        "DROP TABLE portal_auditevent",
    ):
        defended(_as_application(target, statement), f"{statement} is permitted")


@attack("a removed audit record")
def removed_audit_record(target: AttackTarget) -> None:
    target.wait(lambda: _sealed_events(target), "audit records are sealed")
    control(_verification(target).returncode == 0, "the check finds nothing before")
    victim = _sealed_events(target)[0]
    error = _run(
        target,
        "GPUPOOL_OWNER_DATABASE_URL",
        "ALTER TABLE portal_auditevent DISABLE TRIGGER USER",
        f"DELETE FROM portal_auditevent WHERE id = {victim}",
        "ALTER TABLE portal_auditevent ENABLE TRIGGER USER",
    )
    control(error == "", f"the owner of the database removes a record: {error}")
    found = _verification(target)
    defended(found.returncode != 0 and str(victim) in found.stdout + found.stderr, "nobody finds it")


@attack("secrets of workloads in the database")
def secrets_in_the_database(target: AttackTarget) -> None:
    from scheduler.models import Workload

    body = target.job(name="with a secret", environment={"API_KEY": SECRET_TEXT})
    answer = target.member.program.post("jobs/", body)
    control(answer.status == 201, f"a job with a variable is submitted: {answer.text[:300]}")
    found = target.run_in_database(lambda: rows_with(Workload._meta.db_table, SECRET_TEXT))
    defended(found == 0, "the value is readable in the row")
    defended(SECRET_TEXT not in target.logs(), "the value is in a log")


@attack("the schema changed with the rights of the application")
def schema_changed_by_the_application(target: AttackTarget) -> None:
    for statement in (
        "CREATE TABLE mine (x int)",
        "ALTER TABLE portal_user ADD COLUMN mine int",
        "DROP TABLE scheduler_allocation",
        "CREATE ROLE mine SUPERUSER",
        "COPY portal_user TO PROGRAM 'cat'",
        "SELECT pg_read_file('/etc/passwd')",
    ):
        defended(_as_application(target, statement), f"{statement} is permitted")


@attack("a GPU given to two runs past the engine")
def unit_held_twice(target: AttackTarget) -> None:
    insert = (
        "INSERT INTO scheduler_allocation"
        " SELECT (jsonb_populate_record(a, jsonb_build_object('id', a.id + 1000000))).*"
        " FROM scheduler_allocation a WHERE upper_inf(period) LIMIT 1"
    )
    control(target.notebook, "a unit is held")
    error = _as_application(target, insert)
    defended(error, "the database stores a second holder")
    defended(
        "overlap" in error or "conflict" in error or "exclusion" in error, f"for another reason: {error}"
    )
