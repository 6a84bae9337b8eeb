"""Test that the shared organisation matches its description."""

from scheduler.models import Unit
from tests.world import MIG, MIG_SLICES, World, units_of


def test_the_world_has_twenty_eight_gpus_of_which_two_have_mig_slices(world: World) -> None:
    assert [len(units_of(host)) for host in world.hosts.values()] == [8, 8, 6, 4]
    assert len(units_of(world.hosts["gamma"], MIG)) == 2 * MIG_SLICES
    assert Unit.objects.count() == 26 + 14


def test_the_guarantees_are_below_the_capacity_of_the_shared_pool(world: World) -> None:
    assert sum(q.guaranteed_slots for q in world.shared.quotas.filter(model="H100-80GB")) == 14 * 840
