"""Describe list pages and error responses in the OpenAPI schema."""

from __future__ import annotations

import functools
from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import inline_serializer
from rest_framework import serializers

from portal.api.base.errors import ErrorsSerializer


class ApiSchema(AutoSchema):
    """Generate the OpenAPI schema of an endpoint, with its error responses."""

    def _get_response_bodies(self, direction: str = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction=direction)  # type: ignore[no-untyped-call]
        codes = ["400", "401", "403", "404", "406", "429"]
        if self.method not in ("GET", "HEAD"):
            codes += ["409", "413", "415"]
        for code in codes:
            bodies.setdefault(code, self._get_response_for_code(ErrorsSerializer, code))  # type: ignore[no-untyped-call]
        return bodies


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
