"""The entry that releases large results."""

from __future__ import annotations

import pytest
from tvm import IRModule, relax, tirx
from tvm.ir import assert_structural_equal

from relay_passes.ir.entries import RELEASE_ENTRY
from relay_passes.vm.entries import RELEASE_LEAST_BYTES as LEAST_BYTES
from relay_passes.vm.entries import release_entry

ROWS = tirx.Var("rows", "int64")


def negated(shape: tuple[int | tirx.Var, ...], count: int = 1) -> IRModule:
    """x -> -x, or a tuple of `count` of them."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        results = [builder.emit(relax.op.negative(x)) for _ in range(count)]
        builder.emit_func_output(results[0] if count == 1 else relax.Tuple(results))
    return builder.get()


@pytest.mark.parametrize("shape, count", [((LEAST_BYTES // 4,), 1), ((LEAST_BYTES // 8,), 2)])
def test_large_results_are_let_go(shape: tuple[int], count: int) -> None:
    before = negated(shape, count)
    after = release_entry()(before)
    builder = relax.BlockBuilder(before)
    with builder.function(RELEASE_ENTRY, []):
        builder.emit_func_output(relax.Tuple([]))
    assert_structural_equal(after, builder.get())
    assert_structural_equal(release_entry()(after), after)


def test_a_dynamic_dimension_counts_as_256() -> None:
    large, small = (
        negated((ROWS, LEAST_BYTES // 4 // 256)),
        negated((ROWS, LEAST_BYTES // 4 // 256 - 1)),
    )
    assert RELEASE_ENTRY in [gvar.name_hint for gvar in release_entry()(large).get_global_vars()]
    assert_structural_equal(release_entry()(small), small)


def test_small_results_stay() -> None:
    mod = negated((LEAST_BYTES // 4 - 1,))
    assert_structural_equal(release_entry()(mod), mod)
