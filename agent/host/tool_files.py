"""Installs the files that every run uses.

The files are the shim (which supervises a run), the checkpoint command, the helper module for workloads, and
the program that starts JupyterLab.
"""

from __future__ import annotations

import errno
import logging
import os
import pkgutil
from pathlib import Path

from agent.host.durable_files import StateFolderError, fsync_folder, write_text

log = logging.getLogger("agent.host.tool_files")

# Modules of agent/shim. Shims run copies of them in tools/shim, and do not need the agent's installation.
SHIM_MODULES = (
    "__init__",
    "guard",
    "hook",
    "libc",
    "lifecycle_rules",
    "log_writer",
    "notice_server",
    "process_tree",
    "run_files",
    "socket_filter",
    "supervisor",
    "workload_entry",
)


TOOL_FILES = (  # name in tools/, file of this package, mode
    ("shim/__main__.py", "shim/__main__.py", 0o600),
    ("shim/agent/__init__.py", "__init__.py", 0o600),
    *((f"shim/agent/shim/{name}.py", f"shim/{name}.py", 0o600) for name in SHIM_MODULES),
    ("bin/gpupool", "workload/gpupool.sh", 0o755),
    ("python/gpupool_contract.py", "workload/contract.py", 0o644),
    ("notebook/gpupool_notebook.py", "notebook/jupyterlab.py", 0o644),
    ("notebook/gpupool_identity.py", "notebook/edge_identity.py", 0o644),
)


def install_tools(folder: Path) -> str:
    """Install this version's tools in ``folder``. Return '' or, on a full disk, the text of the error.

    On a full disk, all files of the earlier version are kept, because a run can't work with files of two
    versions. The caller then starts no run. Running workloads keep the files that they have opened. Raises
    StateFolderError if the installation is incomplete, and OSError for any other disk error.
    """
    written: list[tuple[Path, Path]] = []
    try:
        for name, resource, mode in TOOL_FILES:
            content = pkgutil.get_data("agent", resource)
            if content is None:
                raise StateFolderError(f"this installation of the agent lacks {resource}: install it again")
            path = folder / name
            if path.exists() and path.read_bytes() == content and path.stat().st_mode & 0o777 == mode:
                continue  # write nothing if nothing has changed, so that a restart succeeds on a full disk
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            new = path.with_name(f".{path.name}.new")
            written.append((new, path))
            write_text(new, content.decode(), mode)
            new.chmod(mode)
    except OSError as error:
        for new, _ in written:
            new.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        log.error(
            "the tools of this version can't be installed; no workload starts until they are: %s",
            error.strerror,
        )
        return str(error.strerror)
    for new, path in written:
        os.replace(new, path)
        fsync_folder(path.parent)
    # Only an earlier version uses shim.py. Running shims of that version have already read the file.
    (folder / "shim.py").unlink(missing_ok=True)
    return ""
