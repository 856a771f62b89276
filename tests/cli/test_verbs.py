"""The list of verbs: what each file must offer."""

from pathlib import Path

import pytest

import hookscope._cli
from hookscope._cli._verbs import VERBS, Verb, word


def test_every_file_of_a_verb_is_in_the_list() -> None:
    files = {path.stem for path in Path(hookscope._cli.__file__).parent.glob("*.py")}
    assert {f"_{word(verb)}" for verb in VERBS} <= files
    assert {"show", "diagnose", "demo"} <= {word(verb) for verb in VERBS}


@pytest.mark.parametrize("verb", VERBS, ids=word)
def test_a_verbs_docstring_is_its_help_and_has_an_example(verb: Verb) -> None:
    assert f"    hookscope {word(verb)}" in verb.__doc__
    assert callable(verb.arguments)
    assert callable(verb.run)
