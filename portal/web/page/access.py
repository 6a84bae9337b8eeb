"""Check who may open a page, and turn service errors into responses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme

from portal.errors import Invalid, NotAllowed, ObjectNotFound, PlannerBudgetExceeded
from portal.input_checks import display_value
from portal.models import User
from portal.wording.pages import home_pages
from portal.wording.pages.money import money_pages
from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.rejection import OperationRejected

Row = TypeVar("Row", bound=Model)
ViewFunction = Callable[..., HttpResponseBase]


class InvalidAddress(Http404):
    """A parameter of the address is invalid. The message has its name, its value and the allowed values."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def sign_in_required(view: ViewFunction) -> ViewFunction:
    """Decorate a view so that anonymous users are redirected to the sign-in page.

    A request for a live part gets a response that makes the browser reload the whole page. InvalidAddress
    gives a page with status 404 that shows its message.
    """

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
        except InvalidAddress as refusal:
            return render(request, "invalid_address.html", {"message": refusal.message}, status=404)

    return respond


@contextmanager
def address_checks() -> Iterator[None]:
    """Raise InvalidAddress if a check of the address raises Invalid or ObjectNotFound."""
    try:
        yield
    except (Invalid, ObjectNotFound) as refusal:
        raise InvalidAddress(refusal.message) from refusal


def check_parameters(request: HttpRequest, known: tuple[str, ...]) -> None:
    """Raise InvalidAddress if the query string has a parameter that the page does not have."""
    unknown = next((name for name in request.GET if name not in known), None)
    if unknown is not None:
        given, allowed = display_value(unknown), ", ".join(known)
        raise InvalidAddress(money_pages.PARAMETER_UNKNOWN.format(given=given, allowed=allowed))


def too_many_requests(request: HttpRequest, refusal: PlannerBudgetExceeded) -> HttpResponse:
    """Return a page with status 429 that says when to retry.

    A request for a live part gets status 204, so that the part stays as it is.
    """
    headers = {"Retry-After": str(refusal.wait)}
    if request.headers.get("HX-Request"):
        return HttpResponse(status=204, headers=headers)
    page = render(request, "asked_too_much.html", {"refusal": refusal}, status=429)
    page.headers["Retry-After"] = headers["Retry-After"]
    return page


def current_user(request: HttpRequest) -> User:
    """Return the signed-in user of a view behind ``sign_in_required``."""
    return cast(User, request.user)


def posted_key(request: HttpRequest, field: str) -> str:
    """Return the posted value of ``field``, the key of a row.

    Return "" if it contains a NUL character: no row has such a key, and PostgreSQL rejects the character.
    """
    text = str(request.POST.get(field, ""))
    return text if "\0" not in text else ""


def get_visible_or_404(rows: QuerySet[Row], what: str, **keys: Any) -> Row:
    """Return the row with these keys, or raise Http404. ``what`` names the kind of row in the message."""
    row = rows.filter(**keys).first()
    if row is None:
        raise Http404(home_pages.OBJECT_NOT_FOUND.format(what=what))
    return row


def run_and_redirect(
    request: HttpRequest, verb: Callable[[], Any], *, done: str, to: str
) -> HttpResponseBase:
    """Call a service, then redirect to the page that sent the form, with a success or error message.

    ``to`` is the URL that is used if ``return_url`` does not find the page of the form.
    """
    try:
        verb()
    except (Invalid, OperationRejected) as refusal:
        messages.error(request, refusal_sentence(refusal))
    else:
        messages.success(request, done)
    return redirect(return_url(request, to))


def return_url(request: HttpRequest, otherwise: str) -> str:
    """Return the URL of the page that sent the form.

    Return the argument ``otherwise`` if that page is unknown, is on another site, or has the path of this
    request.
    """
    referrer = request.POST.get("next") or request.headers.get("Referer", "")
    if referrer and url_has_allowed_host_and_scheme(
        referrer, {request.get_host()}, require_https=request.is_secure()
    ):
        parts = urlsplit(referrer)
        if parts.path != request.path:
            return f"{parts.path}?{parts.query}" if parts.query else parts.path
    return otherwise
