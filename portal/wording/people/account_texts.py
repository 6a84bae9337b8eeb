"""Define texts about changes that protect an account."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from portal.wording.formatting import with_count

LINK_DAYS = 3
LINK_LIFETIME = f"It works once, within {LINK_DAYS} days."


@dataclass(frozen=True)
class AccountVerb:
    """The texts of a change of an account.

    ``title`` is the question of its page, ``text`` its effect, ``label`` its button, and ``done`` the
    confirmation. ``{}`` in ``title`` and ``done`` is the user name.
    """

    title: str
    text: str
    label: str
    done: str


ALL_SESSIONS = "All sessions of this person end at once, with open workspaces and unused links to them."

ACCOUNT_VERBS = {
    "change_roles": AccountVerb(
        "Change the roles of {}?",
        f"{ALL_SESSIONS} The person signs in again.",
        "Change the roles",
        "The roles of {} are changed.",
    ),
    "close_account": AccountVerb(
        "Close the account {}?",
        f"{ALL_SESSIONS} All API tokens are revoked. Nobody can sign in with the account until an operator "
        "opens it again; the ended sessions and tokens stay invalid. Within a minute, the work and the "
        "reservations are settled by the policy in the settings.",
        "Close the account",
        "The account {} is closed.",
    ),
    "open_account": AccountVerb(
        "Open the account {}?",
        "The person can sign in again. Earlier sessions and API tokens stay invalid.",
        "Open the account",
        "The account {} is open.",
    ),
    "end_sessions": AccountVerb(
        "End the sessions of {}?",
        f"{ALL_SESSIONS} The password stays valid.",
        "End the sessions",
        "The sessions of {} have ended.",
    ),
    "revoke_tokens": AccountVerb(
        "Revoke the API tokens of {}?",
        "Programs that use the tokens are refused at once, and workspaces that were opened with them end.",
        "Revoke the tokens",
        "The API tokens of {} are revoked.",
    ),
    "reset_password": AccountVerb(
        "Reset the password of {}?",
        f"The password is invalid at once. {ALL_SESSIONS} You get a link with which the person sets a new "
        f"password. {LINK_LIFETIME}",
        "Reset the password",
        "The password of {} is invalid. Give the link below to the person.",
    ),
    "reset_second_factor": AccountVerb(
        "Reset the second factor of {}?",
        f"The authenticator app and the recovery codes become invalid. {ALL_SESSIONS} The person then signs "
        "in with the password alone, until they set up a new second factor.",
        "Reset the second factor",
        "The second factor of {} is removed.",
    ),
    "change_address": AccountVerb(
        "Change the e-mail address of {}?",
        f"Mails, also for a new password, go to the new address. {ALL_SESSIONS}",
        "Change the address",
        "The e-mail address of {} is changed.",
    ),
    "remove_person": AccountVerb(
        "Remove {} from the organisation?",
        f"{ALL_SESSIONS} All API tokens are revoked, the account is closed, and its roles and teams end. Its "
        "waiting requests are withdrawn. Its work and its reservations are settled as you choose below. The "
        "home, its volumes and its history stay.",
        "Remove the person",
        "{} is removed from the organisation.",
    ),
    "stop_work": AccountVerb(
        "Stop all work of {}?",
        "Running work gets the signal to stop and its grace period, and waiting work leaves the queue. "
        "Reservations stay. The person can start new work unless you also close the account.",
        "Stop the work",
        "All work of {} is stopped.",
    ),
}

OWN_CHANGE_EFFECT = (
    "Your other sessions end at once, with open workspaces and unused links to them. You stay signed in here."
)
TOKENS_STILL_WORK = (
    "API tokens of yours that still work: {count}. If somebody else may know one, revoke it under API tokens."
)


WORK_SENTENCES = {
    "": "{counts} workloads continue.",
    "stop": "{counts} workloads are stopped with their grace period.",
    "reservation": (
        "{counts} workloads: those in an active reservation continue until its end, the others are stopped."
    ),
    "hand_over": "{counts} workloads continue until they finish, and a lead of their team is in charge.",
}


def work_sentence(running: int, waiting: int, settled_by: str) -> str:
    """Return what a change of an account does to the work of its person.

    ``settled_by`` is a LeaverWork; empty if the work continues.
    """
    if not running and not waiting:
        return "No work of this person runs or waits."
    return WORK_SENTENCES[settled_by].format(counts=f"{running} running and {waiting} waiting")


SET_UP_SECOND_FACTOR = "Set up a second factor"
SESSION_ENDED = "The session has ended, with its notebooks and live pages. Running work goes on."
SESSIONS_ENDED = "All your other sessions have ended. Running work goes on."
FEW_CODES = 3  # the account page warns below this number of recovery codes
TOKEN_ENDS_SOON = timedelta(days=14)


def second_factor_sentence(has_one: bool, required: bool) -> str:
    """Return whether a second factor is set up, and whether the settings require it."""
    if has_one:
        return "On, and your role needs it." if required else "On."
    return (
        "Off, and your role needs it." if required else "Off. A stolen password would be enough to sign in."
    )


def account_sentence(factors: Iterable[Any], tokens: Iterable[Any], now: datetime) -> str:
    """Return what needs attention in the own account: few recovery codes, and tokens that end soon."""
    notes = [
        f"{with_count(factor.codes_left, 'recovery code')} left"
        for factor in factors
        if factor.codes_left is not None and factor.codes_left < FEW_CODES
    ]
    ending = [token.name for token in tokens if token.expires_at - now < TOKEN_ENDS_SOON]
    if ending:
        notes.append(f"{with_count(len(ending), 'token')} ending within two weeks: {', '.join(ending[:5])}")
    return "; ".join(notes) + "." if notes else "Nothing needs your attention."


# Labels of the pages that prove the identity, by the id of django-allauth.
PROOFS = {
    "reauthenticate": "Use the password",
    "mfa_reauthenticate": "Use a code",
    "mfa_reauthenticate:webauthn": "Use a passkey",
}

NOT_IN_DIRECTORY = "{name} does not have the person any more, or has disabled them."
