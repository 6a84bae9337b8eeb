"""Define the sentences about identity providers, sign-ins that are refused, and rules."""

from __future__ import annotations

# For each code: the sentence of a refused sign-in, or of a failed test of a provider.
REFUSED_SIGN_INS = {
    "secret_unreadable": (
        "The client secret of {name} cannot be decrypted, because the secret key of this installation has "
        "changed. An operator enters the client secret again."
    ),
    "provider_unreachable": "{name} does not answer at {url}. Try again later, or ask an operator.",
    "certificate_not_trusted": (
        "The certificate of {name} is not trusted. An operator checks the certificate, or adds the "
        "certificate of its authority to the settings of {name}."
    ),
    "certificates_invalid": "The certificates in the settings of {name} are no PEM certificates.",
    "answer_not_json": "{name} does not answer with JSON at {url}.",
    "answer_too_long": "{name} answers with more than 1 MiB at {url}.",
    "discovery_invalid": "The discovery document of {name} is not usable: {problem}.",
    "issuer_differs": "{name} names itself {given}; the settings say {expected}.",
    "keys_invalid": "{name} publishes no key with which an ID token can be verified.",
    "state_unknown": (
        "This sign-in was not started in this browser, or it took too long, or it was finished already. "
        "Start again."
    ),
    "answer_of_another_issuer": "The answer came from another provider than {name}. Start again.",
    "cancelled": "The sign-in with {name} was cancelled.",
    "provider_error": "{name} refused the sign-in: {problem}.",
    "code_refused": "{name} refused the code of this sign-in: it was used or is too old. Start again.",
    "token_missing": "The answer of {name} has no ID token.",
    "token_not_valid": "The ID token of {name} is not valid.",
    "key_unknown": "The ID token of {name} is signed with a key that {name} does not publish.",
    "token_of_another_issuer": "The ID token was not issued by {name}.",
    "token_for_another_client": "The ID token of {name} was issued for another program.",
    "nonce_differs": "The ID token of {name} does not belong to this sign-in. Start again.",
    "clocks_differ": (
        "The ID token of {name} is not valid at the time of this server. The clocks differ by more than "
        "{seconds} seconds, or the sign-in took too long."
    ),
    "subject_differs": "{name} sent the details of another person.",
    "claim_missing": "{name} does not say your {claim}, which a new account needs. Ask an operator.",
    "claim_invalid": (
        "{name} says that your {claim} is {value}, which an account cannot have. Ask an operator."
    ),
    "accounts_not_created": "You have no account, and {name} makes no accounts. Ask an operator.",
    "username_taken": (
        "The user name {value} belongs to another account. If it is yours, sign in with its password and "
        "connect {name} under Preferences."
    ),
    "address_taken": (
        "The address {value} belongs to another account. If it is yours, sign in with its password and "
        "connect {name} under Preferences."
    ),
    "connected_to_other": "This identity of {name} is connected to another account.",
    "sign_in_first": "Sign in before you connect an identity.",
    "directory_secret_missing": "The settings of {name} have no password of the service account.",
    "directory_bind_refused": (
        "{name} refuses the service account of the portal. An operator checks its name and its password."
    ),
    "directory_base_missing": "{name} has no entry {base}. An operator checks the settings of {name}.",
    "directory_referral": "{name} refers to another server, which the portal does not ask.",
    "directory_error": "{name} answers with an error: {problem}.",
    "directory_password_wrong": "{name} does not accept this user name and password.",
    "entry_disabled": "{name} says that your account is disabled.",
    "too_many_attempts": "Too many attempts to sign in. Wait {seconds} seconds, and try again.",
    "ldap_not_installed": (
        "{name} needs the packages of sign-in with LDAP, which this server does not have. An operator "
        "installs gpupool[ldap]."
    ),
    "not_allowed": "Only an operator may test an identity provider.",
}

ENDPOINT_INVALID = "{name} is {given}; allowed: an https URL"
STATUS_UNEXPECTED = "{url} answers with status {status}"
DIRECTORY_USER_NAME = "User name"
DIRECTORY_PASSWORD = "Password"
LOCAL_SIGN_IN_OFF = "Passwords are turned off. Sign in with one of the buttons."
BREAK_GLASS_MINUTES = 15
BREAK_GLASS_INVALID = "This link was used, is too old, or never existed. Print a new one with break_glass."
BREAK_GLASS_REFUSED = "{name} is no operator with an open account; allowed: {allowed}."
TEST_PASSED = "{name} answers, and its {count} keys are usable."
CONNECTED = "{name} is connected to your account."
DISCONNECTED = "{name} is not connected to your account any more."

ISSUER_INVALID = (
    "issuer is {given}; allowed: https://HOST[:PORT][/PATH], exactly as the provider names itself."
)
CERTIFICATES_INVALID = "ca_certificates has no PEM certificate; allowed: PEM certificates, or nothing."
SCOPES_INVALID = "scopes is {given}; allowed: words with spaces between them, one of which is openid."
SLUG_RESERVED = "slug is {given}; allowed: another word, because the environment uses this one."
PROVIDER_UNKNOWN = "provider is {given}; allowed: {allowed}."
RULE_UNKNOWN = "remove is {given}; allowed: the id of a rule."
TEAM_UNKNOWN = "team is {given}; allowed: the slug of a team."
RULE_GRANTS = "team and role: give exactly one of the two."
LEAD_NEEDS_TEAM = "lead is true; allowed: false without a team."


SETTING_INVALID = "{field} is {given}; allowed: {allowed}."
DIRECTORY_ALLOWED = {
    "unknown": "nothing, because there is no such setting",
    "url": "ldaps://HOST[:PORT], ldap://HOST[:PORT] with StartTLS, or ldap:// of this machine",
    "start_tls": "true or false",
    "bind_dn": "the DN of the service account, or NAME@DOMAIN",
    "user_base": "a DN, such as ou=people,dc=example,dc=org",
    "user_filter": "a filter in parentheses, such as (objectClass=person)",
    "username_attribute": "the name of an attribute, such as uid",
    "subject_attribute": "the name of an attribute, such as entryUUID",
    "email_attribute": "the name of an attribute, such as mail",
    "name_attribute": "the name of an attribute, such as cn",
    "further_attributes": "names of attributes with spaces between them, or nothing",
    "group_base": "a DN, or nothing",
    "group_kind": "groupOfNames, groupOfUniqueNames, posixGroup or activeDirectory",
    "when_gone": "close or remove",
    "max_loss_percent": "a whole number from 1 to 100",
}
# For each setting of a directory: its label in the form, and a hint.
DIRECTORY_LABELS = {
    "url": ("URL", "ldaps://HOST[:PORT], or ldap://HOST[:PORT] with StartTLS."),
    "start_tls": ("StartTLS", ""),
    "bind_dn": ("Service account", "Its DN. It reads people and groups, and needs no other rights."),
    "user_base": ("People below", "A DN, such as ou=people,dc=example,dc=org."),
    "user_filter": ("People are", "A filter. Only people who match it may sign in."),
    "username_attribute": ("Attribute with the user name", "Active Directory: sAMAccountName."),
    "subject_attribute": ("Attribute with the lasting id", "Active Directory: objectGUID."),
    "email_attribute": ("Attribute with the address", ""),
    "name_attribute": ("Attribute with the full name", ""),
    "further_attributes": ("Further attributes for rules", "Words with spaces between them."),
    "group_base": ("Groups below", "A DN. Empty: the directory gives no groups."),
    "group_kind": ("Kind of groups", ""),
    "when_gone": ("People who are gone", "close: the account is closed. remove: also teams and work end."),
    "max_loss_percent": (
        "Largest loss in %",
        "A sync that takes more people's account or rights is refused.",
    ),
}
KIND_FIELDS = "directory: give it for a provider of the kind ldap, and only for it."
KIND_INVALID = "kind is {given}; allowed: oidc or ldap."
SECRET_NEEDED = "secret is empty; allowed: the password of the service account."
PERSON_UNKNOWN = "{name} has no person {given} who may use the portal."
DIRECTORY_ANSWERS = "{name} answers and accepts the service account."
PERSON_FOUND = "{name} has the person {given}."
PERSON_DISABLED = "{name} has the person {given}, who is disabled and cannot sign in."
NO_DIRECTORY = "{name} is no LDAP directory, so it cannot be compared with the accounts."
SYNC_UNREADABLE = "Nothing was changed: {problem}"
SYNC_TOO_MANY = (
    "Nothing was changed: {lost} of {people} people would lose their account or rights. At most {percent} % "
    "may. Look at the directory; then an operator can sync with this loss allowed."
)


def sync_sentence(closed: int, joined: int, left: int, people: int, *, preview: bool) -> str:
    """Return what a sync did, or would do."""
    if not people:
        return "No account is connected to the directory."
    would = "would be " if preview else ""
    join, leave = ("would join", "would leave") if preview else ("joined", "left")
    return f"{closed} accounts {would or 'were '}closed, {joined} {join}, {left} {leave}, of {people} people."


def effect_sentence(joins: int, leaves: int, people: int) -> str:
    """Return what the rules would do to the people whose claims are known."""
    if not people:
        return "Nobody has signed in with a provider yet, so nobody's claims are known."
    return f"{joins} would join, {leaves} would leave, of {people} people whose claims are known."
