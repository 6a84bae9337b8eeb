"""Endpoints of reservations, approvals and quotas."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Case, F, QuerySet, When
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.pagination import page_schema
from portal.api.base.views import ApiView, EmptyBody, PageQuery, Why, get_visible_or_404
from portal.api.calendar import serializers as shapes
from portal.models import Submission
from portal.services.approvals import decisions, effects, submissions
from portal.services.calendar import recurring_reservations, reservation_preview, reservations
from portal.wording import reason_texts
from scheduler.models import Reservation, Series
from scheduler.state.states import OPEN_RESERVATION_STATES


def _visible_reservations(view: ApiView) -> QuerySet[Reservation]:
    return policy.visible_reservations(view.actor).select_related("pool", "project__team", "owner", "series")


def _visible_series(view: ApiView) -> QuerySet[Series]:
    return policy.visible_series(view.actor).select_related("pool", "project__team", "owner")


def _visible_submissions(view: ApiView) -> QuerySet[Submission]:
    related = ("team", "pool", "author", "reservation", "approval__decided_by")
    return policy.visible_submissions(view.actor).select_related(*related)


class ReservationListView(ApiView):
    @extend_schema(
        operation_id="reservations_list",
        parameters=[shapes.ReservationQuery],
        responses=page_schema(shapes.ReservationShape),
    )
    def get(self, request: Request) -> Response:
        """Reservations that you may see: the next first, then those that are over, the latest of them first."""
        query = self.query(shapes.ReservationQuery)
        rows = _visible_reservations(self)
        if query.get("state") == "open":
            rows = rows.filter(state__in=OPEN_RESERVATION_STATES)
        elif query.get("state"):
            rows = rows.filter(state=query["state"])
        if query.get("pool"):
            rows = rows.filter(pool__slug=query["pool"])
        if query.get("mine"):
            rows = rows.filter(owner=self.actor)
        # The next first; behind them what is over, the latest first.
        over = Case(When(state__in=OPEN_RESERVATION_STATES, end__gt=self.now, then=False), default=True)
        ahead = Case(When(state__in=OPEN_RESERVATION_STATES, end__gt=self.now, then=F("start")))
        rows = rows.order_by(over, ahead.asc(), "-start", "-pk")
        return self.page(rows, shapes.ReservationShape, query)

    @extend_schema(
        operation_id="reservations_request",
        request=shapes.ReservationWish,
        responses={201: shapes.ReservationAnswer, 202: shapes.ReservationAnswer},
    )
    def post(self, request: Request) -> Response:
        """Reserve GPUs: 201 confirmed, or 202 waiting for approval where it is above the pool's threshold."""
        given = lookups.workload_arguments(self.actor, self.given(shapes.ReservationWish))
        made = reservations.request_reservation(**self.by, **given)
        if isinstance(made, Reservation):
            return self.one({"reservation": made, "submission": None}, shapes.ReservationAnswer, 201)
        return self.one({"reservation": None, "submission": made}, shapes.ReservationAnswer, 202)


class ReservationPreviewView(ApiView):
    @extend_schema(
        operation_id="reservations_preview", request=shapes.WindowWish, responses=shapes.ReservationPreview
    )
    def post(self, request: Request) -> Response:
        """Whether a window can be had, and the first ones that can. Changes nothing."""
        given = lookups.workload_arguments(self.actor, self.given(shapes.WindowWish))
        answer = reservation_preview.preview_reservation(**self.by, **given)
        answer["sentence"] = reason_texts.reason_sentence(answer["code"], answer["numbers"], self.actor)
        return self.one(answer, shapes.ReservationPreview)


class ReservationDetailView(ApiView):
    @extend_schema(operation_id="reservations_read", responses=shapes.ReservationShape)
    def get(self, request: Request, id: UUID) -> Response:
        """One reservation."""
        return self.one(
            get_visible_or_404(_visible_reservations(self), public_id=id), shapes.ReservationShape
        )


class CancelReservationView(ApiView):
    @extend_schema(operation_id="reservations_cancel", request=Why, responses=shapes.ReservationShape)
    def post(self, request: Request, id: UUID) -> Response:
        """Give it up; what runs inside it is told to go."""
        reservation = get_visible_or_404(_visible_reservations(self), public_id=id)
        given = self.given(Why)
        return self.one(
            reservations.cancel_reservation(**self.by, reservation=reservation, **given),
            shapes.ReservationShape,
        )


class ShortenReservationView(ApiView):
    @extend_schema(
        operation_id="reservations_shorten", request=shapes.EndWish, responses=shapes.ReservationShape
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Let it end earlier."""
        reservation = get_visible_or_404(_visible_reservations(self), public_id=id)
        given = self.given(shapes.EndWish)
        return self.one(
            reservations.shorten_reservation(**self.by, reservation=reservation, **given),
            shapes.ReservationShape,
        )


class ChangeReservationView(ApiView):
    @extend_schema(
        operation_id="reservations_change",
        request=shapes.ChangeWish,
        responses={200: shapes.ReservationAnswer, 202: shapes.ReservationAnswer},
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Move, shorten or extend it: 200 done, or 202 waiting for approval where a new one like it would."""
        reservation = get_visible_or_404(_visible_reservations(self), public_id=id)
        made = reservations.change_reservation(
            **self.by, reservation=reservation, **self.given(shapes.ChangeWish)
        )
        if isinstance(made, Reservation):
            return self.one({"reservation": made, "submission": None}, shapes.ReservationAnswer)
        return self.one({"reservation": None, "submission": made}, shapes.ReservationAnswer, 202)


class SeriesListView(ApiView):
    @extend_schema(
        operation_id="series_list", parameters=[PageQuery], responses=page_schema(shapes.SeriesShape)
    )
    def get(self, request: Request) -> Response:
        """Recurring reservations that you may see, newest first, with their occurrences."""
        query = self.query(PageQuery)
        return self.page(_visible_series(self).order_by("-created_at", "-pk"), shapes.SeriesShape, query)

    @extend_schema(
        operation_id="series_request",
        request=shapes.SeriesWish,
        responses={201: shapes.SeriesAnswer, 202: shapes.SeriesAnswer},
    )
    def post(self, request: Request) -> Response:
        """Reserve the same hours on several days, all of them or none: 201 confirmed, or 202 waiting for approval."""
        given = lookups.workload_arguments(self.actor, self.given(shapes.SeriesWish))
        made = recurring_reservations.request_series(**self.by, **given)
        if isinstance(made, Series):
            return self.one({"series": made, "submission": None}, shapes.SeriesAnswer, 201)
        return self.one({"series": None, "submission": made}, shapes.SeriesAnswer, 202)


class SeriesPreviewView(ApiView):
    @extend_schema(operation_id="series_preview", request=shapes.SeriesTry, responses=shapes.SeriesPreview)
    def post(self, request: Request) -> Response:
        """Whether every occurrence can be had, and which one can't. Changes nothing."""
        given = lookups.workload_arguments(self.actor, self.given(shapes.SeriesTry))
        return self.one(recurring_reservations.preview_series(**self.by, **given), shapes.SeriesPreview)


class SeriesDetailView(ApiView):
    @extend_schema(operation_id="series_read", responses=shapes.SeriesShape)
    def get(self, request: Request, id: UUID) -> Response:
        """One recurring reservation with its occurrences."""
        return self.one(get_visible_or_404(_visible_series(self), public_id=id), shapes.SeriesShape)


class CancelSeriesView(ApiView):
    @extend_schema(operation_id="series_cancel", request=Why, responses=shapes.GivenUp)
    def post(self, request: Request, id: UUID) -> Response:
        """Give up every occurrence that is not over; what runs inside one is told to go."""
        row = get_visible_or_404(_visible_series(self), public_id=id)
        given_up = recurring_reservations.cancel_series(**self.by, series=row, **self.given(Why))
        return self.one({"given_up": given_up}, shapes.GivenUp)


class SubmissionListView(ApiView):
    @extend_schema(
        operation_id="approvals_list",
        parameters=[shapes.SubmissionQuery],
        responses=page_schema(shapes.SubmissionShape),
    )
    def get(self, request: Request) -> Response:
        """What was submitted for approval, of what you may see, newest first."""
        query = self.query(shapes.SubmissionQuery)
        rows = _visible_submissions(self).filter(
            **{name: query[name] for name in ("state", "kind") if query.get(name)}
        )
        return self.page(rows.order_by("-created_at", "-pk"), shapes.SubmissionShape, query)


class SubmissionDetailView(ApiView):
    @extend_schema(operation_id="approvals_read", responses=shapes.SubmissionShape)
    def get(self, request: Request, id: UUID) -> Response:
        """One submission and, once somebody has decided, the decision."""
        return self.one(get_visible_or_404(_visible_submissions(self), public_id=id), shapes.SubmissionShape)


class ApprovalEffectView(ApiView):
    @extend_schema(operation_id="approvals_effect", responses=shapes.EffectShape)
    def get(self, request: Request, id: UUID) -> Response:
        """What approving it would do to others. For those who decide."""
        policy.require(self.actor, "approval.see")
        submission = get_visible_or_404(_visible_submissions(self), public_id=id)
        return self.one(effects.approval_effect(submission, self.now), shapes.EffectShape)


class ApproveSubmissionView(ApiView):
    @extend_schema(
        operation_id="approvals_approve", request=shapes.ApproveWish, responses=shapes.SubmissionShape
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Approve it, as it is or changed; it is checked again and done."""
        submission = get_visible_or_404(_visible_submissions(self), public_id=id)
        given = self.given(shapes.ApproveWish)
        decisions.approve_submission(**self.by, submission=submission, **given)
        return self.one(get_visible_or_404(_visible_submissions(self), public_id=id), shapes.SubmissionShape)


class DeclineSubmissionView(ApiView):
    @extend_schema(
        operation_id="approvals_decline", request=shapes.DeclineWish, responses=shapes.SubmissionShape
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Decline it, with a reason."""
        submission = get_visible_or_404(_visible_submissions(self), public_id=id)
        given = self.given(shapes.DeclineWish)
        decisions.decline_submission(**self.by, submission=submission, **given)
        return self.one(get_visible_or_404(_visible_submissions(self), public_id=id), shapes.SubmissionShape)


class WithdrawSubmissionView(ApiView):
    @extend_schema(operation_id="approvals_withdraw", request=EmptyBody, responses=shapes.SubmissionShape)
    def post(self, request: Request, id: UUID) -> Response:
        """Take back what you submitted."""
        submission = get_visible_or_404(_visible_submissions(self), public_id=id)
        self.given(EmptyBody)
        return self.one(
            decisions.withdraw_submission(**self.by, submission=submission), shapes.SubmissionShape
        )


class QuotaListView(ApiView):
    @extend_schema(
        operation_id="quotas_list", parameters=[shapes.QuotaQuery], responses=page_schema(shapes.QuotaShape)
    )
    def get(self, request: Request) -> Response:
        """Guarantees of the teams that you may see."""
        query = self.query(shapes.QuotaQuery)
        rows = policy.visible_quotas(self.actor).select_related("team", "pool")
        for name in ("team", "pool"):
            if query.get(name):
                rows = rows.filter(**{f"{name}__slug": query[name]})
        return self.page(rows.order_by("pool__slug", "team__slug", "model"), shapes.QuotaShape, query)


class QuotaRequestView(ApiView):
    @extend_schema(
        operation_id="quotas_request", request=shapes.QuotaWish, responses={202: shapes.SubmissionShape}
    )
    def post(self, request: Request) -> Response:
        """Ask for another guarantee; an operator decides."""
        given: dict[str, Any] = self.given(shapes.QuotaWish)
        given |= {
            "team": lookups.visible_team(self.actor, given["team"]),
            "pool": lookups.visible_pool(self.actor, given["pool"]),
        }
        return self.one(submissions.request_quota_change(**self.by, **given), shapes.SubmissionShape, 202)
