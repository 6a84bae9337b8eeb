"""Define texts of pages about people, teams and tokens."""

from __future__ import annotations

AUDIT_SEARCH_HINT = "Name, id or reason"
AUDIT_MONTH_HINT = "Such as 2026-10"
AUDIT_MONTH_INVALID = "money_of is {given!a}; allowed: a year and a month, such as 2026-10."
SETUP_BY_OPERATOR = "Only an operator can finish the setup."
SETUP_POOL = "A group of hosts with one set of rules for its GPUs. One pool is enough at first."
SETUP_HOST = "One command on the machine starts its agent. Its GPUs then appear here."
SETUP_TEAM = "People ask for GPUs as members of a team, for one of its projects."
SETUP_QUOTA_TITLE = "Give it a quota"
SETUP_QUOTA = "The GPUs that a team is guaranteed, and how many free GPUs it may borrow."
SETUP_NOTEBOOK = "JupyterLab on a GPU of the pool, in two clicks."
PERSON_CREATED = "The account {name} is created. Give the link to the person, and add them to a team."
LEAVER_WORK_LABEL = "Work of closed accounts"
LEAVER_WORK_CHOICES = (
    ("stop", "is stopped with its grace period"),
    ("reservation", "ends with its reservation; without one it is stopped"),
    ("hand_over", "continues until it finishes; a lead is in charge"),
)
LEAVER_WORK_AS_SET = "as in the settings"
PEOPLE_IMPORTED = "{new} accounts are created and {changed} are changed."
LINKS_FILE = "first-passwords.csv"
SIGN_IN_FAILED = "Nobody has this user name or e-mail address with this password."
TOO_MANY_CODES = "Too many wrong codes. Try again in {seconds} seconds."
PASSWORD_LABELS = {
    "oldpassword": "Current password",
    "password1": "New password",
    "password2": "New password, again",
}
PASSWORD_HELP = "At least 12 characters, not only digits, not a common password, and unlike your name."
CODE_WRONG = "The code or the passkey is wrong, or it was used before."
PASSKEY_NAME = "passkey {number}"
PASSKEY_NAME_LABEL = "Name of the passkey"
PASSKEY_ALONE_LABEL = "It signs in alone, without the password"
PASSKEY_ALONE_HELP = "The device then asks for its PIN, a fingerprint or a face each time."
PASSKEYS_OFF = "Passkeys cannot be used, because local accounts are off. Sign in with a provider."
TOO_MANY_PASSWORDS = "Too many wrong passwords. Try again in {wait}."
SETUP_CODE_HELP = (
    "./run up prints it. On other installations, python manage.py setup_code prints it on the server."
)
REASON_LABEL = "Reason, kept in the audit record"
REVOKE_TOKENS = "Also revoke the API tokens"
TOKENS_HELP = "None selected: all of them."
OWN_TOKENS_REVOKED = "{count} API tokens are revoked."
REVOKE_OWN_TOKENS = "Also revoke my API tokens"
USER_NAME_LABEL = "User name or e-mail address"
TEAM_CREATED = "{name} is created. Next: its members, its projects and its quota."
USER_UNKNOWN = "user is {given!a:.60}; allowed: the user name of somebody with an account."
SERVICE_ACCOUNT_CHANGED = "{name} is changed."
SERVICE_ACCOUNT_CREATED = "{name} is created. Next: a token for the program that uses it."
SCOPE_LABELS = {
    "read": "read what you may see",
    "submit": "start, change and reserve work, and change your own settings and tokens",
    "manage": "manage hosts, pools, teams and approvals, if you may",
    "finance": "change prices, budgets and months, if you may",
}
TOKEN_REVOKED = "The token {name} no longer works."


def too_many_passwords(seconds: int) -> str:
    """Return why an attempt to sign in is refused for now."""
    count, unit = (-(-seconds // 60), "minute") if seconds > 90 else (seconds, "second")
    return TOO_MANY_PASSWORDS.format(wait=f"{count} {unit}{'' if count == 1 else 's'}")


LOCAL_SIGN_IN_LABEL = "People can sign in with a password of this portal"
ISSUER_HELP = "An https URL, exactly as the provider names itself."
UID_CLAIM_HELP = "For pools whose work runs as its owner. Empty: operators set the identities."
SECRET_HELP = "Stored encrypted and never shown. Empty: the stored one stays."
CERTIFICATES_HELP = "PEM certificates that are trusted in addition to those of the system."
PROVIDER_CREATED = "{name} is saved. Test it before people use it."
PROVIDER_REMOVED = "{name} is removed."
RULE_ADDED = "The rule is added. It applies to each person at the next sign-in."
RULE_REMOVED = "The rule is removed. The rights that it gave end at each person's next sign-in."
