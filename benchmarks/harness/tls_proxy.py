"""Run nginx with the configuration of `deploy/`, on other ports and with a certificate of its own."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tools.paths import ROOT, find_program

CERTIFICATE, KEY = "site.pem", "site.key"


@dataclass(frozen=True)
class ProxySettings:
    """The files and addresses of one proxy before two web and two edge processes."""

    folder: Path
    port: int
    ports: Mapping[str, int]  # of web-1, web-2, edge-1 and edge-2
    portal: str  # host name or address of the portal
    notebooks: str  # domain of the workspaces


def write_certificate(folder: Path, names: Sequence[str]) -> None:
    """Write a certificate for these host names and addresses, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = dt.datetime.now(dt.UTC)
    built = (
        x509.CertificateBuilder(
            issuer_name=name,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - dt.timedelta(days=1),
            not_valid_after=now + dt.timedelta(days=1),
        )
        .add_extension(x509.SubjectAlternativeName([_general_name(each) for each in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / CERTIFICATE).write_bytes(built.public_bytes(serialization.Encoding.PEM))
    (folder / KEY).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def replaced_addresses(text: str, proxy: ProxySettings) -> str:
    """Return a configuration of `deploy/` with the addresses and log files of ``proxy``."""
    for number, name in (("8470", "web-1"), ("8480", "web-2"), ("8471", "edge-1"), ("8481", "edge-2")):
        text = text.replace(f"127.0.0.1:{number}", f"127.0.0.1:{proxy.ports[name]}")
    return re.sub(r"/var/log/(nginx|caddy)/", f"{proxy.folder}/", text)


def nginx_command(proxy: ProxySettings) -> list[str]:
    """Write the configuration, and return the command that starts nginx with it."""
    text = replaced_addresses((ROOT / "deploy" / "nginx.conf").read_text(), proxy)
    text = text.replace("gpus.example.org", proxy.portal).replace("notebooks.example.net", proxy.notebooks)
    text = text.replace("listen 443", f"listen 127.0.0.1:{proxy.port}")
    text = re.sub(r"/etc/gpupool/\w+\.(pem|key)", rf"{proxy.folder}/site.\1", text)
    temporary = "".join(
        f"{kind}_temp_path {proxy.folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    own = proxy.folder / "nginx.conf"
    user = "user root;\n" if os.geteuid() == 0 else ""
    own.write_text(
        f"{user}daemon off;\npid {proxy.folder}/nginx.pid;\nerror_log {proxy.folder}/nginx-error.log;\n"
        f"events {{}}\nhttp {{\n{temporary}{text}}}\n"
    )
    return [str(find_program("nginx")), "-p", str(proxy.folder), "-c", str(own), "-e", "stderr"]
