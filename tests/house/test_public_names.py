"""The names a user sees: sorted, each with a home, each importable, each explained."""

import ast
import importlib
import inspect

import pytest

import hookscope

from ._source import PACKAGE, parse


def names_for_the_type_checker() -> dict[str, str]:
    """Name -> module of the imports that `__init__` shows to type checkers."""
    [block] = [node for node in parse(PACKAGE / "__init__.py").body if isinstance(node, ast.If)]
    return {alias.name: node.module or "" for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_all_is_sorted_and_equals_the_lazy_table() -> None:
    assert hookscope.__all__ == sorted(hookscope._HOME)


def test_a_type_checker_sees_the_same_names_from_the_same_homes() -> None:
    assert names_for_the_type_checker() == hookscope._HOME


def test_dir_shows_every_public_name() -> None:
    assert {*hookscope.__all__, "__version__"} == set(dir(hookscope))


@pytest.mark.parametrize("name", hookscope.__all__)
def test_a_public_name_is_importable_from_its_home(name: str) -> None:
    home = importlib.import_module(f"hookscope.{hookscope._HOME[name]}")
    assert getattr(hookscope, name) is getattr(home, name)


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="module 'hookscope' has no attribute 'wacth'"):
        _ = hookscope.wacth


@pytest.mark.parametrize("name", hookscope.__all__)
def test_a_public_name_explains_itself_with_an_example(name: str) -> None:
    value = getattr(hookscope, name)
    text = inspect.getdoc(value) or ""
    assert text, f"{name} has no docstring"
    is_signal = isinstance(value, type) and issubclass(value, BaseException)  # raised or warned by hookscope, never built by a user
    assert is_signal or ">>> " in text, f"the docstring of {name} shows no example"


@pytest.mark.parametrize("name", hookscope.__all__)
def test_every_public_method_has_a_docstring(name: str) -> None:
    value = getattr(hookscope, name)
    if isinstance(value, type):
        bare = [key for key, item in vars(value).items() if not key.startswith("_") and _is_documentable(item) and not inspect.getdoc(item)]
        assert bare == []


def _is_documentable(item: object) -> bool:
    return inspect.isfunction(item) or isinstance(item, property | classmethod | staticmethod)
