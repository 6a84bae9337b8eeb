"""Read CSV files that are imported, and print what their import does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, TextIO

from cli import output
from cli.errors import CliError
from cli.session import CliSession

# Windows-1252 has all characters of Latin-1; spreadsheets write it if they do not write UTF-8.
ENCODINGS = ("utf-8-sig", "cp1252")


def import_file(session: CliSession, path: str, file: BinaryIO, *, preview: bool, why: str) -> dict[str, Any]:
    """Show what the import at ``path`` would do; carry it out unless a line is wrong or ``preview`` is given.

    Returns the last answer. Nothing is printed.
    """
    body = {"csv": file_text(file)}
    answer = session.client.post(f"{path}preview/", body)
    if not preview and not answer["wrong"]:
        answer = session.client.post(path, body | {"why": why})
    return dict(answer)


def print_import(session: CliSession, answer: dict[str, Any]) -> None:
    """Print each line of an import. Raises CliError if a line is wrong."""
    if session.json:
        output.print_json(answer)
    else:
        output.print_table(
            ("line", "what", "state", "problem"),
            (
                (str(row["number"]), row["subject"], row["state"], " ".join(row["problems"]))
                for row in answer["lines"]
            ),
            "The file has no lines.",
        )
    if answer["wrong"]:
        raise CliError(f"{answer['wrong']} lines are wrong; nothing is imported.")


@contextmanager
def new_private_file(path: str) -> Iterator[TextIO]:
    """Open a new file that only its owner may read. It is removed if an error occurs.

    The file is made before the import, so that links are not lost if it can't be made.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise CliError(
            f"{path} cannot be made: {error.strerror}; allowed: a file that does not exist."
        ) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            yield file
    except BaseException:
        os.unlink(path)
        raise


def file_text(file: BinaryIO) -> str:
    """Return the text of a file. Raises CliError if it is no text in one of ENCODINGS."""
    content = file.read()
    for encoding in ENCODINGS:
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise CliError("The file is no text; allowed: a CSV file in UTF-8 or in Latin-1.")
