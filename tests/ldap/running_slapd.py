"""Start Debian's slapd with the entries of a test, and change them while it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.self_signed import self_signed_certificate
from tests.waiting import wait_until
from tools.paths import find_program
from tools.ports import free_port

BASE = "dc=example,dc=org"
PEOPLE, GROUPS = f"ou=people,{BASE}", f"ou=groups,{BASE}"
MANAGER = f"cn=manager,{BASE}"
SERVICE = f"cn=portal,{BASE}"
PASSWORD, SERVICE_PASSWORD, MANAGER_PASSWORD = "correct horse battery", "service secret", "manager secret"
SCHEMAS = ("core", "cosine", "nis", "inetorgperson")
MODULES = ("back_mdb",)

# The attributes of Active Directory that the portal reads, with the rules by which its servers compare them.
ACTIVE_DIRECTORY_SCHEMA = """
attributetype ( 1.2.840.113556.1.4.221 NAME 'sAMAccountName' EQUALITY caseIgnoreMatch
  SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.2 NAME 'objectGUID' EQUALITY octetStringMatch
  SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.8 NAME 'userAccountControl' EQUALITY integerMatch
  SYNTAX 1.3.6.1.4.1.1466.115.121.1.27 SINGLE-VALUE )
objectclass ( 1.2.840.113556.1.5.8 NAME 'group' SUP top STRUCTURAL MUST cn MAY ( member $ sAMAccountName ) )
"""

Entry = tuple[str, Mapping[str, Sequence[str | bytes]]]


class Slapd:
    """A running directory. ``trusted`` is the certificate with which its own can be verified."""

    def __init__(self, port: int, tls_port: int, trusted: str) -> None:
        self.url = f"ldap://127.0.0.1:{port}"
        self.tls_url = f"ldaps://127.0.0.1:{tls_port}"
        self.trusted = trusted

    @contextmanager
    def manager(self) -> Iterator[Any]:
        """Yield a connection that may change every entry."""
        import ldap

        link = ldap.initialize(self.url)
        link.set_option(ldap.OPT_NETWORK_TIMEOUT, 10)
        link.simple_bind_s(MANAGER, MANAGER_PASSWORD)
        try:
            yield link
        finally:
            link.unbind_s()

    def add(self, *entries: Entry) -> None:
        """Add entries."""
        with self.manager() as link:
            for dn, attributes in entries:
                link.add_s(dn, [(name, _values(values)) for name, values in attributes.items()])

    def set(self, dn: str, **attributes: Sequence[str | bytes]) -> None:
        """Replace attributes of an entry. An empty list removes the attribute."""
        import ldap

        with self.manager() as link:
            changes = [(ldap.MOD_REPLACE, name, _values(values)) for name, values in attributes.items()]
            link.modify_s(dn, changes)

    def delete(self, dn: str) -> None:
        """Delete an entry."""
        with self.manager() as link:
            link.delete_s(dn)

    def clear(self) -> None:
        """Delete all people and groups."""
        import ldap
        from ldap.controls.simple import ManageDSAITControl

        control = {"serverctrls": [ManageDSAITControl()]}  # references are entries, too
        with self.manager() as link:
            for base in (PEOPLE, GROUPS):
                for dn, _ in link.search_ext_s(base, ldap.SCOPE_ONELEVEL, attrlist=["1.1"], **control):
                    link.delete_ext_s(dn, **control)


def person(name: str, **attributes: Sequence[str | bytes]) -> Entry:
    """Return the entry of a person with the password of the tests."""
    given: dict[str, Sequence[str | bytes]] = {
        "objectClass": ["inetOrgPerson"],
        "uid": [name],
        "cn": [f"{name.title()} Example"],
        "sn": ["Example"],
        "mail": [f"{name}@example.org"],
        "userPassword": [PASSWORD],
        **attributes,
    }
    return dn_of(name), given


def group(name: str, *members: str) -> Entry:
    """Return a group. Members are DNs."""
    return f"cn={name},{GROUPS}", {"objectClass": ["groupOfNames"], "cn": [name], "member": list(members)}


def dn_of(name: str) -> str:
    return f"uid={name},{PEOPLE}"


@contextmanager
def slapd(folder: Path, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[Slapd]:
    """Run a directory that speaks LDAP, StartTLS and LDAPS with a certificate for ``host``."""
    program = find_program("slapd")
    assert program is not None, "Debian's slapd is missing"
    unpacked = Path(program).parent.parent.parent
    certificate, key = self_signed_certificate(folder, host)
    (folder / "data").mkdir()
    config = folder / "slapd.conf"
    config.write_text(_config(unpacked, folder, certificate, key))
    port, tls_port = port or free_port(), free_port()
    urls = f"ldap://127.0.0.1:{port}/ ldaps://127.0.0.1:{tls_port}/"
    libraries = [unpacked / "usr/lib/x86_64-linux-gnu", unpacked / "lib/x86_64-linux-gnu"]
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries))}
    command = [program, "-d", "0", "-f", str(config), "-h", urls]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    server = Slapd(port, tls_port, Path(certificate).read_text())
    try:
        wait_until(lambda: process.poll() is not None or _answers(server))
        assert process.poll() is None, (folder / "log").read_text()
        server.add(
            (BASE, {"objectClass": ["dcObject", "organization"], "dc": ["example"], "o": ["Example"]}),
            *((dn, {"objectClass": ["organizationalUnit"], "ou": [dn[3:9]]}) for dn in (PEOPLE, GROUPS)),
            (
                SERVICE,
                {
                    "objectClass": ["organizationalRole", "simpleSecurityObject"],
                    "cn": ["portal"],
                    "userPassword": [SERVICE_PASSWORD],
                },
            ),
        )
        yield server
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder / "data")


def _config(unpacked: Path, folder: Path, certificate: str, key: str) -> str:
    own_schema = folder / "active_directory.schema"
    own_schema.write_text(ACTIVE_DIRECTORY_SCHEMA)
    files = [*(unpacked / f"etc/ldap/schema/{name}.schema" for name in SCHEMAS), own_schema]
    schemas = "\n".join(f"include {file}" for file in files)
    modules = "\n".join(f"moduleload {name}" for name in MODULES)
    return f"""
{schemas}
modulepath {unpacked}/usr/lib/ldap
{modules}
pidfile {folder}/pid
TLSCACertificateFile {certificate}
TLSCertificateFile {certificate}
TLSCertificateKeyFile {key}
allow bind_anon_cred bind_anon_dn
database mdb
suffix "{BASE}"
rootdn "{MANAGER}"
rootpw "{MANAGER_PASSWORD}"
directory {folder}/data
maxsize 104857600
dbnosync
access to attrs=userPassword by anonymous auth
access to * by dn="{SERVICE}" read by * auth
"""


def _answers(server: Slapd) -> bool:
    import ldap

    try:
        with server.manager():
            return True
    except ldap.NO_SUCH_OBJECT:
        return True
    except ldap.SERVER_DOWN:
        return False


def _values(values: Sequence[str | bytes]) -> list[bytes]:
    return [value.encode() if isinstance(value, str) else value for value in values]
