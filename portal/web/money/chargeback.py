"""Chargeback: what a month cost, by whom, whether it adds up, and closing it."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.money import chargeback as reads
from portal.services.money import budgets as budgets_service
from portal.services.money import months
from portal.services.money import rate_card as rate_card_service
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.context_processors import current_currency
from portal.web.page.service_form import ServiceForm
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR, SLOTS_PER_GPU
from telemetry import reads as selectors
from telemetry.models import Charge
from telemetry.money import statements
from telemetry.money.billing_months import month_bounds, month_of, next_month
from telemetry.money.statements import csv_safe_text
from telemetry.reads.chargeback import DRILL_DOWN

# What the first table can be grouped by, and its words.
GROUP_CHOICES = (
    ("cost_centre", "Cost centre"),
    ("team", "Team"),
    ("project", "Project"),
    ("type", "Workload type"),
    ("user", "Person"),
    ("model", "Model"),
)
DIMENSION_LABELS = {**dict(GROUP_CHOICES), "workload": "Workload", "bucket": "Bucket", "pool": "Pool"}
NUMERIC_DIMENSIONS = {"team", "project", "workload", "user", "pool"}  # keys that are row ids
LINES_PER_PAGE = 50
MAX_CSV_LINES = 200_000


class CloseMonthForm(ServiceForm):
    why = forms.CharField(label="Note", required=False, max_length=1000, help_text="Kept with the change.")


@sign_in_required
def chargeback(request: HttpRequest) -> HttpResponseBase:
    """``month``, ``by`` and the way down (cost_centre, team, project, type, workload) are in the address."""
    user, now = current_user(request), timezone.now()
    month = _month_or_404(request.GET.get("month"), now)
    lines = policy.visible_charges(user)
    where = _drill_down_filters(request)
    dimension = _dimension(request, where)
    if request.GET.get("format") == "statement":
        policy.require(user, "charges.see_all")
        return _csv_file(
            statements.statement_csv(month, current_currency(request)), f"statement-{month:%Y-%m}.csv"
        )
    if dimension is None:
        return _workload_charge_lines(request, month, lines, where, now)
    table = selectors.charges_by(dimension, month, lines, **where)
    if request.GET.get("format") == "csv":
        return _groups_csv(table, dimension, month, policy.sees_owner_cost(user))
    see_all = policy.may(user, "charges.see_all")
    statement = reads.statement_of(month)
    context = {
        "month": month,
        "months": reads.charged_months(now),
        "previous": _offset_month(month, -1),
        "next": next_month(month) if next_month(month) <= month_of(now) else None,
        "closed": statement is not None and statement.state == "closed",
        "statement": statement,
        "see_all": see_all,
        "conservation": reads.conservation_equation(month) if see_all and not where else None,
        "table": table,
        "rows": [_group_row(request, group, dimension) for group in table.groups],
        "dimension": DIMENSION_LABELS[dimension],
        "choices": _group_choices(request, dimension) if not where else [],
        "path": _breadcrumbs(request, month, lines, where),
        "budgets": reads.budget_rows(user, month, now),
        "checks": statements.close_checks(month) if see_all and month < month_of(now) and not where else None,
        "may_close": policy.may(user, "statement.close") and month < month_of(now),
        "may_price": policy.may(user, "price.change"),
        "may_budget": policy.may(user, "budget.change"),
        "simulated": reads.is_simulated(month),
        "period": month_bounds(month),
        "now": now,
    }
    return render(request, "manage/chargeback.html", context)


def _workload_charge_lines(
    request: HttpRequest, month: date, lines: QuerySet[Charge], where: dict[str, Any], now: datetime
) -> HttpResponseBase:
    """The last level: the lines of one workload, each with its allocation."""
    rows = selectors.charge_lines(month, lines, **where)
    if request.GET.get("format") == "csv":
        return _lines_csv(rows[:MAX_CSV_LINES], month, policy.sees_owner_cost(current_user(request)))
    page = Paginator(rows.select_related("price", "gpu__host", "pool"), LINES_PER_PAGE).get_page(
        request.GET.get("page")
    )
    table = selectors.charges_by("bucket", month, lines, **where)
    context = {
        "month": month,
        "page": page,
        "rows": [{"line": line, "gpu_hours": line.slot_seconds / SLOT_SECONDS_PER_GPU_HOUR} for line in page],
        "total": table.total,
        "path": _breadcrumbs(request, month, lines, where),
        "workload": reads.charged_workload(current_user(request), where.get("workload")),
        "simulated": reads.is_simulated(month),
        "now": now,
    }
    return render(request, "manage/charge_lines.html", context)


# -- the address -------------------------------------------------------------------------------------------------------


def _month_or_404(text: str | None, now: datetime) -> date:
    if not text:
        return month_of(now)
    try:
        year, month = text.split("-")
        found = date(int(year), int(month), 1)
    except ValueError:
        raise Http404(f"month is {text[:20]!a}; allowed: a year and a month, such as 2026-03.") from None
    if not 2000 <= found.year <= 2200:
        raise Http404(f"month is {text[:20]!a}; allowed: years from 2000 to 2200.")
    return found


def _offset_month(month: date, by: int) -> date:
    index = month.year * 12 + month.month - 1 + by
    return date(index // 12, index % 12 + 1, 1)


def _drill_down_filters(request: HttpRequest) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in DRILL_DOWN:
        value = request.GET.get(name)
        if value is None:
            continue
        found[name] = _filter_value(name, value)
    return found


def _filter_value(name: str, value: str) -> Any:
    if name not in NUMERIC_DIMENSIONS:
        return value[:80]
    if value == "":
        return None
    if not value.isascii() or not value.isdigit() or len(value) > 18:
        raise Http404(f"{name} is {value[:20]!a}; allowed: its number.")
    return int(value)


def _dimension(request: HttpRequest, where: dict[str, Any]) -> str | None:
    """What this level is grouped by: the first step down that is not taken yet, None below the last."""
    given = request.GET.get("by")
    if not where:
        return given if given in dict(GROUP_CHOICES) and given is not None else DRILL_DOWN[0]
    taken = max(DRILL_DOWN.index(name) for name in where)
    return DRILL_DOWN[taken + 1] if taken + 1 < len(DRILL_DOWN) else None


def _group_row(request: HttpRequest, group: Any, dimension: str) -> dict[str, Any]:
    query = request.GET.copy()
    for name in ("by", "page", "format"):
        query.pop(name, None)
    down = dimension in DRILL_DOWN
    if down:
        query[dimension] = "" if group.key is None else str(group.key)
    return {"group": group, "url": f"?{query.urlencode()}" if down else "", "name": group.name or "none"}


def _group_choices(request: HttpRequest, current: str) -> list[dict[str, Any]]:
    rows = []
    for value, label in GROUP_CHOICES:
        query = request.GET.copy()
        query["by"] = value
        rows.append({"label": label, "url": f"?{query.urlencode()}", "current": value == current})
    return rows


def _breadcrumbs(
    request: HttpRequest, month: date, lines: QuerySet[Charge], where: dict[str, Any]
) -> list[dict[str, Any]]:
    """The way down so far, each step with the address of its level."""
    steps: list[dict[str, Any]] = []
    query = request.GET.copy()
    for name in (*DRILL_DOWN, "page", "format", "by"):
        query.pop(name, None)
    steps.append({"label": f"{month:%B %Y}", "url": f"?{query.urlencode()}"})
    for name in DRILL_DOWN:
        if name in where:
            query[name] = "" if where[name] is None else str(where[name])
            label = reads.dimension_name(name, where[name], month, lines)
            steps.append({"label": f"{DIMENSION_LABELS[name]} {label}", "url": f"?{query.urlencode()}"})
    return steps


# -- downloads ---------------------------------------------------------------------------------------------------------


def _csv_file(text: str, name: str) -> HttpResponse:
    response = HttpResponse(text, content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _groups_csv(table: selectors.ChargeTable, dimension: str, month: date, with_cost: bool) -> HttpResponse:
    """``with_cost``: with what it cost the owner of the GPUs."""
    response = _csv_file("", f"charges-{month:%Y-%m}-by-{dimension}.csv")
    writer = csv.writer(response)
    cost = ["cost"] if with_cost else []
    writer.writerow(
        [
            dimension,
            "gpu_hours",
            "used",
            "idle",
            "unmeasured",
            "reserved_unused",
            "charged",
            *cost,
            "coverage",
        ]
    )
    for group in (*table.groups, table.total):
        name = "total" if group is table.total else csv_safe_text(group.name or "none")
        coverage = "" if group.coverage is None else f"{group.coverage:.4f}"
        amounts = [group.used, group.idle, group.unmeasured, group.reserved_unused, group.charged]
        amounts += [group.cost] if with_cost else []
        writer.writerow([name, f"{group.gpu_hours:.4f}", *amounts, coverage])
    return response


def _lines_csv(rows: Iterable[Charge], month: date, with_cost: bool) -> HttpResponse:
    """``with_cost``: with what it cost the owner of the GPUs."""
    response = _csv_file("", f"charge-lines-{month:%Y-%m}.csv")
    writer = csv.writer(response)
    cost = ["cost"] if with_cost else []
    writer.writerow(
        [
            "id",
            "start",
            "end",
            "bucket",
            "model",
            "gpu_seconds",
            "price_per_gpu_hour",
            "charged",
            *cost,
            "cost_centre",
            "team",
            "project",
            "user",
            "workload",
            "allocation",
            "corrects",
            "simulated",
        ]
    )
    for line in rows.select_related("price") if isinstance(rows, QuerySet) else rows:
        names = (line.cost_centre, line.team_name, line.project_name, line.user_name, line.workload_name)
        price = line.price.price_per_gpu_hour if line.price else ""
        seconds = Decimal(line.slot_seconds) / SLOTS_PER_GPU
        facts = [
            line.pk,
            line.start.isoformat(),
            line.end.isoformat(),
            line.bucket,
            line.model,
            seconds,
            price,
        ]
        facts += [line.charged, *([line.cost] if with_cost else []), *(csv_safe_text(name) for name in names)]
        writer.writerow([*facts, line.allocation_id or "", line.corrects_id or "", line.simulated])
    return response


# -- closing -----------------------------------------------------------------------------------------------------------


@sign_in_required
def month_close(request: HttpRequest, month: str) -> HttpResponseBase:
    """The checks first; then, once, the month is frozen."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "statement.close")
    found = _month_or_404(month, now)
    form = CloseMonthForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        done = form.carry_out(
            months.close_month, actor=user, month=found, why=form.cleaned_data["why"], now=now
        )
        if done is not None:
            messages.success(
                request,
                f"{found:%B %Y} is closed. Nothing changes it from here on; late facts become corrections.",
            )
            return redirect(f"/chargeback/?month={found:%Y-%m}")
    statement = reads.statement_of(found)
    context = {
        "month": found,
        "checks": statements.close_checks(found),
        "totals": statements.statement_totals(found),
        "closed": statement is not None and statement.state == "closed",
        "over": found < month_of(now),
        "form": form,
        "now": now,
    }
    return render(request, "manage/month_close.html", context, status=400 if form.errors else 200)


# -- rate card, budgets, cost centres ----------------------------------------------------------------------------------


class PriceForm(ServiceForm):
    pool = forms.ChoiceField(label="Pool", required=False)
    model = forms.ChoiceField(label="GPU model")
    cost = forms.CharField(label="Owner's cost, per GPU-hour", max_length=30)
    price = forms.CharField(
        label="Price, per GPU-hour", max_length=30, help_text="The same as the cost: no margin."
    )
    valid_from = forms.DateTimeField(
        label="From", widget=forms.DateTimeInput(attrs={"type": "datetime-local"})
    )
    note = forms.CharField(label="How the cost was worked out", required=False, max_length=1000)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pools = {pool.slug: pool for pool in reads.pools()}
        fields: dict[str, Any] = self.fields
        fields["pool"].choices = [
            ("", "Every pool"),
            *((slug, pool.name) for slug, pool in self.pools.items()),
        ]
        fields["model"].choices = [(model, model) for model in reads.models()]


@sign_in_required
def rate_card(request: HttpRequest) -> HttpResponseBase:
    """Every price with its date; finance adds one that begins now or later."""
    user, now = current_user(request), timezone.now()
    form = PriceForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        given = dict(form.cleaned_data)
        pool = form.pools.get(given.pop("pool"))
        if form.carry_out(rate_card_service.set_price, actor=user, pool=pool, now=now, **given) is not None:
            messages.success(request, "The price is set. What was charged before stays as it is.")
            return redirect("rate-card")
    context = {
        "rows": reads.rate_card(now),
        "form": form,
        "may_price": policy.may(user, "price.change"),
        "sees_cost": policy.sees_owner_cost(user),
        "now": now,
    }
    return render(request, "manage/rate_card.html", context, status=400 if form.errors else 200)


class BudgetForm(ServiceForm):
    team = forms.ChoiceField(label="Team")
    month = forms.CharField(label="Month", max_length=7, widget=forms.TextInput(attrs={"type": "month"}))
    measure = forms.ChoiceField(
        label="Of what", choices=[("money", "Money"), ("gpu_hours", "GPU-hours")], initial="money"
    )
    amount = forms.CharField(label="Amount", max_length=30)
    action = forms.ChoiceField(
        label="When it is used up",
        choices=[
            ("notify", "Tell people"),
            ("refuse_new", "Refuse new work"),
            ("stop_borrowing", "Stop borrowing"),
        ],
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.teams = {team.slug: team for team in policy.visible_teams(user).order_by("name")}
        fields: dict[str, Any] = self.fields
        fields["team"].choices = [(slug, team.name) for slug, team in self.teams.items()]

    def clean_month(self) -> date:
        text = self.cleaned_data["month"]
        try:
            return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).date()
        except ValueError:
            raise forms.ValidationError(
                f"month is {text!a}; allowed: a year and a month, such as 2026-03."
            ) from None


class CostCentreForm(ServiceForm):
    project = forms.ChoiceField(label="Project")
    code = forms.CharField(label="Cost centre", max_length=80)
    valid_from = forms.DateTimeField(
        label="From", widget=forms.DateTimeInput(attrs={"type": "datetime-local"})
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.projects = {
            str(p.pk): p
            for p in policy.visible_projects(user).select_related("team").order_by("team__name", "name")
        }
        fields: dict[str, Any] = self.fields
        fields["project"].choices = [(key, f"{p.name}, {p.team.name}") for key, p in self.projects.items()]


@sign_in_required
def budgets(request: HttpRequest) -> HttpResponseBase:
    """Budgets of this and the coming months, and who pays for which project."""
    user, now = current_user(request), timezone.now()
    verb = request.POST.get("verb", "")
    budget_form = BudgetForm(request.POST if verb == "budget" else None, user=user)
    centre_form = CostCentreForm(request.POST if verb == "cost_centre" else None, user=user)
    if verb == "budget" and budget_form.is_valid():
        given = dict(budget_form.cleaned_data)
        team = budget_form.teams[given.pop("team")]
        if (
            budget_form.carry_out(budgets_service.set_budget, actor=user, team=team, now=now, **given)
            is not None
        ):
            messages.success(request, f"The budget of {team.name} is set.")
            return redirect("budgets")
    if verb == "cost_centre" and centre_form.is_valid():
        given = dict(centre_form.cleaned_data)
        project = centre_form.projects[given.pop("project")]
        if (
            centre_form.carry_out(
                budgets_service.set_cost_centre, actor=user, project=project, now=now, **given
            )
            is not None
        ):
            messages.success(request, f"{project.name} is paid by {given['code']} from then on.")
            return redirect("budgets")
    context = {
        "budgets": reads.budget_rows(user, month_of(now), now),
        "month": month_of(now),
        "centres": reads.cost_centre_rows(user, now),
        "budget_form": budget_form,
        "centre_form": centre_form,
        "may_budget": policy.may(user, "budget.change"),
        "now": now,
    }
    failed = bool(budget_form.errors or centre_form.errors)
    return render(request, "manage/budgets.html", context, status=400 if failed else 200)
