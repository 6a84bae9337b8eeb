"""Run one part of `./run bench trust` in this process, and print its figures as JSON in the last line."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness.installation import Installation

SHORT_HANG_LEASE_SECONDS = 5


def main(arguments: list[str]) -> int:
    """Run the part that is named by the first argument."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust_parts")
    parser.add_argument("part", choices=("site", "hang", "suite", "restore", "failover", "upgrade"))
    parser.add_argument("--ready", type=Path, default=None, help="a file that is made once the site runs")
    parser.add_argument("--only", default="", help="site: the parts; suite: its name; comma-separated")
    parser.add_argument("--attacks", default="", help="site: names of attacks, comma-separated")
    parser.add_argument("--what", choices=("database", "edge"), default="database", help="hang: what stops")
    parser.add_argument("--seconds", type=float, default=0.0, help="hang: for how long")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--keep", type=Path, default=None, help="folder of the site, which is kept")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the site is stopped, too
    output, sys.stdout = sys.stdout, sys.stderr
    figures = _run(options)
    print(json.dumps(figures), file=output, flush=True)
    return 0


def _run(options: argparse.Namespace) -> dict[str, Any]:
    if options.part == "suite":
        from benchmarks.trust_parts.suites import count_tests

        return {options.only: count_tests(options.only, dict(os.environ))}
    with _folder(options.keep) as folder:
        if options.part == "restore":
            from benchmarks.trust_parts.restore import measure_restore

            return measure_restore(folder)
        if options.part == "failover":
            from benchmarks.trust_parts.failover import measure_failover

            return measure_failover(folder)
        if options.part == "upgrade":
            from benchmarks.trust_parts.upgrade import measure_upgrade

            return measure_upgrade(folder)
        return _run_on_installation(options, folder)


def _run_on_installation(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from benchmarks.trust_parts import hangs, live_site

    lease = live_site.LEASE_SECONDS
    if options.part == "hang":
        lease = hangs.EDGE_LEASE_SECONDS if options.what == "edge" else hangs.DATABASE_LEASE_SECONDS
        if options.short and options.what == "database":
            lease = SHORT_HANG_LEASE_SECONDS
    site = Installation(folder, hosts=live_site.HOSTS, lease_seconds=lease)
    try:
        site.start()
        if options.ready:
            options.ready.touch()
        if options.part == "hang":
            freeze = hangs.freeze_edge if options.what == "edge" else hangs.freeze_database
            return dict(hangs.hang(site, options.seconds, freeze))
        names = set(options.only.split(","))
        attacks = set(options.attacks.split(",")) - {""}
        return live_site.measure(site, names, options.short, attacks)
    finally:
        site.stop()


@contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="gpupool-trust-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
