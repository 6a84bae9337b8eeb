"""Fill in the request form from the last request, an earlier workload, a template or the query string."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest, QueryDict
from django.utils import timezone

from portal import policy
from portal.input_checks import FIRST_YEAR, MAX_YEAR
from portal.models import Template, User
from portal.reads.work.workload_details import RELATED
from portal.web.gpu_request.field_values import (
    REQUEST_KINDS,
    count_values,
    default_values,
    length_values,
    values_of_workload,
)
from portal.web.gpu_request.forms import GpuRequestForm
from portal.web.gpu_request.generated_fields import GENERATED_FIELDS
from portal.web.gpu_request.options import GpuRequestOptions, target_values
from portal.web.page.query import parse_uuid
from scheduler.core.model.snapshot import Priority
from scheduler.models import WorkloadKind

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


def initial_kind(request: HttpRequest) -> str:
    given = request.GET.get("kind", "") or request.session.get(LAST_REQUEST_SESSION_KEY, {}).get("kind", "")
    return given if given in dict(REQUEST_KINDS) else "reservation"


def initial_values(
    request: HttpRequest, user: User, now: datetime, kind: str, options: GpuRequestOptions
) -> dict[str, Any]:
    """Return the initial values of the form.

    Later sources override earlier ones: defaults, last request, earlier workload (``?from=``), template,
    query string.
    """
    initial = default_values(now, options.lines)
    remembered = dict(request.session.get(LAST_REQUEST_SESSION_KEY, {}))
    if remembered:
        # Browsers do not send unchecked boxes: a box without a value was unchecked.
        boxes = [name for name, declared in GENERATED_FIELDS.items() if declared.type is bool]
        remembered |= {name: bool(remembered.get(name)) for name in boxes}
    initial |= remembered
    initial["kind"] = kind
    initial["project"] = initial.get("project") or next(iter(options.projects), "")
    if kind == "notebook" and "type" not in remembered:
        initial["type"] = "interactive"
    initial |= _values_from_workload(request, user)
    initial |= _values_from_template(request, initial["target"])
    initial |= _values_from_query(request.GET)
    if request.GET.get("kind") in dict(REQUEST_KINDS):
        initial["kind"] = kind  # replaces the kind of the earlier workload
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
    """Return the values of the job template that ``?template=`` names; {} without one.

    ``target`` has the form POOL|MODEL|PROFILE. The result has the template's profile as its last part.
    """
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


# Not split: the function checks the parameters one after the other, and no check depends on another.
def _values_from_query(query: QueryDict) -> dict[str, Any]:
    """Return the field values in the query string.

    Links of the calendar contain target, units, start and end (ISO 8601). Links to alternative requests can
    also contain hosts, seconds, priority and preemptible=1. Invalid values are ignored.
    """
    values: dict[str, Any] = {}
    if query.get("target"):
        values["target"] = query["target"][:200]
    units = query.get("units", "")
    if units.isascii() and units.isdigit() and 1 <= int(units[:6]) <= 10_000:
        values |= count_values(int(units[:6]))
    hosts, seconds = query.get("hosts", ""), query.get("seconds", "")
    if hosts.isascii() and hosts.isdigit() and 1 <= int(hosts[:6]) <= 10_000:
        values["hosts"] = int(hosts[:6])
    if seconds.isascii() and seconds.isdigit() and 60 <= int(seconds[:9]) <= 366 * 86_400:
        values |= length_values(timedelta(seconds=int(seconds[:9])))
    if query.get("priority") in {priority.name.lower() for priority in Priority}:
        values["priority"] = query["priority"]
    if query.get("preemptible") == "1":
        values["preemptible"] = True
    start, end = _parse_datetime(query.get("start", "")), _parse_datetime(query.get("end", ""))
    if start is not None:
        values["start"] = timezone.localtime(start)
        if end is not None and timedelta(0) < end - start <= timedelta(days=366):
            values |= length_values(end - start)
    return values


def _parse_datetime(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if not FIRST_YEAR <= at.year <= MAX_YEAR:
        return None
    return at if at.tzinfo else timezone.make_aware(at)


def apply_suggestion(posted: QueryDict) -> QueryDict:
    """Return the posted form with the values of the suggestion that the user chose in the preview."""
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


def initial_as_posted(form: GpuRequestForm) -> QueryDict:
    """Return the initial values as posted data, so that the page can show a preview before the first POST."""
    data = QueryDict(mutable=True)
    for name in form.fields:
        value = form.get_initial_for_field(form.fields[name], name)
        if value is None or value is False:
            continue
        if isinstance(value, datetime):
            value = f"{timezone.localtime(value):%Y-%m-%dT%H:%M}"
        data[name] = "on" if value is True else str(value)
    return data
