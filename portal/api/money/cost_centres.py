"""Implement the endpoints of cost centres and of the splits of projects and dedicated pools."""

from __future__ import annotations

from django.db.models import Q
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from portal import policy
from portal.api.base import lookups
from portal.api.base.csv_import import ImportPreviewWish, ImportReportShape, ImportWish, import_answer
from portal.api.base.fields import JsonObject
from portal.api.base.lookups import get_visible_or_404
from portal.api.base.schema import page_schema
from portal.api.base.serializers import PageQuery
from portal.api.base.views import ApiView
from portal.api.money import cost_centre_shapes as shapes
from portal.models import TokenScope
from portal.services.money.cost_centres import directory, imports, splits
from telemetry.models import CostCentreShare


class CostCentreListView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="cost_centres_list",
        parameters=[PageQuery],
        responses=page_schema(shapes.CostCentreShape),
    )
    def get(self, request: Request) -> Response:
        """List the cost centres that pay for projects and dedicated pools that you may see, by code.

        Finance and auditors see all cost centres.
        """
        rows = policy.visible_cost_centres(self.actor).order_by("code")
        return self.list_response(rows, shapes.CostCentreShape, self.validated_query(PageQuery))

    @extend_schema(
        operation_id="cost_centres_add",
        request=shapes.CostCentreWish,
        responses={201: shapes.CostCentreShape},
    )
    def post(self, request: Request) -> Response:
        """Add a cost centre to the directory."""
        row = directory.add_cost_centre(**self.service_context, **self.validated_body(shapes.CostCentreWish))
        return self.object_response(row, shapes.CostCentreShape, 201)


class CostCentreDetailView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(operation_id="cost_centres_read", responses=shapes.CostCentreShape)
    def get(self, request: Request, centre: str) -> Response:
        """Return one cost centre."""
        row = get_visible_or_404(policy.visible_cost_centres(self.actor), code=centre)
        return self.object_response(row, shapes.CostCentreShape)

    @extend_schema(
        operation_id="cost_centres_change", request=shapes.CostCentreChange, responses=shapes.CostCentreShape
    )
    def put(self, request: Request, centre: str) -> Response:
        """Change the name, the postal address or the purchase order reference of a cost centre."""
        row = get_visible_or_404(policy.visible_cost_centres(self.actor), code=centre)
        changes = self.validated_body(shapes.CostCentreChange)
        changed = directory.change_cost_centre(**self.service_context, centre=row, **changes)
        return self.object_response(changed, shapes.CostCentreShape)


class RetireCostCentreView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="cost_centres_retire",
        request=shapes.CostCentreRetirement,
        responses=shapes.CostCentreShape,
    )
    def post(self, request: Request, centre: str) -> Response:
        """Retire a cost centre from a time on, or undo the retirement. Its history stays."""
        row = get_visible_or_404(policy.visible_cost_centres(self.actor), code=centre)
        given = self.validated_body(shapes.CostCentreRetirement)
        retired = directory.retire_cost_centre(**self.service_context, centre=row, **given)
        return self.object_response(retired, shapes.CostCentreShape)


class CostCentreShareListView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(
        operation_id="cost_centre_shares_list",
        parameters=[PageQuery],
        responses=page_schema(shapes.CostCentreShareShape),
    )
    def get(self, request: Request) -> Response:
        """List the shares of cost centres in the projects and dedicated pools that you may see."""
        visible = Q(project__in=policy.visible_projects(self.actor))
        visible |= Q(pool__in=policy.visible_pools(self.actor))
        rows = CostCentreShare.objects.filter(visible).select_related("project__team", "pool")
        return self.list_response(
            rows.order_by("-valid_from", "-created_at", "code", "pk"),
            shapes.CostCentreShareShape,
            self.validated_query(PageQuery),
        )

    @extend_schema(
        operation_id="cost_centre_shares_set",
        request=shapes.SplitWish,
        responses={201: shapes.CostCentreShareShape(many=True)},
    )
    def post(self, request: Request) -> Response:
        """Set which cost centres pay for a project, or for unused time of a dedicated pool, from a date on.

        Time after this date that is already charged is charged again, to these cost centres.
        """
        given = _split_arguments(self, self.validated_body(shapes.SplitWish))
        rows = splits.set_split(**self.service_context, **given)
        return Response(shapes.CostCentreShareShape(rows, many=True).data, status=201)


class SplitPreviewView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="cost_centre_shares_preview",
        request=shapes.SplitWish,
        responses=shapes.SplitPreviewShape,
    )
    def post(self, request: Request) -> Response:
        """Return the charged amounts that a split would move between cost centres. Nothing is written."""
        given = _split_arguments(self, self.validated_body(shapes.SplitWish))
        given.pop("why", None)
        amounts = splits.preview_split(actor=self.actor, **given)
        return self.object_response({"amounts": amounts}, shapes.SplitPreviewShape)


class CostCentreImportPreviewView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="cost_centre_import_preview",
        request=ImportPreviewWish,
        responses=ImportReportShape,
    )
    def post(self, request: Request) -> Response:
        """Preview the import of a CSV file, line by line. Nothing is written."""
        given = self.validated_body(ImportPreviewWish)
        report = imports.preview_import(actor=self.actor, now=self.now, text=given["csv"])
        return self.object_response(import_answer(report), ImportReportShape)


class CostCentreImportView(ApiView):
    scope = TokenScope.FINANCE

    @extend_schema(operation_id="cost_centre_import", request=ImportWish, responses=ImportReportShape)
    def post(self, request: Request) -> Response:
        """Import cost centres or their shares from a CSV file. If a line is wrong, nothing is imported."""
        given = self.validated_body(ImportWish)
        report = imports.import_cost_centres(
            **self.service_context, text=given["csv"], why=given.get("why", "")
        )
        return self.object_response(import_answer(report), ImportReportShape)


def _split_arguments(view: ApiView, given: JsonObject) -> JsonObject:
    """Return the service's arguments: the row of the project or pool, and (code, percent) of each share."""
    project, pool = given.get("project"), given.get("pool")
    return given | {
        "project": lookups.visible_project(view.actor, project) if project else None,
        "pool": lookups.visible_pool(view.actor, pool) if pool else None,
        "shares": [(share["code"], share["percent"]) for share in given["shares"]],
    }
