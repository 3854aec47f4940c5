"""The entry that returns large constants."""

from __future__ import annotations

import numpy as np
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal

from relay_passes.ir.entries import WEIGHTS_ENTRY, weights_in
from relay_passes.vm.entries import LEAST_BYTES, weights_entry

LARGE = np.arange(LEAST_BYTES // 4, dtype=np.float32)


def added(*constants: relax.Expr) -> IRModule:
    """x -> x + each of the constants."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((len(LARGE),), "float32"))
    with builder.function("main", [x]):
        value: relax.Expr = x
        for constant in constants:
            value = builder.emit(relax.op.add(value, constant))
        builder.emit_func_output(value)
    return builder.get()


def test_large_constants_are_handed_out_once() -> None:
    large, other = relax.const(LARGE), relax.const(LARGE[::-1].copy())
    mod = weights_entry()(added(large, relax.const(1.0, "float32"), other, large))
    (binding,) = mod[WEIGHTS_ENTRY].body.blocks[0].bindings
    assert list(binding.value.fields) == [large, other]
    assert not mod[WEIGHTS_ENTRY].params
    assert weights_in(mod) == [large.value, other.value]
    assert_structural_equal(weights_entry()(mod), mod)


def test_without_large_constants_nothing_is_added() -> None:
    mod = added(relax.const(LARGE[:-1].sum()))
    assert_structural_equal(weights_entry()(mod), mod)
    assert weights_in(mod) == []
