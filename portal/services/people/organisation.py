"""Change the name, the time zone and the currency of the organisation."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import Organisation, User
from portal.services import audit
from portal.wording.problems import administration_problems


def change_organisation(
    *, actor: User, name: str, time_zone: str, currency: str, now: datetime, via: str = "web"
) -> Organisation:
    """Set the name, the time zone and the currency of the organisation. Raises Invalid, NotAllowed.

    A new currency converts no existing amounts.
    """
    policy.require(actor, "pool.change")
    checks = InputChecks()
    name = checks.text("name", name)
    time_zone = checks.time_zone("time_zone", time_zone)
    currency = checks.text("currency", currency, least=3, most=3).upper()
    if currency and not (currency.isascii() and currency.isalpha()):
        checks.note("currency", currency, administration_problems.CURRENCY_INVALID.format(given=currency))
    checks.done()
    with transaction.atomic():
        organisation, _ = Organisation.objects.get_or_create(pk=1, defaults={"name": name})
        before = audit.audited_fields(organisation, "name", "time_zone", "currency")
        Organisation.objects.filter(pk=1).update(name=name, time_zone=time_zone, currency=currency)
        organisation.refresh_from_db()
        after = audit.audited_fields(organisation, "name", "time_zone", "currency")
        if before != after:
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="change_organisation",
                target=organisation,
                before=before,
                after=after,
            )
    return organisation
