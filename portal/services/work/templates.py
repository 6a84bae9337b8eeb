"""Create, change and delete templates of notebooks and jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks, checked_reason, unique_slug
from portal.models import Template, User
from portal.services import audit
from portal.services.removal_effect import RemovalEffect
from scheduler.models import WorkloadKind, WorkloadType


def save_template(
    *,
    actor: User,
    name: str,
    kind: str,
    type: str,
    units: int,
    max_runtime_seconds: int,
    now: datetime,
    template: Template | None = None,
    description: str = "",
    profile: str = "",
    command: str = "",
    hosts: int = 1,
    via: str = "web",
) -> Template:
    """Create a template, or change ``template`` if it is given. Raises Invalid, NotAllowed.

    A template for jobs requires a command. A template for notebooks has no command, and exactly one host.
    """
    policy.require(actor, "template.change")
    checks = InputChecks()
    clean: dict[str, Any] = {
        "name": checks.text("name", name),
        "description": checks.text("description", description, least=0, most=300),
        "kind": checks.choice("kind", kind, WorkloadKind.values),
        "type": checks.choice("type", type, WorkloadType.values),
        "units": checks.count("units", units, 1, 1024, "GPUs"),
        "hosts": checks.count("hosts", hosts, 1, 1024 if kind == WorkloadKind.JOB else 1, "hosts"),
        "profile": checks.text("profile", profile, least=0, most=30),
        "command": checks.text(
            "command", command, least=1 if kind == WorkloadKind.JOB else 0, most=100_000, lines=True
        ),
        "max_runtime_seconds": checks.count(
            "max_runtime_seconds", max_runtime_seconds, 60, 365 * 24 * 3600, "seconds"
        ),
    }
    checks.done()
    with transaction.atomic():
        before = None if template is None else audit.audited_fields(template, *clean)
        if template is None:
            slug = unique_slug(clean["name"], Template.objects.values_list("slug", flat=True))
            template = Template.objects.create(slug=slug, position=Template.objects.count(), **clean)
        else:
            Template.objects.filter(pk=template.pk).update(**clean)
            template.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="save_template",
            target=template,
            before=before,
            after=audit.audited_fields(template, *clean),
        )
    return template


def preview_template_deletion(*, actor: User, template: Template) -> RemovalEffect:
    """Return the effect of deleting a template. Existing workloads are not affected. Raises NotAllowed."""
    policy.require(actor, "template.change")
    return RemovalEffect("delete_template", template.name)


def delete_template(
    *, actor: User, template: Template, now: datetime, why: str = "", via: str = "web"
) -> Template:
    """Delete a template. Workloads that were launched from it stay. Raises Invalid, NotAllowed."""
    policy.require(actor, "template.change")
    why = checked_reason(why)
    with transaction.atomic():
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="delete_template",
            target=template,
            before=audit.audited_fields(template, "name", "kind", "units"),
            why=why,
        )
        template.delete()
    return template
