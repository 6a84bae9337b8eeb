"""Implement the endpoints of submissions, approvals and quotas."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.schema import page_schema
from portal.api.base.serializers import EmptyBody
from portal.api.base.views import ApiView
from portal.api.calendar import approval_serializers
from portal.api.calendar import serializers as shapes
from portal.models import Submission, TokenScope
from portal.services.approvals import budget_requests, decisions, effects, submissions


def _visible_submissions(view: ApiView) -> QuerySet[Submission]:
    related = ("team", "pool", "author", "reservation", "approval__decided_by")
    return policy.visible_submissions(view.actor).select_related(*related)


class SubmissionListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="approvals_list",
        parameters=[approval_serializers.SubmissionQuery],
        responses=page_schema(shapes.SubmissionShape),
    )
    def get(self, request: Request) -> Response:
        """List the submissions that you may see, newest first."""
        query = self.validated_query(approval_serializers.SubmissionQuery)
        rows = _visible_submissions(self).filter(
            **{name: query[name] for name in ("state", "kind") if query.get(name)}
        )
        return self.list_response(rows.order_by("-created_at", "-pk"), shapes.SubmissionShape, query)


class SubmissionDetailView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="approvals_read", responses=shapes.SubmissionShape)
    def get(self, request: Request, id: UUID) -> Response:
        """Return one submission and, once it is decided, the decision."""
        return self.object_response(
            get_visible_or_404(_visible_submissions(self), public_id=id), shapes.SubmissionShape
        )


class ApprovalEffectView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="approvals_effect", responses=approval_serializers.EffectShape)
    def get(self, request: Request, id: UUID) -> Response:
        """Return how the approval of a submission would affect other work. For operators and auditors."""
        policy.require(self.actor, "approval.see")
        submission = get_visible_or_404(_visible_submissions(self), public_id=id)
        return self.object_response(
            effects.visible_effect(self.actor, submission, self.now), approval_serializers.EffectShape
        )


class ApproveSubmissionView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="approvals_approve",
        request=approval_serializers.ApproveWish,
        responses=shapes.SubmissionShape,
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Approve a submission, with or without changes. It is checked again and then carried out."""
        submission = get_visible_or_404(_visible_submissions(self), public_id=id)
        given = self.validated_body(approval_serializers.ApproveWish)
        decisions.approve_submission(**self.service_context, submission=submission, **given)
        return self.object_response(
            get_visible_or_404(_visible_submissions(self), public_id=id), shapes.SubmissionShape
        )


class DeclineSubmissionView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="approvals_decline",
        request=approval_serializers.DeclineWish,
        responses=shapes.SubmissionShape,
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Decline a submission, with a reason."""
        submission = get_visible_or_404(_visible_submissions(self), public_id=id)
        given = self.validated_body(approval_serializers.DeclineWish)
        decisions.decline_submission(**self.service_context, submission=submission, **given)
        return self.object_response(
            get_visible_or_404(_visible_submissions(self), public_id=id), shapes.SubmissionShape
        )


class WithdrawSubmissionView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="approvals_withdraw", request=EmptyBody, responses=shapes.SubmissionShape)
    def post(self, request: Request, id: UUID) -> Response:
        """Withdraw your own submission."""
        submission = get_visible_or_404(_visible_submissions(self), public_id=id)
        self.validated_body(EmptyBody)
        return self.object_response(
            decisions.withdraw_submission(**self.service_context, submission=submission),
            shapes.SubmissionShape,
        )


class QuotaListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="quotas_list",
        parameters=[approval_serializers.QuotaQuery],
        responses=page_schema(approval_serializers.QuotaShape),
    )
    def get(self, request: Request) -> Response:
        """List the guarantees of the teams that you may see."""
        query = self.validated_query(approval_serializers.QuotaQuery)
        rows = policy.visible_quotas(self.actor).select_related("team", "pool")
        for name in ("team", "pool"):
            if query.get(name):
                rows = rows.filter(**{f"{name}__slug": query[name]})
        return self.list_response(
            rows.order_by("pool__slug", "team__slug", "model"), approval_serializers.QuotaShape, query
        )


class BudgetRequestView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="budgets_request",
        request=approval_serializers.BudgetRequestWish,
        responses={202: shapes.SubmissionShape},
    )
    def post(self, request: Request) -> Response:
        """Request a new budget for a team, for one of its projects or for a cost centre. Finance decides."""
        given: dict[str, Any] = self.validated_body(approval_serializers.BudgetRequestWish)
        given["team"] = lookups.visible_team(self.actor, given["team"])
        if given.get("project"):
            given["project"] = lookups.visible_project(self.actor, given["project"])
        return self.object_response(
            budget_requests.request_budget(**self.service_context, **given), shapes.SubmissionShape, 202
        )


class QuotaRequestView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="quotas_request",
        request=approval_serializers.QuotaWish,
        responses={202: shapes.SubmissionShape},
    )
    def post(self, request: Request) -> Response:
        """Request a new guarantee for a team. An operator decides."""
        given: dict[str, Any] = self.validated_body(approval_serializers.QuotaWish)
        given |= {
            "team": lookups.visible_team(self.actor, given["team"]),
            "pool": lookups.visible_pool(self.actor, given["pool"]),
        }
        return self.object_response(
            submissions.request_quota_change(**self.service_context, **given), shapes.SubmissionShape, 202
        )
