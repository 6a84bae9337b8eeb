"""Define the serializers of imports of CSV files."""

from __future__ import annotations

from rest_framework import serializers

from portal.api.base.fields import JsonObject, ResponseSerializer
from portal.api.base.serializers import StrictSerializer
from portal.services.csv_import import LINE_STATES, MAX_FILE_CHARACTERS, ImportReport


class ImportPreviewWish(StrictSerializer):
    csv = serializers.CharField(max_length=MAX_FILE_CHARACTERS, trim_whitespace=False)


class ImportWish(ImportPreviewWish):
    why = serializers.CharField(max_length=300, required=False, allow_blank=True)


class ImportedLineShape(ResponseSerializer):
    number = serializers.IntegerField(help_text="line of the file; the header is line 1")
    subject = serializers.CharField()
    state = serializers.ChoiceField(choices=list(LINE_STATES))
    problems = serializers.ListField(child=serializers.CharField())


class ImportReportShape(ResponseSerializer):
    lines = ImportedLineShape(many=True)
    new = serializers.IntegerField()
    changed = serializers.IntegerField()
    unchanged = serializers.IntegerField()
    wrong = serializers.IntegerField(help_text="number of wrong lines; if it is not 0, nothing is written")


def import_answer(report: ImportReport) -> JsonObject:
    """Return the values of ``ImportReportShape``."""
    return {"lines": report.lines, **report.counts}
