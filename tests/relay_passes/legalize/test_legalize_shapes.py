"""A kernel turns a shape into a tensor, whether the call has the shape or a variable."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import tvm_hybrid
from relay_passes.ir.graph import is_call
from relay_passes.legalize.schedule_generic import legalize_operators
from relay_passes.lower_module import lower_module
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import TARGET, module, run


@pytest.mark.parametrize("bound", [False, True])
def test_shape_to_tensor(bound: bool) -> None:
    builder, n = relax.BlockBuilder(), tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            shape: relax.Expr = relax.ShapeExpr([n * 2, 4])
            shape = builder.emit(shape) if bound else shape
            result = builder.emit_output(relax.op.shape_to_tensor(shape))
        builder.emit_func_output(result)
    program = tvm.compile(legalize_operators()(builder.get()), target="llvm")
    machine = relax.VirtualMachine(program, tvm.cpu())
    sizes = machine["main"](tvm.runtime.tensor(np.zeros((3, 4), np.float32)))
    assert sizes.numpy().tolist() == [6, 4]


def test_a_size_is_part_of_the_kernel_that_reads_it() -> None:
    """A negative index into a dynamic axis needs at most one kernel before the one that reads."""
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")

    def body(x: relax.Expr, places: relax.Expr, y: relax.Expr) -> relax.Expr:
        return relax.op.scatter_elements(x, places, y, axis=0, reduction="add")

    shapes = ((n, 4), "float32"), ((m, 4), "int64"), ((m, 4), "float32")
    mod = module(body, *shapes)  # type: ignore[arg-type]
    lowered = lower_module(mod, PipelineOptions(TARGET))
    values = [binding.value for block in lowered["main"].body.blocks for binding in block.bindings]
    kernels = [each.args[0].name_hint for each in values if is_call(each, "relax.call_tir")]
    assert "scatter" in kernels[-1] and not any(each == "shape_to_tensor" for each in kernels)
    assert len(kernels) <= 2
    program = tvm_hybrid.compile(mod, num_threads=1, keep_dynamic=True)
    rng = np.random.default_rng(0)
    for rows, count in ((1, 1), (5, 0), (5, 7)):
        x, y = (rng.integers(-9, 9, (each, 4)).astype(np.float32) for each in (rows, count))
        places = rng.integers(-rows, rows, (count, 4))
        wanted = x.copy()
        np.add.at(wanted, (places, np.arange(4)), y)  # small integers: sums are exact
        np.testing.assert_array_equal(program.run(x, places, y)[0].numpy(), wanted)


@pytest.mark.parametrize("rows", [(1, 4), (3, 3), (2, 2)])
def test_sizes_that_may_be_1_are_looked_at_when_it_runs(rows: tuple[int, int]) -> None:
    given, wanted = rows
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")

    def body(x: relax.Expr, _: relax.Expr) -> relax.Expr:
        return relax.op.broadcast_to(x, relax.ShapeExpr([2, m, 3]))

    mod = module(body, ((n, 3), "float32"), ((m,), "float32"))  # type: ignore[arg-type]
    x = np.random.default_rng(0).standard_normal((given, 3)).astype(np.float32)
    (found,) = run(legalize_operators()(mod), [x, np.zeros(wanted, np.float32)])
    np.testing.assert_array_equal(found, np.broadcast_to(x, (2, wanted, 3)))
