"""Chooses the Unix user for a team's workloads, and the home for each person and team. Needs root.

The server assigns each team a uid, so that hosts that share homes use the same uid (docs/decisions/0005). The
host accepts the uid only under three conditions: it is in the range that the operator allows, no account of
the host has it, and no other team has had it on these homes.

A home belongs to the person and the team that used it first. In another team, the same person gets a second
home, OWNER~UID. Otherwise a workload of one team could read files of another team through a person who is in
both teams.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agent.host.durable_files import StateFolderError, read_json_or_raise, write_json
from agent.storage import file_trees
from agent.storage.file_trees import resolved_home
from agent.storage.locked_record import locked_record

log = logging.getLogger("agent.isolation.team_users")

# The default range lies between the accounts of a Linux system (up to 60,000) and the subordinate ids (from
# 100,000).
DEFAULT_FIRST_UID, DEFAULT_LAST_UID = 70_000, 99_999
MIN_UID, MAX_UID = 1_000, 2**31 - 2
METADATA_FOLDER = ".volumes"
TEAM_RECORD_FILE = "teams.json"
# The group of the run's user can read the inbox. The setgid bit gives this group to new files.
INBOX_FILE_MODE, INBOX_FOLDER_MODE = 0o640, 0o2750
HOME_UID_SEPARATOR = "~"  # not allowed in an owner's name


class TeamUserError(Exception):
    """A run can't get its user or its home. The message gives the reason."""


class OwnershipChangeInProgress(Exception):
    """The home is changing its owner. Try again soon."""


@dataclass(frozen=True)
class UidRange:
    """The uids that teams may have on this host, both ends included."""

    first: int = DEFAULT_FIRST_UID
    last: int = DEFAULT_LAST_UID

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last


@dataclass(frozen=True)
class PersonUser:
    """The Unix user of a person, as which a run works. ``home`` is a checked path of the host."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: Path


@dataclass(frozen=True)
class RunPlacement:
    """The user, the home and the checkpoint folder of a run. A ``user`` of None means the agent's user.

    ``person``: the user of the run's owner; None: the run has the user of its team.
    """

    user: int | None
    home: Path
    checkpoint: Path
    person: PersonUser | None = None


@dataclass
class TeamUsers:
    """The users and homes of teams on this host.

    If ``numbers`` is None, there is no user per team, and the agent's user owns all homes.
    """

    homes: Path
    numbers: UidRange | None
    _ownership_changes: dict[Path, threading.Thread] = field(default_factory=dict)
    _failures: dict[Path, str] = field(default_factory=dict)

    def user(self, team: str, number: int) -> int | None:
        """Return the uid for the workloads of ``team`` (a public id); None: the agent's user.

        The result is ``number``, the uid that the server assigned, if this host accepts it. Raises
        TeamUserError if the host does not accept it. Raises RecordLocked while another host uses the record
        of teams.
        """
        if self.numbers is None or not number or not team:
            return None
        if number not in self.numbers:
            raise TeamUserError(
                f"user {number} is not one of {self.numbers.first} to {self.numbers.last} (--team-users)"
            )
        with contextlib.suppress(KeyError):
            raise TeamUserError(f"user {number} is the account {pwd.getpwuid(number).pw_name} of this host")
        with self._record() as teams:
            owner = teams.setdefault(str(number), team)
            earlier_number = next(
                (
                    int(known_number)
                    for known_number, name in teams.items()
                    if name == team and int(known_number) != number
                ),
                None,
            )
        if owner != team:
            raise TeamUserError(
                f"user {number} was another team's user on these homes: this team would get that team's files"
            )
        if earlier_number is not None:
            raise TeamUserError(
                f"the team was user {earlier_number} on these homes and can't be {number} now"
            )
        return number

    @contextlib.contextmanager
    def _record(self) -> Iterator[dict[str, str]]:
        """Lock the record of these homes, and yield it as a dict from uid to team.

        On exit, new entries are written to the file.
        """
        folder = self.homes / METADATA_FOLDER
        folder.mkdir(exist_ok=True, mode=0o700)
        waiting = "waiting for another host that records a team's user"
        with locked_record(folder / f"{TEAM_RECORD_FILE}.lock", waiting):
            path = folder / TEAM_RECORD_FILE
            try:
                teams: dict[str, str] = read_json_or_raise(path) or {}
            except StateFolderError as damaged:
                raise TeamUserError(str(damaged)) from None
            known = dict(teams)
            yield teams
            added = {number: team for number, team in teams.items() if number not in known}
            if added and not set(added.values()) & set(known.values()):  # a team keeps its first uid
                write_json(path, teams)

    def home(self, owner: str, user: int | None) -> Path:
        """Return the home of ``owner`` for the uid ``user``. Create the home if needed.

        Raises TeamUserError if the home is a link that root did not create. Raises OwnershipChangeInProgress
        while the files of the home get their new owner.
        """
        path = self._checked(self.homes / owner)
        if user is None:
            path.mkdir(exist_ok=True, mode=0o700)
            return path
        if path.exists() and self._belongs_to_another_team(path, user):
            path = self._checked(self.homes / f"{owner}{HOME_UID_SEPARATOR}{user}")
        return self.folder(path, user)

    def folder(self, path: Path, user: int | None) -> Path:
        """Return a folder that this user owns. Create it if needed. Raises the same errors as ``home``."""
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if user is None or os.stat(path).st_uid == user:
            return path
        if self._belongs_to_another_team(path, user):
            raise TeamUserError(f"{path.name} belongs to another team")
        self._change_owner_in_background(path, user)
        return path

    def _belongs_to_another_team(self, path: Path, user: int) -> bool:
        owner = os.stat(path).st_uid
        return owner != user and self.numbers is not None and owner in self.numbers

    def _checked(self, path: Path) -> Path:
        """Return the resolved path of a home. Raises TeamUserError for a link that root did not create."""
        if resolved_home(path) is None:
            raise TeamUserError(f"the home {path.name} is a link that root did not create")
        return path.resolve()

    def _change_owner_in_background(self, path: Path, user: int) -> None:
        self._raise_failure(path)
        worker = self._ownership_changes.get(path)
        if worker is None:
            worker = threading.Thread(
                target=self._change_owner, args=(path, user), daemon=True, name="settle"
            )
            self._ownership_changes[path] = worker
            worker.start()
            worker.join(0.2)  # long enough to change the owner of a new home
        if worker.is_alive():
            raise OwnershipChangeInProgress(f"giving {path.name} to the team")
        del self._ownership_changes[path]
        self._raise_failure(path)

    def _raise_failure(self, path: Path) -> None:
        if failure := self._failures.pop(path, ""):
            raise TeamUserError(f"{path.name} could not be given to the team: {failure}")

    def _change_owner(self, path: Path, user: int) -> None:
        try:
            skipped = file_trees.chown_tree(path, old=os.geteuid(), new=user)
        except OSError as error:
            self._failures[path] = str(error.strerror)
            return
        if skipped:
            log.warning(
                "%s: %d entries keep their owner: they have other hard links or lie too deep", path, skipped
            )


def chown_run_folders(run: Path, place: RunPlacement) -> None:
    """Make the run's user the owner of the run's writable folders, and let the user read the inbox.

    The agent stays the owner of the inbox. Otherwise the user could put links into the inbox and so redirect
    the agent's writes to other files.
    """
    user = place.user
    if user is None:
        return
    group = place.person.gid if place.person else user
    for name in ("out", "tmp"):
        os.chown(run / name, user, group)
    os.chown(run / "in", -1, group)
    os.chmod(run / "in", INBOX_FOLDER_MODE)
