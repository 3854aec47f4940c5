"""Expressions of constants are transposed by transposing their constants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from relay_passes.ir.graph import DataflowGraph
from relay_passes.ir.quantization import is_transposable, transposed
from relay_passes.ir.rewrite import Bindings
from tests.relay_passes.graphs import bind, constant, module, run

op = relax.op
SHAPE = (2, 3, 4, 5)
RNG = np.random.default_rng(0)
INTEGERS = RNG.integers(-99, 99, SHAPE, dtype=np.int8)
SCALES = {n: RNG.random(n, np.float32) for n in SHAPE}


def dequantized(axis: int) -> relax.Expr:
    scale, zero = relax.const(SCALES[SHAPE[axis]]), relax.const(3, "int8")
    return bind(op.dequantize(relax.const(INTEGERS), scale, zero, axis=axis))


def reshaped() -> relax.Expr:
    scale, zero = relax.const(SCALES[3]), relax.const(np.arange(3, dtype=np.int8))
    vector = bind(op.dequantize(relax.const(INTEGERS[0, :, 0, 0]), scale, zero, axis=0))
    return bind(op.reshape(vector, (1, 3, 1, 1)))


def shifted() -> relax.Expr:
    wide = bind(op.astype(relax.const(INTEGERS), "int32"))
    zero = relax.const(np.arange(3, dtype=np.int32).reshape(3, 1, 1))
    return bind(op.astype(bind(op.subtract(wide, zero)), "float32"))


def swapped(x: relax.Expr) -> relax.Expr:
    return bind(op.permute_dims(x, [1, 0, 3, 2]))


@pytest.mark.sampled
@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: dequantized(0), id="dequantized along axis 0"),
        pytest.param(lambda: dequantized(1), id="dequantized along axis 1"),
        pytest.param(reshaped, id="a reshaped vector"),
        pytest.param(shifted, id="arithmetic with a shorter operand"),
        pytest.param(lambda: swapped(swapped(dequantized(3))), id="permuted"),
        pytest.param(lambda: constant(3, 1, 1), id="fewer axes"),
    ],
)
def test_the_values_in_another_order(make: Callable[[], relax.Expr], trims: bool) -> None:
    before = module(lambda x: op.add(x, make()), (SHAPE, "float32"))
    graph = DataflowGraph(before["main"].body.blocks[0])
    wanted = graph.value(len(graph.bindings) - 1).args[1]
    assert is_transposable(graph, wanted)
    block, order = Bindings(), (0, 2, 3, 1)
    result = transposed(graph, wanted, order, trims, block)
    turns = [b.value.op.name for b in block.bindings]
    assert "relax.permute_dims" not in turns
    x = relax.Var("x", relax.TensorType((2, 4, 5, 3), "float32"))
    block.bind(relax.Var("gv", x.ty), op.add(x, result))
    after = relax.Function(
        [x], relax.SeqExpr([relax.DataflowBlock(block.bindings)], block.bindings[-1].var), x.ty
    )
    array = np.zeros(SHAPE, np.float32)
    (reference,) = run(before, [array])
    mod = relax.transform.Normalize()(type(before)({"main": after}))
    (values,) = run(mod, [array.transpose(order).copy()])
    np.testing.assert_array_equal(values, reference.transpose(order))


def test_what_depends_on_an_input_is_not_turnable() -> None:
    mod = module(lambda x: op.exp(bind(op.multiply(x, constant(5)))), (SHAPE, "float32"))
    graph = DataflowGraph(mod["main"].body.blocks[0])
    assert not is_transposable(graph, graph.bindings[-1].var)
