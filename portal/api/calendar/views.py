"""Implement the endpoints of reservations and series."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Case, F, QuerySet, When
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery, WhyBody
from portal.api.base.views import ApiView
from portal.api.calendar import serializers as shapes
from portal.models import TokenScope
from portal.services.calendar import recurring_reservations, reservation_preview, reservations
from portal.wording import reason_texts
from scheduler.models import Reservation, Series
from scheduler.state.states import OPEN_RESERVATION_STATES


def _visible_reservations(view: ApiView) -> QuerySet[Reservation]:
    return policy.visible_reservations(view.actor).select_related("pool", "project__team", "owner", "series")


def _visible_series(view: ApiView) -> QuerySet[Series]:
    return policy.visible_series(view.actor).select_related("pool", "project__team", "owner")


class ReservationListView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="reservations_list",
        parameters=[shapes.ReservationQuery],
        responses=page_schema(shapes.ReservationShape),
    )
    def get(self, request: Request) -> Response:
        """List the reservations that you may see, by start. Reservations that are over come last."""
        query = self.validated_query(shapes.ReservationQuery)
        rows = _visible_reservations(self)
        if query.get("state") == "open":
            rows = rows.filter(state__in=OPEN_RESERVATION_STATES)
        elif query.get("state"):
            rows = rows.filter(state=query["state"])
        if query.get("pool"):
            rows = rows.filter(pool__slug=query["pool"])
        if query.get("mine"):
            rows = rows.filter(owner=self.actor)
        over = Case(When(state__in=OPEN_RESERVATION_STATES, end__gt=self.now, then=False), default=True)
        ahead = Case(When(state__in=OPEN_RESERVATION_STATES, end__gt=self.now, then=F("start")))
        rows = rows.order_by(over, ahead.asc(), "-start", "-pk")
        return self.list_response(rows, shapes.ReservationShape, query)

    @extend_schema(
        operation_id="reservations_request",
        request=shapes.ReservationWish,
        responses={201: shapes.ReservationAnswer, 202: shapes.ReservationAnswer},
    )
    def post(self, request: Request) -> Response:
        """Reserve GPUs: 201 if confirmed, 202 if the reservation needs approval."""
        given = lookups.workload_arguments(self.actor, self.validated_body(shapes.ReservationWish))
        made = reservations.request_reservation(**self.service_context, **given)
        if isinstance(made, Reservation):
            return self.object_response(
                {"reservation": made, "submission": None}, shapes.ReservationAnswer, 201
            )
        return self.object_response({"reservation": None, "submission": made}, shapes.ReservationAnswer, 202)


class ReservationPreviewView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="reservations_preview", request=shapes.WindowWish, responses=shapes.ReservationPreview
    )
    def post(self, request: Request) -> Response:
        """Check a window, and list the first windows that fit. Changes nothing."""
        given = lookups.workload_arguments(self.actor, self.validated_body(shapes.WindowWish))
        answer = reservation_preview.preview_reservation(**self.service_context, **given)
        answer["sentence"] = reason_texts.reason_sentence(answer["code"], answer["numbers"], self.actor)
        return self.object_response(answer, shapes.ReservationPreview)


class ReservationDetailView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="reservations_read", responses=shapes.ReservationShape)
    def get(self, request: Request, id: UUID) -> Response:
        """Return one reservation."""
        return self.object_response(
            get_visible_or_404(_visible_reservations(self), public_id=id), shapes.ReservationShape
        )


class CancelReservationView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="reservations_cancel", request=WhyBody, responses=shapes.ReservationShape)
    def post(self, request: Request, id: UUID) -> Response:
        """Cancel a reservation; workloads inside it are evicted."""
        reservation = get_visible_or_404(_visible_reservations(self), public_id=id)
        given = self.validated_body(WhyBody)
        return self.object_response(
            reservations.cancel_reservation(**self.service_context, reservation=reservation, **given),
            shapes.ReservationShape,
        )


class ShortenReservationView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="reservations_shorten", request=shapes.EndWish, responses=shapes.ReservationShape
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Set an earlier end of a reservation."""
        reservation = get_visible_or_404(_visible_reservations(self), public_id=id)
        given = self.validated_body(shapes.EndWish)
        return self.object_response(
            reservations.shorten_reservation(**self.service_context, reservation=reservation, **given),
            shapes.ReservationShape,
        )


class ChangeReservationView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="reservations_change",
        request=shapes.ChangeWish,
        responses={200: shapes.ReservationAnswer, 202: shapes.ReservationAnswer},
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Move, shorten or extend a reservation: 200 if done, 202 if the change needs approval."""
        reservation = get_visible_or_404(_visible_reservations(self), public_id=id)
        made = reservations.change_reservation(
            **self.service_context, reservation=reservation, **self.validated_body(shapes.ChangeWish)
        )
        if isinstance(made, Reservation):
            return self.object_response({"reservation": made, "submission": None}, shapes.ReservationAnswer)
        return self.object_response({"reservation": None, "submission": made}, shapes.ReservationAnswer, 202)


class SeriesListView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(
        operation_id="series_list", parameters=[PageQuery], responses=page_schema(shapes.SeriesShape)
    )
    def get(self, request: Request) -> Response:
        """List the recurring reservations that you may see, newest first, with their occurrences."""
        query = self.validated_query(PageQuery)
        return self.list_response(
            _visible_series(self).order_by("-created_at", "-pk"), shapes.SeriesShape, query
        )

    @extend_schema(
        operation_id="series_request",
        request=shapes.SeriesWish,
        responses={201: shapes.SeriesAnswer, 202: shapes.SeriesAnswer},
    )
    def post(self, request: Request) -> Response:
        """Reserve equal hours on several days, all or none: 201 if confirmed, 202 if approval is needed."""
        given = lookups.workload_arguments(self.actor, self.validated_body(shapes.SeriesWish))
        made = recurring_reservations.request_series(**self.service_context, **given)
        if isinstance(made, Series):
            return self.object_response({"series": made, "submission": None}, shapes.SeriesAnswer, 201)
        return self.object_response({"series": None, "submission": made}, shapes.SeriesAnswer, 202)


class SeriesPreviewView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="series_preview", request=shapes.SeriesTry, responses=shapes.SeriesPreview)
    def post(self, request: Request) -> Response:
        """Check every occurrence, and name the first occurrence that does not fit. Changes nothing."""
        given = lookups.workload_arguments(self.actor, self.validated_body(shapes.SeriesTry))
        return self.object_response(
            recurring_reservations.preview_series(**self.service_context, **given), shapes.SeriesPreview
        )


class SeriesDetailView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="series_read", responses=shapes.SeriesShape)
    def get(self, request: Request, id: UUID) -> Response:
        """Return one recurring reservation with its occurrences."""
        return self.object_response(
            get_visible_or_404(_visible_series(self), public_id=id), shapes.SeriesShape
        )


class CancelSeriesView(ApiView):
    scope = TokenScope.SUBMIT

    @extend_schema(operation_id="series_cancel", request=WhyBody, responses=shapes.GivenUp)
    def post(self, request: Request, id: UUID) -> Response:
        """Cancel every occurrence that is not over, and evict the workloads inside."""
        row = get_visible_or_404(_visible_series(self), public_id=id)
        given_up = recurring_reservations.cancel_series(
            **self.service_context, series=row, **self.validated_body(WhyBody)
        )
        return self.object_response({"given_up": given_up}, shapes.GivenUp)
