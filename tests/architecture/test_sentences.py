"""Test that sentences for people are built in ``portal/wording`` only."""

from __future__ import annotations

import ast
import re
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

from tests.architecture.sources import modules

# Packages whose modules contain text for people: pages, API responses, notices.
SEARCHED = ("portal", "scheduler", "telemetry")
MIN_WORDS = 4
SMALLEST_SENTENCE = 2  # minimum number of words if the text ends with ".", "!" or "?"

# Places that may hold sentences, with the reason.
EXEMPT_PATHS = {
    "portal/wording/": "the sentences themselves",
    "portal/management/": "output of commands for the administrator",
    "scheduler/management/": "output of commands for the administrator",
    "telemetry/management/": "output of commands for the administrator",
    "portal/edge/__main__.py": "output of a command for the administrator",
    "scheduler/core/model/serialization.py": "errors in files that the administrator's commands read",
    "portal/edge/agents/": "the protocol with agents: its texts appear in the agent's log only",
    "scheduler/sync/": "the protocol with agents: its texts appear in the agent's log only",
    "portal/edge/runtime/metrics.py": "describes a metric beside its declaration",
}
# Keyword arguments that may hold sentences, with the reason.
EXEMPT_KEYWORDS = {
    "help_text": "describes a field of a form, a model or the API beside its declaration",
    "label": "names a field of a form beside its declaration",
    "description": "describes an endpoint in the API's schema",
    "summary": "describes an endpoint in the API's schema",
}
# Exceptions for programmers. No page shows their text.
PROGRAMMING_ERRORS = {"ValueError", "TypeError", "RuntimeError", "KeyError", "LookupError", "AssertionError"}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


def sentence_of(node: ast.expr) -> str:
    """Return the text of a string literal or f-string, with ``…`` for each value; "" for other nodes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""


def has_sentence(node: ast.expr) -> bool:
    """Return True if the literal is a sentence, or if it is an f-string that contains a complete sentence."""
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    return is_sentence(sentence_of(node)) or any(
        isinstance(part, ast.Constant) and is_sentence(str(part.value)) for part in parts
    )


def is_sentence(text: str) -> bool:
    """Return True if the text ends like a sentence or begins like one, and has enough words.

    A text that contains "; allowed: " counts as one that ends like a sentence. SQL does not begin like a
    sentence, because its first or second word is in capitals.
    """
    words = re.findall(r"[^\W\d_][\w'’-]*", text)
    clean = text.strip()
    if clean.endswith((".", "!", "?")) or "; allowed: " in clean:
        return len(words) >= SMALLEST_SENTENCE and " " in clean
    return len(words) >= MIN_WORDS and bool(re.match(r"[A-Z][a-z'’]*[ ,]", clean)) and not words[1].isupper()


class SentenceFinder(ast.NodeVisitor):
    """Collects (line, text) for each sentence of a module that is not exempt."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node, ast.Assert):
            self.visit(node.test)
            return
        if isinstance(node, ast.keyword) and node.arg in EXEMPT_KEYWORDS:
            return
        if isinstance(node, ast.Call) and _is_exempt_call(node):
            return
        if isinstance(node, ast.Constant | ast.JoinedStr) and has_sentence(node):
            self.found.append((node.lineno, sentence_of(node)))
            return
        self.generic_visit(node)


def _is_exempt_call(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in PROGRAMMING_ERRORS
    return (
        isinstance(function, ast.Attribute)
        and function.attr in LOG_METHODS
        and isinstance(function.value, ast.Name)
        and function.value.id == "log"
    )


def sentences_outside_wording() -> Iterator[str]:
    """Yield path, line and text of each sentence outside the exempt places."""
    for path, tree in modules(*SEARCHED):
        if path.startswith(tuple(EXEMPT_PATHS)):
            continue
        finder = SentenceFinder()
        finder.visit(tree)
        yield from (f"{path}:{line}: {text}" for line, text in finder.found)


def test_sentences_are_built_in_wording_only() -> None:
    found = list(sentences_outside_wording())
    assert not found, "\n".join(["move these to portal/wording:", *found])


def test_the_search_finds_sentences_and_nothing_else() -> None:
    source = """
def page(name: str) -> None:
    \"\"\"Show a page. This docstring is no sentence on it.\"\"\"
    show("The price is set.")
    show(f"{name} is closed. {name} stays.")
    show("Where the hours go")
    show(f"SELECT one FROM two WHERE three = {name}")
    show("one two three four", label="Name of the new host")
    log.warning("The host is gone.")
    raise ValueError("The caller gave no name.")
"""
    finder = SentenceFinder()
    finder.visit(ast.parse(source))
    assert [line for line, _ in finder.found] == [4, 5, 6]


# Not split: each condition narrows the type of a node for the next one.
def test_each_text_gets_the_values_that_it_names() -> None:
    """Check each call of ``format`` on a constant of ``portal/wording``.

    The call must pass exactly the values that the constant names as ``{name}``.
    """
    texts = {
        (PurePath(path).stem, name.id): node.value.value
        for path, tree in modules("portal/wording")
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for name in node.targets
        if isinstance(name, ast.Name)
    }
    checked = 0
    for path, tree in modules("portal"):
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            text = node.func.value
            if node.func.attr != "format" or not isinstance(text, ast.Attribute):
                continue
            if not isinstance(text.value, ast.Name) or (text.value.id, text.attr) not in texts:
                continue
            template = str(texts[text.value.id, text.attr])
            named = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
            given = {keyword.arg for keyword in node.keywords} | ({""} if node.args else set())
            assert named == given, f"{path}:{node.lineno}: {text.attr}"
            checked += 1
    assert checked > 100


if __name__ == "__main__":
    found = list(sentences_outside_wording())
    print("\n".join(found))
    print(len(found), Counter("/".join(line.split("/")[:3]) for line in found).most_common())
