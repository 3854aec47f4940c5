"""Updates of caches of fixed size become a kernel of their own."""

from __future__ import annotations

import pytest
from tvm import IRModule, relax, te, tirx
from tvm.ir import assert_structural_equal

from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.functions import IN_PLACE, KERNEL
from relay_passes.lower.in_place import ROW_UPDATE, update_rows


def rows(name: str, count: int, columns: tirx.Expr | int = 8) -> relax.Var:
    batch = tirx.Var("batch", "int64")
    return relax.Var(name, relax.TensorType((batch, 2, count, columns), "float32"))


def written(new: te.Tensor, before: te.Tensor, past: te.Tensor) -> te.Tensor:
    return te.compute(past.shape, lambda b, h, j, d: past[b, h, j, d] + new[b, h, 0, d] * before[b])


def module(marked: bool, columns: tirx.Expr | int = 8) -> IRModule:
    """main(new, before, past), which calls one kernel, marked as a row update or not."""
    builder = relax.BlockBuilder()
    past = rows("past", 9, columns)
    batch = past.ty.shape[0]
    new = relax.Var("new", relax.TensorType((batch, 2, 1, columns), "float32"))
    before = relax.Var("before", relax.TensorType((batch,), "int64"))
    marks = {ROW_UPDATE: [0, 1, 2]} if marked else {}
    with builder.function("main", [new, before, past]):
        with builder.dataflow():
            call = builder.call_te(
                written, new, before, past, primfunc_name_hint="written", primfunc_attrs=marks
            )
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    return builder.get()


def test_the_kernel_takes_the_past_first_and_may_write_over_it() -> None:
    decisions: DecisionLog = []
    mod = update_rows(2, decisions)(module(marked=True))
    (kernel,) = (each for each in mod.functions_items() if isinstance(each[1], tirx.PrimFunc))
    gvar, function = kernel
    assert gvar.name_hint == "tvm_hybrid_row_update"
    assert function.attrs[KERNEL] == "row_update"
    assert [list(map(int, pair)) for pair in function.attrs[IN_PLACE]] == [[0, 0]]
    new, before, past = mod["main"].params
    (call,) = (each.value for each in mod["main"].body.blocks[0].bindings)
    assert list(call.args[1].fields) == [past, new, before]
    assert call.args[0].same_as(gvar)
    (decision,) = decisions
    assert (decision.op, decision.taken, decision.kernel) == ("written", True, "row_update")


@pytest.mark.parametrize(("marked", "columns"), [(False, 8), (True, tirx.Var("columns", "int64"))])
def test_other_functions_and_rows_of_dynamic_width_are_left(
    marked: bool, columns: tirx.Expr | int
) -> None:
    mod = module(marked, columns)
    assert_structural_equal(update_rows(2, [])(mod), mod)
