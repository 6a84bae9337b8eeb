"""Starts JupyterLab for one run, inside its sandbox:  gpupool_notebook.py SECRET_FILE SOCKET HOME

The server loads only JupyterLab and the terminals. It does not search the network for extensions or news.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

MAX_SOCKET_PATH = 100
KERNEL_SOCKET_NAME_LENGTH = len("/kernel-00000000-0000-0000-0000-000000000000-ipc-99")
# Disabled extensions of JupyterLab. The first one fetches news from the network. The other three need a
# server extension for language servers, which is not loaded here.
DISABLED_EXTENSIONS = [
    "@jupyterlab/apputils-extension:announcements",
    "@jupyterlab/lsp-extension",
    "@jupyterlab/notebook-extension:language-server",
    "@jupyterlab/fileeditor-extension:language-server",
]


def _short_socket_path(socket: str) -> str:
    """Return a path to the socket that is short enough for a socket address.

    Without a sandbox, the real path can be too long.
    """
    if len(socket) <= MAX_SOCKET_PATH:
        return socket
    folder = os.open(os.path.dirname(socket), os.O_PATH | os.O_DIRECTORY)
    return f"/proc/self/fd/{folder}/{os.path.basename(socket)}"


def _use_ipc_kernels(config: Any) -> None:
    """Let kernels use unix sockets in the run's own folder instead of TCP ports.

    A kernel sends its output unencrypted to every client of its port. Any process in the same network could
    therefore read the output. Without a sandbox, the path of the folder can be too long for a socket address.
    In this case ports are still used.
    """
    folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), "jupyter")
    if len(folder) + KERNEL_SOCKET_NAME_LENGTH <= MAX_SOCKET_PATH:
        os.environ["JUPYTER_RUNTIME_DIR"] = folder
        config.KernelManager.transport = "ipc"


def _disable_extensions(_handler: object, page: dict[str, Any]) -> dict[str, Any]:
    return {**page, "disabledExtensions": [*page.get("disabledExtensions", []), *DISABLED_EXTENSIONS]}


def main(secret_file: str, socket: str, home: str) -> None:
    """Serve until the process is stopped."""
    print("starting JupyterLab", flush=True)
    # Prevent the import of rfc3987_syntax. jsonschema (4.26) imports this optional module to check IRIs, but
    # no schema of a notebook server has IRIs. A start takes 1.3 s of CPU time, 0.9 s of it for this import.
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    from gpupool_identity import EdgeIdentityProvider  # type: ignore[import-not-found]  # installed next to this file
    from jupyter_server.serverapp import ServerApp
    from traitlets.config import Config

    EdgeIdentityProvider.secret = Path(secret_file).read_text()
    EdgeIdentityProvider.owner = os.environ.get("USER") or "owner"
    Path(socket).unlink(missing_ok=True)

    config = Config()
    server = config.ServerApp
    server.identity_provider_class = EdgeIdentityProvider
    server.sock = _short_socket_path(socket)
    server.sock_mode = "0600"
    server.root_dir = home
    server.default_url = "/lab"
    server.open_browser = False
    server.allow_remote_access = True  # the edge decides which Host headers are allowed
    server.allow_unauthenticated_access = False
    server.terminals_enabled = True
    # Without a sandbox and without a user per team, the server runs as the agent's user, which may be root.
    server.allow_root = True
    server.disable_check_xsrf = False
    server.shutdown_no_activity_timeout = 0
    _use_ipc_kernels(config)
    config.IdentityProvider.token = ""
    config.LabApp.news_url = None
    config.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
    config.LabApp.extension_manager = "readonly"
    server.tornado_settings = {"page_config_hook": _disable_extensions}
    config.ContentsManager.allow_hidden = False
    config.FileContentsManager.delete_to_trash = False
    extensions = {"jupyterlab": True, "jupyter_server_terminals": True}
    application = ServerApp.instance(config=config, jpserver_extensions=extensions)
    os.environ["JUPYTER_NO_CONFIG"] = "1"  # a configuration file in the home must not prevent the start
    application.initialize(argv=[], find_extensions=False)
    del os.environ["JUPYTER_NO_CONFIG"]
    application.start()


if __name__ == "__main__":
    main(*sys.argv[1:4])
