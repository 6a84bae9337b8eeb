"""Define the serializers that most endpoints share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.dateparse import parse_datetime
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from portal.api.base.errors import ALLOWED_PREFIX
from portal.input_checks import display_value
from portal.wording.pages import api_answers

MAX_PAGE_SIZE = 200
MAX_PAGE_NUMBER = 100_000


class StrictSerializer(serializers.Serializer[Any]):
    """A serializer that rejects unknown fields.

    If the value of a choice field is invalid, the error lists the allowed values.
    """

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Return the fields, with the API's own message for invalid choices."""
        fields = super().get_fields()
        for field in fields.values():
            if isinstance(field, serializers.ChoiceField):
                field.error_messages["invalid_choice"] = (
                    f"{ALLOWED_PREFIX}{', '.join(map(str, field.choices))}."
                )
        return fields

    def to_internal_value(self, data: Any) -> Any:
        """Check the field names and types, then validate. Raises ValidationError."""
        if isinstance(data, Mapping):
            unknown = [str(name) for name in data if name not in self.fields]
            if unknown:
                allowed = (
                    ", ".join(sorted(name for name, field in self.fields.items() if not field.read_only))
                    or "none"
                )
                raise ValidationError(
                    {
                        display_value(name)[1:-1]: api_answers.UNKNOWN_FIELD.format(allowed=allowed)
                        for name in unknown
                    }
                )
            numbers = [
                name
                for name, field in self.fields.items()
                if isinstance(field, serializers.CharField) and isinstance(data.get(name), int | float)
            ]
            # A CharField of DRF accepts the number 0 and turns it into the text "0".
            if numbers:
                raise ValidationError(dict.fromkeys(numbers, api_answers.NUMBER_FOR_TEXT))
            zoneless = [
                name
                for name, field in self.fields.items()
                if isinstance(field, serializers.DateTimeField) and _has_no_zone(data.get(name))
            ]
            # A DateTimeField of DRF would take the time in the server's zone.
            if zoneless:
                raise ValidationError(dict.fromkeys(zoneless, api_answers.TIME_WITHOUT_ZONE))
        return super().to_internal_value(data)


def _has_no_zone(value: Any) -> bool:
    """Return True if the value is a valid time without a time zone."""
    try:
        found = parse_datetime(value) if isinstance(value, str) else None
    except ValueError:
        return False  # the field refuses it
    return found is not None and found.tzinfo is None


class PageQuery(StrictSerializer):
    page = serializers.IntegerField(min_value=1, max_value=MAX_PAGE_NUMBER, default=1)
    page_size = serializers.IntegerField(min_value=1, max_value=MAX_PAGE_SIZE, default=50)


class EmptyBody(StrictSerializer):
    """A body without fields."""


class WhyBody(StrictSerializer):
    why = serializers.CharField(
        max_length=1000, required=False, allow_blank=True, default="", help_text="Kept in the audit record."
    )
