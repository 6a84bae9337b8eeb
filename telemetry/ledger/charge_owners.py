"""Load the owners of held and of reserved time, with the names that charge lines copy.

A run reads hundreds of thousands of them, so they are values and not model instances.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.contrib.auth import get_user_model

from scheduler.models import Allocation, Reservation
from telemetry.sql_values import unnested

_USERNAME = get_user_model().USERNAME_FIELD


@dataclass(frozen=True, slots=True)
class ChargeOwner:
    """The owner of an allocation, of a reservation, or of the unused time of a dedicated pool.

    A reservation has no workload. Unused time has only a team.
    """

    project: int | None = None
    project_name: str = ""
    team: int | None = None
    team_name: str = ""
    user: int | None = None
    user_name: str = ""
    workload: int | None = None
    workload_name: str = ""
    workload_type: str = ""
    simulated: bool = False


NOBODY = ChargeOwner()


def load_allocation_owners(allocations: Collection[int]) -> dict[int, ChargeOwner]:
    """Return the owners of these allocations, by id of the allocation. Runs one query."""
    rows = Allocation.objects.filter(pk__in=unnested(allocations)).values_list(
        "pk",
        "project_id",
        "project__name",
        "project__team_id",
        "project__team__name",
        "workload__owner_id",
        f"workload__owner__{_USERNAME}",
        "workload_id",
        "workload__name",
        "workload__type",
        "workload__simulated",
    )
    return {row[0]: ChargeOwner(*row[1:]) for row in rows}


def load_reservation_owners(reservations: Collection[int]) -> dict[int, ChargeOwner]:
    """Return the owners of these reservations, by id of the reservation. Runs one query."""
    rows = Reservation.objects.filter(pk__in=reservations).values_list(
        "pk",
        "project_id",
        "project__name",
        "project__team_id",
        "project__team__name",
        "owner_id",
        f"owner__{_USERNAME}",
    )
    return {row[0]: ChargeOwner(*row[1:]) for row in rows}
