"""Define the form with which a page imports a CSV file, and what its template shows."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile

from portal.services.csv_import import ImportReport
from portal.web.page.service_form import ServiceForm
from portal.wording.problems import csv_problems

SHOWN_LINES = 1_000
# Windows-1252 has all characters of Latin-1; spreadsheets write it if they do not write UTF-8.
ENCODINGS = ("utf-8-sig", "cp1252")


class CsvImportForm(ServiceForm):
    """A form with a file or its text. The cleaned value ``csv`` is the text."""

    file = forms.FileField(label="CSV file", required=False)
    csv = forms.CharField(label="Or its text", required=False, widget=forms.Textarea, strip=False)
    why = forms.CharField(label="Note", required=False, max_length=300, help_text="Stored in the audit log.")

    def clean(self) -> dict[str, Any]:
        """Put the text of the uploaded file into ``csv``."""
        given = super().clean() or {}
        file = given.get("file")
        if file is not None:
            text = decoded(file)
            if text is None:
                self.add_error("file", csv_problems.FILE_ENCODING)
            else:
                given["csv"] = text
        return given


def decoded(file: UploadedFile[Any]) -> str | None:
    """Return the text of a file; None if it is no text in one of ENCODINGS."""
    content: bytes = file.read()
    for encoding in ENCODINGS:
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    return None


def import_context(form: CsvImportForm, report: ImportReport | None) -> dict[str, Any]:
    """Return the values of ``components/import_report.html``."""
    given = form.cleaned_data if report is not None else {}
    lines = report.worst_first(SHOWN_LINES) if report else []
    return {
        "form": form,
        "report": report,
        "lines": lines,
        "hidden_count": len(report.lines) - len(lines) if report else 0,
        "text": given.get("csv", ""),
        "why": given.get("why", ""),
        "counts": list(report.counts.items()) if report else [],
    }
