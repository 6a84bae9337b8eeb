"""Define the serializers of reservations and series."""

from __future__ import annotations

from typing import Any, cast

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.api.base.fields import (
    CurrencyAmount,
    RecordField,
    ResponseSerializer,
    numbers_field,
    public_numbers,
    slug_field,
)
from portal.api.base.serializers import PageQuery, StrictSerializer
from portal.api.work.request_serializers import HardwareShape, RequestSerializer
from portal.models import Submission, SubmissionState
from portal.reads.calendar.approvals import decided_summary
from portal.services.approvals.payloads import expiry_of
from portal.services.calendar.recurring_reservations import WEEKDAYS, clock_changes_of
from portal.wording import reason_texts
from scheduler.models import Project, Reservation, Series
from scheduler.state.states import ReservationState


class ReservationShape(HardwareShape):
    id = serializers.UUIDField(source="public_id")
    name = serializers.CharField()
    pool = serializers.CharField(source="pool.slug")
    project = serializers.SerializerMethodField()
    owner = serializers.CharField(source="owner.username")
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    state = serializers.ChoiceField(choices=[s.value for s in ReservationState])
    series = serializers.UUIDField(
        source="series.public_id",
        allow_null=True,
        default=None,
        help_text="the series of which it is an occurrence",
    )
    reason_code = serializers.CharField(help_text="why it has started without GPUs; otherwise empty")
    reason = serializers.SerializerMethodField(help_text="the reason as a sentence")
    at_risk_since = serializers.DateTimeField(
        allow_null=True, help_text="since when no GPUs can serve it until its end; null: some can"
    )
    at_risk = serializers.SerializerMethodField(help_text="why no GPUs can serve it, as a sentence; or empty")
    created_at = serializers.DateTimeField()

    def get_project(self, reservation: Reservation) -> str:
        """Return the path of the project: ``team/project``."""
        return f"{reservation.project.team.slug}/{reservation.project.slug}"

    def get_reason(self, reservation: Reservation) -> str:
        """Return the reason as a sentence. The text is empty if there is no reason."""
        return (
            reason_texts.reason_sentence(reservation.reason_code, reservation.reason_numbers)
            if reservation.reason_code
            else ""
        )

    def get_at_risk(self, reservation: Reservation) -> str:
        """Return a sentence that explains why the reservation is at risk.

        The text is empty if the reservation is not at risk.
        """
        numbers = reservation.at_risk_numbers
        return reason_texts.reason_sentence("reservation_at_risk", numbers) if numbers else ""


class ReservationQuery(PageQuery):
    state = serializers.ChoiceField(choices=[*(s.value for s in ReservationState), "open"], required=False)
    pool = slug_field(required=False)
    mine = serializers.BooleanField(required=False, default=False)


class ReservationWish(RequestSerializer):
    kind = "reservation"
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    may_exceed_guarantee = serializers.BooleanField(
        required=False, help_text="request the guarantees of other teams; an operator decides"
    )
    why = serializers.CharField(max_length=1000, required=False, allow_blank=True)


class WindowWish(RequestSerializer):
    kind = "reservation"
    without = ("name",)
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    may_exceed_guarantee = serializers.BooleanField(required=False)


class WindowShape(ResponseSerializer):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()


class ReservationPreview(ResponseSerializer):
    fits = serializers.BooleanField()
    code = serializers.CharField()
    numbers = numbers_field()
    sentence = serializers.CharField()
    windows = serializers.SerializerMethodField(help_text="the first that fit")
    needs_approval = serializers.BooleanField()
    gpus = serializers.FloatField()
    price_per_hour = CurrencyAmount(allow_null=True)
    price = CurrencyAmount(allow_null=True)
    currency = serializers.CharField()
    warnings = serializers.ListField(child=serializers.CharField())

    @extend_schema_field(WindowShape(many=True))
    def get_windows(self, answer: Any) -> Any:
        """Return the alternative windows as objects with ``start`` and ``end``."""
        return WindowShape([{"start": start, "end": end} for start, end in answer["windows"]], many=True).data


class EndWish(StrictSerializer):
    end = serializers.DateTimeField()


class ChangeWish(StrictSerializer):
    """The new window of a reservation.

    If only ``start`` is given, the length stays the same. If only ``end`` is given, ``start`` stays the same.
    """

    start = serializers.DateTimeField(required=False)
    end = serializers.DateTimeField(required=False)
    why = serializers.CharField(max_length=1000, required=False, allow_blank=True)


class _RecurrenceFields(StrictSerializer):
    weekdays = serializers.ListField(child=serializers.ChoiceField(choices=list(WEEKDAYS)), max_length=7)
    until = serializers.DateField(help_text="the last day on which an occurrence may start")
    time_zone = serializers.CharField(
        max_length=60, required=False, help_text="time zone of the hours of start and end; default: UTC"
    )


class SeriesWish(ReservationWish, _RecurrenceFields):
    """A recurring reservation. ``start`` and ``end`` belong to its first occurrence."""


class SeriesTry(WindowWish, _RecurrenceFields):
    """A recurring reservation to preview; it needs no name."""


class SeriesShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    name = serializers.CharField()
    pool = serializers.CharField(source="pool.slug")
    project = serializers.SerializerMethodField()
    owner = serializers.CharField(source="owner.username")
    weekdays = serializers.SerializerMethodField()
    starts_at = serializers.SerializerMethodField(help_text="HH:MM in its time zone")
    ends_at = serializers.SerializerMethodField(
        help_text="HH:MM; on the next day if not later than starts_at"
    )
    time_zone = serializers.CharField()
    first_day = serializers.DateField()
    last_day = serializers.DateField()
    clock_changes = serializers.SerializerMethodField(
        help_text="changed hours at daylight-saving changes of its time zone"
    )
    occurrences = serializers.SerializerMethodField()

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_clock_changes(self, series: Series) -> list[str]:
        """Return a sentence for each occurrence that differs because the clocks change on its day.

        The sentences are in order of time.
        """
        return clock_changes_of(series)

    def get_project(self, series: Series) -> str:
        """Return the path of the project: ``team/project``."""
        return f"{series.project.team.slug}/{series.project.slug}"

    def get_starts_at(self, series: Series) -> str:
        """Return the time of day at which each occurrence starts, as HH:MM."""
        return f"{series.starts_at:%H:%M}"

    def get_ends_at(self, series: Series) -> str:
        """Return the time of day at which each occurrence ends, as HH:MM."""
        return f"{series.ends_at:%H:%M}"

    @extend_schema_field(serializers.ListField(child=serializers.ChoiceField(choices=list(WEEKDAYS))))
    def get_weekdays(self, series: Series) -> list[str]:
        """Return the short names of the weekdays, such as ``mon``."""
        return [WEEKDAYS[day] for day in series.weekdays]

    @extend_schema_field(ReservationShape(many=True))
    def get_occurrences(self, series: Series) -> Any:
        """Return the reservations of the series, ordered by start."""
        rows = series.occurrences.select_related("pool", "project__team", "owner", "series").order_by(
            "start", "pk"
        )
        return ReservationShape(rows, many=True).data


class SeriesPreview(ResponseSerializer):
    occurrences = serializers.IntegerField()
    fits = serializers.BooleanField(help_text="True if all occurrences fit")
    sentence = serializers.CharField(help_text="the first occurrence that does not fit, and why")
    clock_changes = serializers.ListField(
        child=serializers.CharField(), help_text="changed hours at daylight-saving changes"
    )
    windows = serializers.SerializerMethodField(help_text="the first windows that would fit instead")
    needs_approval = serializers.BooleanField()
    gpus = serializers.FloatField(help_text="GPUs of each occurrence")
    price_per_hour = CurrencyAmount(allow_null=True)
    price = CurrencyAmount(allow_null=True, help_text="price of all occurrences")
    currency = serializers.CharField()

    @extend_schema_field(WindowShape(many=True))
    def get_windows(self, answer: Any) -> Any:
        """Return the alternative windows as objects with ``start`` and ``end``."""
        return WindowShape([{"start": start, "end": end} for start, end in answer["windows"]], many=True).data


class GivenUp(ResponseSerializer):
    given_up = serializers.IntegerField(help_text="number of cancelled occurrences")


class SubmissionShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    kind = serializers.ChoiceField(choices=Submission.Kind.choices)
    team = serializers.CharField(source="team.slug")
    pool = serializers.CharField(source="pool.slug", allow_null=True, default=None)
    author = serializers.CharField(source="author.username")
    what = serializers.SerializerMethodField()
    why = serializers.CharField()
    payload = serializers.SerializerMethodField()
    state = serializers.ChoiceField(choices=SubmissionState.choices)
    created_at = serializers.DateTimeField()
    reservation = serializers.UUIDField(source="reservation.public_id", allow_null=True, default=None)
    expires_at = serializers.SerializerMethodField(
        help_text="when it expires without a decision; null: never"
    )
    decision = serializers.SerializerMethodField()

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_expires_at(self, row: Submission) -> str | None:
        """Return the time at which the undecided submission expires; None if it never expires."""
        expires_at = expiry_of(row)
        return None if expires_at is None else expires_at.isoformat()

    @extend_schema_field(RecordField(child=serializers.JSONField(allow_null=True)))
    def get_payload(self, row: Submission) -> dict[str, Any]:
        """Return the submitted values. The project is given by its path, ``team/project``."""
        context = cast(dict[str, Any], self.context)  # each response has its own dict, so rows can be cached
        if "projects" not in context:
            found = Project.objects.values_list("pk", "team__slug", "slug")
            context["projects"] = {pk: f"{team}/{slug}" for pk, team, slug in found}
        project = context["projects"].get(row.payload.get("project"))
        return public_numbers(row.payload) | ({"project": project} if project else {})

    def get_what(self, row: Submission) -> str:
        """Return a short description of what was approved; without an approval, of the request."""
        return decided_summary(row)

    @extend_schema_field(
        {
            "type": "object",
            "nullable": True,
            "properties": {
                "by": {"type": "string"},
                "approved": {"type": "boolean"},
                "comment": {"type": "string"},
                "at": {"type": "string", "format": "date-time"},
            },
            "required": ["by", "approved", "comment", "at"],
        }
    )
    def get_decision(self, row: Submission) -> dict[str, Any] | None:
        """Return the decision with its author, comment and time. Return None before the decision."""
        approval = getattr(row, "approval", None)
        if approval is None:
            return None
        return {
            "by": approval.decided_by.username,
            "approved": approval.approved,
            "comment": approval.comment,
            "at": approval.decided_at.isoformat(),
        }


class ReservationAnswer(ResponseSerializer):
    """The result of a request: a reservation, or a submission that waits for approval.

    The field without a value is null.
    """

    reservation = ReservationShape(allow_null=True)
    submission = SubmissionShape(allow_null=True)


class SeriesAnswer(ResponseSerializer):
    """The result of a request: a series, or a submission that waits for approval.

    The field without a value is null.
    """

    series = SeriesShape(allow_null=True)
    submission = SubmissionShape(allow_null=True)
