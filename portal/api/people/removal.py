"""Implement the endpoints that preview and carry out the removal of teams and templates."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.removal import RemovalEffectShape, RemovalWish, RemovedShape
from portal.api.base.views import ApiView
from portal.models import Template, TokenScope
from portal.services.people import team_removal
from portal.services.work import templates
from portal.wording.removal_texts import REMOVAL_VERBS
from scheduler.models import Team


class TeamRemovalView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="teams_removal", responses=RemovalEffectShape)
    def get(self, request: Request, slug: str) -> Response:
        """Return the effect of removing a team, and whether the removal would be refused. For operators."""
        found = team_removal.preview_team_removal(actor=self.actor, team=_team(self, slug), now=self.now)
        return self.object_response(found, RemovalEffectShape)


class RemoveTeamView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="teams_remove", request=RemovalWish, responses=RemovedShape)
    def post(self, request: Request, slug: str) -> Response:
        """Remove a team; its history stays. 409 while it has pools, work or reservations. For operators."""
        team, given = _team(self, slug), self.validated_body(RemovalWish)
        team_removal.remove_team(**self.service_context, team=team, **given)
        said = REMOVAL_VERBS["remove_team"].done.format(team.name)
        return self.object_response({"name": team.name, "said": said}, RemovedShape)


class TemplateRemovalView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="templates_removal", responses=RemovalEffectShape)
    def get(self, request: Request, slug: str) -> Response:
        """Preview the deletion of a template. For operators."""
        template = get_visible_or_404(Template.objects.all(), slug=slug)
        found = templates.preview_template_deletion(actor=self.actor, template=template)
        return self.object_response(found, RemovalEffectShape)


class RemoveTemplateView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="templates_remove", request=RemovalWish, responses=RemovedShape)
    def post(self, request: Request, slug: str) -> Response:
        """Delete a template; workloads started from it stay. For operators."""
        template = get_visible_or_404(Template.objects.all(), slug=slug)
        given, name = self.validated_body(RemovalWish), template.name
        templates.delete_template(**self.service_context, template=template, **given)
        said = REMOVAL_VERBS["delete_template"].done.format(name)
        return self.object_response({"name": name, "said": said}, RemovedShape)


def _team(view: ApiView, slug: str) -> Team:
    return get_visible_or_404(policy.visible_teams(view.actor), slug=slug)
