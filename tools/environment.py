"""Make the Python environments and install the system packages that the product and its tests need."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.console import RunError, run_quietly, say, timed_step
from tools.paths import (
    CANAILLE_VENV,
    EXAMPLES_VENV,
    LDAP_PACKAGES,
    PYTHON,
    ROOT,
    STATE,
    VENV,
    find_program,
)

TEST_PROGRAMS = {
    "bubblewrap": ("bwrap",),
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "iproute2": ("ip",),
    "nftables": ("nft",),
}
# Programs of Debian packages that would start a server: they are unpacked into `.gpupool`, not installed.
UNPACKED_PROGRAMS = {
    "prometheus": ("prometheus", "promtool"),
    "nginx": ("nginx",),
    "caddy": ("caddy",),
    "slapd": ("slapd",),
}
# Libraries that an unpacked program needs and that another package has.
UNPACKED_LIBRARIES = {"slapd": ("libltdl7", "libwrap0")}
# Headers with which python-ldap is compiled, and the Debian packages that have them.
LDAP_HEADERS = {"libldap2-dev": "ldap.h", "libsasl2-dev": "sasl/sasl.h"}
INCLUDE_FOLDERS = (Path("/usr/include"), Path("/usr/local/include"))
EXAMPLES_REQUIREMENTS = ROOT / "examples" / "requirements.txt"
CANAILLE_REQUIREMENTS = ROOT / "tests" / "oidc" / "requirements.txt"


def ensure_environment(with_tests: bool = False, quiet: bool = False) -> None:
    """Install exactly the locked packages into `.gpupool/venv`, unless they are installed already."""
    wanted = ["base", "test"] if with_tests else ["base"]
    with _exclusive("venv"):
        missing = [name for name in wanted if not _is_installed(name)]
        if not missing:
            return
        with contextlib.nullcontext() if quiet else timed_step("environment made"):
            _install(missing)
            # The first call may have made the whole environment again. Then the packages of the other lock
            # file are missing too.
            _install([name for name in wanted if not _is_installed(name)])


def ensure_examples_environment() -> None:
    """Make `.gpupool/torch`, the environment of the examples: PyTorch, Lightning, transformers and Ray."""
    mark = EXAMPLES_VENV / ".requirements.sha256"
    digest = _digest(EXAMPLES_REQUIREMENTS)
    python = EXAMPLES_VENV / "bin" / "python"
    with _exclusive("torch"):
        if mark.exists() and mark.read_text() == digest and python.exists():
            return
        with timed_step("environment of the worked examples made"):
            run_quietly([str(PYTHON), "-m", "venv", "--clear", str(EXAMPLES_VENV)])
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            # Do not compile the modules: this takes four times as long as the installation, and few of them
            # are imported.
            run_quietly([*pip, "--no-compile", "-r", str(EXAMPLES_REQUIREMENTS)])
        mark.write_text(digest)


@contextlib.contextmanager
def _exclusive(name: str) -> Iterator[None]:
    """Hold the lock of one environment, so that two commands do not make the environment at the same time."""
    STATE.mkdir(mode=0o755, exist_ok=True)
    with open(STATE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _digest(requirements: Path) -> str:
    return hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()


def _lock_file(name: str) -> Path:
    return ROOT / "requirements" / f"{name}.txt"


def _is_installed(name: str) -> bool:
    mark = VENV / f".{name}.sha256"
    return mark.exists() and mark.read_text() == _digest(_lock_file(name)) and PYTHON.exists()


def _install(names: list[str]) -> None:
    if not PYTHON.exists() or not _has_this_python():
        shutil.rmtree(VENV, ignore_errors=True)
    uv = shutil.which("uv")
    if not PYTHON.exists():
        if uv:
            run_quietly([uv, "venv", "--quiet", "--python", sys.executable, str(VENV)])
        else:
            _make_with_venv()
    for name in names:
        _install_lock(uv or _fetch_uv(), _lock_file(name))
        (VENV / f".{name}.sha256").write_text(_digest(_lock_file(name)))


def _has_this_python() -> bool:
    """Return True if the environment has the same Python as this program."""
    command = [str(PYTHON), "-c", "import sys; print(sys.version)"]
    asked = subprocess.run(command, capture_output=True, text=True)
    return asked.returncode == 0 and asked.stdout.rstrip("\n") == sys.version


def _make_with_venv() -> None:
    command = [sys.executable, "-m", "venv", str(VENV)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0 and "ensurepip" in made.stdout + made.stderr:
        package = f"python3.{sys.version_info[1]}-venv"
        if not install_system_packages([package], "the Python environment needs it"):
            raise RunError(f"the Python environment needs {package}: sudo apt-get install -y {package}")
        shutil.rmtree(VENV, ignore_errors=True)
        made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0:
        raise RunError(f"cannot make {VENV}: {(made.stderr or made.stdout).strip().splitlines()[-1:]}")


def _fetch_uv() -> str | None:
    """Install the pinned uv into the environment and return its path; None if the installation fails.

    uv installs the packages of a lock file ten times faster than pip.
    """
    uv = VENV / "bin" / "uv"
    if not uv.exists():
        pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--require-hashes"]
        subprocess.run([*pip, "-r", str(_lock_file("uv"))], capture_output=True)
    return str(uv) if uv.exists() else None


def _install_lock(uv: str | None, lock: Path) -> None:
    """Install the packages of a lock file with uv, or with pip if uv is absent or fails."""
    if uv:
        fast = [uv, "pip", "install", "--quiet", "--python", str(PYTHON), "--require-hashes", "-r", str(lock)]
        done = subprocess.run(fast, capture_output=True, env={**os.environ, **_pip_settings_for_uv()})
        if done.returncode == 0:
            return
    if subprocess.run([str(PYTHON), "-m", "pip", "--version"], capture_output=True).returncode != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        _make_with_venv()
    run_quietly([str(PYTHON), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(lock)])


def _pip_settings_for_uv() -> dict[str, str]:
    """Return pip's package index and certificate as environment variables of uv.

    uv does not read pip's settings.
    """
    command = [sys.executable, "-m", "pip", "config", "list"]
    asked = subprocess.run(command, capture_output=True, text=True)
    settings = dict(re.findall(r"^[^=]*\.([\w-]+)='([^']*)'", asked.stdout, re.M))
    named = {"UV_DEFAULT_INDEX": settings.get("index-url"), "SSL_CERT_FILE": settings.get("cert")}
    return {name: value for name, value in named.items() if value and name not in os.environ}


def install_system_packages(packages: list[str], why: str) -> bool:
    """Install packages with apt, and print ``why``. Return True if they were installed.

    Return False if the user is not root, if apt is absent, or if apt fails.
    """
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return False
    say(f"  Installing {' '.join(packages)} with apt: {why}")
    install = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if _apt_succeeds(install):
        return True
    _apt_succeeds(["apt-get", "update"])
    return _apt_succeeds(install)


def _apt_succeeds(command: list[str], folder: str | None = None) -> bool:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=env, cwd=folder, capture_output=True).returncode == 0


def ensure_test_programs() -> None:
    """Install the system programs that tests need.

    If the installation fails, print the missing packages. In CI (the variable CI is true), raise RunError
    instead.
    """
    missing = [name for name, programs in TEST_PROGRAMS.items() if not any(map(shutil.which, programs))]
    if missing and install_system_packages(missing, "the sandbox and browser tests need them"):
        missing = []
    missing += [package for package in UNPACKED_PROGRAMS if not ensure_unpacked(package)]
    if not missing:
        return
    line = f"sudo apt-get install -y {' '.join(missing)}"
    if os.environ.get("CI", "").lower() == "true":
        raise RunError(f"in CI nothing may be skipped, but {' and '.join(missing)} is missing: {line}")
    say(f"  Tests that need {' and '.join(missing)} will be skipped. To run them: {line}")


def ensure_canaille() -> None:
    """Install Canaille, the OpenID Connect server of the long tests, into ``.gpupool/canaille``.

    If the installation fails, say so: the tests are then reported as not run. In CI, raise RunError instead.
    """
    mark = CANAILLE_VENV / ".requirements.sha256"
    digest = _digest(CANAILLE_REQUIREMENTS)
    python = CANAILLE_VENV / "bin" / "python"
    with _exclusive("canaille"):
        if mark.exists() and mark.read_text() == digest and python.exists():
            return
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            with timed_step("environment of the OpenID Connect server made"):
                run_quietly([str(PYTHON), "-m", "venv", "--clear", str(CANAILLE_VENV)])
                run_quietly([*pip, "-r", str(CANAILLE_REQUIREMENTS)])
        except RunError as problem:
            if os.environ.get("CI", "").lower() == "true":
                raise RunError(f"in CI nothing may be skipped, but Canaille is missing: {problem}") from None
            say("  Tests that need Canaille will be skipped: its packages cannot be installed")
            return
        mark.write_text(digest)


def ensure_ldap() -> None:
    """Install the packages of sign-in with LDAP into ``.gpupool/ldap``. Raises RunError.

    python-ldap is compiled. If its headers are missing, the error names the Debian packages.
    """
    lock = _lock_file("ldap")
    mark, digest = LDAP_PACKAGES / ".requirements.sha256", _digest(lock)
    with _exclusive("ldap"):
        if mark.exists() and mark.read_text() == digest:
            return
        missing = missing_ldap_headers()
        if missing and not install_system_packages(missing, "python-ldap is compiled with their headers"):
            line = f"sudo apt-get install -y {' '.join(missing)}"
            raise RunError(f"sign-in with LDAP needs {' and '.join(missing)}: {line}")
        with timed_step("packages of sign-in with LDAP installed"):
            shutil.rmtree(LDAP_PACKAGES, ignore_errors=True)
            install = ["install", "--quiet", "--no-deps", "--require-hashes", "--target", str(LDAP_PACKAGES)]
            run_quietly([str(PYTHON), "-m", "pip", *install, "-r", str(lock)])
        mark.write_text(digest)


def ensure_ldap_for_tests() -> None:
    """Install the packages of sign-in with LDAP. If this fails, say so; in CI, raise RunError instead."""
    try:
        ensure_ldap()
    except RunError as problem:
        if os.environ.get("CI", "").lower() == "true":
            raise RunError(f"in CI nothing may be skipped, but LDAP is missing: {problem}") from None
        say(f"  Tests of sign-in with LDAP will be skipped: {problem}")


def missing_ldap_headers() -> list[str]:
    """Return the Debian packages whose headers are not installed."""
    return [
        package
        for package, header in LDAP_HEADERS.items()
        if not any((folder / header).exists() for folder in INCLUDE_FOLDERS)
    ]


def ensure_unpacked(package: str) -> bool:
    """Unpack Debian's package into ``.gpupool``, unless its programs are there. Return True if they are.

    The package is not installed, because its installation starts a server.
    """
    programs = UNPACKED_PROGRAMS[package]
    with _exclusive(package):
        if all(map(find_program, programs)):
            return True
        if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
            return False
        say(f"  Unpacking Debian's {package} into {STATE / package}: tests need it")
        with tempfile.TemporaryDirectory() as folder:
            download = ["apt-get", "download", package, *UNPACKED_LIBRARIES.get(package, ())]
            if not _apt_succeeds(download, folder):
                _apt_succeeds(["apt-get", "update"])
                _apt_succeeds(download, folder)
            for file in Path(folder).glob("*.deb"):
                subprocess.run(
                    ["dpkg-deb", "--extract", str(file), str(STATE / package)], capture_output=True
                )
        return all(map(find_program, programs))


def offer_sandbox() -> None:
    """Install bubblewrap if possible. Without it, agents run plain processes, and host pages say so."""
    if shutil.which("bwrap"):
        return
    if not install_system_packages(["bubblewrap"], "workloads run in its sandbox"):
        say("  Workloads run without a sandbox. To get one: sudo apt-get install -y bubblewrap")
