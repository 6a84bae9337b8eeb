"""Check the Unix user and the shared home of a person whose work runs as this user. Needs root.

The server names the user and the path of the home (``RunWanted.person``). It can't choose them freely: the
operator of the host allows the ids and the folders of homes. So a server that was taken over can't start work
as root or as a system user, and can't mount another folder of the host.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from agent.isolation.team_users import MAX_UID, PersonUser, UidRange
from agent.protocol import PersonWanted

# Linux gives the ids below 1000 to the system.
DEFAULT_PERSON_IDS = UidRange(1_000, MAX_UID)
# Ids that file servers and user namespaces give to users without an identity.
NOBODY_IDS = (65_534, 65_535)
MAX_GROUPS = 200
UNIX_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,99}", re.ASCII)


class PersonUserError(Exception):
    """A run can't get the user or the home of its owner. The message gives the reason."""


@dataclass(frozen=True)
class PersonUsers:
    """The Unix users of people that this host accepts.

    - ``homes``: the folders that may contain homes; empty: no work runs as its owner.
    - ``ids``: the uids and gids that people may have.
    - ``team_ids``: the uids of teams, which no person may have.
    """

    homes: tuple[Path, ...] = ()
    ids: UidRange = DEFAULT_PERSON_IDS
    team_ids: UidRange = UidRange()

    @property
    def allowed(self) -> bool:
        """Return True if work may run as its owner."""
        return bool(self.homes)

    def user(self, wanted: PersonWanted) -> PersonUser:
        """Return the user as which the run works. Raises PersonUserError and OSError."""
        if not self.homes:
            raise PersonUserError("this host runs no work as its owner (--person-homes)")
        if not UNIX_NAME.fullmatch(wanted.name):
            raise PersonUserError(f"{wanted.name[:60]!r} is not a Unix name")
        if len(wanted.groups) > MAX_GROUPS:
            raise PersonUserError(f"{len(wanted.groups)} groups are more than {MAX_GROUPS}")
        for kind, number in (
            ("user", wanted.uid),
            ("group", wanted.gid),
            *(("group", group) for group in wanted.groups),
        ):
            self._check_id(kind, number)
        home = self._checked_home(wanted)
        return PersonUser(wanted.uid, wanted.gid, tuple(wanted.groups), wanted.name, home)

    def _check_id(self, kind: str, number: int) -> None:
        if number not in self.ids or number in NOBODY_IDS:
            raise PersonUserError(
                f"{kind} {number} is not one of {self.ids.first} to {self.ids.last} (--person-ids), "
                "or is nobody"
            )
        if number in self.team_ids:
            raise PersonUserError(
                f"{kind} {number} is one of {self.team_ids.first} to {self.team_ids.last}, which teams have "
                "(--team-users)"
            )

    def _checked_home(self, wanted: PersonWanted) -> Path:
        """Return the home of a person, as an absolute path without links.

        Only root may be able to replace a folder between the allowed folder and the home. Otherwise somebody
        could put a link in place of the home after this check.
        """
        home = Path(wanted.home)
        root = next((root for root in self.homes if home != root and home.is_relative_to(root)), None)
        if root is None or ".." in home.parts:
            allowed = ", ".join(map(str, self.homes))
            raise PersonUserError(f"the home {wanted.home[:200]!r} is not below {allowed} (--person-homes)")
        folders = [root, *reversed([folder for folder in home.parents if folder.is_relative_to(root)][:-1])]
        for folder in folders:
            status = os.lstat(folder)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0 or status.st_mode & 0o022:
                raise PersonUserError(
                    f"the home {wanted.home} can be replaced by others: {folder} must be a folder of root "
                    "that only root may write to"
                )
        try:
            status = os.lstat(home)
        except FileNotFoundError:
            raise PersonUserError(f"the home {wanted.home} does not exist on this host") from None
        if not stat.S_ISDIR(status.st_mode):
            raise PersonUserError(f"the home {wanted.home} is not a folder")
        if status.st_uid != wanted.uid:
            raise PersonUserError(
                f"the home {wanted.home} belongs to user {status.st_uid}, not to user {wanted.uid}"
            )
        return home


def open_person_users(
    homes: list[Path], ids: UidRange, team_ids: UidRange | None, has_users: bool
) -> tuple[PersonUsers, list[str]]:
    """Return the users of people that this host accepts, and sentences about what is missing.

    ``team_ids``: the uids of teams on this host; None: there are none, and the default range stays reserved.
    ``has_users``: True if the launcher can start workloads as other users.
    """
    team_ids = team_ids or UidRange()
    roots = tuple(path.resolve() for path in homes)
    if not roots:
        return PersonUsers((), ids, team_ids), []
    if not has_users:
        note = "No work runs as its owner: the agent can't start work as another user (--person-homes)."
        return PersonUsers((), ids, team_ids), [note]
    return PersonUsers(roots, ids, team_ids), []


def person_folder(path: Path, person: PersonUser) -> Path:
    """Return a folder that this person owns. Create it if needed. Raises PersonUserError and OSError."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    owner = os.stat(path).st_uid
    if owner == os.geteuid():
        os.chown(path, person.uid, person.gid)
    elif owner != person.uid:
        raise PersonUserError(f"{path.name} belongs to user {owner}, not to user {person.uid}")
    return path
