"""Errors name the wrong argument, and the command line names its own option."""

from __future__ import annotations

import pickle

import pytest

from microkernels.base.errors import Argument
from tvm_hybrid.cli.base.options import in_options
from tvm_hybrid.errors import (
    CompileError,
    InputValueError,
    OutputError,
    ShapeError,
    TargetError,
    TvmHybridError,
)


@pytest.mark.parametrize(
    ("argument", "text", "option"),
    [
        (Argument("num_threads"), "num_threads", "--threads"),
        (Argument("check_indices"), "check_indices", "--check-indices"),
        (Argument("strict"), "strict", "--strict"),
        (Argument("shapes"), "shapes", "--shape or --dim"),
        (Argument("shapes", "x"), "shapes['x']", "--shape x"),
        (Argument("shapes", "x", 1), "shapes['x'][1]", "dimension 1 of --shape x"),
        (Argument("shapes", "my seq", is_size=True), "shapes['my seq']", "--dim 'my seq'"),
        (Argument("shapes", value={"x": (1, 3)}), "shapes={'x': (1, 3)}", "--shape x=1x3"),
        (Argument("shapes", value={"x": (7,)}), "shapes={'x': (7,)}", "--shape x=7"),
        (Argument("shapes", value={"s": ()}), "shapes={'s': ()}", "--shape s=scalar"),
        (Argument("shapes", value={"a b": (1, 2)}), "shapes={'a b': (1, 2)}", "--shape 'a b=1x2'"),
        (Argument("shapes", value={"it's": 1}), 'shapes={"it\'s": 1}', "--dim 'it'\"'\"'s=1'"),
        (Argument("values"), "values", "--value"),
        (Argument("values", "my k"), "values['my k']", "--value 'my k'"),
        (
            Argument("values", value={"axes": [0, 1], "k": 1, "go": True}),
            "values={'axes': [0, 1], 'k': 1, 'go': True}",
            "--value 'axes=[0, 1]' --value k=1 --value go=true",
        ),
        (Argument("threads", value="socket:0"), "threads='socket:0'", "--threads socket:0"),
    ],
)
def test_the_command_line_names_its_option(argument: Argument, text: str, option: str) -> None:
    error = ShapeError("give ", argument, ", or not")
    assert str(error) == f"give {text}, or not"
    assert in_options(error) == f"give {option}, or not"
    assert error.argument == argument.name


def test_an_error_may_name_an_argument_that_its_message_does_not() -> None:
    error = CompileError("unknown precision 'f8'", argument="precision")
    assert str(error) == "unknown precision 'f8'" and error.argument == "precision"
    assert in_options(error) == "--precision: unknown precision 'f8'"


def test_other_errors_are_as_they_are() -> None:
    for error in (TvmHybridError("a"), OutputError("a"), TargetError("a")):
        assert error.argument == "" and str(error) == in_options(error) == "a"
    assert str(TvmHybridError()) == ""


def test_errors_can_be_pickled() -> None:
    error = InputValueError(Argument("values"), " names 'w'", inputs=("x",))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.argument, again.inputs) == ("values names 'w'", "values", ("x",))
