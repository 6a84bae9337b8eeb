"""Render the page on which operators enter the dcgm-exporter of a host."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.reads.fleet import host_details as reads
from portal.services.fleet import dcgm_targets as verbs
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording import host_texts
from portal.wording.pages import fleet_pages
from telemetry.dcgm.targets import MAX_URL_LENGTH


class DcgmTargetForm(ServiceForm):
    url = forms.CharField(
        label="URL",
        required=False,
        max_length=MAX_URL_LENGTH,
        help_text="Such as http://gpu-01:9400/metrics. http or https, without a name and password.",
    )


@sign_in_required
def host_dcgm(request: HttpRequest, name: str) -> HttpResponseBase:
    """Show the dcgm-exporter of a host; on POST, enter, change or remove it."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "host.change")
    host = reads.visible_host(user, name)
    if host is None:
        raise Http404(fleet_pages.HOST_NOT_FOUND.format(name=name))
    target = getattr(host, "dcgm_target", None)
    form = DcgmTargetForm(request.POST or None, initial={"url": target.url if target else ""})
    if request.method == "POST" and form.is_valid():
        if request.POST.get("verb") == "remove":
            done: Any = form.carry_out(verbs.remove_dcgm_target, actor=user, host=host, now=now)
            message = fleet_pages.DCGM_REMOVED
        else:
            url = form.cleaned_data["url"]
            done = form.carry_out(verbs.set_dcgm_target, actor=user, host=host, url=url, now=now)
            message = fleet_pages.DCGM_SET
        if done is not None:
            messages.success(request, message.format(name=name))
            return redirect("host", name)
    problem = host_texts.DCGM_PROBLEMS[target.problem] if target else ""
    context = {"host": host, "target": target, "dcgm_problem": problem, "form": form, "now": now}
    return render(request, "manage/host_dcgm.html", context, status=400 if form.errors else 200)
