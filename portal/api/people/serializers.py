"""Define the serializers of the user's account, teams, tokens, notifications, audit records and templates."""

from __future__ import annotations

from rest_framework import serializers

from portal.api.base.fields import (
    RecordField,
    ResponseSerializer,
    count_field,
    name_field,
    numbers_field,
    slug_field,
)
from portal.api.base.serializers import PageQuery, StrictSerializer
from portal.models import LeaverWork, Membership, Notification, TokenScope
from portal.services.people.security_settings import SECOND_FACTOR_FOR
from portal.wording.notices import notice_texts
from scheduler.models import Project, WorkloadKind, WorkloadType


class TeamShape(ResponseSerializer):
    slug = serializers.CharField()
    name = serializers.CharField()
    tag = serializers.CharField()
    colour = serializers.IntegerField(help_text="1 to 8, of the palette")
    weight = serializers.IntegerField()
    home_limit_gib = serializers.IntegerField(
        allow_null=True, help_text="largest size of a new home; null: that of the pool"
    )
    removed_at = serializers.DateTimeField(allow_null=True, help_text="null: it is not removed")


class RoleShape(ResponseSerializer):
    team = serializers.CharField(source="team.slug")
    role = serializers.ChoiceField(choices=Membership.Role.choices)


class MeShape(ResponseSerializer):
    username = serializers.CharField()
    email = serializers.CharField()
    operator = serializers.BooleanField()
    finance = serializers.BooleanField()
    auditor = serializers.BooleanField()
    time_zone = serializers.CharField()
    theme = serializers.ChoiceField(choices=["system", "light", "dark"])
    teams = RoleShape(many=True, source="memberships")


class MeChange(StrictSerializer):
    time_zone = serializers.CharField(max_length=60, required=False, allow_blank=True)
    theme = serializers.ChoiceField(choices=["system", "light", "dark"], required=False)


class ProjectShape(ResponseSerializer):
    path = serializers.SerializerMethodField(help_text="team/project, as in requests")
    name = serializers.CharField()
    team = serializers.CharField(source="team.slug")
    active = serializers.BooleanField()

    def get_path(self, project: Project) -> str:
        """Return the path of the project, ``team/project``. Requests name projects by this path."""
        return f"{project.team.slug}/{project.slug}"


class TokenShape(ResponseSerializer):
    id = serializers.IntegerField()
    name = serializers.CharField()
    user = serializers.CharField(source="user.username", help_text="your user name, or a service account")
    prefix = serializers.CharField()
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=TokenScope.choices))
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    last_used_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)


class TokenMade(TokenShape):
    token = serializers.CharField(help_text="Shown only once.")


class TokenWish(StrictSerializer):
    name = name_field()
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=TokenScope.choices),
        required=False,
        min_length=1,
        max_length=len(TokenScope.choices),
        help_text="Default: read and submit, as far as the token of this request has them.",
    )
    expires_at = serializers.DateTimeField(
        required=False, allow_null=True, help_text="Default: as late as possible."
    )


class ServiceAccountShape(ResponseSerializer):
    name = serializers.CharField(source="username")
    team = serializers.CharField(source="service_team.slug")
    owner = serializers.CharField(
        source="service_owner.username",
        allow_null=True,
        default=None,
        help_text="null: its tokens are refused",
    )
    purpose = serializers.CharField(source="first_name")
    active = serializers.BooleanField(source="is_active")


class ServiceAccountWish(StrictSerializer):
    name = name_field()
    team = slug_field()
    owner = serializers.CharField(max_length=150, required=False, help_text="Default: you.")
    purpose = serializers.CharField(max_length=150, required=False, allow_blank=True)


class ServiceAccountChange(StrictSerializer):
    owner = serializers.CharField(max_length=150, required=False)
    active = serializers.BooleanField(required=False)


class SecuritySettingsShape(ResponseSerializer):
    token_days = serializers.IntegerField(help_text="Longest life of an API token, in days.")
    separate_approver = serializers.BooleanField(
        allow_null=True,
        help_text="Nobody decides their own request. Null: true if two people have the role that decides.",
    )
    separate_approver_in_force = serializers.BooleanField()
    leaver_work = serializers.ChoiceField(
        choices=LeaverWork.choices, help_text="What happens to the work of people whose accounts are closed."
    )
    second_factor_for = serializers.ChoiceField(
        choices=SECOND_FACTOR_FOR, help_text="People who must have a second factor."
    )
    step_up_minutes = serializers.IntegerField(
        help_text="Minutes for which a proof of identity allows changes that need a fresh one."
    )


class SecuritySettingsWish(StrictSerializer):
    token_days = count_field(1, required=False)
    separate_approver = serializers.BooleanField(allow_null=True, required=False)
    leaver_work = serializers.ChoiceField(
        choices=LeaverWork.choices,
        required=False,
        help_text="What happens to the work of people whose accounts are closed.",
    )
    second_factor_for = serializers.ChoiceField(choices=SECOND_FACTOR_FOR, required=False)
    step_up_minutes = count_field(1, required=False)


class NotificationShape(ResponseSerializer):
    id = serializers.IntegerField()
    kind = serializers.CharField()
    sentence = serializers.SerializerMethodField()
    numbers = numbers_field()
    report = serializers.SerializerMethodField(
        help_text="address of the report of the run that has ended; null for other notices"
    )
    at = serializers.DateTimeField()
    read_at = serializers.DateTimeField(allow_null=True)

    def get_sentence(self, row: Notification) -> str:
        """Return the text of the notification."""
        return notice_texts.notice_sentence(row.kind, row.numbers, self.context.get("user"))

    def get_report(self, row: Notification) -> str | None:
        """Return the address of the report, below the address of the portal."""
        if row.kind not in ("ended", "advice") or row.workload is None or not row.workload.attempt:
            return None
        return f"/api/v1/workloads/{row.workload.public_id}/report/"


class ReadWish(StrictSerializer):
    ids = serializers.ListField(
        child=count_field(1), required=False, max_length=1000, help_text="Empty: all."
    )


class ReadAnswer(ResponseSerializer):
    read = serializers.IntegerField()


class AuditShape(ResponseSerializer):
    at = serializers.DateTimeField()
    actor = serializers.CharField(source="actor_name")
    verb = serializers.CharField()
    target = serializers.CharField()
    target_name = serializers.CharField()
    team = serializers.CharField(source="team.slug", allow_null=True, default=None)
    before = RecordField(child=serializers.JSONField(allow_null=True), allow_null=True)
    after = RecordField(child=serializers.JSONField(allow_null=True), allow_null=True)
    why = serializers.CharField()
    via = serializers.CharField()


class AuditFindingShape(ResponseSerializer):
    code = serializers.CharField()
    seal = serializers.IntegerField(allow_null=True)
    event = serializers.IntegerField(allow_null=True, help_text="null: the seal itself is concerned")


class AuditIntegrityShape(ResponseSerializer):
    seal = serializers.IntegerField(help_text="number of the last seal; 0: there is none")
    digest = serializers.CharField(help_text="SHA-256 of the last seal; note it outside gpupool")
    sealed_at = serializers.DateTimeField(allow_null=True)
    unsealed = serializers.IntegerField(help_text="records that will be sealed within a minute")
    checked_at = serializers.DateTimeField(allow_null=True, help_text="end of the last complete check")
    findings = AuditFindingShape(many=True, help_text="removed or changed records and seals")
    undelivered = serializers.IntegerField(
        allow_null=True,
        help_text="sealed records that the receiver does not have; null: there is no receiver",
    )
    undelivered_since = serializers.DateTimeField(allow_null=True)
    delivered_at = serializers.DateTimeField(allow_null=True)
    failing_since = serializers.DateTimeField(allow_null=True)
    failure = serializers.CharField()
    sentences = serializers.ListField(child=serializers.CharField())


class AuditQuery(PageQuery):
    verb = serializers.CharField(max_length=60, required=False)
    target = serializers.CharField(max_length=120, required=False)


class TemplateShape(ResponseSerializer):
    slug = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    kind = serializers.ChoiceField(choices=WorkloadKind.choices)
    type = serializers.ChoiceField(choices=WorkloadType.choices)
    units = serializers.IntegerField()
    hosts = serializers.IntegerField(help_text="hosts of a job; units are per host")
    profile = serializers.CharField()
    max_runtime_seconds = serializers.IntegerField()
