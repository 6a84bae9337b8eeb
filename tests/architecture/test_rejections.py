"""Test that each rejection code has a sentence.

Also test that each rejection passes the numbers that its sentence names.
"""

from __future__ import annotations

import ast
import string
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from portal.api.base.errors import api_exception_handler
from portal.edge.workspaces.access import AccessRefusal
from portal.edge.workspaces.error_pages import ACCESS_REFUSAL_STATUS
from portal.web.page.service_form import ServiceForm
from portal.wording.pages.workspace_pages import ACCESS_REFUSALS
from portal.wording.reason_texts import REASONS
from portal.wording.refusal_texts import REFUSALS, refusal_sentence
from scheduler.core.reasons import ReasonCode
from scheduler.core.rejection import OperationRejected
from scheduler.sync.agent_rejections import AGENT_REJECTIONS
from tests.architecture.sources import SERVER, modules


def raised(exception: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield (place, call) for each call that constructs the exception."""
    for path, tree in modules(*SERVER):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) == exception and node.args:
                yield f"{path}:{node.lineno}", node


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


def literal_code(code: ast.expr) -> str | None:
    """Return the rejection code if it is a literal, or None if it is another expression."""
    if isinstance(code, ast.Constant):
        return str(code.value)
    if isinstance(code, ast.Attribute) and isinstance(code.value, ast.Name) and code.value.id == "ReasonCode":
        return str(ReasonCode[code.attr])
    return None


def literal_numbers(call: ast.Call) -> set[str] | None:
    """Return the names of the numbers that the call passes, or None if some names are not literals."""
    if len(call.args) < 2:
        return set()
    numbers = call.args[1]
    if isinstance(numbers, ast.Dict):
        keys = numbers.keys
    elif isinstance(numbers, ast.Tuple) and all(isinstance(pair, ast.Tuple) for pair in numbers.elts):
        keys = [pair.elts[0] for pair in numbers.elts if isinstance(pair, ast.Tuple)]
    else:
        return None
    if not all(isinstance(key, ast.Constant) for key in keys):
        return None
    return {str(key.value) for key in keys if isinstance(key, ast.Constant)}


def fields_of(text: str) -> set[str]:
    return {field for _, field, _, _ in string.Formatter().parse(text) if field}


def test_each_rejection_has_a_sentence_and_each_sentence_a_rejection() -> None:
    codes = defaultdict(list)
    for place, call in raised("OperationRejected"):
        if (code := literal_code(call.args[0])) is not None:
            codes[code].append(place)
    missing = codes.keys() - REFUSALS.keys() - REASONS.keys() - AGENT_REJECTIONS.keys()
    assert not missing, {code: codes[code] for code in missing}
    assert not REFUSALS.keys() - codes.keys(), "sentences of codes that are never raised"
    assert not REFUSALS.keys() & REASONS.keys(), "two sentences for one code"


def test_each_refusal_of_a_notebook_has_a_status_and_a_page() -> None:
    assert ACCESS_REFUSALS.keys() == ACCESS_REFUSAL_STATUS.keys() == set(AccessRefusal)


def test_each_rejection_of_an_agent_has_a_sentence_and_each_sentence_a_rejection() -> None:
    codes = {literal_code(call.args[0]): place for place, call in raised("AgentRejected")}
    passed_on = {literal_code(call.args[0]) for _, call in raised("OperationRejected")}
    assert not codes.keys() - {None} - AGENT_REJECTIONS.keys(), codes
    assert not AGENT_REJECTIONS.keys() - codes.keys() - passed_on, "sentences of codes that are never raised"


@pytest.mark.parametrize(
    ("exception", "sentences"), [("OperationRejected", REFUSALS), ("AgentRejected", AGENT_REJECTIONS)]
)
def test_a_rejection_gives_the_numbers_that_its_sentence_names(
    exception: str, sentences: Mapping[str, object]
) -> None:
    checked = 0
    for place, call in raised(exception):
        code, numbers = literal_code(call.args[0]), literal_numbers(call)
        sentence = sentences.get(code or "")
        if numbers is None or not isinstance(sentence, str):
            continue
        missing = fields_of(sentence) - numbers
        assert not missing, f"{place}: {code} lacks {missing}"
        checked += 1
    assert checked >= 10


@pytest.mark.parametrize("code", sorted(code for code in REFUSALS if isinstance(REFUSALS[code], str)))
def test_a_rejection_reaches_api_and_form_with_its_code_and_sentence(code: str) -> None:
    text = REFUSALS[code]
    assert isinstance(text, str)
    numbers = {name: 3600 if name == "seconds" else f"the {name}" for name in fields_of(text)}
    rejection = OperationRejected(code, numbers, field="name")
    answer = api_exception_handler(rejection, {})
    assert answer is not None and answer.status_code == 409 and answer.data is not None
    assert answer.data["code"] == code and answer.data["numbers"] == numbers
    sentence = refusal_sentence(rejection)
    assert answer.data["errors"] == [{"field": "name", "value": None, "message": sentence}]

    def reject() -> None:
        raise rejection

    form = ServiceForm({})
    assert form.carry_out(reject) is None
    assert form.non_field_errors() == [sentence]
