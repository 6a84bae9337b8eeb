"""Read notice channels with the log of their messages."""

from __future__ import annotations

from django.db.models import QuerySet

from portal import policy
from portal.models import Membership, NoticeChannel, NoticeMessage, User
from scheduler.models import Team


def notice_channels(viewer: User) -> QuerySet[NoticeChannel]:
    """Return the channels that the viewer may see: first the own channels, then those of teams by name."""
    rows = policy.visible_notice_channels(viewer).select_related("user", "team", "created_by").defer("target")
    return rows.order_by("team__name", "created_at", "pk")


def message_log(channel: NoticeChannel) -> QuerySet[NoticeMessage]:
    """Return the messages of a channel with their items, newest first."""
    rows = NoticeMessage.objects.filter(channel=channel)
    return rows.prefetch_related("items").order_by("-created_at", "-pk")


def teams_with_new_channels(viewer: User) -> QuerySet[Team]:
    """Return the teams for which the viewer may create channels, by name."""
    teams = Team.objects.filter(removed_at=None).order_by("name")
    if viewer.auditor:
        return teams.none()
    if viewer.operator:
        return teams
    return teams.filter(pk__in=policy.my_team_ids(viewer, Membership.Role.LEAD))
