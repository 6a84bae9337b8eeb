"""Use JupyterLab as a browser does: open its page, kernels and terminals. For tests and measurements."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from yarl import URL


class JupyterTimeout(Exception):
    """Raised when Jupyter does not answer as expected."""


@dataclass
class JupyterClient:
    """A client of one Jupyter server at ``url``.

    ``headers`` are sent with every request. Cookies are kept as in a browser.
    """

    session: aiohttp.ClientSession
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    cookies: dict[str, str] = field(default_factory=dict)

    def _headers(self, **more: str) -> dict[str, str]:
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        xsrf = {"X-XSRFToken": self.cookies["_xsrf"]} if "_xsrf" in self.cookies else {}
        return {**self.headers, **xsrf, **({"Cookie": cookies} if cookies else {}), **more}

    async def ask(self, method: str, path: str, body: Any = None, **more: str) -> tuple[int, str]:
        """Send a request and return (status, text) of the response.

        Redirects are not followed.
        """
        data = None if body is None else json.dumps(body)
        request = self.session.request(
            method,
            URL(self.url + path, encoded=True),
            data=data,
            headers=self._headers(**more),
            allow_redirects=False,
        )
        async with request as response:
            self.cookies.update({name: morsel.value for name, morsel in response.cookies.items()})
            return response.status, await response.text()

    async def start_kernel(self) -> str:
        """Start a new Python kernel and return its id."""
        status, text = await self.ask("POST", "/api/kernels", {"name": "python3"})
        if status != 201:
            raise JupyterTimeout(f"starting a kernel: {status} {text[:300]}")
        return str(json.loads(text)["id"])

    async def socket(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket to this server."""
        connection = self.session.ws_connect(
            URL(self.url + path, encoded=True), headers=self._headers(), max_msg_size=1 << 26
        )
        return await connection

    async def run(self, kernel: str, code: str, seconds: float = 60) -> str:
        """Execute ``code`` in a kernel and return its output."""
        async with asyncio.timeout(seconds):
            socket = await self.socket(f"/api/kernels/{kernel}/channels")
            try:
                return await _execute(socket, code)
            finally:
                await socket.close()

    async def type_into_terminal(self, line: str, wanted: str, seconds: float = 20) -> str:
        """Open a terminal, type one line, and return its output up to ``wanted``."""
        status, text = await self.ask("POST", "/api/terminals", {})
        if status != 200:
            raise JupyterTimeout(f"opening a terminal: {status} {text[:300]}")
        socket = await self.socket(f"/terminals/websocket/{json.loads(text)['name']}")
        shown = ""
        async with asyncio.timeout(seconds):
            try:
                await socket.send_str(json.dumps(["stdin", line + "\r"]))
                while wanted not in shown:
                    kind, *rest = await socket.receive_json()
                    shown += rest[0] if kind == "stdout" else ""
            finally:
                await socket.close()
        return shown


async def _execute(socket: aiohttp.ClientWebSocketResponse, code: str) -> str:
    message_id = uuid.uuid4().hex
    header = {
        "msg_id": message_id,
        "msg_type": "execute_request",
        "username": "",
        "session": message_id,
        "version": "5.3",
        "date": dt.datetime.now(dt.UTC).isoformat(),
    }
    content = {
        "code": code,
        "silent": False,
        "store_history": False,
        "user_expressions": {},
        "allow_stdin": False,
    }
    await socket.send_str(
        json.dumps(
            {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        )
    )
    printed, replied, idle = "", False, False
    while not (replied and idle):
        message = await socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise JupyterTimeout(f"the kernel's connection ended: {message}")
        reply = json.loads(message.data)
        if reply["parent_header"].get("msg_id") != message_id:
            continue
        kind = reply["msg_type"]
        if kind == "stream":
            printed += reply["content"]["text"]
        elif kind == "error":
            raise JupyterTimeout("\n".join(reply["content"]["traceback"]))
        replied = replied or kind == "execute_reply"
        idle = idle or (kind == "status" and reply["content"]["execution_state"] == "idle")
    return printed


class NotebookTimeout(Exception):
    """Raised when a step of a notebook launch does not happen in time."""


async def first_output(jupyter: Any) -> None:
    """Load the JupyterLab page, start a kernel and run a calculation in it.

    Raises NotebookTimeout if the page fails or the kernel's answer is wrong.
    """
    status, _ = await jupyter.ask("GET", "/lab")
    if status != 200:
        raise NotebookTimeout(f"the JupyterLab page has status {status}, not 200")
    kernel = await jupyter.start_kernel()
    printed = await jupyter.run(kernel, "print(6*7)")
    if printed != "42\n":
        raise NotebookTimeout(f"the kernel printed {printed!r}")
