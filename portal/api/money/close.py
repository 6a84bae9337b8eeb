"""Implement the endpoints that rehearse and propose the close of a month."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base.fields import CurrencyAmount, ResponseSerializer
from portal.api.base.serializers import StrictSerializer
from portal.api.base.views import ApiView
from portal.api.money.serializers import CloseStatementWish
from portal.models import TokenScope
from portal.reads.money.charged_months import named_month, requested_month
from portal.reads.money.close_evidence import rehearse_close
from portal.services.money import months
from telemetry.money.closing.proposals import PROPOSAL_LIFETIME


class RehearsalQuery(StrictSerializer):
    audit = serializers.BooleanField(
        required=False, default=False, help_text="also compare every line with the facts"
    )


class CloseProposalShape(ResponseSerializer):
    """A proposal to close a month, the first of two steps."""

    month = serializers.DateField(source="statement.month")
    proposed_by = serializers.CharField(source="proposed_by.username")
    proposed_at = serializers.DateTimeField()
    expires_at = serializers.SerializerMethodField(
        help_text="time until which another person can close the month"
    )
    charged = CurrencyAmount()
    note = serializers.CharField()

    def get_expires_at(self, proposal: Any) -> str:
        """Return the time at which the proposal expires."""
        return f"{(proposal.proposed_at + PROPOSAL_LIFETIME).isoformat()}"


@dataclass(frozen=True)
class CostCentreTotal:
    cost_centre: str
    currency: str
    total: Decimal


class CostCentreTotalShape(ResponseSerializer):
    cost_centre = serializers.CharField()
    currency = serializers.CharField()
    total = CurrencyAmount()


class UnmappedPayerShape(ResponseSerializer):
    """A project, a dedicated pool or a team whose charges have no cost centre."""

    name = serializers.CharField()
    charged = CurrencyAmount()
    who_acts = serializers.CharField(help_text="who must act, as a sentence")


class RehearsalShape(ResponseSerializer):
    """The checks of a close, run now, and the charge of each cost centre."""

    month = serializers.DateField()
    over = serializers.BooleanField(help_text="the month has ended")
    ends_at = serializers.DateTimeField()
    closed = serializers.BooleanField(
        help_text="true: the month is closed, and the checks are the stored ones of the close"
    )
    audited = serializers.BooleanField(help_text="the checks include the audit")
    checks = serializers.JSONField(help_text="each with ``check``, ``ok`` and ``figures``")
    statements = CostCentreTotalShape(many=True, help_text="one statement per cost centre and currency")
    unmapped = UnmappedPayerShape(many=True, help_text="charges without a cost centre keep the month open")
    proposal = CloseProposalShape(allow_null=True)


class FocusResultShape(ResponseSerializer):
    rows = serializers.IntegerField(help_text="number of rows of the FOCUS 1.4 files")
    broken = serializers.ListField(child=serializers.CharField(), help_text="each broken rule as a sentence")


class StoredRehearsalShape(ResponseSerializer):
    """The stored results of a rehearsal, which pages show."""

    month = serializers.DateField(source="statement.month")
    checked_at = serializers.DateTimeField()
    run_by = serializers.CharField(source="run_by.username", allow_null=True, default=None)
    checks = serializers.JSONField(help_text="each with ``check``, ``ok`` and ``figures``")
    focus = FocusResultShape(
        help_text="result of the rules of FOCUS; a broken rule does not keep the month open"
    )


class CloseRehearsalView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(operation_id="statements_rehearse", parameters=[RehearsalQuery], responses=RehearsalShape)
    def get(self, request: Request, month: str) -> Response:
        """Run the checks of a month without closing it. For finance and auditors."""
        policy.require(self.actor, "charges.see_all")
        query = self.validated_query(RehearsalQuery)
        found = rehearse_close(requested_month(month, self.now), self.now, audit=query["audit"])
        totals = [CostCentreTotal(*total) for total in found.totals]
        fields = ("month", "over", "ends_at", "closed", "audited", "checks", "unmapped", "proposal")
        answer = {name: getattr(found, name) for name in fields}
        return self.object_response({**answer, "statements": totals}, RehearsalShape)

    @extend_schema(
        operation_id="statements_rehearse_and_store", request=None, responses={201: StoredRehearsalShape}
    )
    def post(self, request: Request, month: str) -> Response:
        """Run all checks of an open month with the audit and the rules of FOCUS, and store the results.

        Pages show them. The ledger does not change. For finance and auditors; it may take minutes.
        """
        policy.require(self.actor, "charges.see_all")
        first_day = requested_month(month, self.now)
        return self.object_response(
            months.rehearse_close(**self.service_context, month=first_day), StoredRehearsalShape, 201
        )


class ProposeCloseView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="statements_propose", request=CloseStatementWish, responses={201: CloseProposalShape}
    )
    def post(self, request: Request, month: str) -> Response:
        """Check a past month and propose to close it. Another person closes it within three days."""
        given = self.validated_body(CloseStatementWish)
        proposal = months.propose_close(**self.service_context, month=named_month(month), **given)
        return self.object_response(proposal, CloseProposalShape, 201)
