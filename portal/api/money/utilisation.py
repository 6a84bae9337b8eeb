"""Define the endpoint that returns each answer of the utilisation page as JSON."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.base.fields import JsonObject, ResponseSerializer
from portal.api.base.serializers import StrictSerializer
from portal.api.base.views import ApiView
from portal.errors import ObjectNotFound
from portal.input_checks import InputChecks
from portal.models import Organisation, TokenScope
from portal.reads.utilisation.answers import ANSWERS
from portal.reads.utilisation.drill_answers import LEVEL_ANSWERS, checked_levels
from portal.reads.utilisation.parameters import PARAMETERS, read_scope
from portal.reads.utilisation.query import UtilisationScope
from telemetry.money.pricing.billing_currencies import currency_of_month

ANSWER_NAMES = (*ANSWERS, *LEVEL_ANSWERS)


class UtilisationAnswerQuery(StrictSerializer):
    """The parameters of the utilisation page. ``start`` and ``end`` replace ``period``."""

    period = serializers.CharField(max_length=20, required=False, help_text="such as 24h, 7d or month")
    start = serializers.DateTimeField(required=False, help_text="together with end")
    end = serializers.DateTimeField(required=False, help_text="at most 400 days after the start")
    compare = serializers.CharField(
        max_length=20, required=False, help_text="compared period: before, 4w, 52w or off"
    )
    pool = serializers.CharField(max_length=60, required=False)
    team = serializers.CharField(max_length=60, required=False)
    model = serializers.CharField(max_length=60, required=False)
    project = serializers.CharField(max_length=170, required=False, help_text="as team/project")
    person = serializers.CharField(max_length=150, required=False)
    type = serializers.CharField(max_length=20, required=False, help_text="type of workload")
    by = serializers.CharField(max_length=20, required=False, help_text="group of the answer use-by")
    unit = serializers.CharField(max_length=20, required=False, help_text="order of the answer waste")
    waste = serializers.CharField(max_length=20, required=False, help_text="rows of the answer waste")
    step = serializers.CharField(max_length=20, required=False, help_text="step of the answer waste")
    shown = serializers.CharField(
        max_length=20, required=False, help_text="all: each row of the answer waste has its trend"
    )
    host = serializers.CharField(
        max_length=63, required=False, help_text="host-gpus, gpu-hours, gpu-runs and run-samples"
    )
    gpu = serializers.CharField(max_length=5, required=False, help_text="gpu-hours, gpu-runs and run-samples")
    run = serializers.CharField(max_length=40, required=False, help_text="id of a workload; run-samples")
    size = serializers.CharField(max_length=5, required=False, help_text="number of GPUs; wait-requests")


class UtilisationAnswer(ResponseSerializer):
    answer = serializers.ChoiceField(choices=ANSWER_NAMES)
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    zone = serializers.CharField(help_text="time zone of days and hours")
    currency = serializers.CharField()
    columns = serializers.ListField(child=serializers.CharField())
    rows = serializers.ListField(child=serializers.DictField(), help_text="a value for each column")


class UtilisationAnswerView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="utilisation_read",
        parameters=[UtilisationAnswerQuery],
        responses=UtilisationAnswer,
    )
    def get(self, request: Request, answer: str) -> Response:
        """Return one answer of the utilisation page, such as waterfall, waste, waits or fleet."""
        if answer not in ANSWER_NAMES:
            raise ObjectNotFound("answer", answer, ", ".join(ANSWER_NAMES))
        query = self.validated_query(UtilisationAnswerQuery)
        levels = checked_levels(answer, query)
        organisation = Organisation.objects.first()
        scope = read_scope(
            UtilisationScope,
            _page_parameters(query),
            self.actor,
            self.now,
            organisation_zone=organisation.time_zone if organisation else "",
            currency=currency_of_month(timezone.localdate(self.now).replace(day=1)),
        )
        if answer in LEVEL_ANSWERS:
            columns, rows = LEVEL_ANSWERS[answer].columns, LEVEL_ANSWERS[answer].rows(scope, levels)
        else:
            columns, rows = ANSWERS[answer].columns, ANSWERS[answer].rows(scope)
        found: dict[str, Any] = {
            "answer": answer,
            "start": scope.filters.start,
            "end": scope.filters.end,
            "zone": str(scope.period.zone),
            "currency": scope.currency,
            "columns": columns,
            "rows": [dict(zip(columns, row, strict=True)) for row in rows],
        }
        return self.object_response(found, UtilisationAnswer)


def _page_parameters(query: JsonObject) -> dict[str, str]:
    """Return the parameters as the page takes them: times in UTC, without a zone."""
    checks = InputChecks()
    given = {name: value for name, value in query.items() if name in PARAMETERS}
    for name in ("start", "end"):
        if name in given:
            at = checks.aware_datetime(name, given[name])
            given[name] = at.astimezone(UTC).replace(tzinfo=None).isoformat()
    checks.done()
    return given
