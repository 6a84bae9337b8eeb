"""Parse JSON bodies up to the permitted size."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

from django.conf import settings
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from portal.api.base.errors import BodyTooLargeError
from portal.wording.pages import api_answers


class LimitedJsonParser(JSONParser):
    """A JSON parser that rejects bodies above the size limit of forms, and too deeply nested values."""

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the parsed body. Raises ParseError and BodyTooLargeError."""
        most = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body = stream.read(most + 1)
        if len(body) > most:
            raise BodyTooLargeError
        try:
            return super().parse(BytesIO(body), media_type, parser_context)
        except RecursionError:
            raise ParseError(api_answers.NESTED_TOO_DEEPLY) from None
