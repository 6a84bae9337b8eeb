"""Define texts of the pages and messages that the edge returns under a notebook's address."""

from __future__ import annotations

PORTAL_LINK = "Its page in the portal"
ADDRESS_WITHOUT_SLASH = "The address must begin with one slash."
ADDRESS_TOO_LONG = "The address is longer than {most} characters."
ADDRESS_NOT_ENCODED = "The address contains a character that must be percent-encoded."
ADDRESS_WITH_CONTROL_CHARACTER = "The address contains a backslash or a control character."
ADDRESS_WITH_DOTS = "The address contains a segment . or .. ."
ADDRESS_TITLE = "This address cannot be used"
DATABASE_UNAVAILABLE = "The portal's database is unavailable. Nothing is lost; try again."
PORTAL_ADDRESS = "This part of the address belongs to the portal."
FOREIGN_SITE = "Another site tried to access this notebook."
ENTRY_BY_GET = "A notebook is opened by its link; allowed: GET."
NO_PREFETCH = "This link works once, so it is not fetched ahead."
CONNECTION_REFUSED = "The notebook refused this connection."
NO_HANDSHAKE = "This is not a WebSocket handshake."
HOST_UNREACHABLE = "Its host could not be reached just now. Your work goes on there; try again."
UNREACHABLE_TITLE = "The notebook does not answer"
TOO_SLOW_TITLE = "This arrived too slowly"
UPLOAD_STOPPED = "The upload was stopped. Try again."

# Reasons of ``portal.edge.workspaces.access.AccessRefusal``, each with a title and advice to the user.
ACCESS_REFUSALS: dict[str, tuple[str, str]] = {
    "enter": (
        "Open this notebook from the portal",
        "This browser has not entered it, or you have signed out since. Open it from its page in the portal."
        " If that brings you back here, your browser refuses the cookie of this address:"
        " over plain http, Chrome, Edge and Firefox accept it.",
    ),
    "code": (
        "This link no longer opens the notebook",
        "A link works once and for one minute. Open the notebook again from its page in the portal.",
    ),
    "not_allowed": ("This is not your notebook", "Only its owner can open it."),
    "starting": (
        "This notebook is starting",
        "It opens as soon as it answers; its page in the portal shows each step.",
    ),
    "ended": (
        "This notebook has ended",
        "Its files are kept in your home and will be there in your next notebook.",
    ),
}
