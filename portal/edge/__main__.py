"""Run the edge process: ``python -m portal.edge``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from urllib.parse import urlsplit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

DEFAULT_PORT = 8471


def main(arguments: list[str] | None = None) -> int:
    """Parse the arguments and serve until SIGTERM or SIGINT."""
    import django

    django.setup()
    from django.conf import settings

    public_port = urlsplit(settings.GPUPOOL_EDGE_URL).port
    parser = argparse.ArgumentParser(
        prog="python -m portal.edge", description="Agents, workspaces and live events."
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; a proxy in front terminates TLS"
    )
    parser.add_argument("--port", type=port_number, default=public_port or DEFAULT_PORT)
    parser.add_argument(
        "--metrics-port",
        type=port_number,
        default=settings.GPUPOOL_EDGE_METRICS_PORT,
        help="serve /metrics on this port of loopback",
    )
    options = parser.parse_args(arguments)
    try:
        asyncio.run(serve(options.host, options.port, options.metrics_port))
    except OSError as error:
        print(
            f"gpupool edge: cannot listen on {options.host}:{options.port}: {error.strerror}", file=sys.stderr
        )
        return 1
    return 0


def port_number(text: str) -> int:
    """Parse a TCP port number. Raises ArgumentTypeError."""
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; allowed: 1 to 65535")
    return int(text)


async def serve(host: str, port: int, metrics_port: int) -> None:
    """Serve until the process receives SIGTERM or SIGINT."""
    from portal.edge.server import running_server

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running_server(host, port, metrics_port):
        await stop.wait()


if __name__ == "__main__":
    sys.exit(main())
