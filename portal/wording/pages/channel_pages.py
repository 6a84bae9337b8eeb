"""Define texts of the pages about notice channels."""

from __future__ import annotations

KIND_LABELS = {"mail": "Mail", "webhook": "Webhook", "service": "Chat service (Slack, Teams, Matrix, …)"}
DIGEST_LABELS = {"none": "At once", "hourly": "Once an hour", "daily": "Once a day, at 08:00"}
STATE_LABELS = {"waiting": "waits", "sent": "sent", "failed": "failed"}
ADDRESS_HELP = (
    "Mail: empty for your own address, or the address of a team's list. Webhook: an https:// URL. Chat "
    "service: the URL that appriseit.com/services describes, such as slack://TOKEN_A/TOKEN_B/TOKEN_C."
)
NEW_ADDRESS_HELP = "Empty: it stays as it is. The address is not shown, because it can contain a secret."
QUIET_HELP = "Notices of these hours arrive together at their end. Both empty: no quiet hours."
OWNER_LABEL = "For"
OWNER_SELF = "me"
CREATED = "The channel {name} is created."
CHANGED = "The channel {name} is changed."
REMOVED = "The channel {name} is removed."
TESTED = "A test message is on its way to {name}. The log below shows when it was sent."
SENT_AGAIN = "The message is sent again."
NO_MAIL_SERVER = (
    "This installation has no mail server: mails are written into the log. An operator sets "
    "GPUPOOL_EMAIL_URL."
)
