"""Test the digests of closed months: each later change is found, and signatures outlive their key."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from telemetry.models import Charge, CostCentreShare, Price, Statement, StatementLine
from telemetry.money import statements
from telemetry.money.charges import charge_all_gpus
from telemetry.money.signing.statement_digest import ROWS_SQL, digest_lines
from telemetry.money.signing.statement_key import make_key
from telemetry.money.signing.statement_verification import verify_statement
from telemetry.money.statement_export import statement_csv
from tests.documents import table_rows
from tests.portal.rejections import rejected
from tests.telemetry.rows import change_in_place
from tests.telemetry.test_statements import AFTER, APRIL, MARCH, busy_march
from tests.world import World

__all__ = ["busy_march"]
pytestmark = pytest.mark.django_db
MAY = dt.datetime(2026, 5, 1, 2, tzinfo=dt.UTC)


def close(world: World, month: dt.date = MARCH, now: dt.datetime = AFTER) -> Statement:
    return statements.close_month(month=month, closed_by=world.finance, now=now)


def problems(month: dt.date = MARCH) -> tuple[str, ...]:
    return verify_statement(Statement.objects.get(month=month)).problems


def test_an_unchanged_month_verifies(busy_march: World) -> None:
    statement = close(busy_march)
    assert (statement.digest_format, statement.signature) == (2, "")
    assert problems() == ()


def test_each_changed_row_of_a_closed_month_is_found(busy_march: World) -> None:
    statement = close(busy_march)
    line = StatementLine.objects.order_by("pk")[0]
    charge = Charge.objects.filter(bucket="used").order_by("pk")[0]
    price = Price.objects.order_by("pk")[0]
    centre = CostCentreShare.objects.order_by("pk")[0]
    for row, field, changed in (
        (line, "team_name", line.team_name + "x"),
        (charge, "user_name", charge.user_name + "x"),
        (charge, "start", charge.start + dt.timedelta(microseconds=1)),
        (price, "note", "x"),
        (centre, "code", "CC-101"),
        (statement, "currency", "USD"),
    ):
        before = getattr(row, field)
        change_in_place(row, **{field: changed})
        assert "the digest of its rows is" in problems()[0], field
        change_in_place(row, **{field: before})
        assert problems() == ()


def test_the_text_of_the_digest_has_one_json_array_in_each_line(busy_march: World) -> None:
    """Anybody can write the text again: ``json.dumps`` of Python writes the same bytes."""
    statement = close(busy_march)
    lines = list(digest_lines(statement))
    assert [json.dumps(json.loads(line), ensure_ascii=False) for line in lines] == lines
    assert hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest() == statement.digest
    kinds = [json.loads(line)[0] for line in lines]
    assert kinds == sorted(
        kinds, key=["statement", "price", "cost centre", "line", "document", "charge"].index
    )
    assert kinds.count("charge") == Charge.objects.filter(month=MARCH).count()


def test_the_documentation_names_the_rows_of_the_text_in_their_order() -> None:
    names = [row[0].strip("`") for row in table_rows("digest")]
    written = [re.findall(r"json_build_array\('([^']+)'", sql) for sql in ROWS_SQL]
    assert [[name] for name in names] == [["statement"], *written]


def test_the_digest_of_a_month_covers_that_of_the_month_before(busy_march: World) -> None:
    march = close(busy_march)
    charge_all_gpus(MAY)
    april = close(busy_march, APRIL, MAY)
    assert april.previous_month == MARCH
    assert json.loads(next(iter(digest_lines(april))))[-2:] == ["2026-03", march.digest]
    change_in_place(march, digest="0" * 64)
    assert "the digest of its rows is" in problems(APRIL)[0]


def test_a_month_that_was_closed_with_version_0_1_verifies_with_format_1(busy_march: World) -> None:
    statement = close(busy_march)
    change_in_place(statement, digest_format=1)
    old = hashlib.sha256(statement_csv(MARCH).encode()).hexdigest()
    change_in_place(statement, digest=old)
    assert problems() == ()
    change_in_place(StatementLine.objects.order_by("pk")[0], team_name="x")
    assert "the digest of its rows is" in problems()[0]


def test_a_signature_is_verified_with_the_stored_key_after_the_key_was_replaced(
    busy_march: World, tmp_path: Path, settings: Any
) -> None:
    settings.GPUPOOL_STATEMENT_KEY = str(tmp_path / "old.pem")
    fingerprint = make_key(tmp_path / "old.pem")
    statement = close(busy_march)
    assert statement.key_fingerprint == fingerprint
    assert hashlib.sha256(base64.b64decode(statement.public_key)).hexdigest() == fingerprint
    settings.GPUPOOL_STATEMENT_KEY = str(tmp_path / "new.pem")
    make_key(tmp_path / "new.pem")
    assert problems() == ()
    charge_all_gpus(MAY)
    other = close(busy_march, APRIL, MAY)
    assert other.key_fingerprint != fingerprint
    change_in_place(statement, signature=other.signature)
    assert problems() == ("the signature does not match the digest",)
    change_in_place(statement, signature=statement.signature, key_fingerprint="0" * 64)
    assert problems() == ("the fingerprint is not that of the public key",)


def test_a_key_file_is_private_and_never_overwritten(tmp_path: Path) -> None:
    out = StringIO()
    file = tmp_path / "key.pem"
    call_command("make_statement_key", file=str(file), stdout=out)
    assert file.stat().st_mode & 0o777 == 0o600
    assert out.getvalue().startswith(f"{file}: new Ed25519 key, fingerprint ")
    before = file.read_bytes()
    with pytest.raises(CommandError, match="File exists"):
        call_command("make_statement_key", file=str(file))
    assert file.read_bytes() == before
    with pytest.raises(CommandError, match="allowed: an absolute path"):
        call_command("make_statement_key", file="key.pem")


@pytest.mark.parametrize("problem", ["missing", "readable", "no key"])
def test_a_month_is_not_closed_with_a_key_that_cannot_sign(
    busy_march: World, tmp_path: Path, settings: Any, problem: str
) -> None:
    file = tmp_path / "key.pem"
    settings.GPUPOOL_STATEMENT_KEY = str(file)
    if problem == "readable":
        make_key(file)
        file.chmod(0o640)
    elif problem == "no key":
        file.touch(mode=0o600)
    says = {"missing": "No such file", "readable": "mode must be 0600", "no key": "no private key in PEM"}
    with rejected(f"GPUPOOL_STATEMENT_KEY can't sign it: {file}: .*{says[problem]}"):
        close(busy_march)
    assert Statement.objects.get(month=MARCH).state == "open"


def test_the_command_names_the_changed_month(busy_march: World) -> None:
    close(busy_march)
    out = StringIO()
    call_command("verify_statement", stdout=out)
    assert out.getvalue().startswith("2026-03: unchanged (format 2, SHA-256 ")
    assert "not signed" in out.getvalue()
    change_in_place(StatementLine.objects.order_by("pk")[0], team_name="x")
    out = StringIO()
    with pytest.raises(CommandError, match="changed after the close: 2026-03"):
        call_command("verify_statement", "--month=2026-03", "--json", stdout=out)
    assert json.loads(out.getvalue())["problems"]
    with pytest.raises(CommandError, match="month: 2026-04; allowed: a closed month"):
        call_command("verify_statement", "--month=2026-04")
