"""Render the page on which an operator changes the MIG geometry of a GPU, after seeing the effect.

The geometry says into which MIG instances a GPU is split. "whole" is a GPU that is not split.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.errors import SERVICE_REFUSALS, NotAllowed, ServiceError
from portal.reads.fleet import host_details as host_reads
from portal.reads.fleet import mig_geometry as reads
from portal.services.fleet import mig_geometry as verbs
from portal.services.fleet.gpu_repairs import gpu_by_index
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages import fleet_pages
from portal.wording.refusal_texts import refusal_sentence


class GeometryForm(ServiceForm):
    why = forms.CharField(label="Reason, shown to everybody", required=False, max_length=300)


@sign_in_required
def gpu_geometry(request: HttpRequest, name: str, index: int) -> HttpResponseBase:
    """Let an operator choose a geometry, show which workloads must leave and when, and request the change."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "host.change")
    host = host_reads.visible_host(user, name)
    if host is None:
        raise Http404(fleet_pages.HOST_NOT_FOUND.format(name=name))
    try:
        gpu = gpu_by_index(host, index)
    except ServiceError as error:
        raise Http404(error.message) from None
    row = reads.gpu_geometry(host, gpu)
    form = GeometryForm(request.POST or None)
    asked = request.POST.get("geometry", "") if request.method == "POST" else _chosen_geometry(request, row)
    if request.method == "POST" and form.is_valid():
        why = form.cleaned_data["why"]
        given: dict[str, Any] = {
            "actor": user,
            "host": host,
            "gpu": index,
            "geometry": asked,
            "why": why,
            "now": now,
        }
        if form.carry_out(verbs.change_geometry, **given) is not None:
            messages.success(request, fleet_pages.GEOMETRY_REQUESTED.format(gpu=index, host=name))
            return redirect("host", name)
    effect, no = None, ""
    if asked:
        try:
            effect = verbs.preview_geometry_change(actor=user, host=host, gpu=index, geometry=asked, now=now)
        except NotAllowed:
            raise
        except SERVICE_REFUSALS as error:
            no = refusal_sentence(error)
    context = {
        "host": host,
        "row": row,
        "gpu": gpu,
        "form": form,
        "asked": asked,
        "effect": effect,
        "no": no,
        "now": now,
        "counts": _profile_counts(row, asked),
        "usual": _common_geometries(row),
    }
    return render(request, "manage/gpu_geometry.html", context, status=400 if form.errors else 200)


def _chosen_geometry(request: HttpRequest, row: reads.GpuGeometry) -> str:
    """Return the geometry that the query string chooses; "" if it chooses none.

    The query string contains the geometry as text, or one count per profile.
    """
    if "geometry" in request.GET:
        return str(request.GET["geometry"])[:300]
    if "choose" not in request.GET:
        return ""
    counts = {name: request.GET.get(f"n-{name}", "").strip() for name in row.offers}
    chosen = "+".join(f"{count}x{name}" for name, count in counts.items() if count not in ("", "0"))
    return chosen[:300] or verbs.WHOLE_GPU_TEXT


def _profile_counts(row: reads.GpuGeometry, asked: str) -> list[dict[str, Any]]:
    """Return one form field per MIG profile, filled with its count in the requested geometry."""
    try:
        there = verbs.parse_geometry(asked) if asked else []
    except SERVICE_REFUSALS:
        there = []
    return [
        {"name": name, "offer": offer, "count": there.count(name) or ""} for name, offer in row.offers.items()
    ]


def _common_geometries(row: reads.GpuGeometry) -> list[str]:
    """Return common geometries as text.

    These are a whole GPU, and for each profile its maximum count (such as ``7x1g.10gb``). Profiles that fit
    only once are left out, and so is the present geometry.
    """
    full = [f"{offer.profile.most}x{name}" for name, offer in row.offers.items() if offer.profile.most > 1]
    return [text for text in [verbs.WHOLE_GPU_TEXT, *full] if text != (row.present or verbs.WHOLE_GPU_TEXT)]
