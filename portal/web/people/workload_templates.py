"""Render the pages of workload templates."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone

from portal import policy
from portal.models import Template
from portal.services.work import templates
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.duration_field import DURATION_EXAMPLES, DurationInSecondsField
from portal.web.page.service_form import ServiceForm
from scheduler.models import WorkloadKind, WorkloadType


class WorkloadTemplateForm(ServiceForm):
    name = forms.CharField(max_length=200, label="Name")
    description = forms.CharField(max_length=1000, required=False, label="Description")
    kind = forms.ChoiceField(choices=WorkloadKind.choices, label="Kind")
    type = forms.ChoiceField(choices=WorkloadType.choices, label="Workload type")
    units = forms.IntegerField(initial=1, label="GPUs or slices")
    hosts = forms.IntegerField(
        initial=1,
        label="Hosts",
        help_text="The number of GPUs or slices is per host. Only jobs can use several hosts.",
    )
    profile = forms.CharField(
        max_length=60,
        required=False,
        label="Slice profile",
        help_text="Such as 1g.10gb. Empty: whole GPUs.",
    )
    max_runtime_seconds = DurationInSecondsField(
        initial=4 * 3600, label="Longest runtime", help_text=DURATION_EXAMPLES
    )
    command = forms.CharField(
        required=False, widget=forms.Textarea, label="Command", help_text="Shell text; only for jobs."
    )


@sign_in_required
def workload_templates(request: HttpRequest) -> HttpResponse:
    """List the templates."""
    rows = Template.objects.order_by("position", "pk")
    return render(
        request,
        "organisation/templates.html",
        {"rows": rows, "may_change": policy.may(request.user, "template.change")},
    )


@sign_in_required
def edit_workload_template(request: HttpRequest, slug: str = "") -> HttpResponse:
    """Create or change a template."""
    policy.require(request.user, "template.change")
    row = get_object_or_404(Template, slug=slug) if slug else None
    initial = {} if row is None else {name: getattr(row, name) for name in WorkloadTemplateForm.base_fields}
    form = WorkloadTemplateForm(request.POST or None, initial=initial)
    if (
        request.method == "POST"
        and form.is_valid()
        and (
            form.carry_out(
                templates.save_template,
                actor=current_user(request),
                template=row,
                now=timezone.now(),
                **form.cleaned_data,
            )
            is not None
        )
    ):
        messages.success(request, "Saved.")
        return redirect("templates")
    return render(
        request,
        "organisation/template.html",
        {"form": form, "template": row},
        status=400 if form.errors else 200,
    )
