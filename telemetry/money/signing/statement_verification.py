"""Verify closed months: their digests, the chain of digests, and the signatures."""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.models import Statement
from telemetry.money.signing.statement_digest import digest_of
from telemetry.money.signing.statement_key import StatementSignature, signature_problem


@dataclass(frozen=True)
class StatementVerification:
    """The result for one closed month. ``problems`` is empty if the month is unchanged.

    ``key_fingerprint`` is empty if the month was closed without a key.
    """

    month: str
    digest_format: int
    digest: str
    key_fingerprint: str
    problems: tuple[str, ...]


def verify_statement(statement: Statement) -> StatementVerification:
    """Recompute the digest of a closed month, and check its signature and its previous month."""
    problems = []
    found = digest_of(statement)
    if found != statement.digest:
        problems.append(f"the digest of its rows is {found}, the statement has {statement.digest}")
    if statement.previous_month and not Statement.objects.filter(month=statement.previous_month).exists():
        problems.append(f"its previous month {statement.previous_month:%Y-%m} is missing")
    signed = StatementSignature(statement.signature, statement.public_key, statement.key_fingerprint)
    if signed != StatementSignature():
        problem = signature_problem(statement.month, statement.digest, signed)
        problems += [problem] if problem else []
    return StatementVerification(
        f"{statement.month:%Y-%m}",
        statement.digest_format,
        statement.digest,
        statement.key_fingerprint,
        tuple(problems),
    )
