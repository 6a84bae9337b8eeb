"""Implement the endpoints of the forecast of demand, and of the studies of the number of GPUs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.fields import CurrencyAmount, ResponseSerializer, slug_field
from portal.api.base.lookups import visible_pool
from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery, StrictSerializer
from portal.api.base.views import ApiView
from portal.errors import Invalid, ObjectNotFound
from portal.input_checks import display_value
from portal.models import Organisation, TokenScope
from portal.reads.fleet import capacity_studies as reads
from portal.reads.fleet.demand_forecast import demand_outlook
from portal.reads.fleet.utilisation import visible_gpu_models
from portal.reads.utilisation.period import zone_of_organisation
from portal.services.fleet import capacity_studies as verbs
from portal.wording.pages.money import money_pages
from telemetry.models import CapacityStudy


class DemandQuery(StrictSerializer):
    pool = slug_field(required=False, help_text="only this pool")
    model = serializers.CharField(max_length=80, required=False, help_text="only this model of GPUs")


class ForecastDayShape(ResponseSerializer):
    day = serializers.DateField()
    expected = serializers.FloatField(help_text="GPU-hours")
    low = serializers.FloatField(help_text="10th percentile, GPU-hours")
    high = serializers.FloatField(help_text="90th percentile, GPU-hours")


class BacktestShape(ResponseSerializer):
    origins = serializers.IntegerField(help_text="past forecasts of four weeks that were compared")
    days = serializers.IntegerField()
    mase = serializers.FloatField(
        allow_null=True, help_text="error as a multiple of that of the same day a week before"
    )
    error_share = serializers.FloatField(allow_null=True, help_text="mean error as part of the mean demand")


class PoolDemandShape(ResponseSerializer):
    """The demand of one model in one pool: held GPU-hours and those that requests waited for."""

    pool = serializers.CharField(source="pool.slug")
    model = serializers.CharField()
    gpus = serializers.IntegerField(help_text="GPUs at present")
    known_days = serializers.IntegerField(source="forecast.known_days")
    backtest = BacktestShape(source="forecast.backtest")
    days = ForecastDayShape(many=True, source="forecast.days", help_text="empty: too few days are known")


class DemandForecastAnswer(ResponseSerializer):
    first = serializers.DateField(help_text="the first forecast day")
    zone = serializers.CharField(help_text="time zone of the days")
    parts = PoolDemandShape(many=True)


class DemandForecastView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="demand_forecast", parameters=[DemandQuery], responses=DemandForecastAnswer)
    def get(self, request: Request) -> Response:
        """Return the demand of the next four weeks by pool and model, with its error in past weeks."""
        query = self.validated_query(DemandQuery)
        pools = list(policy.visible_pools(self.actor).order_by("name"))
        if "pool" in query:
            pools = [visible_pool(self.actor, query["pool"])]
        organisation = Organisation.objects.first()
        zone = zone_of_organisation(organisation.time_zone if organisation else "")
        models = [query["model"]] if "model" in query else []
        visible = visible_gpu_models(self.actor)
        if unknown := next((model for model in models if model not in visible), None):
            text = money_pages.FILTER_UNKNOWN.format(
                field="model",
                given=display_value(unknown),
                allowed=", ".join(visible) or money_pages.NOTHING_ALLOWED,
            )
            raise Invalid({"model": text}, {"model": unknown})
        outlook = demand_outlook(pools, models, self.now, zone)
        answer: dict[str, Any] = {"first": outlook.first, "zone": str(zone), "parts": outlook.parts}
        return self.object_response(answer, DemandForecastAnswer)


class CapacityStudyWish(StrictSerializer):
    pool = slug_field(help_text="the pool whose last 13 weeks are replayed")
    model = serializers.CharField(
        max_length=80, required=False, allow_blank=True, default="", help_text="empty: each model"
    )
    wait_limit_seconds = serializers.IntegerField(help_text="p95 wait that the pool should keep")
    why = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class CapacityStudyRowShape(ResponseSerializer):
    id = serializers.UUIDField(source="public_id")
    pool = serializers.CharField(source="pool.slug")
    model = serializers.CharField(help_text="empty: each model")
    wait_limit_seconds = serializers.IntegerField()
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    state = serializers.ChoiceField(choices=CapacityStudy.StudyState.values)
    progress = serializers.FloatField(help_text="0 to 1")
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)


class StudySizeShape(ResponseSerializer):
    change = serializers.IntegerField(help_text="per cent of the GPUs at present")
    gpus = serializers.IntegerField()
    requests = serializers.IntegerField(help_text="compared requests that may run on the model")
    p50_seconds = serializers.FloatField(allow_null=True)
    p95_seconds = serializers.FloatField(allow_null=True)
    not_started = serializers.IntegerField(help_text="requests that still waited at the end")
    idle = serializers.FloatField(help_text="part of the time of these GPUs in which nobody held them")
    cost_per_month = CurrencyAmount(allow_null=True, help_text="null: no rate")
    extra_cost_per_month = CurrencyAmount(allow_null=True, help_text="against the GPUs at present")
    keeps_limit = serializers.BooleanField()


class ModelStudyShape(ResponseSerializer):
    model = serializers.CharField()
    sizes = StudySizeShape(many=True)
    recommended = StudySizeShape(allow_null=True, help_text="the smallest size that keeps the limit")
    recorded_p50_seconds = serializers.FloatField(allow_null=True, help_text="recorded, not replayed")
    recorded_p95_seconds = serializers.FloatField(allow_null=True, help_text="recorded, not replayed")
    wait_error = serializers.FloatField(
        allow_null=True,
        help_text=(
            "difference of the replayed and the recorded p95 wait, as part of the latter; null: no waits, or "
            "the number of GPUs changed"
        ),
    )


class CapacityStudyShape(ResponseSerializer):
    study = CapacityStudyRowShape()
    currency = serializers.CharField()
    models = ModelStudyShape(many=True, help_text="the results so far")
    notes = serializers.ListField(
        child=serializers.CharField(), help_text="assumptions and omissions of the replay"
    )


class CapacityStudyListView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(
        operation_id="capacity_studies_list",
        parameters=[PageQuery],
        responses=page_schema(CapacityStudyRowShape),
    )
    def get(self, request: Request) -> Response:
        """List the studies of the number of GPUs, the newest first. For operators, finance and auditors."""
        policy.require(self.actor, "capacity.see")
        return self.list_response(
            reads.capacity_studies(), CapacityStudyRowShape, self.validated_query(PageQuery)
        )

    @extend_schema(
        operation_id="capacity_studies_request",
        request=CapacityStudyWish,
        responses={202: CapacityStudyRowShape},
    )
    def post(self, request: Request) -> Response:
        """Replay the last 13 weeks of a pool with other numbers of GPUs, in the background. For operators.

        The numbers are -20 % to +40 % of the present ones. 409 if the same study has not ended yet.
        """
        wish = self.validated_body(CapacityStudyWish)
        policy.require(self.actor, "capacity.study")
        pool = visible_pool(self.actor, wish.pop("pool"))
        study = verbs.request_capacity_study(**self.service_context, pool=pool, **wish)
        return self.object_response(study, CapacityStudyRowShape, 202)


class CapacityStudyView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="capacity_studies_read", responses=CapacityStudyShape)
    def get(self, request: Request, id: UUID) -> Response:
        """Return the results of a study so far. For operators, finance and auditors."""
        policy.require(self.actor, "capacity.see")
        details = reads.capacity_study(id)
        if details is None:
            raise ObjectNotFound("id", str(id), "the id of a study")
        return self.object_response(details, CapacityStudyShape)
