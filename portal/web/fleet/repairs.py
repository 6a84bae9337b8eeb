"""Carry out actions on a host's GPUs and maintenance windows, and define the form of the repair policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_POST

from portal import policy
from portal.errors import SERVICE_REFUSALS
from portal.reads.fleet import gpu_health as reads
from portal.reads.fleet import host_details as hosts_reads
from portal.services.fleet import gpu_repairs as verbs
from portal.services.fleet import hosts, mig_geometry
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.duration_field import DurationInSecondsField
from portal.web.page.service_form import ServiceForm
from portal.wording import formatting
from portal.wording.pages import fleet_pages
from portal.wording.refusal_texts import refusal_sentence
from scheduler.models import Pool, StrayAction

SuccessMessage = Callable[[Any], str]
# Posted verbs, each with (service, name of its second argument or "", function for the success message). The
# first argument is the host.
REPAIR_ACTIONS: dict[str, tuple[Callable[..., Any], str, SuccessMessage]] = {
    "diagnose": (
        verbs.diagnose_gpu,
        "gpu",
        lambda made: fleet_pages.GPU_DIAGNOSED.format(gpu=made.gpu.index),
    ),
    "diagnose-all": (
        verbs.diagnose_host,
        "",
        lambda made: fleet_pages.GPUS_DIAGNOSED.format(gpus=formatting.gpu_list([d.gpu.index for d in made])),
    ),
    "return": (verbs.return_gpu, "gpu", lambda gpu: fleet_pages.GPU_RETURNED.format(gpu=gpu.index)),
    "out": (verbs.take_out_gpu, "gpu", lambda gpu: fleet_pages.GPU_TAKEN_OUT.format(gpu=gpu.index)),
    "forget": (
        verbs.forget_gpu,
        "gpu",
        lambda gpu: fleet_pages.GPU_FORGOTTEN.format(gpu=gpu.index, uuid=gpu.uuid),
    ),
    "withdraw-geometry": (
        mig_geometry.withdraw_geometry,
        "gpu",
        lambda row: fleet_pages.GEOMETRY_KEPT.format(gpu=row.gpu.index),
    ),
    "cancel-window": (
        hosts.cancel_maintenance,
        "window",
        lambda row: fleet_pages.WINDOW_CANCELLED,
    ),
}


class RepairPolicyForm(ServiceForm):
    stray_action = forms.ChoiceField(
        choices=StrayAction.choices,
        label="Processes outside workloads",
        help_text="On a free GPU, or next to a workload. Operators are always notified.",
    )
    diagnostic_tool = forms.ChoiceField(
        label="Diagnostic",
        help_text="The agent's option --diagnostic allows a host's own tools.",
    )
    diagnostic_seconds = DurationInSecondsField(
        label="Deadline of a diagnostic",
        help_text="For one GPU, such as 10 min. A diagnostic that takes longer has failed.",
    )
    diagnose_every_hours = forms.IntegerField(
        label="Hours between diagnostics of an idle GPU",
        help_text="Work may still start on the GPU at once. 0: never.",
    )
    diagnose_after_quarantine = forms.BooleanField(
        required=False,
        label="Diagnose automatically after a quarantine",
        help_text=(
            "Starts when no workload holds the GPU. A GPU that passes returns to service; one that fails "
            "goes out of service."
        ),
    )

    def __init__(self, *args: Any, pool: Pool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: dict[str, Any] = self.fields
        fields["diagnostic_tool"].choices = reads.diagnostic_tools(pool)


@sign_in_required
@require_POST
def host_repair(request: HttpRequest, name: str) -> HttpResponseBase:
    """Carry out the posted ``verb`` on the host's GPU or maintenance window that the form names."""
    user = current_user(request)
    policy.require(user, "host.change")
    row = hosts_reads.visible_host(user, name)
    if row is None:
        raise Http404(fleet_pages.HOST_NOT_FOUND.format(name=name))
    verb, argument, done = REPAIR_ACTIONS.get(request.POST.get("verb", ""), (None, "", None))
    if verb is None or done is None:
        messages.error(
            request,
            fleet_pages.UNKNOWN_REPAIR_VERB.format(
                verb=request.POST.get("verb", "")[:40], allowed=", ".join(REPAIR_ACTIONS)
            ),
        )
        return redirect("host", name)
    more = {argument: request.POST.get(argument, "")} if argument else {}
    try:
        made = verb(actor=user, host=row, now=timezone.now(), why=request.POST.get("why", ""), **more)
    except SERVICE_REFUSALS as error:
        messages.error(request, refusal_sentence(error))
    else:
        messages.success(request, done(made))
    return redirect("host", name)
