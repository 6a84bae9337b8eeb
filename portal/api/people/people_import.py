"""Implement the endpoints that import people from a CSV file."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.base.csv_import import ImportPreviewWish, ImportReportShape, ImportWish, import_answer
from portal.api.base.fields import ResponseSerializer
from portal.api.base.views import ApiView
from portal.models import TokenScope
from portal.services.people.imports import person_import


class FirstPasswordLinkShape(ResponseSerializer):
    username = serializers.CharField()
    email = serializers.CharField()
    link = serializers.CharField(help_text="sets a password, once and within 3 days. Shown only once.")


class PeopleImportShape(ImportReportShape):
    links = FirstPasswordLinkShape(many=True, help_text="of the new people; none if passwords are off")


class PeopleImportPreviewView(ApiView):
    scope = TokenScope.READ

    @extend_schema(
        operation_id="people_import_preview", request=ImportPreviewWish, responses=ImportReportShape
    )
    def post(self, request: Request) -> Response:
        """Preview the import of a CSV file of people, line by line. Nothing is written. For operators."""
        given = self.validated_body(ImportPreviewWish)
        report = person_import.preview_people_import(actor=self.actor, now=self.now, text=given["csv"])
        return self.object_response(import_answer(report), ImportReportShape)


class PeopleImportView(ApiView):
    scope = TokenScope.MANAGE

    @extend_schema(operation_id="people_import", request=ImportWish, responses=PeopleImportShape)
    def post(self, request: Request) -> Response:
        """Import people from a CSV file. Only this answer has the links of new people. For operators."""
        given = self.validated_body(ImportWish)
        report = person_import.import_people(
            **self.service_context, text=given["csv"], why=given.get("why", "")
        )
        links = person_import.first_password_links(report.created)
        return self.object_response({**import_answer(report), "links": links}, PeopleImportShape)
