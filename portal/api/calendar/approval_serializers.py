"""Define the serializers of approvals and quotas."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.api.base.fields import ResponseSerializer, count_field, gpus_of_slots, slug_field
from portal.api.base.serializers import PageQuery, StrictSerializer
from portal.api.calendar.serializers import ReservationShape
from portal.api.work.workload_serializers import BlockerShape
from portal.models import Submission, SubmissionState
from portal.services.money.budgets import BUDGET_MEASURES, BUDGET_PERIODS
from scheduler.models import Quota


class SubmissionQuery(PageQuery):
    state = serializers.ChoiceField(choices=SubmissionState.choices, required=False)
    kind = serializers.ChoiceField(choices=Submission.Kind.choices, required=False)


class ChangedValueShape(ResponseSerializer):
    name = serializers.CharField()
    what = serializers.CharField(source="label")
    before = serializers.CharField()
    after = serializers.CharField()


class EffectShape(ResponseSerializer):
    fits = serializers.BooleanField()
    code = serializers.CharField()
    sentence = serializers.CharField()
    capacity_gpus = serializers.FloatField(required=False)
    guaranteed_before_gpus = serializers.FloatField(required=False)
    guaranteed_after_gpus = serializers.FloatField(required=False)
    free_before_gpus = serializers.FloatField(required=False)
    free_after_gpus = serializers.FloatField(required=False)
    team_before_gpus = serializers.FloatField(required=False)
    team_after_gpus = serializers.FloatField(required=False)
    changes = ChangedValueShape(many=True, required=False, help_text="of a quota: what changes, as texts")
    gpus = serializers.FloatField(required=False)
    evicted = BlockerShape(many=True, required=False)
    overlapping = ReservationShape(many=True, required=False)


class ApproveWish(StrictSerializer):
    comment = serializers.CharField(max_length=1000, required=False, allow_blank=True, default="")
    changes = serializers.DictField(
        child=serializers.JSONField(allow_null=True), required=False, help_text="fields of the payload"
    )


class DeclineWish(StrictSerializer):
    comment = serializers.CharField(max_length=1000)


class QuotaShape(ResponseSerializer):
    team = serializers.CharField(source="team.slug")
    pool = serializers.CharField(source="pool.slug")
    model = serializers.CharField()
    guaranteed_gpus = serializers.SerializerMethodField()
    borrow_limit_gpus = serializers.SerializerMethodField(help_text="above the guarantee; null: no limit")
    gpu_hours = serializers.IntegerField(
        allow_null=True, help_text="GPU-hours for which the guarantee holds in a period; null: no limit"
    )
    period = serializers.ChoiceField(choices=Quota.Period.values, source="hours_period")
    when_used_up = serializers.ChoiceField(choices=Quota.WhenUsedUp.choices)
    gpu_hours_used = serializers.FloatField(
        help_text="GPU-hours used in the period, counted every minute; 0 without ``gpu_hours``"
    )
    used_up = serializers.BooleanField(source="hours_used_up")
    updated_at = serializers.DateTimeField()

    def get_guaranteed_gpus(self, quota: Quota) -> float:
        """Return the guarantee in GPUs."""
        return gpus_of_slots(quota.guaranteed_slots) or 0.0

    @extend_schema_field(serializers.FloatField(allow_null=True))
    def get_borrow_limit_gpus(self, quota: Quota) -> float | None:
        """Return the borrowing limit in GPUs; None if there is no limit."""
        return gpus_of_slots(quota.borrow_limit_slots)


class QuotaQuery(PageQuery):
    pool = slug_field(required=False)
    team = slug_field(required=False)


class BudgetRequestWish(StrictSerializer):
    team = slug_field(help_text="the team whose lead asks")
    project = serializers.CharField(
        max_length=170, required=False, help_text="as team/project: the budget of this project of the team"
    )
    cost_centre = serializers.CharField(
        max_length=40, required=False, help_text="the budget of this cost centre, which pays for the team"
    )
    period = serializers.ChoiceField(choices=list(BUDGET_PERIODS), required=False, help_text="default: month")
    month = serializers.DateField(help_text="first day of the period")
    measure = serializers.ChoiceField(
        choices=list(BUDGET_MEASURES), required=False, help_text="default: money"
    )
    amount = serializers.DecimalField(
        max_digits=15, decimal_places=None, min_value=0, help_text="money or GPU-hours, by ``measure``"
    )
    why = serializers.CharField(max_length=1000, required=False, allow_blank=True)


class QuotaWish(StrictSerializer):
    team = slug_field()
    pool = slug_field()
    model = serializers.CharField(max_length=60)
    guaranteed_gpus = count_field(0, required=False, help_text="values that are not given stay as they are")
    borrow_limit_gpus = count_field(0, required=False, allow_null=True, help_text="null: no limit")
    gpu_hours = count_field(
        1,
        required=False,
        allow_null=True,
        help_text="GPU-hours for which the guarantee holds in a period; null: no limit",
    )
    period = serializers.ChoiceField(choices=Quota.Period.values, required=False)
    when_used_up = serializers.ChoiceField(choices=Quota.WhenUsedUp.choices, required=False)
    why = serializers.CharField(max_length=1000, required=False, allow_blank=True)
