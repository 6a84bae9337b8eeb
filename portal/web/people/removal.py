"""Render the pages that remove teams and templates. Each page first shows the effect."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import Template
from portal.services.people import team_removal
from portal.services.work import templates
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.removal_page import confirm_removal


@sign_in_required
def team_remove(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Show the effect of removing a team; on POST, remove it."""
    team = get_object_or_404(policy.visible_teams(request.user), slug=slug)
    effect = team_removal.preview_team_removal(actor=current_user(request), team=team, now=timezone.now())
    return confirm_removal(
        request,
        effect,
        team_removal.remove_team,
        back=reverse("team", args=[slug]),
        to=reverse("teams"),
        team=team,
    )


@sign_in_required
def template_remove(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Show the effect of deleting a template; on POST, delete it."""
    policy.require(request.user, "template.change")
    template = get_object_or_404(Template, slug=slug)
    effect = templates.preview_template_deletion(actor=current_user(request), template=template)
    return confirm_removal(
        request,
        effect,
        templates.delete_template,
        back=reverse("template", args=[slug]),
        to=reverse("templates"),
        template=template,
    )
