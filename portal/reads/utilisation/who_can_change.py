"""Find who can change each step of the waterfall: hosts and people whose names the viewer may see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from portal import policy
from portal.models import User
from portal.reads.fleet.utilisation import OUT_OF_SERVICE, hosts_out_of_service
from portal.reads.utilisation.query import UtilisationScope
from portal.wording.pages.money import utilisation_texts
from telemetry.reads.utilisation.waste import WASTE_STEPS
from telemetry.reads.waterfall import WorkPart

MAX_NAMES = 2


@dataclass(frozen=True)
class StepOwners:
    """At most MAX_NAMES hosts or people with most time in a step. ``text`` is shown if there are none."""

    hosts: Sequence[str] = ()
    people: Sequence[str] = ()
    text: str = ""

    @property
    def names(self) -> list[str]:
        """Return the names of the hosts and the people."""
        return [*self.hosts, *self.people]

    def __str__(self) -> str:
        return ", ".join(self.names) or self.text


def who_can_change(scope: UtilisationScope) -> dict[str, StepOwners]:
    """Return who can change each step of the waterfall, by the key of the step."""
    parts = scope.waterfall.parts
    is_out = any(part.key in OUT_OF_SERVICE for part in parts)
    hosts = hosts_out_of_service(scope.viewer, scope.filters) if is_out else {}
    first = _people_with_most_waste(parts)
    people = _names(scope, {user for users in first.values() for user in users})
    return {
        step.key: StepOwners(
            hosts=hosts.get(step.key, [])[:MAX_NAMES],
            people=[people[user] for user in first.get(step.key, ()) if user in people],
            text=_text(step.key, parts),
        )
        for step in scope.waterfall.steps
    }


def _names(scope: UtilisationScope, wanted: set[int]) -> dict[int, str]:
    """Return the names of those people whose waste the viewer may see by name."""
    named = policy.teams_whose_waste_is_named(scope.viewer)
    people = {work.user: name.person for work, name in scope.listed_names.items() if work.user in wanted}
    # Viewers who see all names have read most of these already.
    if named is not None or not wanted <= set(people):
        return _people(scope.viewer, wanted, named)
    return people


def _people_with_most_waste(parts: Sequence[WorkPart]) -> dict[str, list[int]]:
    """Return by step the ids of the people with most wasted time in it, most first."""
    hours: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for part in parts:
        if part.key in WASTE_STEPS and part.work.user:
            hours[part.key][part.work.user] += part.slot_seconds
    return {
        key: sorted(users, key=lambda user: (-users[user], user))[:MAX_NAMES] for key, users in hours.items()
    }


def _people(viewer: User, users: set[int], named_teams: list[int] | None) -> dict[int, str]:
    """Return the names of the people whose waste the viewer may see by name."""
    rows = policy.visible_users(viewer).filter(pk__in=users)
    if named_teams is not None:
        led = rows.filter(memberships__team__in=named_teams).values("pk")
        rows = rows.filter(pk__in=[viewer.pk, *led.values_list("pk", flat=True)])
    return dict(rows.values_list("pk", "username"))


def _text(key: str, parts: Sequence[WorkPart]) -> str:
    if key in WASTE_STEPS:
        count = len({part.work.user for part in parts if part.key == key and part.slot_seconds > 0})
        return utilisation_texts.WHO_COUNT.format(count=count) if count else ""
    count = len({part.work.workload for part in parts if part.key == key})
    return utilisation_texts.WHO[key].format(count=count)
