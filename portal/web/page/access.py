"""Who gets a page at all, and how a verb's refusal becomes an answer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme

from portal.errors import Conflict, Invalid, NotAllowed, PlannerBudgetExceeded
from portal.models import User

Row = TypeVar("Row", bound=Model)
ViewFunction = Callable[..., HttpResponseBase]


def sign_in_required(view: ViewFunction) -> ViewFunction:
    """Send strangers to the sign-in page; a part that refreshes itself makes the whole page load again instead."""

    @functools.wraps(view)
    def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            if request.headers.get("HX-Request"):
                return HttpResponse(status=204, headers={"HX-Refresh": "true"})
            return redirect_to_login(request.get_full_path())
        try:
            return view(request, *args, **kwargs)
        except NotAllowed as refusal:
            raise PermissionDenied(refusal.message) from refusal
        except PlannerBudgetExceeded as refusal:
            return too_many_requests(request, refusal)

    return respond


def too_many_requests(request: HttpRequest, refusal: PlannerBudgetExceeded) -> HttpResponse:
    """A page that says when to ask again; a part that refreshes itself stays as it is."""
    again = {"Retry-After": str(refusal.wait)}
    if request.headers.get("HX-Request"):
        return HttpResponse(status=204, headers=again)
    page = render(request, "asked_too_much.html", {"refusal": refusal}, status=429)
    page.headers["Retry-After"] = again["Retry-After"]
    return page


def current_user(request: HttpRequest) -> User:
    """The signed-in person of a view behind ``sign_in_required``."""
    return cast(User, request.user)


def posted_key(request: HttpRequest, field: str) -> str:
    """What a hidden field of a form names; empty, which nothing is called, for text that no row can hold."""
    text = str(request.POST.get(field, ""))
    return text if "\0" not in text else ""


def get_visible_or_404(rows: QuerySet[Row], what: str, **keys: Any) -> Row:
    """The one row that ``keys`` name among those the viewer may see, or the 404 page: ``what`` says what it would be."""
    row = rows.filter(**keys).first()
    if row is None:
        raise Http404(f"There is no {what} of this address, or it is not yours to see.")
    return row


def run_and_redirect(
    request: HttpRequest, verb: Callable[[], Any], *, done: str, to: str
) -> HttpResponseBase:
    """Call a verb and go back to where the person was (or ``to``): its success or its refusal is said there."""
    try:
        verb()
    except (Conflict, Invalid) as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(request, done)
    return redirect(return_url(request, to))


def return_url(request: HttpRequest, otherwise: str) -> str:
    """The page the form was on when it is one of ours, else ``otherwise``."""
    given = request.POST.get("next") or request.headers.get("Referer", "")
    if given and url_has_allowed_host_and_scheme(
        given, {request.get_host()}, require_https=request.is_secure()
    ):
        parts = urlsplit(given)
        if parts.path != request.path:
            return f"{parts.path}?{parts.query}" if parts.query else parts.path
    return otherwise
