"""Enter, change and remove the dcgm-exporter of a host."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks, checked_reason, display_value
from portal.models import User
from portal.services import audit
from portal.wording.problems import administration_problems
from scheduler.core.rejection import OperationRejected
from scheduler.models import Host
from telemetry.dcgm import targets
from telemetry.models import DcgmTarget


def set_dcgm_target(
    *, actor: User, host: Host, url: str, now: datetime, why: str = "", via: str = "web"
) -> DcgmTarget:
    """Enter or change the dcgm-exporter from which values of the host's GPUs are read.

    Raises Invalid, NotAllowed.
    """
    policy.require(actor, "host.change")
    checks = InputChecks()
    clean = targets.normalised_url(url) if isinstance(url, str) else None
    if clean is None:
        checks.note("url", url, administration_problems.DCGM_URL_INVALID.format(given=display_value(url)))
    why = checked_reason(why)
    checks.done()
    assert clean is not None
    with transaction.atomic():
        before = DcgmTarget.objects.filter(host=host).values_list("url", flat=True).first()
        target = targets.set_target(host, clean, now)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="set_dcgm_target",
            target=host,
            why=why,
            before={"url": before} if before else None,
            after={"url": clean},
        )
    return target


def remove_dcgm_target(*, actor: User, host: Host, now: datetime, why: str = "", via: str = "web") -> Host:
    """Stop reading the dcgm-exporter of a host. Values that were read stay.

    Raises Invalid, NotAllowed. Raises OperationRejected if the host has none.
    """
    policy.require(actor, "host.change")
    why = checked_reason(why)
    with transaction.atomic():
        before = DcgmTarget.objects.filter(host=host).values_list("url", flat=True).first()
        if not targets.remove_target(host):
            raise OperationRejected("host_has_no_dcgm_target", {"name": host.name})
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="remove_dcgm_target",
            target=host,
            why=why,
            before={"url": before},
        )
    return host
