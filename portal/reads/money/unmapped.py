"""Read the projects and dedicated pools without a cost centre, and the people who must act."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from django.db.models import Sum

from portal.models import Membership, User
from portal.reads.money.cost_centres import form_key, key_of, visible_payers
from portal.wording.pages import cost_centre_pages
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.cost_centres.splits import Payer, load_all_splits
from telemetry.models import StatementLine, StatementState


@dataclass(frozen=True)
class UnmappedPayer:
    """A project or a dedicated pool without a cost centre. ``key`` names it in forms.

    ``charged`` is the amount without a cost centre in the open ``months``. ``who_acts`` is a sentence.
    """

    key: str
    name: str
    charged: Decimal
    months: tuple[date, ...]
    who_acts: str


def unmapped_payers(viewer: User, now: datetime) -> list[UnmappedPayer]:
    """Return the visible payers that now have no cost centre, or had none for charges of an open month.

    The payer with the highest charge without a cost centre comes first.
    """
    charged = _unmapped_charges()
    splits = load_all_splits().current(now)
    payers = [
        payer for payer in visible_payers(viewer) if key_of(payer) in charged or key_of(payer) not in splits
    ]
    leads = _leads_by_team(payer.team_id for payer in payers)
    finance = list(
        User.objects.filter(finance=True, is_active=True)
        .order_by("username")
        .values_list("username", flat=True)
    )
    rows = []
    for payer in payers:
        months = charged.get(key_of(payer), {})
        rows.append(
            UnmappedPayer(
                key=form_key(payer),
                name=payer.name,
                charged=sum(months.values(), Decimal(0)),
                months=tuple(sorted(months)),
                who_acts=cost_centre_pages.who_acts(
                    payer.team.name if payer.team else "", leads.get(payer.team_id or 0, []), finance
                ),
            )
        )
    return sorted(rows, key=lambda row: (-row.charged, row.name))


def _unmapped_charges() -> dict[Payer, dict[date, Decimal]]:
    """Return the charges without a cost centre in open months, by payer and month."""
    lines = StatementLine.objects.filter(
        cost_centre="", statement__state=StatementState.OPEN, bucket__in=CHARGED_BUCKETS, idle_share=False
    )
    found: dict[Payer, dict[date, Decimal]] = defaultdict(dict)
    sums = lines.values_list("project", "pool", "statement__month").annotate(total=Sum("charged_cents"))
    for project, pool, month, total in sums.order_by("statement__month"):
        payer = Payer(pool=pool) if project is None else Payer(project=project)
        if total:
            found[payer][month] = found[payer].get(month, Decimal(0)) + total
    return found


def _leads_by_team(teams: Iterable[int | None]) -> dict[int, list[str]]:
    rows = Membership.objects.filter(team__in=set(teams), role=Membership.Role.LEAD, user__is_active=True)
    found: dict[int, list[str]] = defaultdict(list)
    for team, name in rows.order_by("user__username").values_list("team_id", "user__username"):
        found[team].append(name)
    return found
