"""Store the homes of users that hosts report, in Storage and Volume rows.

Several hosts can report the same storage. The latest listing of a storage is stored.
"""

from __future__ import annotations

from datetime import UTC, datetime

from agent.protocol import LARGEST_SIZE, LONGEST_HOME_NAME, MOST_HOMES, HomeSeen, HomesSeen
from scheduler.models import Host, Storage, Volume

MEASURED_FIELDS = ("size_bytes", "size_complete", "files", "changed_at", "measured_at", "limit_bytes")
MAX_TIMESTAMP_SECONDS = datetime(2100, 1, 1, tzinfo=UTC).timestamp()


def has_other_storage(storage_id: int | None, host: Host) -> bool:
    """Return True if the host does not mount the storage ``storage_id``, which has a workload's checkpoint.

    Return False if the storage of the checkpoint or of the host is unknown.
    """
    return storage_id is not None and host.storage_id is not None and host.storage_id != storage_id


def homes_problem(seen: HomesSeen | None) -> str:
    """Return the first problem of a report of homes, or an empty string if the report is valid.

    The text of a problem has the field, its value and the allowed values.
    """
    if seen is None:
        return ""
    if not (1 <= len(seen.storage) <= 64 and seen.storage.isascii() and seen.storage.isalnum()):
        return f"homes.storage: {seen.storage[:70]!r}; allowed: 1 to 64 letters and digits"
    if len(seen.homes) > MOST_HOMES:
        return f"homes.homes: {len(seen.homes)} entries; allowed: at most {MOST_HOMES}"
    if not 0 <= seen.left_out < 2**31:
        return f"homes.left_out: {seen.left_out}; allowed: 0 to {2**31 - 1}"
    for name, size in (("total_bytes", seen.total_bytes), ("free_bytes", seen.free_bytes)):
        if size is not None and not 0 <= size <= LARGEST_SIZE:
            return f"homes.{name}: {size}; allowed: 0 to {LARGEST_SIZE} bytes, or null if unknown"
    if not 0 <= seen.listed_at <= MAX_TIMESTAMP_SECONDS:
        return (
            f"homes.listed_at: {seen.listed_at}; "
            f"allowed: seconds since the epoch, up to {MAX_TIMESTAMP_SECONDS:.0f}"
        )
    if len({home.name for home in seen.homes}) < len(seen.homes):
        return "homes.homes: two homes have the same name; allowed: each name once"
    return next(filter(None, map(_home_problem, seen.homes)), "")


def _home_problem(home: HomeSeen) -> str:
    if not home.name or len(home.name) > LONGEST_HOME_NAME or not home.name.isprintable() or "/" in home.name:
        return (
            f"homes.homes: name {home.name[:60]!r}; "
            f"allowed: the name of a folder, 1 to {LONGEST_HOME_NAME} characters"
        )
    for name, count in (("bytes", home.bytes), ("files", home.files), ("limit_bytes", home.limit_bytes)):
        if count is not None and not 0 <= count <= LARGEST_SIZE:
            return (
                f"homes.homes: {name} of {home.name[:60]!r} is {count}; "
                f"allowed: 0 to {LARGEST_SIZE}, or null if unknown"
            )
    for name, at in (("changed_at", home.changed_at), ("measured_at", home.measured_at)):
        if at is not None and not at <= MAX_TIMESTAMP_SECONDS:
            return (
                f"homes.homes: {name} of {home.name[:60]!r} is {at}; "
                f"allowed: seconds since the epoch, up to {MAX_TIMESTAMP_SECONDS:.0f}"
            )
    return ""


def store_homes(host: Host, seen: HomesSeen, now: datetime) -> None:
    """Store a listing of homes and set the host's storage.

    If the stored listing is not older than this one, only the host's storage is set.
    """
    listed_at = min(_past_time(seen.listed_at, now), now)
    storage = Storage.objects.filter(key=seen.storage).first()
    created = False
    if storage is None:
        new = Storage(key=seen.storage, listed_at=listed_at, left_out=seen.left_out, **_disk(seen))
        Storage.objects.bulk_create(
            [new], ignore_conflicts=True
        )  # another host may report the same storage at the same time
        storage = Storage.objects.get(key=seen.storage)
        created = storage.listed_at == listed_at
    Host.objects.filter(pk=host.pk).exclude(storage=storage).update(storage=storage)
    newer = created or bool(
        Storage.objects.filter(pk=storage.pk, listed_at__lt=listed_at).update(
            listed_at=listed_at, left_out=seen.left_out, **_disk(seen)
        )
    )
    if not newer:
        return
    _write_homes(storage, seen, now)
    if not seen.left_out:  # only a complete listing shows which homes were removed
        storage.volumes.exclude(name__in=[home.name for home in seen.homes]).delete()


def _write_homes(storage: Storage, seen: HomesSeen, now: datetime) -> None:
    """Write the changed rows in the order of their names.

    With a fixed order, two hosts that report the same storage cannot deadlock.
    """
    known = {volume.name: volume for volume in storage.volumes.all()}
    changed = []
    for home in sorted(seen.homes, key=lambda home: home.name):
        columns = _measured_columns(home, now)
        stored = known.get(home.name)
        if stored is None or any(getattr(stored, name) != value for name, value in columns.items()):
            changed.append(Volume(storage=storage, name=home.name, **columns))
    Volume.objects.bulk_create(
        changed,
        update_conflicts=True,
        unique_fields=["storage", "name"],
        update_fields=MEASURED_FIELDS,
        batch_size=1000,
    )


def _measured_columns(home: HomeSeen, now: datetime) -> dict[str, object]:
    return {
        "size_bytes": home.bytes,
        "size_complete": home.complete,
        "limit_bytes": home.limit_bytes,
        "files": home.files,
        "changed_at": None if home.changed_at is None else _past_time(home.changed_at, now),
        "measured_at": None if home.measured_at is None else _past_time(home.measured_at, now),
    }


def _past_time(seconds: float, now: datetime) -> datetime:
    """Return the reported time, or ``now`` if the reported time is later.

    A reported time can be in the future, because the host's clock differs or a file has a wrong timestamp.
    """
    return min(datetime.fromtimestamp(max(0.0, seconds), tz=UTC), now)


def _disk(seen: HomesSeen) -> dict[str, int | None]:
    return {"total_bytes": seen.total_bytes, "free_bytes": seen.free_bytes}
