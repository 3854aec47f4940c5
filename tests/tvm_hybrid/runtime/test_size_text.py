"""Sizes in text form have one meaning for numbers and variables."""

from __future__ import annotations

import pytest
from tvm import tirx
from tvm.sym import Analyzer

from tvm_hybrid.runtime.tensors import evaluate, is_relation, names_in, renamed, text_of


@pytest.mark.parametrize(
    ("text", "value", "names"),
    [
        ("n", 7, {"n"}),
        ("past + n", 10, {"past", "n"}),
        ("2 * (past + n) - 1", 19, {"past", "n"}),
        ("n // 2", 3, {"n"}),
        ("n/2", 3, {"n"}),
        ("12", 12, set()),
    ],
)
def test_expressions(text: str, value: int, names: set[str]) -> None:
    assert evaluate(text, {"n": 7, "past": 3}) == value
    assert names_in(text) == names
    assert is_relation(text) == (text != "n")


@pytest.mark.parametrize(
    "text", ["a.b", "p2o.Dim.0", "f(x)", "a + ", "?", "a" * 300, "1.5", "a < b"]
)
def test_what_is_no_expression_is_a_name(text: str) -> None:
    assert not is_relation(text)
    assert names_in(text) == {text}
    assert evaluate(text, {text: 4}) == 4
    with pytest.raises(KeyError):
        evaluate(text, {"other": 1})


def test_variables_are_written_as_they_are_read() -> None:
    a, b = tirx.Var("a", "int64"), tirx.Var("b", "int64")
    for size in (a, a + b, a * 2 + b, tirx.floordiv(a + 3, 2), a - b):
        text = text_of(size)
        assert isinstance(text, str)
        for numbers in ({"a": 5, "b": 2}, {"a": 0, "b": 0}):
            constants = {
                a: tirx.IntImm("int64", numbers["a"]),
                b: tirx.IntImm("int64", numbers["b"]),
            }
            analyzer = Analyzer()
            for variable, number in constants.items():
                analyzer.bind(variable, number)
            assert int(analyzer.simplify(size)) == evaluate(text, numbers)
    assert text_of(tirx.IntImm("int64", 5)) == 5
    assert text_of(tirx.Select(a < b, a, b)) is None


def test_names_are_exchanged() -> None:
    assert renamed("past + n", {"past": "p", "n": "(x + 1)"}) == "p + (x + 1)"
