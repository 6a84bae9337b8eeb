"""State what is wrong with a notice channel."""

from __future__ import annotations

ADDRESS_NOT_URL = "address is {given}, not a URL that begins with {allowed}"
ADDRESS_NOT_MAIL = "address is {given}, not a mail address such as gpus@example.org"
NO_MAIL_ADDRESS = "address is empty, and the account has no mail address: give one, or set it on the account"
ONLY_OWN_ADDRESS = "address is {given}; mail to a person goes to the address of the account: {allowed}"
HOST_NOT_FOUND = "address names the host {host}, which has no address in the DNS"
HOST_NOT_PUBLIC = (
    "address names the host {host}, which has the private address {found}; allowed are public addresses and "
    "the networks in GPUPOOL_NOTICE_NETWORKS"
)
SERVICE_UNKNOWN = "address is of no known service; allowed: {allowed}"
SERVICE_INCOMPLETE = "address is not complete for {service}; see {documentation}"
QUIET_HOURS_INCOMPLETE = "quiet_until is missing: quiet hours need a begin and an end that differ"
TOPICS_EMPTY = "topics is empty; allowed: one or more of {allowed}"
OWNER_MISSING = "team is {given}, not a team that you lead"
ENCRYPTED = "the address"
