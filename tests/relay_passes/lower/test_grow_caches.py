"""Attention absorbs the concatenations of its keys and values, and returns their results."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import IRModule, relax, tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.ir.decisions import DecisionLog
from relay_passes.lower.in_place import WHY, grow_caches
from relay_passes.lower.lower_regions import select_configs
from relay_passes.regions.merge_attention import merge_attention
from relay_passes.regions.partition import partition

op = relax.op
MACHINE = Machine("znver3", isa_named("avx2"))
HEADS, SIZE = 4, 32
Join = Callable[[relax.Expr, relax.Expr], relax.Expr]


def joined(past: relax.Expr, new: relax.Expr) -> relax.Expr:
    return op.concat([past, new], axis=2)


def parameters() -> list[relax.Var]:
    """q, past k, new k, past v, new v."""
    batch, past, new = (tirx.Var(name, "int64") for name in ("batch", "past", "new"))
    rows = {"q": new, "past_k": past, "new_k": new, "past_v": past, "new_v": new}
    return [
        relax.Var(name, relax.TensorType((batch, HEADS, count, SIZE), "float32"))
        for name, count in rows.items()
    ]


def step(join: Join = joined, besides: bool = False, dtype: str = "float32") -> IRModule:
    """One attention after two concatenations that are also outputs, with its regions formed."""
    builder = relax.BlockBuilder()
    given = parameters()
    with builder.function("main", given):
        with builder.dataflow():
            q, *parts = given
            k = builder.emit(join(*parts[:2]), "k")
            v = builder.emit(join(*parts[2:]), "v")
            other = [builder.emit(op.negative(k))] if besides else []
            rows = builder.emit(op.permute_dims(k, [0, 1, 3, 2]))
            scores = builder.emit(op.matmul(q, rows))
            weights = builder.emit(op.nn.softmax(scores, -1))
            out = builder.emit(op.matmul(weights, v))
            outputs = [builder.emit_output(each) for each in (out, k, v, *other)]
        builder.emit_func_output(relax.Tuple(outputs))
    mod = relax.transform.CanonicalizeBindings()(builder.get())
    formed = merge_attention(MACHINE.isa)(partition(MACHINE.isa, [])(mod))
    return select_configs(MACHINE, None)(formed)


def kernel_of(mod: IRModule) -> tuple[relax.GlobalVar, tirx.PrimFunc] | None:
    found = [each for each in mod.functions_items() if isinstance(each[1], tirx.PrimFunc)]
    return found[0] if found else None


def test_keys_and_values_become_results() -> None:
    decisions: DecisionLog = []
    after = grow_caches(MACHINE, decisions)(step())
    kernel = kernel_of(after)
    assert kernel is not None and kernel[0].name_hint == "tvm_hybrid_attention_growing"
    (decision,) = decisions
    assert decision.function == "tvm_hybrid_attention_growing" and WHY in decision.reason

    builder = relax.BlockBuilder()
    gvar = builder.add_func(kernel[1], "tvm_hybrid_attention_growing")
    given = parameters()
    with builder.function("main", given):
        with builder.dataflow():
            q, past_k, new_k, past_v, new_v = given
            whole = builder.normalize(joined(past_k, new_k)).ty
            types = [whole, whole, q.ty]
            arguments = [q, past_k, new_k, past_v, new_v]
            grown = builder.emit(relax.call_tir(gvar, arguments, out_ty=types))
            k, v, out = (builder.emit_output(relax.TupleGetItem(grown, i)) for i in range(3))
        builder.emit_func_output(relax.Tuple([out, k, v]))
    tvm.ir.assert_structural_equal(after, builder.get(), map_free_vars=True)


def test_what_stays_a_concatenation() -> None:
    def along_heads(past: relax.Expr, new: relax.Expr) -> relax.Expr:
        return op.concat([op.concat([past, new], axis=2)], axis=1)

    def three(past: relax.Expr, new: relax.Expr) -> relax.Expr:
        return op.concat([past, new, new], axis=2)

    for mod in (step(along_heads), step(three), step(besides=True)):
        assert kernel_of(grow_caches(MACHINE, [])(mod)) is None
