"""Kernels are not fused if FuseTIR cannot match their sizes with the call's; others are."""

from __future__ import annotations

import pytest
from tvm import IRModule, relax, tirx
from tvm.error import InternalError
from tvm.ir import assert_structural_equal

from microkernels.base.tvm_compat.relax import OP_PATTERN, OPAQUE, set_type
from relay_passes.legalize.schedule_generic import unmatched_sizes
from tests.relay_passes.graphs import GENERIC


def module(size: tirx.PrimExpr, told: tirx.PrimExpr, *symbols: tirx.Var) -> IRModule:
    """exp of a kernel's result of `size` elements, which main's types state as `told`."""
    builder = relax.BlockBuilder()
    shape = relax.Var("sizes", relax.ShapeType(list(symbols)))
    with builder.function("main", [shape]):
        with builder.dataflow():
            zeros = builder.emit(relax.op.zeros(relax.ShapeExpr([size]), "float32"))
            result = builder.emit_output(relax.op.exp(zeros))
        builder.emit_func_output(result)
    with GENERIC:
        mod = relax.transform.LegalizeOps()(builder.get())
        mod = relax.transform.AnnotateTIROpPattern()(mod)
    return _retold(mod, told)


def _retold(mod: IRModule, told: tirx.PrimExpr) -> IRModule:
    """States both results with the size `told`, as TVM writes a size that it proves equal."""
    main, ty = mod["main"], relax.TensorType([told], "float32")
    (block,) = main.body.blocks
    first, last = block.bindings
    renamed = relax.DataflowVar("lv", ty)
    zeros = relax.Call(first.value.op, first.value.args, first.value.attrs, [ty])
    kernel, operands = last.value.args
    operands = relax.Tuple([renamed, *operands.fields[1:]])
    exp = relax.Call(last.value.op, [kernel, operands], last.value.attrs, [ty])
    set_type(zeros, ty)
    set_type(exp, ty)
    result = relax.Var("gv", ty)
    bindings = [relax.VarBinding(renamed, zeros), relax.VarBinding(result, exp)]
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    function = relax.Function(main.params, body, ty, main.is_pure, main.attrs)
    mod = IRModule(dict(mod.functions_items()), mod.attrs)
    mod.update_func(mod.get_global_var("main"), function)
    return mod


def patterns(mod: IRModule) -> dict[str, int]:
    return {
        str(name.name_hint): int(function.attrs[OP_PATTERN])
        for name, function in mod.functions_items()
        if isinstance(function, tirx.PrimFunc)
    }


def sizes() -> tuple[tirx.Var, tirx.Var]:
    return tirx.Var("n", "int64"), tirx.Var("m", "int64")


FACTORS = "expected an integer argument with value 5"


@pytest.mark.parametrize(
    ("told", "message"), [("factor", FACTORS), ("name", "VarRemapGet"), ("form", "VarRemapGet")]
)
def test_what_fuse_tir_fails_at_is_not_fused(told: str, message: str) -> None:
    n, m = sizes()
    size = m * 5 if told == "name" else tirx.max(m - 1, 0) * 5
    mod = module(size, {"factor": n * 600, "name": n * 5, "form": n * 600 + 5}[told], n, m)
    with pytest.raises(InternalError, match=message):
        relax.transform.FuseTIR()(relax.transform.FuseOps()(mod))
    found = unmatched_sizes()(mod)
    assert OPAQUE not in patterns(mod).values()
    assert set(patterns(found).values()) == {OPAQUE}
    relax.transform.FuseTIR()(relax.transform.FuseOps()(found))


def test_what_fuse_tir_takes_stays() -> None:
    n, m = sizes()
    mod = module(m * 5, m * 5, n, m)
    assert_structural_equal(unmatched_sizes()(mod), mod)
    relax.transform.FuseTIR()(relax.transform.FuseOps()(mod))
