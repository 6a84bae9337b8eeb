"""Render the pages of notebooks (the list, the launch form, one notebook), and redirect to JupyterLab."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from portal import policy
from portal.models import Template, User
from portal.reads.fleet import free_capacity
from portal.reads.work import team_summaries, workload_details
from portal.services.work import launch, workspaces
from portal.web.components.quantities import gpu_model, money, short_duration
from portal.web.page import live_refresh
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.organisation import current_currency
from portal.web.page.pagination import paginate
from portal.web.page.service_form import ServiceForm
from portal.web.work import (
    workload_actions,
    workload_card,
    workload_page,
    workload_rows,
    workload_tabs,
    workload_text,
)
from portal.web.work.workload_actions import get_workload_or_404
from portal.web.work.workload_lists import WorkloadFilterForm, sort_workloads, workloads_csv
from portal.wording.pages import work_pages
from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.rejection import OperationRejected
from scheduler.models import Reservation, WorkloadKind, WorkloadType
from scheduler.state.states import WorkloadState
from telemetry.core.amounts import round_amount
from telemetry.core.currencies import smallest_unit

LAST_NOTEBOOK_SESSION_KEY = "last_notebook"
RUNTIME_CHOICES_HOURS = (1, 2, 4, 8, 12, 24, 48, 72)


@sign_in_required
def notebooks(request: HttpRequest) -> HttpResponseBase:
    """Render the notebooks that the user may see, with filters, sorting, pages and CSV."""
    user, now = current_user(request), timezone.now()
    filters = WorkloadFilterForm(request.GET)
    rows = sort_workloads(
        filters.apply(workload_details.visible_of_kind(user, WorkloadKind.NOTEBOOK), user),
        request.GET.get("sort", ""),
    )
    if request.GET.get("format") == "csv":
        return workloads_csv("notebooks", rows, now)
    page = paginate(request, rows)
    drawn = workload_rows.list_rows(
        workload_details.workload_details(page.object_list, user, now), user, current_currency(request), now
    )
    context = {
        "filters": filters,
        "page": page,
        "rows": drawn,
        "notes": workload_rows.list_notes(drawn),
        "kind": "notebook",
        "may_launch": policy.launchable_projects(user).exists(),
    }
    return live_refresh.render_live_page(
        request,
        "work/notebooks.html",
        "work/workload_rows.html",
        context,
        topics=[f"user:{user.pk}", "queue"],
        now=now,
    )


# -- launching -----------------------------------------------------------------------------------------------


class NotebookLaunchForm(ServiceForm):
    template = forms.ChoiceField(label="Template", widget=forms.RadioSelect)
    project = forms.ChoiceField(label="Project")
    pool = forms.ChoiceField(label="Pool")
    model = forms.ChoiceField(label="GPU model", required=False)
    type = forms.ChoiceField(
        label="Workload type", required=False, help_text="The purpose of the GPUs, shown with the charges."
    )
    hours = forms.ChoiceField(
        label="Longest runtime",
        help_text="The notebook then stops; an idle notebook stops earlier. The files stay.",
    )
    reservation = forms.ChoiceField(label="Inside a reservation", required=False)
    name = forms.CharField(label="Name", required=False, help_text="Empty: a name from the template and you.")

    argument_fields: ClassVar[Mapping[str, str]] = {
        "max_runtime_seconds": "hours",
        "models": "model",
        "units": "template",
        "profile": "template",
    }

    def __init__(
        self,
        *args: Any,
        user: User,
        lines: list[free_capacity.FreeCapacity],
        currency: str,
        reservations: list[Reservation],
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.templates = {
            t.slug: t
            for t in Template.objects.filter(kind=WorkloadKind.NOTEBOOK).order_by("position", "name")
        }
        self.projects = {
            str(p.pk): p for p in policy.launchable_projects(user).select_related("team").order_by("name")
        }
        self.pools = {line.pool.slug: line.pool for line in lines}
        self.reservations = {str(r.public_id): r for r in reservations}
        fields: dict[str, Any] = self.fields
        fields["template"].choices = [
            (t.slug, _template_label(t, lines, currency)) for t in self.templates.values()
        ]
        fields["project"].choices = [(key, f"{p.name}, {p.team.name}") for key, p in self.projects.items()]
        fields["pool"].choices = [(pool.slug, pool.name) for pool in self.pools.values()]
        models = sorted({line.model for line in lines}, reverse=True)
        fields["model"].choices = [("", "Any model"), *((m, gpu_model(m)) for m in models)]
        fields["type"].choices = [("", work_pages.AS_THE_TEMPLATE), *WorkloadType.choices]
        fields["hours"].choices = [
            ("", work_pages.AS_THE_TEMPLATE),
            *((str(h), f"{h} hour{'s' if h > 1 else ''}") for h in RUNTIME_CHOICES_HOURS),
        ]
        fields["hours"].required = False
        fields["reservation"].choices = [
            ("", "No"),
            *((k, f"{r.name}, {r.project.name}") for k, r in self.reservations.items()),
        ]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``launch_notebook``. The form must be valid."""
        data = self.cleaned_data
        return {
            "project": self.projects[data["project"]],
            "pool": self.pools[data["pool"]],
            "template": self.templates[data["template"]],
            "name": data["name"],
            "models": [data["model"]] if data["model"] else [],
            "type": data["type"] or None,
            "max_runtime_seconds": int(data["hours"]) * 3600 if data["hours"] else None,
            "reservation": self.reservations.get(data["reservation"]),
        }


@sign_in_required
def launch_notebook(request: HttpRequest) -> HttpResponse:
    """Show or submit the launch form.

    It is filled in from the last launch, or from the notebook that ``?from=`` names.
    """
    user, now = current_user(request), timezone.now()
    currency = current_currency(request)
    made: dict[str, Any] = {
        "user": user,
        "lines": free_capacity.free_capacity(user, now),
        "currency": currency,
        "reservations": list(team_summaries.open_reservations(user, now)),
    }
    if request.method == "POST":
        form = NotebookLaunchForm(request.POST, **made)
        workload = None
        if form.is_valid():
            workload = form.carry_out(launch.launch_notebook, actor=user, now=now, **form.arguments())
        if workload is not None:
            request.session[LAST_NOTEBOOK_SESSION_KEY] = {
                name: value for name, value in form.data.items() if name in form.fields and name != "name"
            }
            workload_actions.add_start_warning(request, workload, now)
            return redirect(f"{reverse('notebook', args=[workload.public_id])}?open=1")
    else:
        form = NotebookLaunchForm(initial=_initial_values(request, user), **made)
    context = {
        "form": form,
        "now": now,
        "in_a_team": bool(form.projects),
        "has_templates": bool(form.templates),
    }
    return render(request, "work/notebook_launch.html", context, status=400 if form.errors else 200)


def _initial_values(request: HttpRequest, user: User) -> dict[str, Any]:
    initial = dict(request.session.get(LAST_NOTEBOOK_SESSION_KEY, {}))
    source = request.GET.get("from", "")
    if source:
        initial |= _values_of_earlier(user, source)
    if request.GET.get("template"):
        initial["template"] = request.GET["template"]
    first = (
        Template.objects.filter(kind=WorkloadKind.NOTEBOOK)
        .order_by("position", "name")
        .values_list("slug", flat=True)
        .first()
    )
    initial.setdefault("template", first)
    return initial


def _values_of_earlier(user: User, source: str) -> dict[str, Any]:
    """Return the field values of the notebook with the id ``source``; {} if the user may not see it."""
    try:
        public_id = uuid.UUID(source)
    except ValueError:
        return {}
    workload = (
        policy.visible_workloads(user)
        .filter(public_id=public_id, kind=WorkloadKind.NOTEBOOK)
        .select_related("pool")
        .first()
    )
    if workload is None:
        return {}
    match = Template.objects.filter(
        kind=WorkloadKind.NOTEBOOK, units=workload.units, profile=workload.profile
    ).first()
    hours = workload.max_runtime_seconds // 3600
    return {
        "project": str(workload.project_id),
        "pool": workload.pool.slug,
        "model": workload.models_wanted[0] if len(workload.models_wanted) == 1 else "",
        "type": workload.type,
        "hours": str(hours) if hours in RUNTIME_CHOICES_HOURS else "",
        "name": workload.name,
        **({"template": match.slug} if match else {}),
    }


def _template_label(template: Template, lines: list[free_capacity.FreeCapacity], currency: str) -> SafeString:
    fitting = [line for line in lines if line.profile == template.profile]
    pools = [line.pool.name for line in fitting if line.free_on_one_host >= template.units]
    prices = [line.price * template.units for line in fitting if line.price is not None]
    words = [
        template.description.rstrip(".") or template.name,
        f"at most {short_duration(template.max_runtime_seconds)}",
    ]
    if prices:
        words.append(f"from {money(round_amount(min(prices), smallest_unit(currency)), currency)}/h")
    words.append(f"free now in {' and '.join(dict.fromkeys(pools))}" if pools else "would wait")
    return format_html('<b>{}</b> <span class="muted">{}</span>', template.name, ", ".join(words))


# -- notebook page -------------------------------------------------------------------------------------------


@sign_in_required
def notebook(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Render the page of a notebook. ``?open=1`` opens JupyterLab as soon as it responds."""
    user, now = current_user(request), timezone.now()
    workload = get_workload_or_404(request, public_id)
    if workload.kind != WorkloadKind.NOTEBOOK:
        return redirect("job", public_id=public_id)
    currency = current_currency(request)
    details = workload_details.workload_details([workload], user, now)[0]
    ready = _answers(details, user)
    card = workload_card.build_page_card(details, user, currency, now)
    if ready:  # the page itself has a button that opens the notebook
        card["actions"] = [action for action in card["actions"] if action["label"] != "Open"]
    context = {
        "workload": workload,
        "card": card,
        "steps": workload_card.startup_steps(details) if workload.state != WorkloadState.ENDED else None,
        "ready": ready,
        "opens_itself": bool(request.GET.get("open")) and ready,
        "waits_to_open": bool(request.GET.get("open"))
        and workload.state not in (WorkloadState.ENDED, WorkloadState.STOPPING),
        "open_url": reverse("notebook-open", args=[workload.public_id]),
        "facts": workload_page.workload_facts(details, user, now),
        "ended": workload_text.outcome_sentence(details, user),
        "tabs": workload_tabs.tab_links(request, workload, details, now),
        **workload_tabs.workload_tab_context(request, workload, details, user, currency, now),
    }
    return workload_page.render_workload_page(
        request, "work/notebook.html", "work/notebook_part.html", context, workload, now
    )


@sign_in_required
@require_POST
def open_notebook(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Redirect to the notebook on its own origin, with a code that is valid for one minute.

    The access ends together with this browser session of the portal.
    """
    workload = get_workload_or_404(request, public_id)
    try:
        url = workspaces.open_workspace(
            actor=current_user(request),
            workload=workload,
            session_key=request.session.session_key or "",
            now=timezone.now(),
        )
    except OperationRejected as refusal:
        messages.error(request, refusal_sentence(refusal))
        return redirect(workload_text.workload_url(workload))
    return HttpResponse(status=303, headers={"Location": url})


def _answers(details: workload_details.WorkloadDetails, user: User) -> bool:
    """Return True if JupyterLab responds and the user owns the notebook."""
    workload = details.workload
    answers = details.run is not None and details.run.ready_at is not None
    return answers and workload.state in workload_card.RUNNING_STATES and workload.owner_id == user.pk
