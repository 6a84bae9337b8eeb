"""Limit the documentation of the API to signed-in people, if the setting GPUPOOL_API_DOCS says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponseBase

View = Callable[..., HttpResponseBase]


def for_docs_readers(view: View) -> View:
    """Send people who are not signed in to the sign-in page, unless the documentation is public."""

    @wraps(view)
    def respond(request: HttpRequest, *args: Any, **options: Any) -> HttpResponseBase:
        if settings.GPUPOOL_API_DOCS != "public" and not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        return view(request, *args, **options)

    return respond
