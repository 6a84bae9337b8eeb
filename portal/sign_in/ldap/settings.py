"""Define the settings of an LDAP directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

GROUP_KINDS = ("groupOfNames", "groupOfUniqueNames", "posixGroup", "activeDirectory")
CLOSE, REMOVE = "close", "remove"
GONE_RULES = (CLOSE, REMOVE)
# People have a user name, a subject and an address in the claims, whatever their attributes are called.
USERNAME_CLAIM = "preferred_username"


@dataclass(frozen=True)
class DirectorySettings:
    """The settings of a directory. The password of the service account is the secret of the provider.

    ``when_gone`` says what the sync does with people who may not sign in any more: close their accounts, or
    remove the people. ``max_loss_percent`` is the largest share of people that a sync may close or take
    rights from.
    """

    url: str = ""
    start_tls: bool = False
    bind_dn: str = ""
    user_base: str = ""
    user_filter: str = "(objectClass=person)"
    username_attribute: str = "uid"
    subject_attribute: str = "entryUUID"
    email_attribute: str = "mail"
    name_attribute: str = "cn"
    further_attributes: str = ""
    group_base: str = ""
    group_kind: str = "groupOfNames"
    when_gone: str = CLOSE
    max_loss_percent: int = 20

    @property
    def attributes(self) -> list[str]:
        """Return the attributes of a person that the portal reads. Passwords are not among them."""
        named = (self.username_attribute, self.subject_attribute, self.email_attribute, self.name_attribute)
        rules = ("userAccountControl", "accountExpires", "shadowExpire", "uid", "gidNumber")
        return list(dict.fromkeys((*named, *rules, *self.further_attributes.split())))

    def stored(self) -> dict[str, Any]:
        """Return the settings as a JSON object."""
        return asdict(self)


def directory_from(stored: Mapping[str, Any]) -> DirectorySettings:
    """Return the settings in a JSON object. Absent members get their defaults."""
    return DirectorySettings(**{name: stored[name] for name in DIRECTORY_FIELDS if name in stored})


DIRECTORY_FIELDS = tuple(each.name for each in fields(DirectorySettings))
