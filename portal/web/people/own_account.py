"""One's own things: API tokens, notices, preferences."""

from __future__ import annotations

from datetime import timedelta

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone

from portal.models import Notification
from portal.reads.people import organisation as reads
from portal.services.people import accounts, api_tokens
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording import notice_texts

TOKEN_LIFETIMES = [("30", "30 days"), ("90", "90 days"), ("365", "a year"), ("", "no end")]
NOTIFICATIONS_PER_PAGE = 50
HOST_NOTIFICATION_KINDS = {
    "host_trouble",
    "hardware_event",
    "strays_found",
    "diagnostic_failed",
    "gpu_is_back",
    "geometry_changed",
    "geometry_failed",
}


class TokenForm(ServiceForm):
    name = forms.CharField(max_length=200, label="Name", help_text="What uses it, such as laptop or nightly.")
    days = forms.ChoiceField(choices=TOKEN_LIFETIMES, required=False, initial="90", label="Valid for")


class PreferencesForm(ServiceForm):
    time_zone = forms.CharField(
        max_length=60, required=False, label="Time zone", help_text="Empty: the organisation's."
    )
    theme = forms.ChoiceField(
        choices=[("system", "as the system"), ("light", "light"), ("dark", "dark")], label="Theme"
    )


@sign_in_required
def tokens(request: HttpRequest) -> HttpResponse:
    """Make a token (its text is shown this once) and revoke one."""
    now = timezone.now()
    if request.POST.get("verb") == "revoke":
        token = get_object_or_404(reads.own_tokens(request.user), pk=_id_or_404(request.POST.get("token")))
        if token.revoked_at is None:
            api_tokens.revoke_token(actor=current_user(request), token=token, now=now)
        messages.success(request, f"The token {token.name} no longer works.")
        return redirect("tokens")
    form, text = TokenForm(request.POST or None), ""
    if request.method == "POST" and form.is_valid():
        days = form.cleaned_data["days"]
        expires_at = now + timedelta(days=int(days)) if days else None
        made = form.carry_out(
            api_tokens.create_token,
            actor=current_user(request),
            name=form.cleaned_data["name"],
            expires_at=expires_at,
            now=now,
        )
        if made is not None:
            text, form = made[1], TokenForm()
    context = {
        "rows": reads.own_tokens(request.user),
        "form": form,
        "text": text,
        "now": now,
        "portal": request.build_absolute_uri("/"),
    }
    response = render(request, "organisation/tokens.html", context, status=400 if form.errors else 200)
    response["Cache-Control"] = "no-store"
    return response


@sign_in_required
def notifications(request: HttpRequest) -> HttpResponse:
    """Own notices, newest first."""
    now = timezone.now()
    if request.method == "POST":
        accounts.read_notifications(actor=current_user(request), now=now)
        return redirect("notifications")
    page = Paginator(reads.own_notices(request.user), NOTIFICATIONS_PER_PAGE).get_page(
        request.GET.get("page")
    )
    rows = [
        {
            "notice": notice,
            "text": notice_texts.notice_sentence(notice.kind, notice.numbers, request.user),
            "url": _notification_url(notice),
        }
        for notice in page
    ]
    return render(request, "organisation/notifications.html", {"page": page, "rows": rows, "now": now})


def _notification_url(notice: Notification) -> str:
    """The page of what the notice is about."""
    if notice.workload is not None and notice.kind.startswith("array_") and notice.workload.array is not None:
        return reverse("array", args=[notice.workload.array.public_id])
    if notice.workload is not None:
        return reverse(
            "notebook" if notice.workload.kind == "notebook" else "job", args=[notice.workload.public_id]
        )
    if notice.reservation is not None:
        return reverse("reservation", args=[notice.reservation.public_id])
    if notice.submission is not None:
        return reverse("submission", args=[notice.submission.public_id])
    if notice.kind in HOST_NOTIFICATION_KINDS and notice.numbers.get("host"):
        return reverse("host", args=[notice.numbers["host"]])
    return ""


@sign_in_required
def preferences(request: HttpRequest) -> HttpResponse:
    """Time zone and theme."""
    user = current_user(request)
    form = PreferencesForm(request.POST or None, initial={"time_zone": user.time_zone, "theme": user.theme})
    if (
        request.method == "POST"
        and form.is_valid()
        and form.carry_out(accounts.set_preferences, actor=user, now=timezone.now(), **form.cleaned_data)
        is not None
    ):
        messages.success(request, "Saved.")
        response = redirect("preferences")
        response.set_cookie("theme", form.cleaned_data["theme"], max_age=365 * 86_400, samesite="Lax")
        return response
    return render(
        request, "organisation/preferences.html", {"form": form}, status=400 if form.errors else 200
    )


def _id_or_404(text: str | None) -> int:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Http404
    return int(text)
