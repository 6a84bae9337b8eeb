"""Answer a repeated POST request with the answer of the first one."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.http import HttpResponseBase
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from portal.models import User
from portal.services import idempotency

KEY_HEADER = "Idempotency-Key"
REPEATED_HEADER = "Idempotency-Repeated"
LIFETIME_HEADER = "Idempotency-Key-Lifetime"  # the client repeats a request only if the portal sends it

PostHandler = Callable[..., HttpResponseBase]


def answering_once(post: PostHandler, actor: User, now: datetime) -> PostHandler:
    """Return a handler that calls ``post`` once for each ``Idempotency-Key`` of the user.

    Without the header, every request is carried out.
    """

    def handler(request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:
        key = request.headers.get(KEY_HEADER)
        if key is None:
            return post(request, *args, **kwargs)
        made: list[Response] = []

        def act() -> idempotency.RequestAnswer:
            response = post(request, *args, **kwargs)
            if not isinstance(response, Response):
                raise TypeError(f"{request.path}: a POST handler has to return a Response")
            made.append(response)
            return idempotency.RequestAnswer(response.status_code, JSONRenderer().render(response.data))

        digest = idempotency.request_digest("POST", request.get_full_path(), request._request.body)
        answer = idempotency.answer_once(actor=actor, key=key, digest=digest, now=now, act=act)
        if not answer.is_repeated:
            return made[0]
        return Response(json.loads(answer.body), answer.status, headers={REPEATED_HEADER: "true"})

    return handler
