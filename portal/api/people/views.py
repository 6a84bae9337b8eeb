"""Implement the endpoints of the user's account, teams, tokens, notifications and the audit record."""

from __future__ import annotations

from dataclasses import asdict

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.fields import MAX_INT
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.schema import page_schema
from portal.api.base.serializers import EmptyBody, PageQuery
from portal.api.base.views import ApiView
from portal.api.people import serializers as shapes
from portal.models import Template, TokenScope, User
from portal.services.audit_trail.verification import audit_integrity
from portal.services.people import accounts, api_tokens
from portal.wording.people import audit_texts
from portal.wording.people.audit_values import verb_code


class MeView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="me_read", responses=shapes.MeShape)
    def get(self, request: Request) -> Response:
        """Return your account and your roles."""
        return self._me()

    @extend_schema(operation_id="me_change", request=shapes.MeChange, responses=shapes.MeShape)
    def patch(self, request: Request) -> Response:
        """Change your time zone or theme."""
        accounts.set_preferences(**self.service_context, **self.validated_body(shapes.MeChange))
        return self._me()

    def _me(self) -> Response:
        rows = policy.visible_users(self.actor).prefetch_related("memberships__team")
        return self.object_response(get_visible_or_404(rows, pk=self.actor.pk), shapes.MeShape)


class TeamListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="teams_list", parameters=[PageQuery], responses=page_schema(shapes.TeamShape))
    def get(self, request: Request) -> Response:
        """List the teams that you may see."""
        return self.list_response(
            policy.visible_teams(self.actor).order_by("slug"),
            shapes.TeamShape,
            self.validated_query(PageQuery),
        )


class TeamDetailView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="teams_read", responses=shapes.TeamShape)
    def get(self, request: Request, slug: str) -> Response:
        """Return one team. A removed team has ``removed_at``."""
        rows = policy.visible_teams_with_removed(self.actor)
        return self.object_response(get_visible_or_404(rows, slug=slug), shapes.TeamShape)


class ProjectListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="projects_list", parameters=[PageQuery], responses=page_schema(shapes.ProjectShape)
    )
    def get(self, request: Request) -> Response:
        """List the projects that you may see. Requests name a project by its ``path``."""
        rows = policy.visible_projects(self.actor).select_related("team").order_by("team__slug", "slug")
        return self.list_response(rows, shapes.ProjectShape, self.validated_query(PageQuery))


class TemplateListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="templates_list", parameters=[PageQuery], responses=page_schema(shapes.TemplateShape)
    )
    def get(self, request: Request) -> Response:
        """List templates of notebooks and jobs."""
        return self.list_response(
            Template.objects.order_by("position", "slug"),
            shapes.TemplateShape,
            self.validated_query(PageQuery),
        )


class TokenListView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="tokens_list", parameters=[PageQuery], responses=page_schema(shapes.TokenShape)
    )
    def get(self, request: Request) -> Response:
        """List your tokens, newest first, without their text."""
        rows = policy.visible_tokens(self.actor).select_related("user").order_by("-created_at", "-pk")
        return self.list_response(rows, shapes.TokenShape, self.validated_query(PageQuery))

    @extend_schema(operation_id="tokens_create", request=shapes.TokenWish, responses={201: shapes.TokenMade})
    def post(self, request: Request) -> Response:
        """Create a token; only this response has its text. A token made by a token ends no later."""
        return created_token(self)


class RevokeTokenView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="tokens_revoke", request=EmptyBody, responses=shapes.TokenShape)
    def post(self, request: Request, id: int) -> Response:
        """Revoke a token of yours, or of a service account, and the tokens that it created."""
        rows = policy.revocable_tokens(self.actor).select_related("user")
        token = get_visible_or_404(rows, pk=min(id, MAX_INT))
        self.validated_body(EmptyBody)
        return self.object_response(
            api_tokens.revoke_token(**self.service_context, token=token), shapes.TokenShape
        )


def created_token(view: ApiView, account: User | None = None) -> Response:
    """Create a token with the fields of the body, for the caller or a service account. Return its text."""
    given = view.validated_body(shapes.TokenWish)
    if given.get("scopes") is None:
        has = TokenScope.values if view.token is None else view.token.scopes
        given["scopes"] = [scope for scope in api_tokens.USUAL_SCOPES if scope in has] or has
    token, text = api_tokens.create_token(**view.service_context, user=account, parent=view.token, **given)
    return Response({**shapes.TokenShape(token).data, "token": text}, status=201)


class NotificationListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="notifications_list",
        parameters=[PageQuery],
        responses=page_schema(shapes.NotificationShape),
    )
    def get(self, request: Request) -> Response:
        """List your notices, newest first."""
        rows = policy.visible_notifications(self.actor).select_related("workload").order_by("-at", "-pk")
        return self.list_response(rows, shapes.NotificationShape, self.validated_query(PageQuery))


class MarkNotificationsReadView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="notifications_read", request=shapes.ReadWish, responses=shapes.ReadAnswer)
    def post(self, request: Request) -> Response:
        """Mark notices as read."""
        return self.object_response(
            {
                "read": accounts.read_notifications(
                    **self.service_context, **self.validated_body(shapes.ReadWish)
                )
            },
            shapes.ReadAnswer,
        )


class AuditIntegrityView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="audit_integrity", responses=shapes.AuditIntegrityShape)
    def get(self, request: Request) -> Response:
        """Return the seals of audit records, the findings of the last check, and the lag of the stream."""
        policy.require(self.actor, "audit.see_all")
        state = audit_integrity(self.now, has_receiver=bool(settings.GPUPOOL_AUDIT_STREAM))
        values = asdict(state)
        sentences = [audit_texts.finding_sentence(finding) for finding in values["findings"]]
        sentences += audit_texts.integrity_sentences(values, self.now)
        return self.object_response({**values, "sentences": sentences}, shapes.AuditIntegrityShape)


class AuditEventListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="audit_list", parameters=[shapes.AuditQuery], responses=page_schema(shapes.AuditShape)
    )
    def get(self, request: Request) -> Response:
        """List the audit records that you may see, newest first."""
        query = self.validated_query(shapes.AuditQuery)
        rows = policy.visible_audit(self.actor).select_related("team")
        if query.get("verb"):
            rows = rows.filter(verb=verb_code(query["verb"]))
        if query.get("target"):
            rows = rows.filter(target=query["target"])
        return self.list_response(rows.order_by("-at", "-pk"), shapes.AuditShape, query)
