"""Build the texts of the page System health."""

from __future__ import annotations

from dataclasses import dataclass

from portal.wording.formatting import duration, with_count

PAGE_ABOUT = (
    "The state of the services, their stores and their data, read now. Operators and auditors see it."
)
UNKNOWN = "unknown"
NO_LIMIT = "none"
NO_ROLE_RUNS = "none runs"
NEVER = "never"
WITHIN_LIMITS = "no wrong clock in the last hour"
CLOCK_STEADY = "not set in the last day"
CLOCK_SET = "set {ago} ago"
NOT_SET = "the setting is empty"
UNREADABLE = "the file cannot be read"
NO_CERTIFICATE = "the file has no certificate in PEM"
EXPIRED = "ended {ago} ago"
NEVER_SYNCED = "was never compared with the accounts"
NO_BACKUP = "no backup in the folder"
LOGS_LOST = "lost in the last minutes"
LOGS_KEPT = "kept"
NONE_SERVES = "none serves"
PROCESS_LIMIT = "bad: none runs; attention: another version than this portal ({version})"
SERVING_LIMIT = "bad: none serves"
CLOCK_LIMIT = "attention: samples are corrected; bad: samples are refused"
SERVER_CLOCK_LIMIT = "attention: set in the last day"
LOGS_LIMIT = "bad: parts of logs are lost"
STATE_LABELS = {"good": "Good", "attention": "Attention", "bad": "Bad", "unknown": "Unknown"}
BYTES_PER_GIB = 1 << 30


@dataclass(frozen=True)
class CheckTexts:
    """The texts of one kind of check. ``page`` is the URL name of the page that helps."""

    label: str
    advice: str
    page: str = ""


CHECK_TEXTS = {
    "process": CheckTexts(
        "Process {subject}",
        "Look at the service and its log. After an upgrade, restart every service.",
    ),
    "serving_edge": CheckTexts("Serving edge", "Look at the service edge on each machine and at Valkey."),
    "leader": CheckTexts("Leading engine", "Look at the service engine and its log: nothing new starts."),
    "cycle": CheckTexts(
        "Last planning cycle", "Look at the service engine and its log: nothing new starts.", "queue"
    ),
    "queue": CheckTexts("Tasks in queue {subject}", "Look at the worker of this queue and its log."),
    "stream": CheckTexts(
        "Sample batches that wait", "Look at the service worker: its queue telemetry is too slow.", "fleet"
    ),
    "rollups": CheckTexts(
        "Age of rollups", "Look at the service worker. Pages show no use after this time.", "utilisation"
    ),
    "charges": CheckTexts(
        "Age of charges", "Look at the service worker. Budgets do not see later use.", "chargeback"
    ),
    "audit_stream": CheckTexts(
        "Lag of the audit stream",
        "Look at the receiver in GPUPOOL_AUDIT_STREAM and at the log of the worker. No record is lost.",
        "audit",
    ),
    "hosts_silent": CheckTexts("Hosts that do not answer", "Look at the hosts and their network.", "fleet"),
    "hosts_full": CheckTexts("Hosts with a full disk", "Make space on them: nothing new starts.", "fleet"),
    "host_clocks": CheckTexts(
        "Clocks of hosts", "Synchronise the clocks of the hosts; their pages name the offset.", "fleet"
    ),
    "server_clock": CheckTexts("Clock of the server", "Find out who sets the clock; use NTP."),
    "database_clock": CheckTexts(
        "Offset of the database's clock", "Synchronise the clocks of the portal and of PostgreSQL."
    ),
    "state_disk": CheckTexts(
        "Free space for GPUPOOL_STATE", "Make space, or move the folder to a larger disk."
    ),
    "database_size": CheckTexts(
        "Size of the database", "Compare it with the disk of PostgreSQL.", "retention"
    ),
    "database_connections": CheckTexts(
        "Connections of the database", "Raise max_connections, or run fewer processes."
    ),
    "partitions": CheckTexts(
        "Partitions of samples ahead",
        "Look at the log of the worker: its task partitions fails.",
        "retention",
    ),
    "logs": CheckTexts("Logs of workloads", "Look at the disk of GPUPOOL_STATE where the edge runs."),
    "certificate": CheckTexts(
        "Certificate {subject}", "Renew the certificate, or correct GPUPOOL_CERTIFICATES."
    ),
    "backup": CheckTexts("Age of the last backup", "Look at the log of the backup, and at GPUPOOL_BACKUPS."),
    "backup_verified": CheckTexts(
        "Age of the last verified backup", "Run ./run backup --verify, which restores a backup as a test."
    ),
    "directory": CheckTexts(
        "Last sync with {subject}",
        "Test the connection on the page of the directory, and sync there.",
        "sign-in-settings",
    ),
}


def check_label(check: str, subject: str) -> str:
    """Return the name of a check."""
    return CHECK_TEXTS[check].label.format(subject=subject)


def value_text(value: float | None, unit: str) -> str:
    """Return a value with its unit."""
    if value is None:
        return UNKNOWN
    if unit == "s":
        return duration(value) if value >= 1 else f"{value:.1f} s"
    if unit == "share":
        return f"{value * 100:.0f} %"
    if unit == "bytes":
        return f"{value / BYTES_PER_GIB:,.1f} GiB"
    return f"{value:,.0f} {unit}".strip()


def limit_text(attention: float | None, bad: float | None, unit: str, falling: bool) -> str:
    """Return the limits of a check."""
    side = "below" if falling else "above"
    parts = [
        f"{name} {side} {value_text(limit, unit)}"
        for name, limit in (("attention", attention), ("bad", bad))
        if limit is not None
    ]
    return ", ".join(parts) or NO_LIMIT


def process_text(count: int, versions: list[str]) -> str:
    """Return the number of processes of a role and their versions."""
    return f"{count} · {', '.join(versions)}" if count else NO_ROLE_RUNS


def host_clock_text(hosts: int, seconds: float) -> str:
    """Return the number of hosts with a wrong clock and the largest offset."""
    return f"{hosts} wrong, by up to {seconds:,.0f} s"


def audit_stream_text(lag: float, records: int, failure: str) -> str:
    """Return the lag of the audit stream with the number of waiting records and the receiver's failure."""
    if not records:
        return "no record waits"
    text = f"{value_text(lag, 's')} · {with_count(records, 'record')}"
    return f"{text} · {failure}" if failure else text
