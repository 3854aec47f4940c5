"""Operators that NumPy computes match ONNX's reference implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.tvm_hybrid.small_models import run_python
from tvm_hybrid.frontend.onnx.evaluate import PLAIN_OPERATORS

F = np.array([[1.5, -2.0, 0.0], [np.inf, np.nan, 3.0]], np.float32)
G = np.array([[1.5], [np.nan]], np.float32)
N = np.array([[2**31 - 1, -5, 0], [7, 1, -(2**31)]], np.int32)
B = np.array([[True, False, True], [False, False, True]])
VALUE = helper.make_tensor("value", TensorProto.INT64, [1], [7])
L = np.int64

CASES: list[tuple[str, dict[str, Any], list[np.ndarray]]] = [
    *((name, {}, [F, G]) for name in ("Add", "Sub", "Mul", "Equal")),
    *((name, {}, [N, N[:, ::-1].copy()]) for name in ("Add", "Sub", "Mul", "Equal")),
    *((name, {}, [F, G]) for name in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
    *((name, {}, [B, B[:1]]) for name in ("And", "Or", "Xor", "Equal")),
    *((f"Bitwise{name}", {}, [N, N[:1]]) for name in ("And", "Or", "Xor")),
    ("Not", {}, [B]),
    ("Identity", {}, [N]),
    ("Where", {}, [B, F, G]),
    ("Concat", {"axis": 0}, [F, F]),
    ("Concat", {"axis": -1}, [N, N, N]),
    ("ConstantOfShape", {}, [np.array([2, 3], L)]),
    ("ConstantOfShape", {}, [np.array([], L)]),
    ("ConstantOfShape", {"value": VALUE}, [np.array([2, 0, 3], L)]),
    ("Expand", {}, [G, np.array([4, 1, 3], L)]),
    ("Expand", {}, [F, np.array([1], L)]),
    ("Gather", {}, [F, np.array([[1, -1], [0, 0]], L)]),
    ("Gather", {"axis": -1}, [N, np.array(-2, L)]),
    ("Transpose", {}, [F[:, :, None]]),
    ("Transpose", {"perm": [2, 0, 1]}, [F[:, :, None]]),
]


def test_all_of_them_are_compared() -> None:
    assert {name for name, _, _ in CASES} == set(PLAIN_OPERATORS)


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("name, attributes, inputs", CASES)
def test_results_are_those_of_the_reference(
    name: str, attributes: dict[str, Any], inputs: list[np.ndarray], opset: int
) -> None:
    opset = max(opset, onnx.defs.get_schema(name).since_version) if "Bitwise" in name else opset
    names = [f"x{number}" for number in range(len(inputs))]
    node = helper.make_node(name, names, ["y"], **attributes)
    items = [
        helper.make_tensor_value_info(each, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for each, x in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph([node], "g", items, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    with np.errstate(all="ignore"):
        (wanted,) = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
        found = PLAIN_OPERATORS[name](*inputs, **attributes)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted, strict=True)


def test_an_index_outside_is_an_error() -> None:
    with pytest.raises(IndexError):
        PLAIN_OPERATORS["Gather"](F, np.array([2]))


_FOLD = """
import sys
from onnx import TensorProto, helper
from tvm_hybrid.frontend import import_onnx
one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1])
nodes = [helper.make_node("Mul", ["one", "one"], ["m"]), helper.make_node("Add", ["x", "m"], ["y"])]
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
graph = helper.make_graph(nodes, "g", [x], [y], [one])
import_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
sys.exit("onnx.reference" in sys.modules)
"""


def test_the_reference_is_not_imported_for_them() -> None:
    done = run_python(_FOLD)
    assert done.returncode == 0, done.stderr
