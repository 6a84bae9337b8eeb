"""Define the exception for an agent that the server rejects, and its messages.

The messages are in this module and not in ``portal/wording``, because the scheduler stores them for the
host's page. The edge sends code and message in a ``Refused`` frame, and the agent logs the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AGENT_REJECTIONS: dict[str, str] = {
    # any request
    "version_unsupported": "version: {version}; allowed: {allowed}",
    "credential_unknown": "this credential is unknown, expired or revoked; join again with a new token",
    "credential_expired": "this host's credential has expired or was revoked; join again with a new token",
    "credential_revoked": "the credential of this host was revoked: join again with a new token",
    "host_is_removed": (
        "this host was removed by an operator; to use the machine again, add a host and join as the new host"
    ),
    "host_unknown": "this host is no longer known",
    "clock_stepped": "{problem}",
    # join
    "join_identity_invalid": "instance and boot_id: allowed are 1 to 64 characters",
    "join_key_invalid": "public_key and signature: allowed are those of Ed25519, in base64",
    "join_token_unknown": "token: not known; make a new one on the host's page",
    "join_token_spent": "token: used before; make a new one on the host's page",
    "join_token_expired": "token: older than 15 minutes; make a new one on the host's page",
    "join_token_of_another_host": "host: this token was made for another host; use the host's own token",
    "join_key_not_proven": "signature: the token was not signed with the private key of public_key",
    # renewal
    "challenge_unknown": (
        "challenge: not of this host's last credential, or too old; "
        "join again with a new token if this repeats"
    ),
    "challenge_not_signed": "signature: not made with the key that this host registered when it joined",
    # reports
    "agent_second": "another agent has joined as {host}: join again with a new token to replace it",
    "agent_copy": "this is a copy of the state folder of {host}: another agent has used it since",
    "agent_on_another_boot": (
        "an agent with the same identity runs on another boot of {host}: is this a clone?"
    ),
    "starts_invalid": "start, starts_before: allowed are {characters} characters and {entries} entries",
    "report_invalid": "{problem}",
    "run_of_another_host": "run: {run}; allowed: the id of a run of this host",
}
# Each of these rejections may mean that two agents use one credential. The value is the code that is stored
# with the host. The rejected agent is quarantined: it gets no work until an operator stops one of the agents.
QUARANTINE_CODES = {
    "agent_second": "agent_second",
    "agent_copy": "agent_copy",
    "agent_on_another_boot": "agent_copy",
}


class AgentRejected(Exception):
    """The server rejects an agent. ``retry`` is True if a later attempt may succeed."""

    def __init__(self, code: str, numbers: Mapping[str, Any] | None = None, *, retry: bool = False) -> None:
        self.code = code
        self.reason = AGENT_REJECTIONS[code].format_map(numbers or {})
        self.retry = retry
        super().__init__(self.reason)

    @property
    def quarantine_code(self) -> str:
        """Return the code to store with the host if an operator has to choose between two agents.

        Otherwise return an empty string.
        """
        return QUARANTINE_CODES.get(self.code, "")
