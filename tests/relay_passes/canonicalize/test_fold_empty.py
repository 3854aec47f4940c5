"""Operators on tensors without elements are not computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from microkernels.base.errors import CompileError
from relay_passes.canonicalize.constants import fold_empty
from tests.relay_passes.graphs import module


@I.ir_module
class Before:
    @R.function
    def main(
        past: R.Tensor((1, 0, 4), "float32"),
        new: R.Tensor((1, 2, 4), "float32"),
        a: R.Tensor((2, 0), "float32"),
        b: R.Tensor((0, 3), "float32"),
    ):
        with R.dataflow():
            lv = R.nn.relu(past)
            lv1 = R.concat((lv, new), axis=1)
            lv2 = R.nn.relu(lv1)
            lv3 = R.concat((new, past, lv2), axis=1)
            lv4 = R.max(past, axis=[1])
            lv5 = R.matmul(a, b)
            gv = (lv3, lv4, lv5)
            R.output(gv)
        return gv


@I.ir_module
class After:
    @R.function
    def main(
        past: R.Tensor((1, 0, 4), "float32"),
        new: R.Tensor((1, 2, 4), "float32"),
        a: R.Tensor((2, 0), "float32"),
        b: R.Tensor((0, 3), "float32"),
    ):
        with R.dataflow():
            lv2 = R.nn.relu(new)
            lv3 = R.concat((new, lv2), axis=1)
            lv4 = R.broadcast_to(R.const(-np.inf, "float32"), (1, 4))
            lv5 = R.broadcast_to(R.const(0, "float32"), (2, 3))
            gv = (lv3, lv4, lv5)
            R.output(gv)
        return gv


@I.ir_module
class Pieces:
    @R.function
    def main(x: R.Tensor((2, 5), "float32")):
        with R.dataflow():
            lv = R.split(x, [0, 2, 2], axis=-1)
            lv1 = lv[1]
            lv2 = lv[3]
            lv3 = R.nn.relu(lv1)
            lv4 = R.nn.relu(lv2)
            gv = (lv3, lv4)
            R.output(gv)
        return gv


@I.ir_module
class CutPieces:
    @R.function
    def main(x: R.Tensor((2, 5), "float32")):
        with R.dataflow():
            lv1 = R.strided_slice(x, [1], [0], [2])
            lv2 = R.strided_slice(x, [1], [2], [5])
            lv3 = R.nn.relu(lv1)
            lv4 = R.nn.relu(lv2)
            gv = (lv3, lv4)
            R.output(gv)
        return gv


@pytest.mark.parametrize(("before", "after"), [(Before, After), (Pieces, CutPieces)])
def test_folding(before: tvm.IRModule, after: tvm.IRModule) -> None:
    assert_structural_equal(fold_empty()(before), after)
    assert_structural_equal(fold_empty()(after), after)


NOTHING = (2, 0)
# An operator on x: [2, 0] or on w: [0, 3], and the value of every element of its result.
IDENTITIES = [
    ("float32", lambda x: relax.op.sum(x, 1), 0),
    ("int64", lambda x: relax.op.prod(x, 1), 1),
    ("float16", lambda x: relax.op.max(x, 1), -np.inf),
    ("float64", lambda x: relax.op.min(x, 1), np.inf),
    ("int32", lambda x: relax.op.max(x, 1), -(2**31)),
    ("int64", lambda x: relax.op.min(x, 1), 2**63 - 1),
    ("uint8", lambda x: relax.op.max(x, 1), 0),
    ("int8", lambda x: relax.op.min(x, 1), 127),
    ("bool", lambda x: relax.op.max(x, 1), False),
    ("bool", lambda x: relax.op.min(x, 1), True),
    ("float32", lambda x: relax.op.mean(x), np.nan),
    ("int32", lambda x: relax.op.mean(x, 1), 0),
    ("float32", lambda x: relax.op.variance(x, 1), np.nan),
    ("float32", lambda x: relax.op.nn.pad(x, [0, 0, 1, 2], "constant", 5.0), 5),
    ("float32", lambda x: relax.op.einsum((x, x), "ij,kj->ik"), 0),
]


def folded(body: Callable, *inputs: tuple[tuple[int, ...], str]) -> relax.Expr:
    """The expression that the pass leaves in place of an operator."""
    main = fold_empty()(module(body, *inputs))["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    assert len(bindings) < 2
    return bindings[0].value if bindings else main.body.body


@pytest.mark.parametrize(("dtype", "body", "number"), IDENTITIES)
def test_what_no_elements_amount_to(dtype: str, body: Callable, number: float) -> None:
    value = folded(body, (NOTHING, dtype))
    assert_structural_equal(value.ty, module(body, (NOTHING, dtype))["main"].ret_ty)
    if value.ty.ndim:
        assert value.op.name == "relax.broadcast_to"
        value = value.args[0]
    np.testing.assert_array_equal(value.value.numpy(), np.array(number, dtype))


@pytest.mark.parametrize("kind", ["conv1d", "conv2d", "conv3d"])
def test_a_convolution_without_channels_is_zero(kind: str) -> None:
    axes = int(kind[4])
    shapes = (1, 0, *[4] * axes), (3, 0, *[3] * axes)
    value = folded(getattr(relax.op.nn, kind), *((shape, "float32") for shape in shapes))
    assert value.op.name == "relax.broadcast_to"
    assert value.args[0].value.numpy() == 0
    assert tuple(map(int, value.ty.shape.values)) == (1, 3, *[2] * axes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_an_empty_result_is_a_constant(dtype: str) -> None:
    value = folded(relax.op.permute_dims, (NOTHING, dtype))
    assert value.value.numpy().shape == (0, 2)
    assert str(value.value.dtype) == dtype


def test_updates_that_are_not_there_change_nothing() -> None:
    inputs = [((3, 4), "float32"), ((0, 1), "int64"), ((0, 4), "float32")]
    mod = module(lambda x, i, u: relax.op.nn.relu(relax.op.scatter_nd(x, i, u)), *inputs)
    expected = module(lambda x, i, u: relax.op.nn.relu(x), *inputs)
    assert_structural_equal(fold_empty()(mod), expected)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: relax.op.argmax(x, 1),
        lambda x: relax.op.take(x, relax.const(np.zeros(1, np.int64)), axis=1),
        lambda x: relax.op.nn.pad(x, [0, 0, 1, 2], "reflect"),
    ],
)
def test_no_choice_among_no_elements(body: Callable) -> None:
    with pytest.raises(CompileError, match=r"of float32\[2x0\].*no elements"):
        fold_empty()(module(body, (NOTHING, "float32")))
