"""Write the software bill of materials (CycloneDX 1.6, JSON) and the list of licences.

Names, versions and hashes are those of the lock files. Licences and dependencies are those in the metadata of
the installed packages. The output depends only on the lock files and the environment, so it has no time.
"""

from __future__ import annotations

import argparse
import email.parser
import json
import re
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

from tools.console import RunError, say
from tools.environment import ensure_environment
from tools.paths import ROOT, site_packages

SPEC_VERSION = "1.6"
# The lock files, each with the part of the product that installs its packages.
LOCKS = {"base": "server", "agent": "agent", "notebooks": "notebooks", "ldap": "ldap", "test": "tests"}
PRODUCT_LOCKS = ("base", "agent", "notebooks", "ldap")
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
REQUIRED_NAME = re.compile(r"^[A-Za-z0-9._-]+")
LICENCE_CLASSIFIER = "License :: "
UNKNOWN_LICENCE = "unknown"
LONGEST_LICENCE_NAME = 80  # a longer text is the licence itself, not its name
NAMESPACE = uuid.UUID("8a5a6a52-3c2f-5b0e-9a51-6f2f8f1e7c11")


@dataclass(frozen=True)
class LockedPackage:
    """A package of the lock files. Its metadata are empty if it is not installed."""

    name: str
    version: str
    hashes: tuple[str, ...]
    parts: tuple[str, ...]
    licence: str
    requires: tuple[str, ...]

    @property
    def purl(self) -> str:
        """Return the package URL, which is also the reference within the document."""
        return f"pkg:pypi/{self.name}@{self.version}"


def sbom_verb(arguments: list[str]) -> int:
    """Print or write the bill of materials, or print the list of licences."""
    parser = argparse.ArgumentParser(prog="./run sbom")
    parser.add_argument("--out", type=Path, help="file to write; default: standard output")
    parser.add_argument("--licences", action="store_true", help="print name, version and licence instead")
    parser.add_argument("--tests", action="store_true", help="also the packages that only tests need")
    options = parser.parse_args(arguments)
    ensure_environment(with_tests=options.tests, quiet=True)
    packages = locked_packages(
        ROOT / "requirements", site_packages(), tuple(LOCKS) if options.tests else PRODUCT_LOCKS
    )
    text = licence_list(packages) if options.licences else json.dumps(bill_of_materials(packages), indent=1)
    if options.out is None:
        say(text)
        return 0
    try:
        options.out.write_text(text + "\n")
    except OSError as error:
        raise RunError(
            f"--out is {str(options.out)!r}: {error.strerror}; allowed: a file in a folder that exists"
        ) from None
    return 0


def locked_packages(folder: Path, installed: Path, locks: Sequence[str]) -> list[LockedPackage]:
    """Return the packages of the lock files by name and version."""
    metadata = installed_metadata(installed)
    hashes: dict[tuple[str, str], list[str]] = {}
    parts: dict[tuple[str, str], list[str]] = {}
    for lock in locks:
        current: list[str] = []
        for line in (folder / f"{lock}.txt").read_text().splitlines():
            if pin := PIN.match(line):
                key = (normalised(pin["name"]), pin["version"])
                current = hashes.setdefault(key, [])
                parts.setdefault(key, []).append(LOCKS[lock])
            current += [digest for digest in HASH.findall(line) if digest not in current]
    return [
        LockedPackage(
            name,
            version,
            tuple(hashes[name, version]),
            tuple(parts[name, version]),
            licence_of(metadata.get((name, version))),
            requirements_of(metadata.get((name, version))),
        )
        for name, version in sorted(hashes)
    ]


def normalised(name: str) -> str:
    """Return the name of a package in its normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_metadata(folder: Path) -> dict[tuple[str, str], Message]:
    """Return the metadata of each installed package by name and version."""
    found = {}
    for path in folder.glob("*.dist-info/METADATA"):
        message = email.parser.Parser().parsestr(path.read_text(errors="replace"), headersonly=True)
        found[normalised(message["Name"]), str(message["Version"])] = message
    return found


def licence_of(metadata: Message | None) -> str:
    """Return the name of the licence, or its SPDX expression; "unknown" if the metadata have none."""
    if metadata is None:
        return UNKNOWN_LICENCE
    if expression := metadata["License-Expression"]:
        return str(expression)
    classifiers = [
        text.rpartition(" :: ")[2]
        for text in metadata.get_all("Classifier", [])
        if text.startswith(LICENCE_CLASSIFIER) and text != "License :: OSI Approved"
    ]
    if classifiers:
        return "; ".join(sorted(classifiers))
    text = str(metadata["License"] or "").strip()
    return text if 0 < len(text) <= LONGEST_LICENCE_NAME and "\n" not in text else UNKNOWN_LICENCE


def requirements_of(metadata: Message | None) -> tuple[str, ...]:
    """Return the names of the packages that a package requires without extras."""
    lines = [] if metadata is None else metadata.get_all("Requires-Dist", [])
    names = [REQUIRED_NAME.match(line) for line in lines if "extra ==" not in line]
    return tuple(sorted({normalised(name[0]) for name in names if name}))


def bill_of_materials(packages: Sequence[LockedPackage]) -> dict[str, object]:
    """Return the document in CycloneDX."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    product = {"type": "application", "bom-ref": "gpupool", "name": "gpupool", "version": project["version"]}
    references: dict[str, list[str]] = {}
    for package in packages:
        references.setdefault(package.name, []).append(package.purl)
    dependencies = [{"ref": "gpupool", "dependsOn": [package.purl for package in packages]}]
    dependencies += [
        {"ref": package.purl, "dependsOn": _references_of(package.requires, references)}
        for package in packages
    ]
    document: dict[str, object] = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {"component": product},
        "components": [component_of(package) for package in packages],
        "dependencies": dependencies,
    }
    # The same content has the same serial number.
    serial = uuid.uuid5(NAMESPACE, json.dumps(document, sort_keys=True))
    return {**document, "serialNumber": f"urn:uuid:{serial}"}


def _references_of(names: Sequence[str], references: Mapping[str, list[str]]) -> list[str]:
    return [reference for name in names for reference in references.get(name, [])]


def component_of(package: LockedPackage) -> dict[str, object]:
    """Return one component. A licence that is unknown is left out."""
    component: dict[str, object] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in package.hashes],
        "properties": [{"name": "gpupool:part", "value": part} for part in package.parts],
    }
    if package.licence != UNKNOWN_LICENCE:
        component["licenses"] = [{"license": {"name": package.licence}}]
    return component


def licence_list(packages: Sequence[LockedPackage]) -> str:
    """Return one line for each package, with name, version and licence in columns."""
    rows = [(package.name, package.version, package.licence) for package in packages]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(
        f"{name:<{widths[0]}}  {version:<{widths[1]}}  {licence}" for name, version, licence in rows
    )
