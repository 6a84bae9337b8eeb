"""Test that class names are unique and that folders have few modules."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import PurePath

from tests.architecture.sources import modules, nodes

# Class names that exist more than once, with the reason. At most ten.
REPEATED_CLASS_NAMES = {
    "Command": "Django's name for management commands; also the model of an order to an agent",
    "Meta": "Django's name for the options of a model",
    "Kind": "the kinds of submissions and of faults of readings, as Submission.Kind and ReadingFault.Kind",
}
MAX_MODULES_IN_A_FOLDER = 18
FOLDERS_OF_COMMANDS = ("benchmarks",)  # `./run bench NAME` runs the module with this name


def test_a_class_name_is_defined_once() -> None:
    places = defaultdict(set)
    for path, tree in modules():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(f"{path}:{node.lineno}")
    repeated = {name: sorted(paths) for name, paths in places.items() if len(paths) > 1}
    assert repeated.keys() == REPEATED_CLASS_NAMES.keys(), repeated
    assert len(REPEATED_CLASS_NAMES) <= 10


def test_a_folder_has_few_modules() -> None:
    folders = Counter(str(PurePath(path).parent) for path, _ in modules() if not path.endswith("__init__.py"))
    too_large = {
        folder: count
        for folder, count in folders.items()
        if count > MAX_MODULES_IN_A_FOLDER and folder not in FOLDERS_OF_COMMANDS
    }
    assert not too_large
