"""TVM's own DynamicQuantizeLinear becomes the chain that is recognised; look-alikes stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tvm import IRModule, ir, relax

from relay_passes.ir.dynamic_quantize import emit_dynamic_quantize, match_dynamic_quantize
from relay_passes.ir.graph import DataflowGraph
from relay_passes.quantize.row_scales import stock_dynamic_quantize
from tests.relay_passes.graphs import run

SHAPE = (3, 5)
op = relax.op


def function(emit: Callable[..., Sequence[relax.Expr]], *more: tuple[int, ...]) -> IRModule:
    """main(x, ...) -> what `emit` returns for a builder and the inputs."""
    builder = relax.BlockBuilder()
    inputs = [
        relax.Var(f"x{i}", relax.TensorType(shape, "float32"))
        for i, shape in enumerate((SHAPE, *more))
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            outputs = [builder.emit_output(value) for value in emit(builder, *inputs)]
        builder.emit_func_output(relax.Tuple(outputs))
    return relax.transform.CanonicalizeBindings()(builder.get())


def as_imported(
    builder: relax.BlockBuilder,
    x: relax.Expr,
    other: relax.Expr | None = None,
    levels: float = 255.0,
    most: int = 255,
    axis: int | None = None,
    dtype: str = "uint8",
    negated: bool = True,
) -> tuple[relax.Var, ...]:
    """The chain that TVM's importer writes; the options make look-alikes."""
    zero = relax.const(0.0, "float32")
    high = builder.emit(op.maximum(zero, builder.emit(op.max(x, axis=axis))))
    smallest = op.min(x if other is None else other, axis=axis)
    low = builder.emit(op.minimum(zero, builder.emit(smallest)))
    extent = builder.emit(op.subtract(high, low))
    scale = builder.emit(op.divide(extent, relax.const(levels, "float32")))
    exact = builder.emit(op.divide(low, scale))
    moved = op.subtract(zero, exact) if negated else op.subtract(exact, zero)
    clipped = builder.emit(op.clip(builder.emit(moved), 0, most))
    zero_point = builder.emit(op.astype(builder.emit(op.round(clipped)), dtype))
    if axis is not None or dtype != "uint8":
        return scale, zero_point
    q = builder.emit(op.quantize(x, scale, zero_point, axis=0, out_dtype="uint8"))
    return q, scale, zero_point


def test_the_chain_becomes_ours() -> None:
    before = function(as_imported)
    after = stock_dynamic_quantize()(before)
    graph = DataflowGraph(after["main"].body.blocks[0])
    found = [match_dynamic_quantize(graph, i) for i in range(len(graph.bindings))]
    (chain,) = [match for match in found if match is not None]
    assert chain.x.same_as(after["main"].params[0])
    # The chain has all bindings.
    assert chain.positions == tuple(range(len(graph.bindings)))
    ours = function(lambda builder, x: emit_dynamic_quantize(builder, x))
    written = DataflowGraph(ours["main"].body.blocks[0])
    assert sorted(map(_operator, graph.bindings)) == sorted(map(_operator, written.bindings))


def _operator(binding: relax.VarBinding) -> str:
    return str(binding.value.op.name)


def test_twice_is_once() -> None:
    after = stock_dynamic_quantize()(function(as_imported))
    ir.assert_structural_equal(stock_dynamic_quantize()(after), after)


@pytest.mark.parametrize(
    "options",
    [
        {"levels": 254.0},
        {"most": 254},
        {"axis": 1},
        {"dtype": "int8"},
        {"negated": False},
        {"other": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_only_looks_like_it_is_left(options: dict) -> None:
    if "other" in options:
        before = function(lambda builder, x, y: as_imported(builder, x, y), SHAPE)
    else:
        before = function(lambda builder, x: as_imported(builder, x, **options))
    ir.assert_structural_equal(stock_dynamic_quantize()(before), before)


def test_two_tensors_have_a_chain_each() -> None:
    before = function(
        lambda builder, x, y: (*as_imported(builder, x), *as_imported(builder, y)), (4,)
    )
    graph = DataflowGraph(stock_dynamic_quantize()(before)["main"].body.blocks[0])
    found = [match_dynamic_quantize(graph, i) for i in range(len(graph.bindings))]
    assert sum(match is not None for match in found) == 2


def test_the_numbers_are_the_same_and_zeros_those_of_onnxruntime() -> None:
    before = function(as_imported)
    after = stock_dynamic_quantize()(before)
    rng = np.random.default_rng(0)
    for factor, offset in ((1.0, 0.0), (0.01, 3.0), (40.0, -200.0)):
        x = (rng.standard_normal(SHAPE) * factor + offset).astype(np.float32)
        for old, new in zip(run(before, [x]), run(after, [x]), strict=True):
            np.testing.assert_array_equal(old, new)
    q, scale, zero_point = run(after, [np.zeros(SHAPE, np.float32)])
    assert not q.any() and scale == 1 and zero_point == 0
