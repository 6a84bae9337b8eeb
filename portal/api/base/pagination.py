"""How a page of a list is described in the schema."""

from __future__ import annotations

import functools
from typing import Any

from drf_spectacular.utils import inline_serializer
from rest_framework import serializers


@functools.cache
def page_schema(shape: type[serializers.Serializer[Any]]) -> serializers.Serializer[Any]:
    """``count``, ``page``, ``page_size`` and ``results`` of a shape."""
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
