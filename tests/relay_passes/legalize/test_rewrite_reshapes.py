"""Reshapes become views; a kernel on which TVM's pass fails stays."""

from __future__ import annotations

import pytest
from tvm import IRModule, relax, te, tirx
from tvm.error import InternalError
from tvm.ir import assert_structural_equal

from relay_passes.ir.functions import VIEW
from relay_passes.ir.graph import op_name
from relay_passes.legalize.shapes import rewrite_reshapes
from tests.relay_passes.graphs import GENERIC


def module(transposed: bool) -> IRModule:
    """exp of a reshape to [2, n], or of a transpose of [6 n + 1, 5, 2], as calls of kernels."""
    n = tirx.Var("n", "int64")
    shape = (n * 6 + 1, 5, 2) if transposed else (n * 2,)
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            moved = relax.op.permute_dims(x) if transposed else relax.op.reshape(x, (2, n))
            result = builder.emit_output(relax.op.exp(builder.emit(moved)))
        builder.emit_func_output(result)
    with GENERIC:
        return relax.transform.LegalizeOps()(builder.get())


def operators(mod: IRModule) -> list[str]:
    return [op_name(each.value) for block in mod["main"].body.blocks for each in block.bindings]


def test_a_reshape_becomes_a_view() -> None:
    assert operators(rewrite_reshapes()(module(False))) == ["relax.reshape", "relax.call_tir"]


@pytest.mark.parametrize(("taken", "is_view"), [(8, True), (3, False)])
def test_the_first_elements_of_an_output_are_no_view(taken: int, is_view: bool) -> None:
    """TVM only compares places of elements, which are those of the whole tensor."""

    def first(x: te.Tensor) -> te.Tensor:
        return te.compute((1, taken), lambda i, j: x[i, j], name="first")

    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((1, 8), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(builder.call_te(first, x)))
    mod = rewrite_reshapes()(builder.get())
    (kernel,) = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert relax.analysis.has_reshape_pattern(kernel)
    assert (VIEW in (kernel.attrs or {})) == is_view


def test_a_kernel_stays_at_which_tvm_fails() -> None:
    mod = module(True)
    with pytest.raises(InternalError, match="CanProveDivisible"):
        relax.transform.RewriteDataflowReshape()(mod)
    found = rewrite_reshapes()(mod)
    assert operators(found) == ["relax.call_tir", "relax.call_tir"]
    assert_structural_equal(found, mod)
