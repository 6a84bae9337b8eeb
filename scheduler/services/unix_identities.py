"""Store the Unix identities of people, choose that of new work, and set what a pool allows its work."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser as Person
from django.db import IntegrityError, transaction

from scheduler.coordination import locks
from scheduler.core.rejection import OperationRejected
from scheduler.models import Pool, RunsAs, UnixIdentity, Workload
from scheduler.state import nudge
from scheduler.state.states import WorkloadState


def identity_of_new_work(pool: Pool, owner: Person) -> dict[str, Any] | None:
    """Return the Unix identity with which new work of ``owner`` runs. None: the user of its team.

    The identity is stored with the work, so a later change of the identity or of the pool applies to work
    that is submitted later. Call it in the transaction that adds the work, after ``reject_if_removed``, which
    locks the pool. Raises OperationRejected ``no_unix_identity``.
    """
    if not Pool.objects.filter(pk=pool.pk, runs_as=RunsAs.PERSON).exists():
        return None
    identity = UnixIdentity.objects.filter(person=owner.pk).first()
    if identity is None:
        raise OperationRejected(
            "no_unix_identity", (("name", owner.get_username()), ("pool", pool.name)), field="pool"
        )
    return identity.as_run_value()


def store_unix_identity(
    person: Person, *, values: Mapping[str, Any], provider: str, now: datetime
) -> UnixIdentity:
    """Store the Unix identity of a person. New work has it; running and waiting work keeps the earlier one.

    ``values`` has the fields of ``UnixIdentity.as_run_value``. ``provider`` is the slug of the provider that
    set it, or empty. Raises OperationRejected ``uid_is_taken`` or ``unix_name_is_taken``.
    """
    others = UnixIdentity.objects.exclude(person=person.pk).select_related("person")
    if (holder := others.filter(uid=values["uid"]).first()) is not None:
        numbers = (("uid", values["uid"]), ("holder", holder.person.get_username()))
        raise OperationRejected("uid_is_taken", numbers, field="uid")
    if (holder := others.filter(name=values["name"]).first()) is not None:
        numbers = (("name", values["name"]), ("holder", holder.person.get_username()))
        raise OperationRejected("unix_name_is_taken", numbers, field="name")
    try:
        with transaction.atomic():
            row, _ = UnixIdentity.objects.update_or_create(
                person_id=person.pk, defaults={**values, "provider": provider, "changed_at": now}
            )
    except IntegrityError:  # somebody else got the uid or the name at the same time
        raise OperationRejected(
            "uid_is_taken", (("uid", values["uid"]), ("holder", "somebody else")), field="uid"
        ) from None
    return row


def delete_unix_identity(person: Person) -> bool:
    """Delete the Unix identity of a person. Running and waiting work keeps it.

    Return False if there is none.
    """
    return bool(UnixIdentity.objects.filter(person=person.pk).delete()[0])


@transaction.atomic
def change_work_settings(pool: Pool, **changes: Any) -> Pool:
    """Change as whom work of a pool runs, and what it may do. The settings apply to new work and new homes.

    Raises OperationRejected ``pool_has_work_as_owners`` if the pool no longer runs work as its owners while
    such work has not ended, because a host that cannot run it might then be chosen.
    """
    locks.pool_for_removal(pool.pk)  # waits for transactions that add work to the pool
    if changes.get("runs_as") == RunsAs.TEAM:
        open_work = Workload.objects.filter(pool=pool.pk, unix_identity__isnull=False)
        count = open_work.exclude(state=WorkloadState.ENDED).count()
        if count:
            raise OperationRejected(
                "pool_has_work_as_owners", (("count", count), ("pool", pool.name)), field="runs_as"
            )
    Pool.objects.filter(pk=pool.pk).update(**changes)
    pool.refresh_from_db()
    nudge.engine()
    nudge.pages(nudge.HOSTS)
    return pool
