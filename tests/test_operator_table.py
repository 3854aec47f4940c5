"""The page of operators agrees with the front end's table."""

from typing import Any

import onnx
import pytest

from tools.operator_table import MARK, PAGE, refusals, tables
from tvm_hybrid.frontend.onnx.operators import OPERATORS


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text().partition(MARK)[2] == tables().partition(MARK)[2], (
        "run `python -m tools.operator_table`"
    )


def test_every_standard_operator_is_named_once() -> None:
    text = PAGE.read_text().partition("## ai.onnx\n")[2].partition("## ai.onnx.ml")[0]
    listed = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]
    missing = text.partition("Not supported: ")[2].strip().removesuffix(".").split(", ")
    known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    assert len({*listed, *missing}) == len(listed) + len(missing)
    assert f"| [ai.onnx](#aionnx) | {len(listed)} | {len(missing)} |" in PAGE.read_text()
    assert known <= {*listed, *missing}


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        ("Dropout", "it is or may be in training mode; export it for inference"),  # its own
        ("MaxPool", "... spatial axes, where 1 to 3 are supported"),  # of a function it shares
        ("CumSum", "axis ... of a tensor of rank ..."),  # of a function inside another
    ],
)
def test_refusals_are_found(operator: str, said: str) -> None:
    assert said in refusals(OPERATORS["", operator].convert)


def test_refusals_of_other_folders_are_left_out() -> None:
    def convert(_inputs: Any, _attrs: Any) -> None:
        raise ValueError("two words")

    assert refusals(convert) == []
