"""Keep people who must set up a second factor on the pages where they do it, and note uses of sessions."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect
from django.utils import timezone

from portal.models import User
from portal.services.people.browser_sessions import record_use
from portal.services.people.required_second_factor import second_factor_missing
from portal.sign_in.client import client_of
from portal.web.page.organisation import current_organisation
from portal.wording.problems.permission_problems import SECOND_FACTOR_REQUIRED

GetResponse = Callable[[HttpRequest], HttpResponseBase]

# The page of the account, the pages of second factors, the proof of identity, and signing out.
OPEN_PATHS = ("/account/second-factor/", "/accounts/2fa/", "/accounts/reauthenticate/", "/accounts/logout/")
# Requests to these paths have no session, or need none.
WITHOUT_SESSION = ("/healthz", "/readyz", "/metrics")


def second_factor_gate(get_response: GetResponse) -> GetResponse:
    """Return middleware that opens nothing but the enrolment to people whose second factor is missing.

    Pages are redirected to the enrolment; the API answers 403 with the code ``second_factor_required``. A
    request with an API token passes: a token is a credential of its own, and its scopes limit it.
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        if request.path.startswith((*WITHOUT_SESSION, settings.STATIC_URL)) or _has_token(request):
            return get_response(request)
        user = request.user
        if not isinstance(user, User):
            return get_response(request)
        record_use(request, client_of(request), timezone.now())
        if request.path.startswith(OPEN_PATHS) or not second_factor_missing(
            user, current_organisation(request)
        ):
            return get_response(request)
        return _refusal(request)

    return respond


def _refusal(request: HttpRequest) -> HttpResponse:
    if request.path.startswith("/api/"):
        error = {"field": "", "value": None, "message": SECOND_FACTOR_REQUIRED}
        return JsonResponse({"errors": [error], "code": "second_factor_required"}, status=403)
    if request.headers.get("HX-Request"):
        return HttpResponse(status=204, headers={"HX-Refresh": "true"})
    return redirect("second-factor-required")


def _has_token(request: HttpRequest) -> bool:
    return request.headers.get("Authorization", "")[:7].lower() == "bearer "
