"""Buttons of the host page about its GPUs and its maintenance windows, and the form of what a pool does by itself."""

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
from portal.errors import ServiceError
from portal.selectors import hosts as hosts_reads
from portal.selectors import repairs as reads
from portal.services import geometry
from portal.services import repairs as verbs
from portal.web.access import signed_in, viewer
from portal.web.length_field import LengthField
from portal.web.verb_form import VerbForm
from portal.wording import phrases
from scheduler.models import Pool, StrayAction

Done = Callable[[Any], str]
# What a button posts: the service, the argument it takes beside the host, and what is said when it is done.
VERBS: dict[str, tuple[Callable[..., Any], str, Done]] = {
    "diagnose": (verbs.diagnose_gpu, "gpu", lambda made: f"GPU {made.gpu.index} is being looked at."),
    "diagnose-all": (
        verbs.diagnose_host,
        "",
        lambda made: f"Being looked at: {phrases.gpu_list([d.gpu.index for d in made])}.",
    ),
    "return": (verbs.return_gpu, "gpu", lambda gpu: f"GPU {gpu.index} is back in service."),
    "out": (verbs.take_out_gpu, "gpu", lambda gpu: f"GPU {gpu.index} is out until it is returned."),
    "forget": (verbs.forget_gpu, "gpu", lambda gpu: f"GPU {gpu.index} ({gpu.uuid}) is listed no more."),
    "withdraw-geometry": (geometry.withdraw_geometry, "gpu", lambda row: f"GPU {row.gpu.index} stays as it is."),
    "cancel-window": (verbs.cancel_maintenance, "window", lambda row: "The maintenance window is taken back."),
}


class RepairPolicyForm(VerbForm):
    stray_action = forms.ChoiceField(
        choices=StrayAction.choices,
        label="Processes of no workload",
        help_text="On a GPU that nobody holds, or beside its holder. Operators are told in any case.",
    )
    diagnostic_tool = forms.ChoiceField(
        label="Diagnostic", help_text="What hosts name their own is allowed in their agents' options (--diagnostic)."
    )
    diagnostic_seconds = LengthField(
        label="Deadline of a diagnostic", help_text="For one GPU, such as 10 min; one that does not end by then has failed."
    )
    diagnose_every_hours = forms.IntegerField(
        label="Idle GPUs every so many hours", help_text="They are given to work at once. 0: never."
    )
    diagnose_after_quarantine = forms.BooleanField(
        required=False,
        label="Diagnose by itself after a quarantine",
        help_text="Once nothing holds the GPU: it comes back when it passes, and goes out when it fails.",
    )

    def __init__(self, *args: Any, pool: Pool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: dict[str, Any] = self.fields
        fields["diagnostic_tool"].choices = reads.diagnostic_tools(pool)


@signed_in
@require_POST
def host_repair(request: HttpRequest, name: str) -> HttpResponseBase:
    """One of the buttons: ``verb`` says which, ``gpu`` or ``window`` of what."""
    user = viewer(request)
    policy.require(user, "host.change")
    row = hosts_reads.one(user, name)
    if row is None:
        raise Http404(f"There is no host {name}, or it is not yours to see.")
    verb, argument, done = VERBS.get(request.POST.get("verb", ""), (None, "", None))
    if verb is None or done is None:
        messages.error(request, f"verb is {request.POST.get('verb', '')[:40]!r}; allowed: {', '.join(VERBS)}.")
        return redirect("host", name)
    more = {argument: request.POST.get(argument, "")} if argument else {}
    try:
        made = verb(actor=user, host=row, now=timezone.now(), why=request.POST.get("why", ""), **more)
    except ServiceError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, done(made))
    return redirect("host", name)
