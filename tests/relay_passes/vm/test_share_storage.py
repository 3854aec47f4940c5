"""Dynamic tensors with disjoint lifetimes get the same memory."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax, te, tirx
from tvm.ir import assert_structural_equal
from tvm.script import relax as R

from relay_passes.ir.graph import op_name
from relay_passes.vm.memory import share_storage

N = tirx.Var("n", "int64")
BESIDE = tirx.Var("m", "int64")


def chain(widths: Sequence[int | tirx.Expr], kept: Sequence[int] = ()) -> tvm.IRModule:
    """x[n] -> one tensor after another with `widths` floats, each computed from its predecessor.

    Returns the last tensor, and those whose numbers are in `kept`.
    """
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([N], "float32"))
    with builder.function("main", [x], attrs={"relax.force_pure": True}):
        made: list[relax.Expr] = [x]
        for width in widths:
            shape = relax.ShapeExpr([width])
            new = builder.emit(relax.op.builtin.alloc_tensor(shape, "float32", 0))
            builder.emit(R.call_packed("kernel", made[-1], new, ty_args=[R.Tuple]))
            made.append(new)
        result = [made[-1], *(made[number + 1] for number in kept)]
        builder.emit_func_output(relax.Tuple(result))
    return relax.transform.LowerAllocTensor()(builder.get())


def bytes_of(mod: tvm.IRModule) -> list[tirx.Expr]:
    """The size of every storage, in order."""
    values = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    return [each.args[0].values[0] for each in values if op_name(each).endswith("alloc_storage")]


def storages(mod: tvm.IRModule) -> list[relax.Expr]:
    """The storage of every tensor, in order."""
    values = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    return [each.args[0] for each in values if op_name(each).endswith("alloc_tensor")]


def test_what_is_not_needed_at_the_same_time_shares_the_larger_size() -> None:
    apart = chain([N, N * 8, N * 3, N * 8, N * 2])
    mod = share_storage()(apart)
    first, second, third, fourth, result = storages(mod)
    assert first == third != second == fourth
    assert result not in (first, second)
    before, after = bytes_of(apart), bytes_of(mod)
    assert len(before) == 5
    assert len(after) == 3
    assert_structural_equal(after[0], te.max(before[0], before[2]))


def test_what_is_returned_has_memory_of_its_own() -> None:
    places = storages(share_storage()(chain([N, N, N, N, N], kept=[1])))
    assert places.count(places[1]) == places.count(places[4]) == 1
    assert len(set(places)) == 4


def test_known_sizes_and_those_that_no_argument_tells_stay() -> None:
    for width in (8, BESIDE):
        mod = chain([width] * 5)
        assert_structural_equal(share_storage()(mod), mod)
