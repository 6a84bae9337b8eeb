"""Describe list pages and error responses in the OpenAPI schema."""

from __future__ import annotations

import functools
from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, inline_serializer
from rest_framework import serializers

from portal.api.base.errors import ErrorsSerializer
from portal.api.base.idempotency import KEY_HEADER
from portal.models import TokenScope
from portal.wording.pages import api_answers

IDEMPOTENCY_KEY = OpenApiParameter(
    KEY_HEADER, str, OpenApiParameter.HEADER, description=api_answers.IDEMPOTENCY_KEY, required=False
)


class ApiSchema(AutoSchema):
    """Generate the OpenAPI schema of an endpoint, with its error responses."""

    def _get_response_bodies(self, direction: str = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction=direction)  # type: ignore[no-untyped-call]
        codes = ["400", "401", "403", "404", "406", "429"]
        if self.method not in ("GET", "HEAD"):
            codes += ["409", "413", "415", *(["422"] if self._takes_key() else [])]
        for code in codes:
            bodies.setdefault(code, self._get_response_for_code(ErrorsSerializer, code))  # type: ignore[no-untyped-call]
        return bodies

    def get_override_parameters(self) -> list[Any]:
        """Return the header ``Idempotency-Key`` of a POST request that changes something."""
        return [IDEMPOTENCY_KEY] if self._takes_key() else []

    def _takes_key(self) -> bool:
        return self.method == "POST" and getattr(self.view, "scope", None) not in (None, TokenScope.READ)


@functools.cache
def page_schema(shape: type[serializers.Serializer[Any]]) -> serializers.Serializer[Any]:
    """Return the schema of one page of a list: ``count``, ``page``, ``page_size`` and ``results``."""
    page: serializers.Serializer[Any] = inline_serializer(
        name=f"{shape.__name__}Page",
        fields={
            "count": serializers.IntegerField(),
            "page": serializers.IntegerField(),
            "page_size": serializers.IntegerField(),
            "results": shape(many=True),
        },
    )
    return page
