"""Define the root command group, the session passed to every command, and ``--json``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from cli import VERSION, credentials
from cli.announcements import print_announcement
from cli.client import ApiClient

CommandFunction = Callable[..., Any]


class CliSession:
    """The state of one invocation of the command line.

    ``client`` is created on first use. ``json`` is True if the answer is to be printed as JSON.
    """

    def __init__(self) -> None:
        self.json = False
        self._client: ApiClient | None = None

    @property
    def client(self) -> ApiClient:
        """Return the client. Raises CliError if the user is not signed in."""
        if self._client is None:
            self._client = ApiClient(credentials.load_credentials(), on_headers=print_announcement)
        return self._client


def command(
    group: click.Group, name: str | None = None, **more: Any
) -> Callable[[CommandFunction], click.Command]:
    """Return a decorator that adds a function to ``group`` as a command with ``--json``.

    The function gets the session as its first argument.
    """

    def wrap(function: CommandFunction) -> click.Command:
        @wraps(function)
        def call(json_wanted: bool, *args: Any, **kwargs: Any) -> Any:
            session = click.get_current_context().find_root().obj
            session.json = session.json or json_wanted
            return function(session, *args, **kwargs)

        option = click.option("--json", "json_wanted", is_flag=True, help="Print the API's JSON.")
        new_command: click.Command = group.command(name, **more)(option(call))
        return new_command

    return wrap


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="gpupool")
@click.pass_context
def cli(context: click.Context) -> None:
    """One shared pool of GPUs: notebooks, jobs, reservations."""
    context.obj = context.obj or CliSession()
