"""Read the figures of a month for a viewer, together with the tables that they need."""

from __future__ import annotations

from datetime import date, datetime

from portal import policy
from portal.models import User
from portal.reads.money import chargeback as reads
from portal.reads.money.charge_scope import ChargeScope
from portal.reads.money.overview.page import ChargebackOverview, chargeback_overview
from telemetry.money.closing.statement_months import load_statement_months
from telemetry.reads.chargeback import charges_by


def overview_of_viewer(viewer: User, month: date, now: datetime, scope: ChargeScope) -> ChargebackOverview:
    """Return the figures of a month as the page of chargeback shows them. ``scope`` is that of the viewer."""
    see_all, statements = policy.may(viewer, "charges.see_all"), load_statement_months()
    return chargeback_overview(
        viewer,
        month,
        now,
        scope=scope,
        table=charges_by("bucket", month, policy.visible_cells(viewer), months=statements),
        budgets=reads.budget_rows(viewer, month, now),
        conservation=reads.conservation_equation(month, statements) if see_all else None,
        statements=statements,
    )
