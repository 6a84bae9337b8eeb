"""Serve answers of a dcgm-exporter on loopback, and write such answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from scheduler.models import Host
from telemetry.dcgm.fields import READ_FIELDS


class DcgmServer(ThreadingHTTPServer):
    """A server whose ``answers`` by path are (status, headers, body). Without an entry, a path is 404.

    The answer of ``/slow`` begins and never ends. ``paths`` are the requested paths.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.paths: list[str] = []
        self.closing = threading.Event()

    def url(self, path: str = "/metrics") -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"

    def serve(self, text: str | bytes, path: str = "/metrics", status: int = 200, **headers: str) -> str:
        """Serve a text under a path, and return its URL."""
        body = text if isinstance(text, bytes) else text.encode()
        self.answers[path] = (status, headers, body)
        return self.url(path)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, DcgmServer)
        server.paths.append(self.path)
        if self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"# HELP\n")
            self.wfile.flush()
            server.closing.wait()
            return
        status, headers, body = server.answers.get(self.path, (404, {}, b""))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def running_server() -> Iterator[DcgmServer]:
    server = DcgmServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


def exposition(labels: str, values: Mapping[str, object]) -> str:
    """Return lines of dcgm-exporter with these labels, each with the comments before it."""
    return "".join(
        f"# HELP {name} A field of DCGM.\n# TYPE {name} gauge\n{name}{{{labels}}} {value}\n"
        for name, value in values.items()
    )


def gpu_labels(uuid: str, index: int = 0, host: str = "alpha") -> str:
    """Return the labels that dcgm-exporter 4 writes for a GPU."""
    return (
        f'gpu="{index}",UUID="{uuid}",pci_bus_id="00000000:07:00.0",device="nvidia{index}",'
        f'modelName="NVIDIA A100-SXM4-40GB",Hostname="{host}",DCGM_FI_DRIVER_VERSION="580.95.05"'
    )


def old_gpu_labels(uuid: str, index: int = 0, host: str = "alpha") -> str:
    """Return the labels that dcgm-exporter writes if it runs with old names."""
    return f'gpu="{index}",uuid="{uuid}",device="nvidia{index}",Hostname="{host}"'


def instance_labels(uuid: str, instance: int, profile: str) -> str:
    """Return the labels of a MIG instance. ``uuid`` is that of its GPU."""
    return (
        f'gpu="0",UUID="{uuid}",pci_bus_id="00000000:07:00.0",device="nvidia0",'
        f'modelName="NVIDIA A100-SXM4-40GB",GPU_I_PROFILE="{profile}",GPU_I_ID="{instance}",Hostname="gamma"'
    )


def every_field(uuid: str) -> str:
    """Return an answer that has a plausible value of every field that is read, for one GPU."""
    values = {
        name: 0.25 if "_PROF_" in name and not name.endswith("_BYTES") else 7 for name in sorted(READ_FIELDS)
    }
    return exposition(gpu_labels(uuid), values)


def first_gpu(host: Host) -> str:
    gpu = host.gpus.order_by("index").first()
    assert gpu is not None
    return gpu.uuid
