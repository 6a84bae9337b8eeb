"""What every command has: the session, the group it joins, and --json."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from cli import VERSION, credentials
from cli.client import ApiClient

CommandFunction = Callable[..., Any]


class CliSession:
    """What one run of the program knows: the client, made when it is first needed, and whether JSON is wanted."""

    def __init__(self) -> None:
        self.json = False
        self._client: ApiClient | None = None

    @property
    def client(self) -> ApiClient:
        """Raises Problem when nobody is signed in."""
        if self._client is None:
            self._client = ApiClient(credentials.load_credentials())
        return self._client


def command(
    group: click.Group, name: str | None = None, **more: Any
) -> Callable[[CommandFunction], click.Command]:
    """A command of a group that has the session as its first argument, and --json."""

    def wrap(function: CommandFunction) -> click.Command:
        @wraps(function)
        def call(json_wanted: bool, *args: Any, **kwargs: Any) -> Any:
            session = click.get_current_context().find_root().obj
            session.json = session.json or json_wanted
            return function(session, *args, **kwargs)

        option = click.option("--json", "json_wanted", is_flag=True, help="Print the API's JSON.")
        made: click.Command = group.command(name, **more)(option(call))
        return made

    return wrap


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="gpupool")
@click.pass_context
def cli(context: click.Context) -> None:
    """One shared pool of GPUs: notebooks, jobs, reservations."""
    context.obj = context.obj or CliSession()
