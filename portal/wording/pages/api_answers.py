"""Define messages of the API that do not come from a service."""

from __future__ import annotations

TOKEN_EXPIRED = (
    "Authorization is {prefix}…, a token that expired on {expires_at}; allowed: a token in force; "
    "make a new one under API tokens."
)
TOKEN_NOT_VALID = "The token is unknown, revoked or expired; make a new one under API tokens."
NOT_FOUND = "There is no such object, or you may not see it."
NOT_ALLOWED = "You may not do this."
BODY_TOO_LARGE = "The body is too large; allowed: up to {kibibytes:,} KiB."
PROJECT_NOT_ALLOWED = "project is {given}; allowed: {allowed}."
OBJECT_NOT_VISIBLE = "{field} is {given}; allowed: {what} that is visible to you."
NESTED_TOO_DEEPLY = "The body is JSON nested too deeply; allowed: the fields of this call."
UNKNOWN_FIELD = "this request has no such field; allowed: {allowed}."
PERIOD_WITHOUT_END = "end is ''; allowed: a time after the start, because the start is given."
PERIOD_NOT_ALLOWED = "end is {end}; allowed: after the start, {start}, by at most {days} days."
RANK_NOT_ALLOWED = "rank is {rank}; allowed for {name}: {allowed}."
NUMBER_FOR_TEXT = "a number; allowed: text."
TIME_WITHOUT_ZONE = "a time without a zone; allowed: a time with a zone, such as 2026-10-01T12:00:00Z."
TOKEN_SCHEME = "A token made in the browser; it begins with gpp_."
TOPICS_NOT_ALLOWED = "topics: {given} given; allowed: 1 to {most}"
TOPIC_NOT_FOUND = "topics: {topic!r} is not a topic, or you may not see it"
SIGN_IN_FIRST = "sign in to the portal first"
NO_REPORT = "{name} has held no GPU, so it has no report; allowed: a workload that has held a GPU."
IDEMPOTENCY_KEY = (
    "A name for this request, such as a UUID. For a day, a repetition with the same key gets the answer of "
    "the first request and changes nothing."
)
