"""Define the serializers of usage, charges, prices, budgets and statements."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal import policy
from portal.api.base.fields import CurrencyAmount, ResponseSerializer, slug_field
from portal.api.base.serializers import PageQuery, StrictSerializer, WhyBody
from portal.api.money.rate_card import PriceFactorShape
from portal.reads.money.charge_line import ChargeLineDetail
from portal.reads.money.charge_scope import SCOPE_KINDS
from portal.services.money.budgets import BUDGET_ACTIONS, BUDGET_MEASURES, BUDGET_PERIODS
from portal.services.money.months import IDLE_PAYERS
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from scheduler.models import WorkloadType
from telemetry.models import MAX_FORGIVEN_MINUTES, Charge, ChargeBucketChoices, Price


class UsageQuery(StrictSerializer):
    start = serializers.DateTimeField(required=False, help_text="default: a week ago")
    end = serializers.DateTimeField(required=False, help_text="default: now")
    by = serializers.ChoiceField(choices=["team", "project", "user", "type", "model"], default="team")


class UsageLine(ResponseSerializer):
    name = serializers.CharField()
    gpu_hours = serializers.FloatField(help_text="GPU-hours held")
    used_gpu_hours = serializers.FloatField(
        allow_null=True, help_text="utilisation x held time covered by samples; null: unknown"
    )
    coverage = serializers.FloatField(
        allow_null=True, help_text="part of the held time covered by samples, 0 to 1"
    )


class UsageShape(ResponseSerializer):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    by = serializers.ChoiceField(choices=["team", "project", "user", "type", "model"])
    lines = UsageLine(many=True)
    scope = serializers.CharField(help_text="a sentence that says whose use is included")


class ChargeFilters(StrictSerializer):
    cost_centre = serializers.CharField(max_length=40, required=False)
    team = slug_field(required=False)
    project = serializers.CharField(max_length=170, required=False, help_text="as team/project")
    pool = slug_field(required=False)
    user = serializers.CharField(max_length=150, required=False)
    type = serializers.ChoiceField(choices=WorkloadType.values, required=False)
    workload = serializers.UUIDField(required=False)
    model = serializers.CharField(max_length=60, required=False)
    bucket = serializers.CharField(
        max_length=120, required=False, help_text="a bucket, or several with commas between them"
    )
    day = serializers.CharField(max_length=10, required=False, help_text="a billing day, such as 2026-03-12")
    last_day = serializers.CharField(
        max_length=10,
        required=False,
        help_text="the last selected day of the month, such as 2026-03-12; corrections are selected too",
    )
    corrected_month = serializers.CharField(
        max_length=7, required=False, help_text="the corrected month, such as 2026-02; any; or none"
    )


class ChargeQuery(ChargeFilters, PageQuery):
    month = serializers.CharField(max_length=20, required=False, help_text="such as 2026-03")


class ChargeShape(ResponseSerializer):
    id = serializers.IntegerField()
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    pool = serializers.CharField(source="pool.slug")
    bucket = serializers.ChoiceField(choices=ChargeBucketChoices.values)
    model = serializers.CharField()
    gpu_hours = serializers.SerializerMethodField()
    team = serializers.CharField(source="team_name")
    project = serializers.CharField(source="project_name")
    user = serializers.CharField(source="user_name")
    workload = serializers.CharField(source="workload_name")
    workload_type = serializers.CharField()
    cost_centre = serializers.CharField()
    share_percent = serializers.DecimalField(
        max_digits=5, decimal_places=2, help_text="part of the time that the cost centre pays"
    )
    charged = serializers.DecimalField(max_digits=18, decimal_places=6)
    currency = serializers.CharField(
        source="price.currency", allow_null=True, default=None, help_text="null: without a price"
    )
    price_factor = serializers.DecimalField(
        max_digits=14, decimal_places=8, help_text="product of the factors on the price; 1 without factors"
    )
    corrects = serializers.IntegerField(source="corrects_id", allow_null=True)
    corrected_month = serializers.SerializerMethodField(
        help_text="first day of the closed month that the line corrects; null: none"
    )
    simulated = serializers.BooleanField()

    @extend_schema_field(serializers.DateField(allow_null=True))
    def get_corrected_month(self, charge: Charge) -> str | None:
        """Return the first day of the closed month that the line corrects."""
        corrected = charge.corrected_month
        return corrected.isoformat() if corrected else None

    def get_gpu_hours(self, charge: Charge) -> float:
        """Return the charged use in GPU-hours."""
        return round(charge.slot_seconds / SLOT_SECONDS_PER_GPU_HOUR, 6)


class HourOfUseShape(ResponseSerializer):
    start = serializers.DateTimeField()
    held_seconds = serializers.FloatField()
    covered_seconds = serializers.FloatField(help_text="seconds covered by samples")
    utilisation = serializers.FloatField(allow_null=True, help_text="mean where measured, 0 to 1")
    utilisation_max = serializers.FloatField(allow_null=True)
    energy_mj = serializers.IntegerField(allow_null=True, help_text="in millijoules")


class LineUsageShape(ResponseSerializer):
    """The measured use of a charge line."""

    coverage = serializers.FloatField(allow_null=True, help_text="measured part of the time, 0 to 1")
    utilisation = serializers.FloatField(allow_null=True, help_text="mean where measured, 0 to 1")
    hours = HourOfUseShape(many=True)
    whole_hours = serializers.BooleanField(
        help_text="true: the first and the last hour include time of the same run outside the line"
    )


class ChargeLineShape(ResponseSerializer):
    """A charge line, the computation of its amount, and the related objects that the user may see."""

    line = ChargeShape()
    slots = serializers.IntegerField(source="line.slots", help_text="840 is one GPU; negative in a reversal")
    seconds = serializers.IntegerField()
    price_per_gpu_hour = serializers.DecimalField(
        max_digits=12, decimal_places=6, source="line.price.price_per_gpu_hour", allow_null=True, default=None
    )
    factors = PriceFactorShape(many=True, help_text="the factors on the price")
    amount = serializers.DecimalField(
        max_digits=18,
        decimal_places=6,
        allow_null=True,
        help_text="slots / 840 x seconds / 3600 x price x factor; null without a price",
    )
    is_charged = serializers.BooleanField(help_text="false: the time is not charged, so ``charged`` is 0")
    rounding = serializers.DecimalField(
        max_digits=18, decimal_places=6, help_text="``charged`` - ``amount``; 0 for time that is not charged"
    )
    cost = serializers.SerializerMethodField(help_text="the owner's cost; null if you may not see it")
    month = serializers.DateField(source="line.month", help_text="first day of the month of its statement")
    reversal = serializers.BooleanField(source="line.reversal")
    workload_id = serializers.UUIDField(source="workload.public_id", allow_null=True, default=None)
    attempt = serializers.IntegerField(allow_null=True)
    reservation = serializers.UUIDField(source="reservation.public_id", allow_null=True, default=None)
    host = serializers.CharField(source="host.name", allow_null=True, default=None)
    gpu = serializers.SerializerMethodField(help_text="number of the GPU; null if you may not see the host")
    related = serializers.SerializerMethodField(help_text="ids of the other lines of the same correction")
    usage = LineUsageShape(allow_null=True)

    @extend_schema_field(serializers.DecimalField(max_digits=18, decimal_places=6, allow_null=True))
    def get_cost(self, detail: ChargeLineDetail) -> str | None:
        """Return the owner's cost of the line, or None if the user may not see it."""
        return f"{detail.line.cost:.6f}" if detail.sees_cost else None

    def get_gpu(self, detail: ChargeLineDetail) -> int | None:
        """Return the number of the GPU in its host."""
        return detail.line.gpu.index if detail.host else None

    def get_related(self, detail: ChargeLineDetail) -> list[int]:
        """Return the ids of the lines that belong to the same correction."""
        return [line.pk for line in detail.related]


class ChargeScopeShape(ResponseSerializer):
    """The scope of a response: every team's charges, those of led teams, or only the user's own."""

    kind = serializers.ChoiceField(
        choices=list(SCOPE_KINDS),
        help_text="all: every team; led_teams: ``teams`` and your own; own: only your own; none: nobody's",
    )
    teams = serializers.ListField(
        child=serializers.CharField(), source="led_slugs", help_text="the teams that you lead"
    )
    text = serializers.CharField(source="sentence")


class ChargePage(ResponseSerializer):
    """One page of charge lines."""

    count = serializers.IntegerField()
    page = serializers.IntegerField()
    page_size = serializers.IntegerField()
    results = ChargeShape(many=True)
    scope = ChargeScopeShape()


class CloseStatementWish(WhyBody):
    missing_samples_reason = serializers.CharField(
        max_length=1000,
        required=False,
        allow_blank=True,
        default="",
        help_text="why the month is closed although hosts still owe samples; stored with the statement",
    )


class StatementShape(ResponseSerializer):
    month = serializers.DateField()
    state = serializers.ChoiceField(choices=["open", "closing", "closed"])
    idle_payer = serializers.ChoiceField(choices=list(IDLE_PAYERS))
    currency = serializers.CharField()
    checks = serializers.JSONField()
    totals = serializers.JSONField()
    digest = serializers.CharField()
    digest_format = serializers.IntegerField(
        help_text="1: digest of the CSV of the lines; 2: digest described in docs/money.md"
    )
    signature = serializers.CharField(help_text="Ed25519, base64; empty: closed without a key")
    public_key = serializers.CharField(help_text="base64; empty: closed without a key")
    key_fingerprint = serializers.CharField(
        help_text="SHA-256 of the public key; empty: closed without a key"
    )
    missing_samples = serializers.JSONField(
        help_text="the hosts whose samples were missing at the close, each with its number of hours"
    )
    missing_samples_reason = serializers.CharField(
        help_text="why the month was closed without the missing samples"
    )
    time_zone = serializers.CharField(
        help_text="time zone of the closed month; empty: the month is open, or was closed in UTC"
    )
    starts_at = serializers.DateTimeField(allow_null=True, help_text="start of the month, set at the close")
    ends_at = serializers.DateTimeField(allow_null=True, help_text="end of the month, set at the close")
    proposed_at = serializers.DateTimeField(
        allow_null=True, help_text="time of the proposal to close; null: closed in one step"
    )
    proposed_by = serializers.CharField(source="proposed_by.username", allow_null=True, default=None)
    closed_at = serializers.DateTimeField(allow_null=True)
    closed_by = serializers.CharField(source="closed_by.username", allow_null=True, default=None)


class PriceShape(ResponseSerializer):
    pool = serializers.CharField(source="pool.slug", allow_null=True, default=None)
    model = serializers.CharField()
    cost = serializers.SerializerMethodField(help_text="the owner's cost; null if you may not see it")
    price = serializers.DecimalField(max_digits=12, decimal_places=6, source="price_per_gpu_hour")
    currency = serializers.CharField()
    valid_from = serializers.DateTimeField()
    note = serializers.SerializerMethodField(
        help_text="how the cost was computed; empty if you may not see the cost"
    )

    def get_note(self, price: Price) -> str:
        """Return the note on the cost. The text is empty if the user may not see the cost."""
        return price.note if policy.sees_owner_cost(self.context["user"]) else ""

    @extend_schema_field(serializers.DecimalField(max_digits=12, decimal_places=6, allow_null=True))
    def get_cost(self, price: Price) -> str | None:
        """Return the owner's cost of a GPU-hour.

        Return None unless the user is in finance, an operator or an auditor.
        """
        return f"{price.cost_per_gpu_hour:.6f}" if policy.sees_owner_cost(self.context["user"]) else None


class PriceWish(StrictSerializer):
    pool = slug_field(required=False, allow_null=True)
    model = serializers.CharField(max_length=60)
    cost = serializers.DecimalField(max_digits=12, decimal_places=6, min_value=0)
    price = serializers.DecimalField(max_digits=12, decimal_places=6, min_value=0)
    currency = serializers.CharField(
        max_length=10, required=False, help_text="default: the currency of the month of ``valid_from``"
    )
    valid_from = serializers.DateTimeField()
    note = serializers.CharField(max_length=300, required=False, allow_blank=True)


class RefundLimitShape(ResponseSerializer):
    pool = serializers.CharField(source="pool.slug")
    forgiven_minutes = serializers.IntegerField(
        allow_null=True, help_text="minutes before a stop that are not charged at most; null: no limit"
    )
    valid_from = serializers.DateTimeField()


class RefundLimitWish(StrictSerializer):
    pool = slug_field()
    forgiven_minutes = serializers.IntegerField(min_value=0, max_value=MAX_FORGIVEN_MINUTES)
    valid_from = serializers.DateTimeField(
        help_text="the limit applies to work that stops at this time or later"
    )
    why = serializers.CharField(max_length=300, required=False, allow_blank=True)


class IdleShareShape(ResponseSerializer):
    team = serializers.CharField(
        allow_blank=True, help_text="name of the team; empty: the part that the operator pays"
    )
    operator = CurrencyAmount()
    guarantee = CurrencyAmount()
    use = CurrencyAmount()


class IdlePayerShape(ResponseSerializer):
    month = serializers.DateField()
    payer = serializers.ChoiceField(choices=list(IDLE_PAYERS))
    fixed = serializers.BooleanField(help_text="true: the month is closed, so the payer can't be changed")
    effects = IdleShareShape(
        many=True, help_text="what each team would pay with each payer; empty if ``fixed``"
    )


class IdlePayerWish(StrictSerializer):
    payer = serializers.ChoiceField(choices=list(IDLE_PAYERS))
    why = serializers.CharField(max_length=1000, required=False, allow_blank=True)


class BudgetShape(ResponseSerializer):
    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    project = serializers.CharField(source="project.slug", allow_null=True, default=None)
    cost_centre = serializers.CharField(allow_blank=True)
    period = serializers.ChoiceField(choices=list(BUDGET_PERIODS))
    month = serializers.DateField(help_text="first day of the period")
    measure = serializers.ChoiceField(choices=list(BUDGET_MEASURES))
    amount = CurrencyAmount(help_text="money or GPU-hours, by ``measure``")
    currency = serializers.CharField(help_text="currency of a budget in money")
    action = serializers.ChoiceField(choices=list(BUDGET_ACTIONS))


class BudgetWish(StrictSerializer):
    team = slug_field(required=False, allow_null=True)
    project = slug_field(required=False, allow_null=True)
    cost_centre = serializers.CharField(max_length=40, required=False, allow_blank=True)
    period = serializers.ChoiceField(choices=list(BUDGET_PERIODS), required=False, help_text="default: month")
    month = serializers.DateField(help_text="first day of the period")
    measure = serializers.ChoiceField(
        choices=list(BUDGET_MEASURES), required=False, help_text="default: money"
    )
    amount = serializers.DecimalField(
        max_digits=15, decimal_places=None, min_value=0, help_text="money or GPU-hours, by ``measure``"
    )
    action = serializers.ChoiceField(choices=list(BUDGET_ACTIONS), required=False)
