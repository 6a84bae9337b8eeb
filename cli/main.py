"""Run the command line and turn errors into exit codes."""

from __future__ import annotations

import os
import sys

import click

from cli.commands import (
    account,
    alerts,
    capacity,
    fleet,
    gpus,
    health_rules,
    hosts,
    jobs,
    maintenance,
    notebooks,
    queue,
    quotas,
    removal,
    reports,
    reservations,
    telemetry,
    use,
    workloads,
)
from cli.commands.money import adjustments, chargeback, cost_centres, exports, prices, statements
from cli.commands.people import access, accounts, channels, identity, own_account, unix
from cli.errors import EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_USAGE, CliError
from cli.session import cli

COMMAND_MODULES = (
    notebooks,
    jobs,
    workloads,
    reports,
    use,
    queue,
    reservations,
    quotas,
    prices,
    fleet,
    hosts,
    gpus,
    capacity,
    maintenance,
    health_rules,
    alerts,
    removal,
    cost_centres,
    adjustments,
    chargeback,
    exports,
    statements,
    telemetry,
    accounts,
    unix,
    access,
    channels,
    identity,
    own_account,
    account,
)  # imported because each module adds its commands to ``cli``


def run(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code. Errors go to standard error."""
    try:
        cli.main(args=arguments, prog_name="gpupool", standalone_mode=False)
    except CliError as problem:
        _print_error(problem.message, *problem.lines)
        return problem.code
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except click.UsageError as problem:
        _print_error(
            problem.format_message(), *([f"See: {problem.ctx.command_path} --help"] if problem.ctx else [])
        )
        return problem.exit_code
    except click.ClickException as problem:
        _print_error(problem.format_message())
        return problem.exit_code
    except BrokenPipeError:
        # The program that reads the output, such as head, has ended. Discard the remaining output, because
        # Python would otherwise report another broken pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UnicodeError:
        _print_error("an argument or an answer is not valid text.")
        return EXIT_USAGE
    except OSError as problem:
        # The error concerns a local file, because client.py turns network errors into CliError.
        name = problem.filename2 or problem.filename or "this machine"
        _print_error(f"{name}: {problem.strerror}")
        return EXIT_REFUSED
    return 0


def _print_error(first: str, *more: str) -> None:
    print(f"gpupool: {first}", *(f"  {line}" for line in more), sep="\n", file=sys.stderr)
