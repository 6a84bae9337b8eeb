"""Read the open rows, the order and the search of the tree of charges from an address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from django.http import HttpRequest

from portal.input_checks import display_value
from portal.reads.money.charge_tree import SORT_COLUMNS, TREE_LEVELS, Path, tree_levels
from portal.web.money.charges.addresses import DIMENSION_LABELS, requested_choice
from portal.web.page.access import InvalidAddress
from portal.wording.pages.money import charge_tree_texts, money_pages

# Dimensions of the first level.
GROUPINGS = ("cost_centre", "team", "project", "user", "type", "pool", "model", "bucket")
TREE_PARAMETERS = ("by", "sort", "open", "q")
NO_KEY = "~"  # the part of a path that stands for a row without a key
ID_LEVELS = frozenset({"team", "project", "user", "workload", "pool"})
MAX_OPENED = 40
MAX_PATH_LENGTH = 400
MAX_SEARCH_LENGTH = 80
MAX_DIGITS = 15
DEFAULT_SORT = "-charged"


@dataclass(frozen=True)
class TreeAddress:
    """The part of an address that describes the tree.

    ``opened`` maps each open row to the number of its first child rows that the page skips. ``levels`` is
    empty if the filters reach the last level. The page then shows charge lines only.
    """

    by: str
    levels: tuple[str, ...]
    sort: str
    opened: dict[Path, int]
    search: str


def tree_address(request: HttpRequest, where: Mapping[str, Any]) -> TreeAddress:
    """Return the state of the tree from the address. Raises InvalidAddress.

    Without ``?by=``, the first level is the one after the last filter.
    """
    filtered = [at for at, name in enumerate(TREE_LEVELS) if name in where and name != "user"]
    below = [name for name in TREE_LEVELS[max(filtered, default=-1) + 1 :] if name not in where]
    by = requested_choice(request, "by", GROUPINGS, below[0] if below else "")
    levels = () if not below else tree_levels(by, where)
    sorts = tuple(sign + name for name in SORT_COLUMNS for sign in ("", "-"))
    return TreeAddress(
        by=by,
        levels=levels,
        sort=requested_choice(request, "sort", sorts, DEFAULT_SORT),
        opened=_opened(request.GET.getlist("open"), levels),
        search=_search(request.GET.get("q", "")),
    )


def grouping_choices() -> list[tuple[str, str]]:
    """Return the choices of ``?by=`` with their labels."""
    return [(name, DIMENSION_LABELS[name]) for name in GROUPINGS]


def path_text(path: Path, skipped: int = 0) -> str:
    """Return the text of a path, such as ``CC-4110/5/12``, and ``@50`` if 50 rows below it are skipped."""
    keys = "/".join(_key_text(key) for key in path)
    return f"{keys}@{skipped}" if skipped else keys


def parse_path(text: str, levels: tuple[str, ...]) -> tuple[Path, int]:
    """Return the path and the number of skipped rows of a text. Raises InvalidAddress."""
    keys, _, skipped = text.partition("@")
    parts = keys.split("/") if keys else []
    is_number = skipped.isascii() and skipped.isdigit() and len(skipped) < MAX_DIGITS
    if len(text) > MAX_PATH_LENGTH or len(parts) >= len(levels) or (skipped and not is_number):
        raise invalid_path(text)
    try:
        path = tuple(_key(level, part) for level, part in zip(levels, parts, strict=False))
    except ValueError as error:
        raise invalid_path(text) from error
    return path, int(skipped or 0)


def invalid_path(text: str) -> InvalidAddress:
    """Return the refusal of a path."""
    allowed = charge_tree_texts.PATH_ALLOWED.format(most=MAX_OPENED)
    words = money_pages.FILTER_UNKNOWN
    return InvalidAddress(words.format(field="open", given=display_value(text), allowed=allowed))


def _opened(texts: list[str], levels: tuple[str, ...]) -> dict[Path, int]:
    """Return the open rows. The rows above an open row are open too."""
    if len(texts) > MAX_OPENED:
        raise invalid_path(texts[MAX_OPENED])
    opened: dict[Path, int] = {(): 0}
    for text in texts:
        path, skipped = parse_path(text, levels)
        for size in range(len(path)):
            opened.setdefault(path[:size], 0)
        opened[path] = skipped
    return opened


def _search(text: str) -> str:
    text = text.strip()
    if len(text) > MAX_SEARCH_LENGTH or (text and not text.isprintable()):
        allowed = charge_tree_texts.SEARCH_TOO_LONG.format(most=MAX_SEARCH_LENGTH)
        words = money_pages.FILTER_UNKNOWN
        raise InvalidAddress(words.format(field="q", given=display_value(text), allowed=allowed))
    return text


def _key_text(key: Any) -> str:
    if key is None or key == "":
        return NO_KEY
    return "%7E" if key == NO_KEY else quote(str(key), safe="")


def _key(level: str, text: str) -> Any:
    """Return the key that one part of a path stands for.

    Raises ValueError if the part is not a key of this level.
    """
    if level not in ID_LEVELS:
        key = "" if text == NO_KEY else unquote(text, errors="strict")
        if not key.isprintable():
            raise ValueError("key: not printable")
        return key
    if text == NO_KEY:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise ValueError("key: not a number")
    return int(text)
