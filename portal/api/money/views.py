"""Implement the endpoints of use, charges, prices, budgets and statements."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import QuerySet
from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery
from portal.api.base.views import ApiView
from portal.api.money import serializers as shapes
from portal.errors import Invalid
from portal.input_checks import InputChecks
from portal.models import TokenScope
from portal.reads.money.charge_filters import FILTERS, named_filters
from portal.reads.money.charge_line import charge_line
from portal.reads.money.charge_scope import charge_scope
from portal.reads.money.charged_months import named_month, requested_month
from portal.services.money import budgets, months, rate_card
from portal.wording.chargeback.charge_scope_texts import usage_scope_sentence
from portal.wording.pages import api_answers
from telemetry.models import Price, Statement
from telemetry.reads.chargeback import charge_condition
from telemetry.reads.usage_by_group import usage_by
from telemetry.reads.usage_filters import UsageFilters

MAX_USAGE_PERIOD = timedelta(days=400)


class UsageView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="usage_read", parameters=[shapes.UsageQuery], responses=shapes.UsageShape)
    def get(self, request: Request) -> Response:
        """List GPU-hours held and used by the teams that you may see."""
        query = self.validated_query(shapes.UsageQuery)
        if "start" in query and "end" not in query:
            raise Invalid({"end": api_answers.PERIOD_WITHOUT_END}, {"end": ""})
        checks = InputChecks()
        end = checks.aware_datetime("end", query.get("end", self.now))
        start = (
            checks.aware_datetime("start", query["start"]) if "start" in query else end - timedelta(days=7)
        )
        checks.done()
        if not start < end <= start + MAX_USAGE_PERIOD:
            raise Invalid(
                {
                    "end": api_answers.PERIOD_NOT_ALLOWED.format(
                        end=end.isoformat(), start=start.isoformat(), days=MAX_USAGE_PERIOD.days
                    )
                }
            )
        everything = policy.sees_all_charges(self.actor) or policy.sees_all_teams(self.actor)
        mine = {} if everything else dict(policy.visible_teams(self.actor).values_list("pk", "name"))
        teams = None if everything else list(mine)
        table = usage_by(query["by"], UsageFilters(start=start, end=end, teams=teams))
        lines = [
            {
                "name": group.name,
                "gpu_hours": group.held,
                "used_gpu_hours": group.used,
                "coverage": group.coverage,
            }
            for group in table.groups
        ]
        scope = usage_scope_sentence(None if everything else sorted(mine.values()))
        return self.object_response(
            {"start": start, "end": end, "by": query["by"], "lines": lines, "scope": scope}, shapes.UsageShape
        )


class ChargeListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="charges_list",
        parameters=[shapes.ChargeQuery],
        responses=shapes.ChargePage,
    )
    def get(self, request: Request) -> Response:
        """List the charge lines that you may see, newest first."""
        query = self.validated_query(shapes.ChargeQuery)
        rows = policy.visible_charges(self.actor)
        month = requested_month(query["month"], self.now) if "month" in query else None
        if month is not None:
            rows = rows.filter(month=month)
        given = {name: str(query[name]) for name in FILTERS if name in query}
        lines = rows.filter(charge_condition(named_filters(self.actor, rows, given, month)))
        lines = lines.select_related("pool").order_by("-start", "-pk")
        response = self.list_response(lines, shapes.ChargeShape, query)
        response.data["scope"] = shapes.ChargeScopeShape(charge_scope(self.actor)).data
        return response


class ChargeDetailView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="charges_read", responses=shapes.ChargeLineShape)
    def get(self, request: Request, id: int) -> Response:
        """Return one charge line, the computation of its amount, and its measured GPU use."""
        detail = charge_line(self.actor, id)
        if detail is None:
            raise Http404
        return self.object_response(detail, shapes.ChargeLineShape)


def _visible_statements(view: ApiView) -> QuerySet[Statement]:
    return policy.visible_statements(view.actor).select_related("closed_by", "proposed_by")


class StatementListView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="statements_list", parameters=[PageQuery], responses=page_schema(shapes.StatementShape)
    )
    def get(self, request: Request) -> Response:
        """List the statements of all months, newest first. For finance and auditors."""
        policy.require(self.actor, "charges.see_all")
        return self.list_response(
            _visible_statements(self).order_by("-month"),
            shapes.StatementShape,
            self.validated_query(PageQuery),
        )


class StatementDetailView(ApiView):
    scope = TokenScope.READ

    @extend_schema(operation_id="statements_read", responses=shapes.StatementShape)
    def get(self, request: Request, month: str) -> Response:
        """Return the statement of one month."""
        return self.object_response(
            get_visible_or_404(_visible_statements(self), month=named_month(month)), shapes.StatementShape
        )


class CloseStatementView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="statements_close", request=shapes.CloseStatementWish, responses=shapes.StatementShape
    )
    def post(self, request: Request, month: str) -> Response:
        """Check a past month and close it. Its charges never change afterwards."""
        given = self.validated_body(shapes.CloseStatementWish)
        return self.object_response(
            months.close_month(**self.service_context, month=named_month(month), **given),
            shapes.StatementShape,
        )


class PriceListView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="prices_list", parameters=[PageQuery], responses=page_schema(shapes.PriceShape)
    )
    def get(self, request: Request) -> Response:
        """List the rate card, newest first."""
        rows = Price.objects.select_related("pool").order_by("-valid_from", "-pk")
        return self.list_response(rows, shapes.PriceShape, self.validated_query(PageQuery))

    @extend_schema(operation_id="prices_set", request=shapes.PriceWish, responses={201: shapes.PriceShape})
    def post(self, request: Request) -> Response:
        """Set the cost and the price of a GPU-hour from a date on. The past never changes."""
        given = self.validated_body(shapes.PriceWish)
        given["pool"] = lookups.visible_pool(self.actor, given["pool"]) if given.get("pool") else None
        return self.object_response(
            rate_card.set_price(**self.service_context, **given), shapes.PriceShape, 201
        )


class BudgetListView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="budgets_list", parameters=[PageQuery], responses=page_schema(shapes.BudgetShape)
    )
    def get(self, request: Request) -> Response:
        """List the budgets of the teams, projects and cost centres that you may see."""
        rows = policy.visible_budgets(self.actor).select_related("team", "project").order_by("-month", "pk")
        return self.list_response(rows, shapes.BudgetShape, self.validated_query(PageQuery))

    @extend_schema(operation_id="budgets_set", request=shapes.BudgetWish, responses={201: shapes.BudgetShape})
    def post(self, request: Request) -> Response:
        """Set the budget of a team, a project or a cost centre for a period, in money or GPU-hours."""
        given = self.validated_body(shapes.BudgetWish)
        given["team"] = lookups.visible_team(self.actor, given["team"]) if given.get("team") else None
        given["project"] = (
            lookups.visible_project(self.actor, given["project"]) if given.get("project") else None
        )
        return self.object_response(
            budgets.set_budget(**self.service_context, **given), shapes.BudgetShape, 201
        )
