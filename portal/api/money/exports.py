"""Implement the endpoint that sends the charges of a month as a file."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request

from portal import policy
from portal.api.base.views import AnyContentNegotiation, ApiView
from portal.api.money.serializers import ChargeFilters
from portal.models import TokenScope
from portal.reads.money.charge_filters import FILTERS, named_filters
from portal.reads.money.charged_months import requested_month
from portal.reads.money.exports import CHECKSUMS, DECIMAL_SIGNS, EXPORT_OPTIONS, SEPARATORS, export_download
from portal.streamed_file import StreamedFile
from telemetry.exports.registry import EXPORT_KINDS

# The media types of all kinds, without their parameters.
CONTENT_TYPES = tuple(dict.fromkeys(kind.content_type.partition(";")[0] for kind in EXPORT_KINDS.values()))


class ExportQuery(ChargeFilters):
    kind = serializers.ChoiceField(choices=tuple(EXPORT_KINDS))
    separator = serializers.ChoiceField(
        choices=tuple(SEPARATORS), required=False, help_text="between the cells of a CSV file"
    )
    decimal = serializers.ChoiceField(
        choices=tuple(DECIMAL_SIGNS), required=False, help_text="decimal sign of a CSV file"
    )
    currency = serializers.CharField(
        max_length=10,
        required=False,
        help_text="currency of the statement (kind ``pdf``); needed if the cost centre has several",
    )
    checksum = serializers.ChoiceField(
        choices=CHECKSUMS, required=False, help_text="send the digest of the file instead of the file"
    )


class ExportView(ApiView):
    scope = TokenScope.READ
    content_negotiation_class = AnyContentNegotiation

    @extend_schema(
        operation_id="statements_export",
        parameters=[ExportQuery],
        responses={(200, kind): OpenApiTypes.BINARY for kind in CONTENT_TYPES},
    )
    def get(self, request: Request, month: str) -> StreamedFile:
        """Return a file of the charges that you may see in a month. Open months are provisional."""
        query = self.validated_query(ExportQuery)
        first_day = requested_month(month, self.now)
        lines = policy.visible_charges(self.actor).filter(month=first_day)
        filters = {name: str(query[name]) for name in FILTERS if name in query}
        where = named_filters(self.actor, lines, filters, first_day)
        options = {name: query[name] for name in EXPORT_OPTIONS if name in query}
        download = export_download(self.actor, first_day, where, options)
        return StreamedFile(download.name, download.content_type, download.parts)
