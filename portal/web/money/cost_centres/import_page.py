"""Render the page that imports cost centres and splits from a CSV file."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.services.money.cost_centres import imports
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.csv_import import CsvImportForm, import_context
from portal.wording.pages.money import cost_centre_pages


@sign_in_required
def cost_centre_import(request: HttpRequest) -> HttpResponseBase:
    """Show what the import of a CSV file would do, line by line, then do it."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "cost_centre.change")
    form = CsvImportForm(request.POST or None, request.FILES or None)
    report = None
    if request.method == "POST" and form.is_valid():
        text, why = form.cleaned_data["csv"], form.cleaned_data["why"]
        if request.POST.get("verb") == "import":
            done = form.carry_out(imports.import_cost_centres, actor=user, now=now, text=text, why=why)
            if done is not None:
                new, changed = done.count("new"), done.count("changed")
                messages.success(request, cost_centre_pages.IMPORTED.format(new=new, changed=changed))
                return redirect("cost-centres")
        report = form.carry_out(imports.preview_import, actor=user, now=now, text=text)
    context = {
        **import_context(form, report),
        "entry_columns": ", ".join(imports.ENTRY_COLUMNS),
        "share_columns": ", ".join(imports.SHARE_COLUMNS),
    }
    return render(request, "cost_centres/import.html", context, status=400 if form.errors else 200)
