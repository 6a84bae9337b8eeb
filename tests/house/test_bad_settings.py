"""Test that a wrong setting prevents the start.

The error is one line with the variable, its value and the allowed values.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from config.environment import InvalidSettingError, read_environment

GOOD = {
    "GPUPOOL_ENVIRONMENT": "demo",
    "GPUPOOL_SECRET_KEY": "abcdefghij" * 6,
    "DATABASE_URL": "postgresql://me:pa%40ss@%2Ftmp%2FSockets/gpupool",
    "REDIS_URL": "unix://:secret@/tmp/valkey",
    "GPUPOOL_PORTAL_URL": "http://127.0.0.1:8470",
    "GPUPOOL_EDGE_URL": "http://127.0.0.1:8471/",
    "GPUPOOL_STATE": "/tmp",
}


def test_valid_settings_are_read_with_types() -> None:
    found = read_environment(GOOD)
    assert found.database["HOST"] == "/tmp/Sockets"
    assert found.database["PASSWORD"] == "pa@ss"
    assert found.broker_url == "redis+socket://:secret@/tmp/valkey"
    assert found.edge_url == "http://127.0.0.1:8471"
    assert found.notebook_domain == "localhost:8471"
    assert Path("/tmp") == found.state
    assert found.time_zone == "UTC"
    assert found.lease_seconds == 300.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GPUPOOL_ENVIRONMENT", "staging"),
        ("GPUPOOL_SECRET_KEY", "short"),
        ("GPUPOOL_SECRET_KEY", "a" * 80),
        ("DATABASE_URL", "mysql://me@host/gpupool"),
        ("DATABASE_URL", "postgresql://me@host:port/gpupool"),
        ("DATABASE_URL", "postgresql://me@host"),
        ("DATABASE_URL", "postgresql://me@host,/gpupool"),
        ("DATABASE_URL", "postgresql://me@host,other:port/gpupool"),
        ("DATABASE_URL", "postgresql://me@host/gpupool?sslmod=require"),
        ("GPUPOOL_EDGE_STANDBY", "maybe"),
        ("GPUPOOL_PROBE_PORT", "65536"),
        ("GPUPOOL_BACKUPS", "backups"),
        ("GPUPOOL_CERTIFICATES", "/etc/a.pem,b.pem"),
        ("REDIS_URL", "valkey://localhost"),
        ("REDIS_URL", "redis://localhost:99999"),
        ("REDIS_URL", "unix://"),
        ("GPUPOOL_PORTAL_URL", "127.0.0.1:8470"),
        ("GPUPOOL_PORTAL_URL", "http://portal/path"),
        ("GPUPOOL_PORTAL_URL", "http://user@portal"),
        ("GPUPOOL_PORTAL_URL", "http://a b"),
        ("GPUPOOL_EDGE_URL", "http://edge;script-src *"),
        ("GPUPOOL_EDGE_URL", "ws://127.0.0.1:8471"),
        ("GPUPOOL_EDGE_URL", "http://127.0.0.1:0"),
        ("GPUPOOL_NOTEBOOK_DOMAIN", "Bad_Name"),
        ("GPUPOOL_NOTEBOOK_DOMAIN", "a" * 300),
        ("GPUPOOL_NOTEBOOK_DOMAIN", "localhost:99999"),
        ("GPUPOOL_NOTEBOOK_DOMAIN", "localhost:0"),
        ("GPUPOOL_NOTEBOOK_DOMAIN", "127.0.0.1:8471"),
        ("GPUPOOL_AUDIT_STREAM", "syslog://host:514"),
        ("GPUPOOL_AUDIT_STREAM", "syslog+tcp://host"),
        ("GPUPOOL_AUDIT_STREAM", "syslog+unix://host/dev/log"),
        ("GPUPOOL_AUDIT_STREAM", "https://me:secret@host/"),
        ("GPUPOOL_ENCRYPTION_KEYS", "short"),
        ("GPUPOOL_ENCRYPTION_KEYS", "abcdefghij" * 4 + "," + "a" * 40),
        ("GPUPOOL_API_DOCS", "everybody"),
        ("GPUPOOL_STATE", "relative/path"),
        ("GPUPOOL_STATE", "/nowhere/at/all"),
        ("GPUPOOL_TIME_ZONE", "Middle-earth/Shire"),
        ("GPUPOOL_EDGE_METRICS_PORT", "65536"),
        ("GPUPOOL_EDGE_CONNECTIONS", "99"),
        ("GPUPOOL_EDGE_CONNECTIONS_PER_ADDRESS", "9"),
        ("GPUPOOL_LEASE_SECONDS", "soon"),
        ("GPUPOOL_LEASE_SECONDS", "nan"),
        ("GPUPOOL_LEASE_SECONDS", "0"),
        ("GPUPOOL_LEASE_SECONDS", "3601"),
        ("GPUPOOL_LEASE_SECONDS", "1e9"),
        ("GPUPOOL_RECORDING_HOURS", "-1"),
        ("GPUPOOL_RECORDING_MIB", "1"),
        ("GPUPOOL_RECORDING_HOURS", "a day"),
        ("GPUPOOL_DECISION_DAYS", "6"),
        ("GPUPOOL_NOTICE_DAYS", "1.5"),
        ("GPUPOOL_HEALTH_EVENT_DAYS", "99999"),
        ("GPUPOOL_LOG_DAYS", "0"),
        ("GPUPOOL_STATEMENT_KEY", "key.pem"),
        ("GPUPOOL_LINE_LENGTH", "minute"),
        ("GPUPOOL_TRUSTED_PROXIES", "proxy.example.org"),
        ("GPUPOOL_TRUSTED_PROXIES", "127.0.0.1,"),
        ("GPUPOOL_TRUSTED_PROXIES", "10.0.0.1/8"),
        ("GPUPOOL_IDENTITY_PROVIDERS", "providers.json"),
        ("GPUPOOL_IDENTITY_PROVIDERS", "/nowhere/at/all.json"),
        ("GPUPOOL_OIDC_ISSUER", "http://id.example.org"),
        ("GPUPOOL_OIDC_ISSUER", "https://id.example.org?x=1"),
        ("GPUPOOL_LOG_LEVEL", "loud"),
        ("GPUPOOL_LOG_FORMAT", "xml"),
        ("GPUPOOL_EMAIL_URL", "pigeon://loft"),
        ("GPUPOOL_EMAIL_URL", "smtp://"),
        ("GPUPOOL_EMAIL_URL", "smtp://[::1"),
        ("GPUPOOL_MAIL_FROM", "a@example.org\nBcc: b@example.org"),
        ("GPUPOOL_MAIL_FROM", "nobody"),
        ("GPUPOOL_SECURITY_CONTACT", "security@example.org"),
        ("GPUPOOL_SECURITY_CONTACT", "mailto:a@example.org\nContact: https://other.example.org"),
    ],
)
def test_a_wrong_setting_is_rejected_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        read_environment({**GOOD, name: value})
    assert caught.value.name == name
    assert name in str(caught.value)
    assert "allowed:" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in GOOD if name != "GPUPOOL_ENVIRONMENT"])
def test_a_missing_setting_is_reported_by_name(name: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"{name} is not set"):
        read_environment({key: value for key, value in GOOD.items() if key != name})


def test_production_requires_tls() -> None:
    with pytest.raises(InvalidSettingError, match="GPUPOOL_PORTAL_URL"):
        read_environment({**GOOD, "GPUPOOL_ENVIRONMENT": "production"})


def test_a_password_is_never_printed() -> None:
    for name, value in (("DATABASE_URL", "mysql://me:hunter2@host/x"), ("REDIS_URL", "http://:hunter2@host")):
        with pytest.raises(InvalidSettingError) as caught:
            read_environment({**GOOD, name: value})
        assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidSettingError) as caught:
        read_environment({**GOOD, "GPUPOOL_SECRET_KEY": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        ["manage.py", "check"],
        ["-m", "uvicorn", "config.asgi:application"],
        ["-m", "celery", "-A", "config.celery", "worker"],
    ],
)
def test_every_process_reports_a_wrong_setting_in_one_line(command: list[str], root: Path) -> None:
    env = {**os.environ, **GOOD, "REDIS_URL": "valkey://localhost"}
    done = subprocess.run(
        [sys.executable, *command], cwd=root, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert len(lines) == 1, lines
    assert lines[0].startswith("gpupool: setting REDIS_URL is 'valkey://localhost'; allowed: ")


def test_all_allowed_forms_of_addresses_and_senders_are_accepted() -> None:
    for url in ("http://[::1]:8470", "http://GPU.example.org", "https://a-b.example.org:8443/"):
        assert read_environment({**GOOD, "GPUPOOL_PORTAL_URL": url}).portal_url == url.lower().rstrip("/")
    for sender in ("gpupool@localhost", "GPU pool <gpus@example.org>"):
        assert read_environment({**GOOD, "GPUPOOL_MAIL_FROM": sender}).mail_from == sender


@pytest.mark.parametrize(
    ("url", "host", "port", "options"),
    [
        ("postgresql://me@one:5432/gpupool", "one", "5432", {}),
        ("postgresql://me@one/gpupool?sslmode=verify-full", "one", "", {"sslmode": "verify-full"}),
        ("postgresql://me@one,two:5433/gpupool", "one,two", ",5433", {"target_session_attrs": "read-write"}),
        ("postgresql://me@%2Fa,%2FB/gpupool", "/a,/B", "", {"target_session_attrs": "read-write"}),
        (
            "postgresql://me@one,two/gpupool?target_session_attrs=primary",
            "one,two",
            "",
            {"target_session_attrs": "primary"},
        ),
    ],
)
def test_a_database_may_have_several_hosts_and_parameters(
    url: str, host: str, port: str, options: dict[str, str]
) -> None:
    found = read_environment({**GOOD, "DATABASE_URL": url}).database
    assert (found["HOST"], found["PORT"], found["OPTIONS"]) == (host, port, options)


def test_the_files_of_certificates_are_absolute_paths() -> None:
    found = read_environment({**GOOD, "GPUPOOL_CERTIFICATES": "/etc/a.pem, /etc/b.pem"})
    assert found.certificates == ("/etc/a.pem", "/etc/b.pem")
    assert read_environment(GOOD).certificates == ()
