"""Read the settings from the environment once and check them.

If a setting is invalid, the process prints one line and does not start.

All environment variables of the server are declared here and documented in docs/operations.md.
tests/architecture/test_documentation.py compares the declarations with the documentation.
"""

from __future__ import annotations

import ipaddress
import re
import zoneinfo
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import environ

from portal.sign_in.identity_file import RefusedValueError, read_identity_file

T = TypeVar("T")
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

ENVIRONMENTS = ("demo", "production", "test")
LOG_LEVELS = ("debug", "info", "warning", "error")
LINE_LENGTHS = ("hour", "day")
LOG_FORMATS = ("text", "json")
API_DOCS_AUDIENCES = ("public", "signed-in")
SYSLOG_SCHEMES = ("syslog+tcp", "syslog+tls")
ENCRYPTION_KEY_MIN_LENGTH = 32
DATABASE_SCHEMES = ("postgres", "postgresql")
LOG_MAIL_BACKEND = "config.log_mail.LogMailBackend"
DATABASE_PARAMETERS = ("sslmode", "sslrootcert", "target_session_attrs")
EMAIL_SCHEMES = ("smtp", "smtps", "smtp+tls", "smtp+ssl", "consolemail")
REDIS_SCHEMES = ("redis", "rediss", "unix")
SECRET_KEY_MIN_LENGTH = 50
LEASE_SECONDS_RANGE = (5.0, 3600.0)  # shortest and longest lease allowed
SECURITY_CONTACT_PATTERN = re.compile(r"mailto:[!-~]+@[!-~]+|https://[!-~]+")
HOST_NAME_PATTERN = re.compile(
    r"^(?=.{1,253}(?::\d+)?$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*(:\d{1,5})?\Z"
)
IPV6_HOST_PATTERN = re.compile(r"\[[0-9a-fA-F:.]+\](:\d{1,5})?")
MAIL_FROM_PATTERN = re.compile(r"[^\x00-\x1f\x7f<>]*<?[^@\s<>]{1,64}@[^@\s<>]{1,190}>?")


class InvalidSettingError(Exception):
    """Raised for an invalid environment variable.

    The message has the name, the value and the allowed values.
    """

    def __init__(self, name: str, value: str | None, allowed: str) -> None:
        self.name, self.value, self.allowed = name, value, allowed
        problem = "is not set" if value is None else f"is {value!r}"
        super().__init__(f"gpupool: setting {name} {problem}; allowed: {allowed}")


@dataclass(frozen=True)
class EnvironmentSettings:
    """The checked settings. URLs have no trailing slash."""

    environment: str
    secret_key: str
    database: Mapping[str, Any]
    redis_url: str
    broker_url: str
    portal_url: str
    edge_url: str
    edge_metrics_port: int
    edge_connections: int
    edge_connections_per_address: int
    edge_standby: bool
    probe_port: int
    backups: str
    certificates: tuple[str, ...]
    notebook_domain: str
    state: Path
    time_zone: str
    lease_seconds: float
    first_team_user: int
    first_person_id: int
    recording_hours: int
    recording_mib: int
    decision_days: int
    notice_days: int
    health_event_days: int
    log_days: int
    log_level: str
    log_format: str
    email: Mapping[str, Any]
    mail_from: str
    statement_key: str
    audit_stream: str
    audit_stream_token: str
    encryption_keys: tuple[str, ...]
    api_docs: str
    line_length: str
    trusted_proxies: tuple[IpNetwork, ...]
    notice_networks: tuple[IpNetwork, ...]
    approval_reminder_hours: int
    oidc: Mapping[str, str]
    security_contact: str
    identity_providers: tuple[Mapping[str, Any], ...]

    @property
    def secure(self) -> bool:
        """Return True if browsers reach the portal over TLS.

        Cookies and redirects then require TLS.
        """
        return self.portal_url.startswith("https://")

    @property
    def allowed_hosts(self) -> list[str]:
        """Return the host names that requests may use.

        These are the portal's own name, the names of loopback for probes, and in tests the name of Django's
        test client.
        """
        own = urlsplit(self.portal_url).hostname or ""
        return [own, *(name for name in ("localhost", "127.0.0.1") if name != own)] + (
            ["testserver"] if self.environment == "test" else []
        )


def read_environment(variables: Mapping[str, str]) -> EnvironmentSettings:
    """Read and check all settings. Raises InvalidSettingError for the first invalid setting."""
    environment = _choice(variables, "GPUPOOL_ENVIRONMENT", "production", ENVIRONMENTS)
    portal_url = _web_url(variables, "GPUPOOL_PORTAL_URL", environment)
    edge_url = _web_url(variables, "GPUPOOL_EDGE_URL", environment)
    redis_url = _redis_url(variables)
    return EnvironmentSettings(
        environment=environment,
        secret_key=_secret_key(variables),
        database=_database(variables),
        redis_url=redis_url,
        broker_url=_kombu_broker_url(redis_url),
        portal_url=portal_url,
        edge_url=edge_url,
        edge_metrics_port=_integer(variables, "GPUPOOL_EDGE_METRICS_PORT", 0, 0, 65_535),
        edge_connections=_integer(variables, "GPUPOOL_EDGE_CONNECTIONS", 20_000, 100, 1_000_000),
        edge_connections_per_address=_integer(
            variables, "GPUPOOL_EDGE_CONNECTIONS_PER_ADDRESS", 2_000, 10, 1_000_000
        ),
        edge_standby=_choice(variables, "GPUPOOL_EDGE_STANDBY", "no", ("yes", "no")) == "yes",
        probe_port=_integer(variables, "GPUPOOL_PROBE_PORT", 0, 0, 65_535),
        backups=_absolute_path(variables, "GPUPOOL_BACKUPS"),
        certificates=_absolute_paths(variables, "GPUPOOL_CERTIFICATES"),
        notebook_domain=_notebook_domain(variables, edge_url, portal_url),
        state=_state_folder(variables),
        time_zone=_time_zone(variables),
        lease_seconds=_lease_seconds(variables),
        first_team_user=_integer(variables, "GPUPOOL_FIRST_TEAM_USER", 70_000, 1_000, 2_000_000_000),
        first_person_id=_integer(variables, "GPUPOOL_FIRST_PERSON_ID", 1_000, 1, 2_000_000_000),
        recording_hours=_integer(variables, "GPUPOOL_RECORDING_HOURS", 24, 0, 8_760),
        recording_mib=_integer(variables, "GPUPOOL_RECORDING_MIB", 2_048, 10, 1_000_000),
        decision_days=_integer(variables, "GPUPOOL_DECISION_DAYS", 90, 7, 3_650),
        notice_days=_integer(variables, "GPUPOOL_NOTICE_DAYS", 90, 7, 3_650),
        health_event_days=_integer(variables, "GPUPOOL_HEALTH_EVENT_DAYS", 365, 31, 3_650),
        log_days=_integer(variables, "GPUPOOL_LOG_DAYS", 90, 1, 3_650),
        log_level=_choice(variables, "GPUPOOL_LOG_LEVEL", "info", LOG_LEVELS),
        log_format=_choice(
            variables, "GPUPOOL_LOG_FORMAT", "json" if environment == "production" else "text", LOG_FORMATS
        ),
        email=_email(variables),
        mail_from=_mail_from(variables),
        statement_key=_absolute_path(variables, "GPUPOOL_STATEMENT_KEY"),
        audit_stream=_audit_stream(variables, environment),
        audit_stream_token=variables.get("GPUPOOL_AUDIT_STREAM_TOKEN", "").strip(),
        encryption_keys=_encryption_keys(variables),
        api_docs=_choice(
            variables,
            "GPUPOOL_API_DOCS",
            "signed-in" if environment == "production" else "public",
            API_DOCS_AUDIENCES,
        ),
        line_length=_choice(
            variables, "GPUPOOL_LINE_LENGTH", "day" if environment == "production" else "hour", LINE_LENGTHS
        ),
        approval_reminder_hours=_integer(variables, "GPUPOOL_APPROVAL_REMINDER_HOURS", 24, 1, 720),
        notice_networks=_networks(variables, "GPUPOOL_NOTICE_NETWORKS", "none"),
        trusted_proxies=_networks(
            variables, "GPUPOOL_TRUSTED_PROXIES", "127.0.0.1,::1" if environment == "production" else "none"
        ),
        oidc=_oidc(variables),
        security_contact=_security_contact(variables),
        identity_providers=_identity_providers(variables),
    )


def _required(variables: Mapping[str, str], name: str, allowed: str) -> str:
    value = variables.get(name, "").strip()
    if not value:
        raise InvalidSettingError(name, None, allowed)
    return value


def _choice(variables: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = variables.get(name, "").strip() or default
    if value not in allowed:
        raise InvalidSettingError(name, value, " | ".join(allowed))
    return value


def _mask_password(url: str) -> str:
    """Return the URL with its password replaced by three dots."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:...@", url)


def _parse_setting(name: str, value: str, allowed: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(value)
    except (ValueError, KeyError, environ.ImproperlyConfigured):
        raise InvalidSettingError(name, _mask_password(value), allowed) from None


def _secret_key(variables: Mapping[str, str]) -> str:
    allowed = f"a secret of at least {SECRET_KEY_MIN_LENGTH} characters, at least 5 of them different"
    value = _required(variables, "GPUPOOL_SECRET_KEY", allowed)
    if len(value) < SECRET_KEY_MIN_LENGTH or len(set(value)) < 5:
        raise InvalidSettingError("GPUPOOL_SECRET_KEY", f"(hidden, {len(value)} characters)", allowed)
    return value


def _database(variables: Mapping[str, str]) -> Mapping[str, Any]:
    """Return Django's settings of the database; ``OPTIONS`` has the parameters of the URL.

    With several hosts, libpq connects to the first one that accepts writes.
    """
    allowed = (
        "postgresql://USER:PASSWORD@HOST:PORT/NAME (if HOST is a socket folder, write %2F for each /; of a "
        f"primary and its standbys: HOST1:PORT1,HOST2:PORT2; parameters: {', '.join(DATABASE_PARAMETERS)})"
    )
    value = _required(variables, "DATABASE_URL", allowed)

    def parse(url: str) -> Mapping[str, Any]:
        parts = urlsplit(url)
        places = _database_places(parts.netloc)
        ports = [port for _, port in places]
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        if parts.scheme not in DATABASE_SCHEMES or not parts.path.strip("/"):
            raise ValueError(url)
        if not options.keys() <= set(DATABASE_PARAMETERS):
            raise ValueError(url)
        if len(places) > 1:
            options.setdefault("target_session_attrs", "read-write")
        return {
            "NAME": unquote(parts.path.strip("/")),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": ",".join(host for host, _ in places),
            "PORT": ",".join(ports) if any(ports) else "",
            "OPTIONS": options,
        }

    return _parse_setting("DATABASE_URL", value, allowed, parse)


def _database_places(netloc: str) -> list[tuple[str, str]]:
    """Return host and port of each server in the netloc of a database's URL. Raises ValueError.

    urlsplit lower-cases the hostname, which would change a socket folder.
    """
    places = []
    for place in netloc.rpartition("@")[2].split(","):
        host, _, port = place.partition(":")
        if not host or (port and not port.isdecimal()):
            raise ValueError(netloc)
        places.append((unquote(host), port))
    return places


def _redis_url(variables: Mapping[str, str]) -> str:
    allowed = "redis://:PASSWORD@HOST:PORT/NUMBER, rediss://... or unix://:PASSWORD@/PATH/TO/SOCKET"
    value = _required(variables, "REDIS_URL", allowed)

    def parse(url: str) -> str:
        parts = urlsplit(url)
        # Reading .port validates it.
        if (
            parts.scheme not in REDIS_SCHEMES
            or (parts.scheme != "unix" and not parts.hostname)
            or parts.port == 0
        ):
            raise ValueError(url)
        if parts.scheme == "unix" and not parts.path.strip("/"):
            raise ValueError(url)
        return url

    return _parse_setting("REDIS_URL", value, allowed, parse)


def _kombu_broker_url(redis_url: str) -> str:
    """Return the Redis URL in kombu's syntax, which is different for Unix sockets."""
    if not redis_url.startswith("unix://"):
        return redis_url
    return redis_url.replace("unix://", "redis+socket://", 1).replace("?db=", "?virtual_host=", 1)


def _web_url(variables: Mapping[str, str], name: str, environment: str) -> str:
    scheme = "https" if environment == "production" else "http or https"
    allowed = f"{scheme}://HOST[:PORT] without a path"
    value = _required(variables, name, allowed)

    def parse(url: str) -> str:
        parts = urlsplit(url)
        schemes = ("https",) if environment == "production" else ("http", "https")
        if parts.scheme not in schemes or not parts.hostname or parts.port == 0 or "@" in parts.netloc:
            raise ValueError(url)
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError(url)
        # The value is used in HTTP headers, so it must be a valid host name. urlsplit has already checked an
        # IPv6 address.
        if not HOST_NAME_PATTERN.match(parts.netloc.lower()) and not IPV6_HOST_PATTERN.fullmatch(
            parts.netloc
        ):
            raise ValueError(url)
        return f"{parts.scheme}://{parts.netloc.lower()}"

    return _parse_setting(name, value, allowed, parse)


def _audit_stream(variables: Mapping[str, str], environment: str) -> str:
    """Return the URL of the receiver of audit records; empty without a receiver."""
    allowed = (
        "syslog+tcp://HOST:PORT, syslog+tls://HOST:PORT, syslog+unix:///dev/log or https://HOST[:PORT]/PATH, "
        "without a password"
    )
    value = variables.get("GPUPOOL_AUDIT_STREAM", "").strip()

    def parse(url: str) -> str:
        parts = urlsplit(url)
        web = ("https",) if environment == "production" else ("http", "https")
        has_server = bool(parts.hostname) and parts.port != 0
        if parts.scheme == "syslog+unix":
            is_complete = not parts.netloc and parts.path.startswith("/")
        elif parts.scheme in SYSLOG_SCHEMES:
            is_complete = has_server and parts.port is not None and not parts.path
        else:
            is_complete = has_server and parts.scheme in web
        if "@" in parts.netloc or not is_complete:
            raise ValueError(url)
        return url

    return _parse_setting("GPUPOOL_AUDIT_STREAM", value, allowed, parse) if value else ""


def _encryption_keys(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys, the newest first; empty if the variable is not set."""
    keys = [key.strip() for key in variables.get("GPUPOOL_ENCRYPTION_KEYS", "").split(",") if key.strip()]
    for key in keys:
        if len(key) < ENCRYPTION_KEY_MIN_LENGTH or len(set(key)) < 5:
            raise InvalidSettingError(
                "GPUPOOL_ENCRYPTION_KEYS",
                f"(hidden, one key has {len(key)} characters)",
                f"keys of at least {ENCRYPTION_KEY_MIN_LENGTH} characters, at least 5 of them different, "
                "with a comma between two keys",
            )
    return tuple(keys)


def _notebook_domain(variables: Mapping[str, str], edge_url: str, portal_url: str) -> str:
    port = urlsplit(edge_url).port
    value = variables.get("GPUPOOL_NOTEBOOK_DOMAIN", "").strip() or (
        "localhost" + (f":{port}" if port else "")
    )
    if not HOST_NAME_PATTERN.match(value) or not 0 < int(value.partition(":")[2] or 443) <= 65535:
        allowed = "a domain name in lower case, with :PORT where it is not 443"
        raise InvalidSettingError("GPUPOOL_NOTEBOOK_DOMAIN", value, allowed)
    portal = urlsplit(portal_url).hostname or ""
    name = value.partition(":")[0]
    if portal and (name == portal or name.endswith(f".{portal}")):
        raise InvalidSettingError(
            "GPUPOOL_NOTEBOOK_DOMAIN",
            value,
            f"a domain other than {portal} and not below it, because notebooks could set its cookies",
        )
    return value


def _state_folder(variables: Mapping[str, str]) -> Path:
    allowed = "the absolute path of a folder this process can write to"
    value = _required(variables, "GPUPOOL_STATE", allowed)
    path = Path(value)
    if "\0" in value or not path.is_absolute() or not path.is_dir():
        raise InvalidSettingError("GPUPOOL_STATE", value, allowed)
    return path


def _absolute_path(variables: Mapping[str, str], name: str) -> str:
    """Return the path; empty if the variable is not set. The file need not exist."""
    value = variables.get(name, "").strip()
    if value and ("\0" in value or not Path(value).is_absolute()):
        raise InvalidSettingError(name, value, "the absolute path of a file")
    return value


def _absolute_paths(variables: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the paths, which the value separates by commas. The files need not exist."""
    paths = tuple(path.strip() for path in variables.get(name, "").split(",") if path.strip())
    for path in paths:
        if "\0" in path or not Path(path).is_absolute():
            raise InvalidSettingError(name, path, "absolute paths of files, separated by commas")
    return paths


def _time_zone(variables: Mapping[str, str]) -> str:
    value = variables.get("GPUPOOL_TIME_ZONE", "").strip() or "UTC"
    if value not in zoneinfo.available_timezones():
        raise InvalidSettingError(
            "GPUPOOL_TIME_ZONE", value, "a name of the time zone database, such as UTC or Europe/Berlin"
        )
    return value


def _lease_seconds(variables: Mapping[str, str]) -> float:
    shortest, longest = LEASE_SECONDS_RANGE
    allowed = f"a number of seconds from {shortest:g} to {longest:g}"
    value = variables.get("GPUPOOL_LEASE_SECONDS", "").strip() or "300"
    seconds = _parse_setting("GPUPOOL_LEASE_SECONDS", value, allowed, float)
    if not shortest <= seconds <= longest:
        raise InvalidSettingError("GPUPOOL_LEASE_SECONDS", value, allowed)
    return seconds


def _integer(variables: Mapping[str, str], name: str, default: int, minimum: int, maximum: int) -> int:
    value = variables.get(name, "").strip() or str(default)
    if not value.isascii() or not value.isdecimal() or not minimum <= int(value[:10]) <= maximum:
        raise InvalidSettingError(name, value[:40], f"a whole number from {minimum} to {maximum}")
    return int(value)


def _networks(variables: Mapping[str, str], name: str, default: str) -> tuple[IpNetwork, ...]:
    allowed = "none, or IP addresses and networks with commas between them, such as 127.0.0.1,10.0.0.0/8"
    value = variables.get(name, "").strip() or default

    def parse(text: str) -> tuple[IpNetwork, ...]:
        if text == "none":
            return ()
        return tuple(ipaddress.ip_network(part.strip()) for part in text.split(","))

    return _parse_setting(name, value, allowed, parse)


def _oidc(variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the identity provider of the environment; empty if GPUPOOL_OIDC_ISSUER is not set."""
    issuer = variables.get("GPUPOOL_OIDC_ISSUER", "").strip()
    if not issuer:
        return {}
    parts = urlsplit(issuer)
    is_local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not (parts.scheme == "https" or is_local) or not parts.hostname or parts.query or parts.fragment:
        allowed = "https://HOST[:PORT][/PATH], exactly as the provider names itself"
        raise InvalidSettingError("GPUPOOL_OIDC_ISSUER", issuer[:300], allowed)
    return {
        "issuer": issuer,
        "name": variables.get("GPUPOOL_OIDC_NAME", "").strip() or "Single sign-on",
        "client_id": _required(variables, "GPUPOOL_OIDC_CLIENT_ID", "the id of the portal at the provider"),
        "secret": _required(
            variables, "GPUPOOL_OIDC_CLIENT_SECRET", "the secret of the portal at the provider"
        ),
        "scopes": variables.get("GPUPOOL_OIDC_SCOPES", "").strip() or "openid profile email",
    }


def _security_contact(variables: Mapping[str, str]) -> str:
    """Return the URI at which the operators receive reports of vulnerabilities; empty if there is none."""
    value = variables.get("GPUPOOL_SECURITY_CONTACT", "").strip()
    if value and not SECURITY_CONTACT_PATTERN.fullmatch(value):
        allowed = "mailto:ADDRESS or https://HOST/PATH, without spaces"
        raise InvalidSettingError("GPUPOOL_SECURITY_CONTACT", value[:300], allowed)
    return value


def _identity_providers(variables: Mapping[str, str]) -> tuple[Mapping[str, Any], ...]:
    """Return the identity providers in the file that a setting names; empty without the setting."""
    name = "GPUPOOL_IDENTITY_PROVIDERS"
    path = _absolute_path(variables, name)
    try:
        return read_identity_file(Path(path)) if path else ()
    except RefusedValueError as problem:
        raise InvalidSettingError(
            name, f"{path}: {problem.place} = {problem.value}", problem.allowed
        ) from None


def _email(variables: Mapping[str, str]) -> Mapping[str, Any]:
    allowed = "smtp://USER:PASSWORD@HOST:PORT, smtp+tls://..., smtp+ssl://... or consolemail://"
    value = variables.get("GPUPOOL_EMAIL_URL", "").strip() or "consolemail://"

    def parse(url: str) -> Mapping[str, Any]:
        parts = urlsplit(url)
        if parts.scheme not in EMAIL_SCHEMES or (parts.scheme != "consolemail" and not parts.hostname):
            raise ValueError(url)
        if parts.scheme == "consolemail":
            return {"EMAIL_BACKEND": LOG_MAIL_BACKEND}
        return dict(environ.Env.email_url_config(url))

    return _parse_setting("GPUPOOL_EMAIL_URL", value, allowed, parse)


def _mail_from(variables: Mapping[str, str]) -> str:
    value = variables.get("GPUPOOL_MAIL_FROM", "").strip() or "gpupool@localhost"
    if not MAIL_FROM_PATTERN.fullmatch(value):
        raise InvalidSettingError(
            "GPUPOOL_MAIL_FROM",
            value,
            "one mail address, such as gpupool@example.org or GPUs <gpus@example.org>",
        )
    return value
