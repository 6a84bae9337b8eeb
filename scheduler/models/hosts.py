"""Define hosts, their GPUs, the units that can be allocated, and the storage of users' homes."""

from __future__ import annotations

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import BigIntegerRangeField, RangeOperators
from django.db import models
from django.db.models import Q

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models.pools import Pool
from scheduler.models.removal import PresentRows
from scheduler.state import states
from scheduler.state.isolation import Isolation


class Storage(models.Model):
    """A folder with the homes of users. All hosts that mount the folder report the same key."""

    key = models.CharField(
        unique=True, max_length=64, help_text="random, created by the first agent that used the folder"
    )
    total_bytes = models.BigIntegerField(null=True, blank=True, help_text="size of its file system")
    free_bytes = models.BigIntegerField(null=True, blank=True)
    left_out = models.PositiveIntegerField(
        default=0, help_text="number of homes that did not fit into the report"
    )
    listed_at = models.DateTimeField(help_text="time at which the agents last listed the homes")

    def __str__(self) -> str:
        return self.key[:8]


class Volume(models.Model):
    """One user's home in a storage, with the sizes of its last measurement.

    ``name`` is the name of the home's folder. It begins with the user's name (see ``person``).
    """

    storage = models.ForeignKey(Storage, on_delete=models.CASCADE, related_name="volumes")
    name = models.CharField(max_length=150, db_index=True)
    size_bytes = models.BigIntegerField(
        null=True, blank=True, help_text="space used on the disk; empty: unknown"
    )
    size_complete = models.BooleanField(default=True, help_text="False: the size is a lower bound")
    files = models.BigIntegerField(null=True, blank=True)
    changed_at = models.DateTimeField(null=True, blank=True, help_text="time of the newest change in it")
    measured_at = models.DateTimeField(null=True, blank=True)
    limit_bytes = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="largest size that its file system allows; empty: no limit, or unknown",
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["storage", "name"], name="a_home_is_once_in_a_storage")
        ]

    @property
    def person(self) -> str:
        """Return the owner's name.

        If the owner changes to another team, the owner's new home is named OWNER~NUMBER. NUMBER is the number
        of the new team's system user (docs/decisions/0005).
        """
        return str(self.name).partition("~")[0]

    def __str__(self) -> str:
        return self.name


class Host(models.Model):
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="hosts")
    name = models.CharField(max_length=63)
    labels = models.JSONField(default=dict, blank=True)
    simulated = models.BooleanField(default=False, help_text="True: its NVML readings are simulated")
    hardware = models.JSONField(
        default=dict, blank=True, help_text="facts of the machine in the agent's last report"
    )
    isolation = models.CharField(
        max_length=20, default="", blank=True, help_text="bubblewrap or plain, from the agent's report"
    )
    isolation_level = models.CharField(
        max_length=12,
        choices=Isolation.choices,
        default=Isolation.NONE,
        help_text="isolation that it provides, from its report",
    )
    person_users = models.BooleanField(
        default=False, help_text="True: it can run work as the Unix user of its owner, from its report"
    )
    cpu_milli = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveIntegerField(default=0)
    disk_full = models.BooleanField(
        default=False, help_text="True: its agent reports a full disk and starts no new work"
    )
    disk_full_since = models.DateTimeField(
        null=True, blank=True, help_text="time since which its agent reports this"
    )
    agent_version = models.CharField(max_length=40, default="", blank=True)
    boot_id = models.CharField(max_length=64, default="", blank=True)
    agent_instance = models.CharField(
        max_length=64, default="", blank=True, help_text="random per agent installation; identifies a clone"
    )
    agent_start = models.CharField(
        max_length=64,
        default="",
        blank=True,
        help_text="start id of the last agent; identifies a copy of its state folder",
    )
    public_key = models.CharField(
        max_length=60,
        default="",
        blank=True,
        help_text="Ed25519, base64; created on the host and registered at the join",
    )
    credential_hash = models.CharField(max_length=64, default="", blank=True)
    credential_expires_at = models.DateTimeField(null=True, blank=True)
    lease_state = models.CharField(
        max_length=10, choices=states.state_choices(states.LeaseState), default=states.LeaseState.JOINING
    )
    admin_state = models.CharField(
        max_length=12, choices=states.state_choices(states.AdminState), default=states.AdminState.IN_SERVICE
    )
    repair_state = models.CharField(
        max_length=12, choices=states.state_choices(states.RepairState), default=states.RepairState.WELL
    )
    state_reason = models.CharField(
        max_length=300, default="", blank=True, help_text="reason of its state; empty if in service"
    )
    refused_agent = models.JSONField(
        null=True,
        blank=True,
        help_text="the last rejected agent: instance, boot_id, reason, at",
    )
    storage = models.ForeignKey(
        Storage,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="hosts",
        help_text="storage of its homes",
    )
    tripped_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="time since which too many attempts of different workloads failed on it",
    )
    last_sync_at = models.DateTimeField(null=True, blank=True)
    agent_before_heard_at = models.DateTimeField(
        null=True, blank=True, help_text="last sync of the previous agent"
    )
    silent_since = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    removed_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="removed; the row stays for its runs and charges; its name may be used again",
    )

    objects = PresentRows["Host"]()
    with_removed = models.Manager["Host"]()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["name"], condition=Q(removed_at__isnull=True), name="one_present_host_per_name"
            )
        ]

    def __str__(self) -> str:
        return self.name


class JoinToken(models.Model):
    """A token with which an agent joins as one host. It is valid once, within 15 minutes.

    Only the hash of the token is stored.
    """

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="join_tokens")
    token_hash = models.CharField(unique=True, max_length=64)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)


class Gpu(models.Model):
    host = models.ForeignKey(Host, on_delete=models.PROTECT, related_name="gpus")
    pool = models.ForeignKey(
        Pool,
        on_delete=models.PROTECT,
        related_name="gpus",
        help_text="pool to which its time is charged; a host that moves gets new GPU rows",
    )
    index = models.PositiveSmallIntegerField()
    uuid = models.CharField(max_length=80, db_index=True)
    model = models.CharField(max_length=60)
    memory_mib = models.PositiveIntegerField()
    compute_capability = models.PositiveSmallIntegerField(
        default=0, help_text="CUDA compute capability times ten: 90 for 9.0"
    )
    nvlink_group = models.PositiveSmallIntegerField(null=True, blank=True)
    numa_node = models.PositiveSmallIntegerField(null=True, blank=True)
    pci_bus_id = models.CharField(max_length=32, default="", blank=True)
    repair_state = models.CharField(
        max_length=12, choices=states.state_choices(states.RepairState), default=states.RepairState.WELL
    )
    state_reason = models.CharField(max_length=300, default="", blank=True)
    retired_at = models.DateTimeField(null=True, blank=True, help_text="True: its host no longer reports it")
    missing_since = models.DateTimeField(
        null=True,
        blank=True,
        help_text="time since which its host does not report it; empty: reported, or removed by an operator",
    )
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["host", "index"],
                condition=Q(retired_at__isnull=True),
                name="one_gpu_per_host_and_index",
            ),
            models.UniqueConstraint(
                fields=["uuid"], condition=Q(retired_at__isnull=True), name="one_present_gpu_per_uuid"
            ),
        ]

    @property
    def first_slot(self) -> int:
        return int(self.pk) * SLOTS_PER_GPU

    def __str__(self) -> str:
        return f"{self.host_id}/{self.index}"


class Unit(models.Model):
    """A unit of allocation: a whole GPU, a MIG slice or a declared share of a GPU.

    ``slots`` is the unit's range of slots. A GPU has 840 slots. Slot numbers are unique across all GPUs.
    """

    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="units")
    profile = models.CharField(
        max_length=30, default="", blank=True, help_text="MIG profile; empty: the whole GPU"
    )
    uuid = models.CharField(max_length=80, help_text="value for CUDA_VISIBLE_DEVICES")
    slots = BigIntegerRangeField()
    memory_mib = models.PositiveIntegerField()
    retired_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="units_of_a_gpu_do_not_overlap",
                expressions=[("slots", RangeOperators.OVERLAPS)],
                condition=Q(retired_at__isnull=True),
            )
        ]
