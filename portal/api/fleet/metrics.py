"""Define the endpoint from which Prometheus reads the metrics of the portal."""

from __future__ import annotations

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request

from portal.api.base.authentication import TokenAuthentication
from portal.api.base.serializers import StrictSerializer
from portal.api.base.views import AnyContentNegotiation, ApiView
from portal.models import TokenScope
from portal.reads.monitoring.exposition import CONTENT_TYPE, metrics_text

GPUS = "gpus"


class MetricsQuery(StrictSerializer):
    include = serializers.ChoiceField(choices=[GPUS], required=False)


class MetricsView(ApiView):
    """The metrics of the portal, for an API token of an operator or an auditor. Sessions are not accepted."""

    scope = TokenScope.READ

    authentication_classes = [TokenAuthentication]
    content_negotiation_class = AnyContentNegotiation

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        """Return the metrics in the text format of Prometheus."""
        query = self.validated_query(MetricsQuery)
        text = metrics_text(self.actor, self.now, include_gpus=query.get("include") == GPUS)
        return HttpResponse(text, content_type=CONTENT_TYPE)
