"""Request GPUs: one form for notebooks, jobs and reservations, with a preview that changes nothing."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from portal import policy
from portal.models import Submission, Template, User
from portal.reads.work.workload_details import RELATED
from portal.services.calendar import recurring_reservations, reservations
from portal.services.work import launch
from portal.web.gpu_request import preview as ask_preview
from portal.web.gpu_request.forms import (
    REQUEST_KINDS,
    GpuRequestForm,
    GpuRequestOptions,
    count_values,
    default_name,
    default_values,
    length_values,
    parse_uuid,
    target_values,
    values_of_workload,
)
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.context_processors import current_currency
from portal.web.work import workload_actions
from scheduler.core.model.snapshot import Priority
from scheduler.models import JobArray, Reservation, Series, Workload, WorkloadKind

TEMPLATE_SLUG = re.compile(r"[-a-zA-Z0-9_]{1,40}")
LAST_REQUEST_SESSION_KEY = "last_ask"
NOT_REMEMBERED_FIELDS = frozenset(
    {
        "csrfmiddlewaretoken",
        "name",
        "start",
        "why",
        "use_start",
        "use_units",
        "use_way",
        "repeat",
        "until",
        "after",
        "array",
        "wanted_by",
    }
)


@sign_in_required
def request_gpus(request: HttpRequest) -> HttpResponse:
    """The form, filled in from the last time or from the address; what was sent comes back with every error beside its field."""
    return handle_request_form(request, _initial_kind(request))


@sign_in_required
def submit_job(request: HttpRequest) -> HttpResponse:
    """The same form, open at jobs; ``?from=`` fills it in from an earlier job."""
    return handle_request_form(request, "job")


@sign_in_required
@require_POST
def preview(request: HttpRequest) -> HttpResponse:
    """What the form as it stands would get; a part of the page, asked for while one types."""
    user, now = current_user(request), timezone.now()
    form = GpuRequestForm(request.POST, options=_form_options(request, user, now))
    return render(request, "work/ask_preview.html", {"view": ask_preview.preview_context(form, user, now)})


def handle_request_form(request: HttpRequest, kind: str) -> HttpResponse:
    """The page for one kind, or the redirect after a request was taken."""
    user, now = current_user(request), timezone.now()
    options = _form_options(request, user, now)
    if request.method != "POST":
        form = GpuRequestForm(initial=_initial_values(request, user, now, kind, options), options=options)
        return _render_form(request, form, options, user, now)
    if {"use_start", "use_units", "use_way"} & set(request.POST):
        form = GpuRequestForm(_apply_suggestion(request.POST), options=options)
        return _render_form(request, form, options, user, now)
    form = GpuRequestForm(request.POST, options=options)
    made = _submit(form, user, now) if form.is_valid() else None
    if made is None:
        return _render_form(request, form, options, user, now, status=400)
    request.session[LAST_REQUEST_SESSION_KEY] = {
        k: v for k, v in request.POST.items() if k in form.fields and k not in NOT_REMEMBERED_FIELDS
    }
    return _redirect_after(request, made, now)


def _submit(
    form: GpuRequestForm, user: User, now: datetime
) -> Submission | Reservation | Series | JobArray | Workload | None:
    kind = form.selected_kind
    if not form.cleaned_data["name"]:
        form.cleaned_data["name"] = default_name(kind, user, now)
    if form.recurs:
        return form.carry_out(recurring_reservations.request_series, actor=user, now=now, **form.for_series())
    if kind == "reservation":
        return form.carry_out(reservations.request_reservation, actor=user, now=now, **form.for_reservation())
    if kind == "notebook":
        return form.carry_out(launch.launch_notebook, actor=user, now=now, **form.for_notebook())
    if form.cleaned_data["array"].strip():
        array = form.cleaned_data["array"].strip()
        return form.carry_out(launch.submit_array, actor=user, now=now, array=array, **form.for_job())
    return form.carry_out(launch.submit_job, actor=user, now=now, **form.for_job())


def _redirect_after(
    request: HttpRequest, made: Submission | Reservation | Series | JobArray | Workload, now: datetime
) -> HttpResponse:
    if isinstance(made, Submission):
        messages.info(
            request,
            f"{made.payload['name']} fits and waits for approval. It holds nothing until then; you are told.",
        )
        return redirect(f"{reverse('calendar')}?{_calendar_query(made)}")
    if isinstance(made, Series):
        first = made.occurrences.order_by("start", "pk")[0]
        messages.success(request, f"{made.name} is reserved {made.occurrences.count()} times.")
        for change in recurring_reservations.clock_changes_of(made):
            messages.info(request, change)
        return redirect("reservation", public_id=first.public_id)
    if isinstance(made, JobArray):
        messages.success(request, f"{made.name} is queued: {made.tasks.count()} tasks.")
        workload_actions.add_start_warning(request, made.tasks.order_by("pk")[0], now)
        return redirect("array", public_id=made.public_id)
    if isinstance(made, Reservation):
        messages.success(request, f"{made.name} is reserved.")
        return redirect("reservation", public_id=made.public_id)
    workload_actions.add_start_warning(request, made, now)
    if made.kind == "notebook":
        return redirect(f"{reverse('notebook', args=[made.public_id])}?open=1")
    messages.success(request, f"{made.name} is queued.")
    return redirect("job", public_id=made.public_id)


def _calendar_query(made: Submission) -> str:
    """The calendar of its pool and of the week in which it would begin."""
    start = timezone.localtime(datetime.fromisoformat(made.payload["start"]))
    return urlencode({"at": f"{start:%Y-%m-%dT%H:%M}"} | ({"pool": made.pool.slug} if made.pool else {}))


# -- the form ----------------------------------------------------------------------------------------------------------


def _form_options(request: HttpRequest, user: User, now: datetime) -> GpuRequestOptions:
    return GpuRequestOptions.of(user, now, current_currency(request))


def _render_form(
    request: HttpRequest,
    form: GpuRequestForm,
    options: GpuRequestOptions,
    user: User,
    now: datetime,
    status: int = 200,
) -> HttpResponse:
    # The preview judges what was asked by itself: beside a refusal of the service stand the windows that would fit.
    checked = GpuRequestForm(form.data if form.is_bound else _initial_as_posted(form), options=options)
    can_ask = bool(options.projects and options.lines)
    context = {
        "form": form,
        "in_a_team": bool(options.projects),
        "has_gpus": bool(options.lines),
        "preview": ask_preview.preview_context(checked, user, now) if can_ask else None,
        "remembered": bool(request.session.get(LAST_REQUEST_SESSION_KEY)),
        "now": now,
    }
    return render(request, "work/ask.html", context, status=status)


def _initial_kind(request: HttpRequest) -> str:
    given = request.GET.get("kind", "") or request.session.get(LAST_REQUEST_SESSION_KEY, {}).get("kind", "")
    return given if given in dict(REQUEST_KINDS) else "reservation"


def _initial_values(
    request: HttpRequest, user: User, now: datetime, kind: str, options: GpuRequestOptions
) -> dict[str, Any]:
    """From general defaults over the last request to what the address says."""
    initial = default_values(now, options.lines)
    remembered = dict(request.session.get(LAST_REQUEST_SESSION_KEY, {}))
    if remembered:
        # A box that is not ticked is not sent.
        remembered["preemptible"] = bool(remembered.get("preemptible"))
        remembered["nvlink"] = bool(remembered.get("nvlink"))
        remembered["spread"] = bool(remembered.get("spread"))
    initial |= remembered
    initial["kind"] = kind
    initial["project"] = initial.get("project") or next(iter(options.projects), "")
    if kind == "notebook" and "type" not in remembered:
        initial["type"] = "interactive"
    initial |= _values_from_workload(request, user)
    initial |= _values_from_template(request, initial["target"])
    initial |= _values_from_query(request.GET)
    if request.GET.get("kind") in dict(REQUEST_KINDS):
        initial["kind"] = kind  # also of what is filled in from another kind
    if initial["target"] not in target_values(options.lines):
        initial["target"] = default_values(now, options.lines)["target"]
    return initial


def _values_from_workload(request: HttpRequest, user: User) -> dict[str, Any]:
    public_id = parse_uuid(request.GET.get("from", ""))
    if public_id is None:
        return {}
    workload = policy.visible_workloads(user).filter(public_id=public_id).select_related(*RELATED).first()
    return values_of_workload(workload, user) if workload else {}


def _values_from_template(request: HttpRequest, target: str) -> dict[str, Any]:
    """A template for jobs; its profile takes the place of the one in ``target``, POOL|MODEL|PROFILE."""
    slug = request.GET.get("template", "")
    template = (
        Template.objects.filter(slug=slug, kind=WorkloadKind.JOB).first()
        if TEMPLATE_SLUG.fullmatch(slug)
        else None
    )
    if template is None:
        return {}
    pool, _, rest = target.partition("|")
    return {
        "kind": "job",
        "name": template.slug,
        "type": template.type,
        "command": template.command,
        "hosts": template.hosts,
        "target": f"{pool}|{rest.partition('|')[0]}|{template.profile}",
        **count_values(template.units),
        **length_values(timedelta(seconds=template.max_runtime_seconds)),
    }


def _values_from_query(given: QueryDict) -> dict[str, Any]:
    """A range of the calendar: target, units, start and end (ISO moments); another way to ask: hosts, seconds, priority and
    preemptible=1, too."""
    found: dict[str, Any] = {}
    if given.get("target"):
        found["target"] = given["target"][:200]
    units = given.get("units", "")
    if units.isascii() and units.isdigit() and 1 <= int(units[:6]) <= 10_000:
        found |= count_values(int(units[:6]))
    hosts, seconds = given.get("hosts", ""), given.get("seconds", "")
    if hosts.isascii() and hosts.isdigit() and 1 <= int(hosts[:6]) <= 10_000:
        found["hosts"] = int(hosts[:6])
    if seconds.isascii() and seconds.isdigit() and 60 <= int(seconds[:9]) <= 366 * 86_400:
        found |= length_values(timedelta(seconds=int(seconds[:9])))
    if given.get("priority") in {priority.name.lower() for priority in Priority}:
        found["priority"] = given["priority"]
    if given.get("preemptible") == "1":
        found["preemptible"] = True
    start, end = _parse_datetime(given.get("start", "")), _parse_datetime(given.get("end", ""))
    if start is not None:
        found["start"] = timezone.localtime(start)
        if end is not None and timedelta(0) < end - start <= timedelta(days=366):
            found |= length_values(end - start)
    return found


def _parse_datetime(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if not 2000 <= at.year <= 2200:
        return None
    return at if at.tzinfo else timezone.make_aware(at)


def _apply_suggestion(posted: QueryDict) -> QueryDict:
    """What was typed, with the one thing changed that a button of the preview stands for."""
    changed = posted.copy()
    start, units = posted.get("use_start", ""), posted.get("use_units", "")
    if start:
        changed["start"] = str(start)
    for name, value in _values_from_query(QueryDict(str(posted.get("use_way", ""))[:1000])).items():
        changed[name] = "" if value is None else "on" if value is True else str(value)
    if str(units).isascii() and str(units).isdigit():
        for name, value in count_values(int(str(units)[:6])).items():
            changed[name] = "" if value is None else str(value)
    return changed


def _initial_as_posted(form: GpuRequestForm) -> QueryDict:
    """The first values of an unsent form as if they had been sent, so that its preview is there from the start."""
    data = QueryDict(mutable=True)
    for name in form.fields:
        value = form.get_initial_for_field(form.fields[name], name)
        if value is None or value is False:
            continue
        if isinstance(value, datetime):
            value = f"{timezone.localtime(value):%Y-%m-%dT%H:%M}"
        data[name] = "on" if value is True else str(value)
    return data
