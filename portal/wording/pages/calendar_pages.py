"""Define texts of pages about reservations and approvals."""

from __future__ import annotations

BECOMES_MEMBER = "{person} becomes {role} of {team}."
REQUEST_FITS = "It fits: {gpus:g} GPUs, {window}."
SERIES_FITS = "All {occurrences} occurrences fit: {gpus:g} GPUs, the first {window}."
CHANGE_FITS = "It fits: {old} becomes {new}."
UNKNOWN_KIND = "kind is {kind}; allowed: {allowed}, or nothing for all. All are shown."
SUBMISSION_NOT_FOUND = "There is no submission at this address, or you may not see it."
SUBMISSION_DECIDED = "{decision}: {title} for {team}. {author} is notified."
NOTHING_TICKED = "Nothing is ticked. Tick the requests to decide."
UNKNOWN_DECISION = "verb is {verb!a}; allowed: approve, decline. Nothing was changed."
STILL_WAITS = "{title} for {team} still waits. {reason}"
FEED_NOT_FOUND = "There is no such calendar feed."
QUOTA_REQUESTED = "Your request waits for an operator. You are notified when it is decided."
SERIES_CANCEL_EFFECT = (
    "Every occurrence that is not over is cancelled at once, and workloads inside are stopped."
)
NOT_A_TIME = "This is not a date and time; allowed: such as 2026-03-02 17:00."
CHANGE_WAITS = "It fits and waits for approval. Until then {name} stays as it is."
CHANGE_MADE = "{name} is now {window}."
RESERVATION_CANCELLED = "{name} is cancelled. Its GPUs are free for others."
CANCEL_SERIES_TITLE = "Cancel all of {name}?"
SERIES_CANCELLED = "All occurrences of {name} that were not over are cancelled."
CANCEL_ACTIVE_EFFECT = "Workloads inside it are stopped. The time until now stays charged."
CANCEL_CONFIRMED_EFFECT = "The window is free at once; others may reserve it."
NO_SHOW_LABEL = "If nothing runs in it"
BOOKINGS_IN_VIEW = "{period}, {bookings} booking{ending} in view."
