"""Check the last comparison of the accounts with each LDAP directory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from portal.models import DirectorySync
from portal.reads.system.checks import HealthCheck, HealthLimit, HealthState
from portal.reads.system.process_checks import seconds_since
from portal.sign_in.oidc.providers import LDAP, active_providers
from portal.wording import system_texts

SYNC_LIMIT = HealthLimit(26 * 3600, 72 * 3600, "s")


def directory_checks(now: datetime) -> Iterator[HealthCheck]:
    """Check the age and the outcome of the last sync of each active directory. Takes two queries at most."""
    providers = active_providers(LDAP)
    if not providers:
        return
    rows = DirectorySync.objects.filter(provider__in=[each.slug for each in providers])
    newest = rows.order_by("provider", "-created_at", "-pk").distinct("provider")
    last = {row.provider: row for row in newest}
    for each in providers:
        row = last.get(each.slug)
        age = seconds_since(row.created_at, now) if row else None
        state = SYNC_LIMIT.state_of(age)
        if row is not None and row.outcome != DirectorySync.Outcome.DONE:
            state = HealthState.BAD
        text = row.text if row else system_texts.NEVER_SYNCED
        yield HealthCheck("directory", each.name, age, "s", text, state, SYNC_LIMIT.text)
