"""The grammar of a selection's text."""

import pytest

from hookscope._core._errors import SelectionError
from hookscope._core._output_path import output_keys
from hookscope._core._path import Index, Span
from hookscope._core._pattern import Want, parse


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ()),
        ("(root)", ()),
        ("encoder.layers.3", ("encoder", "layers", "3")),
        ("h[3:6].mlp", ("h", Index((Span(3, 6),)), "mlp")),
        ("h[2]", ("h", Index((2,)))),
        ("h[-2:]", ("h", Index((Span(-2),)))),
        ("h[::2]", ("h", Index((Span(None, None, 2),)))),
        ("h[0, 3,5]", ("h", Index((0, 3, 5)))),
        ("h[0][1]", ("h", Index((0,)), Index((1,)))),
        ("[0]", (Index((0,)),)),
        ("(root)[0].a", (Index((0,)), "a")),
        ("_orig_mod.encoder._checkpoint_wrapped_module.0", ("encoder", "0")),
        ("_orig_mod", ()),
        ("module.fc", ("module", "fc")),
    ],
)
def test_paths_are_read(text: str, path: tuple[str | Index, ...]) -> None:
    pattern, excluded = parse(text)
    assert (pattern.path, pattern.wants, pattern.call, excluded) == (path, (), None, False)


@pytest.mark.parametrize(
    ("text", "wants"),
    [
        (":output", (Want("output"),)),
        ("fc:input,output", (Want("input"), Want("output"))),
        ("fc:input, output", (Want("input"), Want("output"))),
        ("fc.weight:param_grad/preclip", (Want("param_grad", "preclip"),)),
        ("fc.weight:param_grad/*", (Want("param_grad", "*"),)),
        ("lstm:output[1][0]", (Want("output", "", (1, 0)),)),
        ("layer:output.last_hidden_state", (Want("output", "", ("last_hidden_state",)),)),
        ('x:output["logits"]', (Want("output", "", ("logits",)),)),
        ("x:output['a:b]@.,']", (Want("output", "", ("a:b]@.,",)),)),
        ("x:output[0],output_grad/micro[1].y", (Want("output", "", (0,)), Want("output_grad", "micro", (1, "y")))),
        ("loss:loss", (Want("loss"),)),
    ],
)
def test_kinds_labels_and_output_paths_are_read(text: str, wants: tuple[Want, ...]) -> None:
    assert parse(text)[0].wants == wants


@pytest.mark.parametrize("text", ["block@2:output", "block:output@2"])
def test_a_call_is_read_in_either_place(text: str) -> None:
    pattern, _ = parse(text)
    assert (pattern.path, pattern.wants, pattern.call, pattern.text) == (("block",), (Want("output"),), 2, "block:output")


def test_a_call_without_a_kind_and_a_tilde_are_read() -> None:
    assert parse("block@0")[0].call == 0
    assert parse("~block")[1] is True
    assert parse("~h[1:3]")[0].path == ("h", Index((Span(1, 3),)))


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        ("h[3:6", 1, "'[' is never closed"),
        ("x:output[0", 8, "'[' is never closed"),
        ('x:output["a]', 8, "'[' is never closed"),
        ("h3]", 2, "']' closes no bracket"),
        ("h[a]", 2, "bad index 'a'; write a whole number or a range, as in h[2], h[-2:], h[3:6], h[0,3,5]"),
        ("h[0,b]", 4, "bad index 'b'"),
        ("h[]", 2, "bad index ''"),
        ("h[1:2:0]", 2, "bad index '1:2:0': the step of a range cannot be 0"),
        ("h[1]x", 4, "after ']' comes '.', '[', '@', ':' or the end"),
        ("a..b", 2, "a part of the path is missing"),
        ("a.", 2, "a part of the path is missing"),
        (".a", 0, "a part of the path is missing"),
        ("a.[0]", 2, "a part of the path is missing"),
        ("~~a", 1, "'~' stands once, in front of the whole selection"),
        ("a.~b", 2, "'~' stands once, in front of the whole selection"),
        ("fc:", 3, "a kind is missing; choose one of input, output, output_grad, param, param_grad, update, loss, scalar"),
        ("fc:output,", 10, "a kind is missing"),
        ("fc:outptu", 3, "unknown kind 'outptu': did you mean 'output'? choose one of input, output, output_grad, param, param_grad,"),
        ("fc:zzz", 3, "unknown kind 'zzz': choose one of input,"),
        ("fc:output:input", 3, "unknown kind 'output:input'"),
        ("fc:param_grad/", 13, "a label is missing after '/', as in 'param_grad/local'"),
        ("x:output[logits]", 8, "bad output path '[logits]'; write [1], [\"key\"] or .name"),
        ("x:output[0]y", 11, "bad output path 'y'"),
        ("b@", 1, "'' is no call; a call is a whole number from 0, as in 'block@2'"),
        ("b@-1", 1, "'-1' is no call"),
        ("b@x:output", 1, "'x' is no call"),
        ("b@1:output@1", 10, "the call is given twice"),
    ],
)
def test_malformed_text_is_named_with_its_position(text: str, position: int, why: str) -> None:
    with pytest.raises(SelectionError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"malformed selection {text!r} at position {position}: {why}")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("", ()),
        ("[1][0]", (1, 0)),
        (".a.b", ("a", "b")),
        ("[\"k\"]['q'][-1]", ("k", "q", -1)),
        ("[(0, 1)]", ("[(0, 1)]",)),
        ('["a"b"]', ('["a"b"]',)),
    ],
)
def test_output_paths_become_keys_and_whatever_is_none_is_one_key(text: str, keys: tuple[int | str, ...]) -> None:
    assert output_keys(text) == keys
