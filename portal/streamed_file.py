"""Define the response that sends a file while the file is made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse


class StreamedFile(StreamingHttpResponse):
    """A download that is generated while it is sent, so that the whole file is never in memory.

    Without this class, an asynchronous server would collect all parts before it sends the first one.
    """

    def __init__(self, file_name: str, content_type: str, parts: Iterator[bytes] | Iterator[str]) -> None:
        super().__init__(parts, content_type=content_type)
        self.headers["Content-Disposition"] = f'attachment; filename="{file_name}"'

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the parts. Each is made in the thread of the request, which owns the database connection."""
        parts = iter(self)
        while (part := await sync_to_async(_next_part)(parts)) is not None:
            yield part


def _next_part(parts: Iterator[bytes]) -> bytes | None:
    return next(parts, None)
