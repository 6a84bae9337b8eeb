"""Which user of the host a team's workloads run as, and whose home is whose. Needs root; without it all run as the agent's user.

The server gives each team a number, so that hosts that share homes agree (docs/decisions/0005). The host trusts it only so far:
a number must be in the range the operator allows, must not be an account of the host, and must not have been another team's on
these files. A home belongs to the person and the team that used it first; the same person in another team gets one beside it,
OWNER~NUMBER, so that no team's work reads another team's files through a person who is in both.
"""

from __future__ import annotations

import contextlib
import fcntl
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

log = logging.getLogger("agent.isolation.team_users")

DEFAULT_FIRST_UID, DEFAULT_LAST_UID = (
    70_000,
    99_999,
)  # between the accounts of a Linux system (to 60,000) and the subordinate ids (from 100,000)
MIN_UID, MAX_UID = 1_000, 2**31 - 2
METADATA_FOLDER = ".volumes"
TEAM_RECORD_FILE = "teams.json"
INBOX_FILE_MODE, INBOX_FOLDER_MODE = (
    0o640,
    0o2750,
)  # of what a run's user reads and does not write; new files get its group
HOME_UID_SEPARATOR = "~"  # in no owner's name


class TeamUserError(Exception):
    """A run can't be given the user it should have; says why."""


class OwnershipChangeInProgress(Exception):
    """The home is being given to the team, or another host is at the record of teams; ask again in a moment."""


@dataclass(frozen=True)
class UidRange:
    """The user numbers that teams may have on this host, both ends included."""

    first: int = DEFAULT_FIRST_UID
    last: int = DEFAULT_LAST_UID

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last


@dataclass(frozen=True)
class RunPlacement:
    """Where a run works: its user (None: the agent's), its home and its checkpoint folder."""

    user: int | None
    home: Path
    checkpoint: Path


@dataclass
class TeamUsers:
    """Users and homes of the teams of this host. ``numbers`` None: no user per team, everything stays the agent's."""

    homes: Path
    numbers: UidRange | None
    _ownership_changes: dict[Path, threading.Thread] = field(default_factory=dict)
    _trouble: dict[Path, str] = field(default_factory=dict)

    def user(self, team: str, number: int) -> int | None:
        """The user that ``team`` (its public id) runs as, or None where the host has no user per team or the server gave none.

        Raises TeamUserError when the number may not be this team's here, and Settling while another host looks into that.
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
            before = next(
                (int(other) for other, name in teams.items() if name == team and int(other) != number), None
            )
        if owner != team:
            raise TeamUserError(
                f"user {number} was another team's on these homes: its files would be this team's"
            )
        if before is not None:
            raise TeamUserError(f"the team was user {before} on these homes and can't be {number} now")
        return number

    @contextlib.contextmanager
    def _record(self) -> Iterator[dict[str, str]]:
        """Number -> team, as kept beside the homes, where the files are that the numbers own."""
        folder = self.homes / METADATA_FOLDER
        folder.mkdir(exist_ok=True, mode=0o700)
        with _locked_record(folder / f"{TEAM_RECORD_FILE}.lock"):
            path = folder / TEAM_RECORD_FILE
            try:
                teams: dict[str, str] = read_json_or_raise(path) or {}
            except StateFolderError as damaged:
                raise TeamUserError(str(damaged)) from None
            known = dict(teams)
            yield teams
            added = {number: team for number, team in teams.items() if number not in known}
            if added and not set(added.values()) & set(known.values()):  # a team keeps its first number
                write_json(path, teams)

    def home(self, owner: str, user: int | None) -> Path:
        """The person's home as this user's, made where there is none.

        Raises TeamUserError when it is a link that root did not make, and Settling while an older one is being given over.
        """
        path = self._checked(self.homes / owner)
        if user is None:
            path.mkdir(exist_ok=True, mode=0o700)
            return path
        if path.exists() and self._belongs_to_another_team(path, user):
            path = self._checked(self.homes / f"{owner}{HOME_UID_SEPARATOR}{user}")
        return self.folder(path, user)

    def folder(self, path: Path, user: int | None) -> Path:
        """A folder that is this user's. Raises like ``home``."""
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
        """Where a home really is. An operator (root) may have put it elsewhere by a link; a workload may not."""
        if resolved_home(path) is None:
            raise TeamUserError(f"the home {path.name} is a link that root did not make")
        return path.resolve()

    def _change_owner_in_background(self, path: Path, user: int) -> None:
        if trouble := self._trouble.pop(path, ""):
            raise TeamUserError(f"{path.name} could not be given to the team: {trouble}")
        worker = self._ownership_changes.get(path)
        if worker is None:
            worker = threading.Thread(target=self._give, args=(path, user), daemon=True, name="settle")
            self._ownership_changes[path] = worker
            worker.start()
            worker.join(0.2)  # a new one is done at once
        if worker.is_alive():
            raise OwnershipChangeInProgress(f"giving {path.name} to the team")
        del self._ownership_changes[path]
        if trouble := self._trouble.pop(path, ""):
            raise TeamUserError(f"{path.name} could not be given to the team: {trouble}")

    def _give(self, path: Path, user: int) -> None:
        try:
            left = file_trees.chown_tree(path, old=os.geteuid(), new=user)
        except OSError as error:
            self._trouble[path] = str(error.strerror)
            return
        if left:
            log.warning(
                "%s: %d entries keep their owner: they have names elsewhere or are too deep", path, left
            )


def chown_run_folders(run: Path, user: int | None) -> None:
    """A run's folders to its user: what it writes is its own; what it reads stays the agent's, who could be led astray by links in
    a folder of somebody else's."""
    if user is None:
        return
    for name in ("out", "tmp"):
        os.chown(run / name, user, user)
    os.chown(run / "in", -1, user)
    os.chmod(run / "in", INBOX_FOLDER_MODE)


@contextlib.contextmanager
def _locked_record(path: Path) -> Iterator[None]:
    """Held by one host at a time, where the file system has locks. Raises OwnershipChangeInProgress while another one holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OwnershipChangeInProgress("waiting for another host, which notes a team's user") from None
        except OSError as error:
            log.debug("%s: no locks here: %s", path, error)
        yield
    finally:
        os.close(descriptor)
