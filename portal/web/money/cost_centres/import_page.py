"""Render the page that imports cost centres and splits from a CSV file."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone

from portal import policy
from portal.services.money.cost_centres import imports
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.service_form import ServiceForm
from portal.wording.pages.money import cost_centre_pages
from portal.wording.problems import cost_centre_problems


class ImportForm(ServiceForm):
    file = forms.FileField(label="CSV file", required=False)
    csv = forms.CharField(
        label="Or its text",
        required=False,
        max_length=imports.MAX_CHARACTERS,
        widget=forms.Textarea,
        strip=False,
    )
    why = forms.CharField(label="Note", required=False, max_length=300, help_text="Stored in the audit log.")

    def clean(self) -> dict[str, Any]:
        """Put the text of the uploaded file into ``csv``."""
        given = super().clean() or {}
        file = given.get("file")
        if file is not None:
            try:
                given["csv"] = file.read().decode("utf-8-sig")
            except UnicodeDecodeError:
                self.add_error(
                    "file", cost_centre_problems.FILE_UNREADABLE.format(most=imports.MAX_CHARACTERS)
                )
        return given


@sign_in_required
def cost_centre_import(request: HttpRequest) -> HttpResponseBase:
    """Show what the import of a CSV file would do, line by line, then do it."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "cost_centre.change")
    form = ImportForm(request.POST or None, request.FILES or None)
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
        "form": form,
        "report": report,
        "text": form.cleaned_data.get("csv", "") if report is not None else "",
        "why": form.cleaned_data.get("why", "") if report is not None else "",
        "counts": [(state, report.count(state)) for state in imports.LINE_STATES] if report else [],
        "entry_columns": ", ".join(imports.ENTRY_COLUMNS),
        "share_columns": ", ".join(imports.SHARE_COLUMNS),
    }
    return render(request, "cost_centres/import.html", context, status=400 if form.errors else 200)
