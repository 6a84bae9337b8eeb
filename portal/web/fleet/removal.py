"""Render the pages that remove hosts and pools, and move hosts between pools. Each first shows the effect."""

from __future__ import annotations

from django import forms
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.reads.fleet.host_details import visible_host
from portal.services.fleet import removal
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.removal_page import confirm_removal
from portal.wording.pages import fleet_pages
from portal.wording.removal_texts import REMOVAL_VERBS
from scheduler.models import Host, Pool


class MoveTargetForm(forms.Form):
    pool: forms.ModelChoiceField[Pool] = forms.ModelChoiceField(
        queryset=None, to_field_name="slug", label="Pool", empty_label=None
    )


@sign_in_required
def host_remove(request: HttpRequest, name: str) -> HttpResponseBase:
    """Show the effect of removing a host; on POST, remove it."""
    policy.require(request.user, "host.change")
    host = _host_or_404(request, name)
    effect = removal.preview_host_removal(actor=current_user(request), host=host, now=timezone.now())
    return confirm_removal(
        request,
        effect,
        removal.remove_host,
        back=reverse("host", args=[name]),
        to=reverse("fleet"),
        host=host,
    )


@sign_in_required
def host_move(request: HttpRequest, name: str) -> HttpResponseBase:
    """Let the operator choose a pool, and show the effect of moving the host there; on POST, move it."""
    policy.require(request.user, "host.change")
    host = _host_or_404(request, name)
    target = MoveTargetForm(request.GET or None)
    pools = policy.visible_pools(request.user).exclude(pk=host.pool_id).order_by("name")
    target.fields["pool"].queryset = pools  # type: ignore[attr-defined]
    if not target.is_valid():
        title = REMOVAL_VERBS["move_host"].title.format(name)
        context = {"host": host, "form": target, "title": title, "text": REMOVAL_VERBS["move_host"].text}
        return render(request, "manage/host_move.html", context, status=400 if target.errors else 200)
    pool = target.cleaned_data["pool"]
    effect = removal.preview_host_move(actor=current_user(request), host=host, pool=pool, now=timezone.now())
    page = reverse("host", args=[name])
    return confirm_removal(request, effect, removal.move_host, back=page, to=page, host=host, pool=pool)


@sign_in_required
def pool_remove(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Show the effect of removing a pool; on POST, remove it."""
    policy.require(request.user, "pool.change")
    pool = get_object_or_404(policy.visible_pools(request.user), slug=slug)
    effect = removal.preview_pool_removal(actor=current_user(request), pool=pool, now=timezone.now())
    return confirm_removal(
        request,
        effect,
        removal.remove_pool,
        back=reverse("pool", args=[slug]),
        to=reverse("settings"),
        pool=pool,
    )


def _host_or_404(request: HttpRequest, name: str) -> Host:
    host = visible_host(current_user(request), name)
    if host is None:
        raise Http404(fleet_pages.HOST_NOT_FOUND.format(name=name))
    return host
