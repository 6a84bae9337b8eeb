"""Test the bill of materials: every pin of the lock files, in the form that CycloneDX requires."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tools import sbom
from tools.console import RunError
from tools.paths import ROOT, site_packages

PURL = re.compile(r"^pkg:pypi/[a-z0-9-]+@[^@\s]+$")


@pytest.fixture(scope="module")
def packages() -> list[sbom.LockedPackage]:
    return sbom.locked_packages(ROOT / "requirements", site_packages(), sbom.PRODUCT_LOCKS)


def test_the_bill_has_each_pin_of_the_lock_files_with_its_hashes(packages: list[sbom.LockedPackage]) -> None:
    pins = {
        f"{sbom.normalised(name)}=={version}"
        for lock in sbom.PRODUCT_LOCKS
        for name, version in re.findall(
            r"^(\S+)==([^\s;\\]+)", (ROOT / "requirements" / f"{lock}.txt").read_text(), re.M
        )
    }
    assert {f"{package.name}=={package.version}" for package in packages} == pins
    assert all(package.hashes and package.parts for package in packages)
    django = next(package for package in packages if package.name == "django")
    assert (django.licence, django.parts) == ("BSD-3-Clause", ("server",))
    assert "asgiref" in django.requires


def check_component(component: dict[str, Any]) -> None:
    """Check the fields of one component."""
    assert component["type"] in ("application", "library") and component["name"]
    for digest in component.get("hashes", []):
        assert digest["alg"] == "SHA-256" and re.fullmatch(r"[0-9a-f]{64}", digest["content"])
    for licence in component.get("licenses", []):
        assert licence.keys() == {"license"} and licence["license"].keys() == {"name"}
    for found in component.get("properties", []):
        assert found["name"] == "gpupool:part" and found["value"] in sbom.LOCKS.values()


def test_the_bill_has_the_fields_that_the_schema_requires(packages: list[sbom.LockedPackage]) -> None:
    """Check the rules of the published schema of CycloneDX 1.6 for the fields that are written."""
    bill = json.loads(json.dumps(sbom.bill_of_materials(packages)))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert isinstance(bill["version"], int) and bill["version"] >= 1
    assert re.fullmatch(
        r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", bill["serialNumber"]
    )
    components = [bill["metadata"]["component"], *bill["components"]]
    references = [component["bom-ref"] for component in components]
    assert len(references) == len(set(references))
    for component in components:
        check_component(component)
    assert all(PURL.match(component["purl"]) for component in bill["components"])
    assert {entry["ref"] for entry in bill["dependencies"]} == set(references)
    assert {to for entry in bill["dependencies"] for to in entry["dependsOn"]} <= set(references)
    assert bill["serialNumber"] == sbom.bill_of_materials(packages)["serialNumber"]


def test_nearly_every_installed_package_names_its_licence(packages: list[sbom.LockedPackage]) -> None:
    installed = sbom.installed_metadata(site_packages())
    unknown = [
        package.name
        for package in packages
        if (package.name, package.version) in installed and package.licence == sbom.UNKNOWN_LICENCE
    ]
    assert len(unknown) <= 3, unknown
    lines = sbom.licence_list(packages).splitlines()
    assert len(lines) == len(packages)
    assert any(re.fullmatch(r"django +\d\S+ +BSD-3-Clause", line) for line in lines)


def test_the_bill_is_written_to_a_file(tmp_path: Path) -> None:
    assert sbom.sbom_verb(["--out", str(tmp_path / "bill.json")]) == 0
    assert json.loads((tmp_path / "bill.json").read_text())["bomFormat"] == "CycloneDX"
    with pytest.raises(RunError, match="--out is .*allowed: a file in a folder that exists"):
        sbom.sbom_verb(["--out", str(tmp_path / "missing" / "bill.json")])
