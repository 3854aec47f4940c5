"""Fusion groups operators as TVM does and keeps the names of values."""

from __future__ import annotations

from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from relay_passes.ir.rewrite import with_names
from relay_passes.legalize.schedule_generic import fuse_operators
from tests.relay_passes.graphs import GENERIC

TENSOR = relax.TensorType((8, 8), "float32")


def legalized() -> IRModule:
    """add(exp(x)), its sums over rows, their difference and its tanh, which is the output."""
    builder, x = relax.BlockBuilder(), relax.Var("x", TENSOR)
    with builder.function("main", [x]):
        with builder.dataflow():
            exp = builder.emit(relax.op.exp(x), "exp_n0_")
            both = builder.emit(relax.op.add(exp, x), "add_n1_")
            total = builder.emit(relax.op.sum(both, [1], True), "sum_n2_")
            rest = builder.emit(relax.op.subtract(both, total), "sub_n3_")
            result = builder.emit_output(relax.op.tanh(rest))
        builder.emit_func_output(result)
    with GENERIC:
        mod = relax.transform.LegalizeOps()(builder.get())
        return relax.transform.AnnotateTIROpPattern()(mod)


def names(mod: IRModule) -> list[str]:
    return [str(each.var.name) for block in mod["main"].body.blocks for each in block.bindings]


def test_fused_values_keep_their_names() -> None:
    mod = legalized()
    fused = relax.transform.FuseOps()(mod)
    assert names(fused) == ["lv", "sum_n2_", "gv"]
    found = fuse_operators()(mod)
    assert names(found) == ["add_n1_", "sum_n2_", "gv"]
    assert_structural_equal(found, fused)


def test_other_names_change_nothing_else() -> None:
    main = legalized()["main"]
    bindings = [each for block in main.body.blocks for each in block.bindings]
    renamed = with_names(main, {bindings[1].var: "both", bindings[-1].var: "result"})
    assert_structural_equal(renamed, main)
    assert names(IRModule({"main": renamed})) == ["exp_n0_", "both", "sum_n2_", "sub_n3_", "result"]
    assert with_names(main, {}).same_as(main)
