"""Import cost centres, or the splits of projects and dedicated pools, from a CSV file.

A preview runs the whole import in a transaction and rolls it back. So the preview shows exactly the changes
that the import would make.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from django.db import transaction

from portal import policy
from portal.errors import Invalid
from portal.input_checks import InputChecks, display_value
from portal.models import User
from portal.services.csv_import import (
    ImportedRow,
    ImportReport,
    problems_of,
    read_rows,
    reject_wrong_lines,
    report_of,
)
from portal.services.money.cost_centres import directory, splits
from portal.wording.problems import cost_centre_problems
from scheduler.core.model.snapshot import PoolKind
from scheduler.core.rejection import OperationRejected
from scheduler.models import Pool, Project
from telemetry.models import CostCentre
from telemetry.money.billing_months import billing_calendar

MAX_ROWS = 2_000
MAX_CHARACTERS = 500_000
ENTRY_COLUMNS = ("code", *directory.ENTRY_FIELDS)
SHARE_COLUMNS = ("project", "pool", "code", "percent", "valid_from")


def preview_import(*, actor: User, text: str, now: datetime) -> ImportReport:
    """Return the effect that an import would have, line by line. Nothing is written.

    Raises NotAllowed. Raises Invalid if the file has no readable header or too many lines.
    """
    policy.require(actor, "cost_centre.change")
    with transaction.atomic():
        report = _carry_out(actor=actor, text=text, now=now, via="web", why="")
        transaction.set_rollback(True)
    return report


def import_cost_centres(
    *, actor: User, text: str, now: datetime, why: str = "", via: str = "web"
) -> ImportReport:
    """Import a CSV file of cost centres or of splits. Return the effect of each line. Raises NotAllowed.

    Raises Invalid if a line is wrong. Nothing is written in this case.
    """
    policy.require(actor, "cost_centre.change")
    with transaction.atomic():
        report = _carry_out(actor=actor, text=text, now=now, via=via, why=why)
        reject_wrong_lines(report)
    return report


def _carry_out(*, actor: User, text: str, **context: Any) -> ImportReport:
    header, rows = read_rows(
        text, max_rows=MAX_ROWS, max_characters=MAX_CHARACTERS, check_header=_check_header
    )
    context["actor"] = actor
    if "project" in header or "pool" in header:
        _import_splits(rows, context)
    else:
        _import_entries(rows, context)
    return report_of(rows)


def _check_header(checks: InputChecks, header: Sequence[str]) -> None:
    is_split = "project" in header or "pool" in header
    allowed = SHARE_COLUMNS if is_split else ENTRY_COLUMNS
    needed = {"code", "valid_from"} if is_split else {"code"}
    if not needed <= set(header) <= set(allowed) or len(set(header)) != len(header):
        words = cost_centre_problems.HEADER_INVALID.format(
            given=display_value(", ".join(header)),
            entries=", ".join(ENTRY_COLUMNS),
            shares=", ".join(SHARE_COLUMNS),
        )
        checks.note("csv", ", ".join(header), words)


def _import_entries(rows: list[ImportedRow], context: Mapping[str, Any]) -> None:
    """Add or change the entries of the directory."""
    first_lines: dict[str, int] = {}
    for row in rows:
        code = row.line.subject = row.values.get("code", "")
        if code in first_lines:
            row.line.problems.append(
                cost_centre_problems.LINE_IS_REPEATED.format(code=code[:40], line=first_lines[code])
            )
        first_lines.setdefault(code, row.line.number)
        if row.line.problems:
            continue
        given = {name: value for name, value in row.values.items() if name != "code"}
        with problems_of(row):
            row.line.state = _store_entry(code, given, context)


def _store_entry(code: str, given: dict[str, str], context: Mapping[str, Any]) -> str:
    """Add or change one entry. Return the state of its line."""
    entry: dict[str, Any] = {**given}
    arguments = {name: value for name, value in context.items() if name != "why"}
    known = CostCentre.objects.filter(code=code).first()
    if known is None:
        directory.add_cost_centre(**arguments, code=code, **entry)
        return "new"
    before = {name: getattr(known, name) for name in given}
    changed = directory.change_cost_centre(**arguments, centre=known, **entry)
    after = {name: getattr(changed, name) for name in given}
    return "unchanged" if before == after else "changed"


def _import_splits(rows: list[ImportedRow], context: Mapping[str, Any]) -> None:
    """Set the splits. All lines with the same project or pool and the same date are one split."""
    groups: dict[tuple[str, str, str], list[ImportedRow]] = defaultdict(list)
    for row in rows:
        values = row.values
        payer = values.get("project", "") or values.get("pool", "")
        row.line.subject = f"{payer}: {values.get('code', '')}"
        _check_share(row)
        groups[values.get("project", ""), values.get("pool", ""), values.get("valid_from", "")].append(row)
    for (project, pool, start), members in sorted(groups.items(), key=lambda entry: entry[0][2]):
        if any(row.line.problems for row in members):
            continue
        with problems_of(members[0]):
            state = _store_split(project, pool, start, members, context)
            for row in members:
                row.line.state = state


def _check_share(row: ImportedRow) -> None:
    """Note the problems of one line that do not depend on other lines."""
    checks = InputChecks()
    code = row.values.get("code", "")
    splits.check_code(checks, "code", code, CostCentre.objects.filter(code=code).first())
    splits.checked_percent(checks, code, row.values.get("percent", "") or "100")
    row.line.problems.extend(checks.problems.values())


def _store_split(
    project: str, pool: str, start: str, members: list[ImportedRow], context: Mapping[str, Any]
) -> str:
    """Set one split. Return the state of its lines."""
    arguments: dict[str, Any] = {
        "project": _named_project(project) if project else None,
        "pool": _named_pool(pool) if pool else None,
        "valid_from": _parsed_start(start),
        "shares": [(row.values.get("code", ""), row.values.get("percent", "") or "100") for row in members],
    }
    is_first = not splits.has_split(arguments["project"], arguments["pool"], arguments["valid_from"])
    try:
        splits.set_split(**context, **arguments)
    except OperationRejected as error:
        if error.code != "split_is_in_force":
            raise
        return "unchanged"
    return "new" if is_first else "changed"


def _named_project(path: str) -> Project:
    team, _, slug = path.partition("/")
    found = Project.objects.filter(team__slug=team, slug=slug).select_related("team").first()
    if found is None:
        words = cost_centre_problems.PROJECT_UNKNOWN.format(given=display_value(path))
        raise Invalid({"project": words}, {"project": path[:80]})
    return found


def _named_pool(slug: str) -> Pool:
    found = Pool.with_removed.filter(slug=slug, kind=PoolKind.STATIC).first()
    if found is None:
        known = ", ".join(
            Pool.objects.filter(kind=PoolKind.STATIC).order_by("slug").values_list("slug", flat=True)[:5]
        )
        words = cost_centre_problems.POOL_UNKNOWN.format(given=display_value(slug), known=known or "none")
        raise Invalid({"pool": words}, {"pool": slug[:80]})
    return found


def _parsed_start(text: str) -> datetime:
    """Return the start in UTC.

    ``text`` is a time with an offset, or a date. A date means the start of its billing day.
    """
    try:
        if len(text) == len("2026-10-01"):
            return billing_calendar().day_bounds(date.fromisoformat(text))[0].astimezone(UTC)
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        words = cost_centre_problems.START_INVALID.format(given=display_value(text))
        raise Invalid({"valid_from": words}, {"valid_from": text[:40]})
    return moment.astimezone(UTC)
