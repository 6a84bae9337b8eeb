"""Describe whose charges a viewer sees. Pages, CSV files and the API all use this description."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from portal import policy
from portal.models import Membership, User
from portal.wording.chargeback.charge_scope_texts import OTHER_VIEWERS, nothing_charged_title, scope_sentence
from telemetry.models import Charge

ScopeKind = Literal["all", "led_teams", "own", "none"]
SCOPE_KINDS: tuple[ScopeKind, ...] = ("all", "led_teams", "own", "none")


@dataclass(frozen=True)
class ChargeScope:
    """Says whose charges a viewer sees. ``policy.visible_charges`` selects these charges.

    - ``all``: the charges of every team.
    - ``led_teams``: the charges of the teams in ``led``, and the viewer's own charges in other teams.
    - ``own``: only the viewer's own charges.
    - ``none``: no charges. The viewer is in no team and was never charged.

    ``role`` is the viewer's role outside teams: finance, auditor, operator, or an empty text.
    """

    kind: ScopeKind
    role: str = ""
    led: tuple[str, ...] = ()
    led_slugs: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Return the sentence that a page or an answer shows."""
        return scope_sentence(self.kind, self.role, self.led)

    @property
    def empty_title(self) -> str:
        """Return the title for a table without charges that the viewer may see."""
        return nothing_charged_title(self.kind)

    @property
    def others(self) -> tuple[str, ...]:
        """Return sentences about what each role sees."""
        return OTHER_VIEWERS


def charge_scope(viewer: User) -> ChargeScope:
    """Return whose charges ``viewer`` sees."""
    if policy.sees_all_charges(viewer):
        return ChargeScope("all", role="finance" if viewer.finance else "auditor")
    role = "operator" if viewer.operator else ""
    led = policy.my_team_ids(viewer, Membership.Role.LEAD)
    teams = list(policy.visible_teams(viewer).filter(pk__in=led).order_by("name"))
    if teams:
        names, slugs = (tuple(getattr(team, field) for team in teams) for field in ("name", "slug"))
        return ChargeScope("led_teams", role, names, slugs)
    is_member = policy.my_team_ids(viewer).exists()
    if is_member or Charge.objects.filter(user=viewer).exists():
        return ChargeScope("own", role)
    return ChargeScope("none", role)
