"""Render the page that imports people from a CSV file, and the file with the links for first passwords."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST

from portal import policy
from portal.models import User
from portal.services.people.identity.sign_in import local_sign_in_allowed
from portal.services.people.imports import person_import
from portal.services.people.imports.rows import COLUMNS
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.csv_import import CsvImportForm, import_context
from portal.wording.pages import people_pages
from telemetry.core.csv_text import csv_line

# In the session: the ids of created accounts whose links were not downloaded.
WAITING_LINKS = "imported_people"


@sign_in_required
def people_import(request: HttpRequest) -> HttpResponse:
    """Show what the import of a CSV file would do, line by line, then do it."""
    user, now = current_user(request), timezone.now()
    policy.require(user, "user.change")
    form = CsvImportForm(request.POST or None, request.FILES or None)
    report = None
    if request.method == "POST" and form.is_valid():
        text, why = form.cleaned_data["csv"], form.cleaned_data["why"]
        if request.POST.get("verb") == "import":
            done = form.carry_out(person_import.import_people, actor=user, now=now, text=text, why=why)
            if done is not None:
                if local_sign_in_allowed():
                    request.session[WAITING_LINKS] = [each.pk for each in done.created]
                new, changed = done.count("new"), done.count("changed")
                messages.success(request, people_pages.PEOPLE_IMPORTED.format(new=new, changed=changed))
                return redirect("people-import")
        report = form.carry_out(person_import.preview_people_import, actor=user, now=now, text=text)
    context = {
        **import_context(form, report),
        "columns": ", ".join(COLUMNS),
        "waiting_links": len(request.session.get(WAITING_LINKS, [])),
        "local_accounts": local_sign_in_allowed(),
    }
    return render(request, "organisation/people_import.html", context, status=400 if form.errors else 200)


@sign_in_required
@require_POST
def first_passwords(request: HttpRequest) -> HttpResponse:
    """Send the links for the first passwords of imported people as a CSV file, once."""
    policy.require(current_user(request), "user.change")
    ids = request.session.pop(WAITING_LINKS, [])
    links = person_import.first_password_links(list(User.objects.filter(pk__in=ids).order_by("username")))
    if not links:
        return redirect("people-import")
    lines = [csv_line(("username", "email", "link"))]
    lines += [csv_line((each.username, each.email, each.link)) for each in links]
    response = HttpResponse("".join(lines), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{people_pages.LINKS_FILE}"'
    response["Cache-Control"] = "no-store"
    return response
