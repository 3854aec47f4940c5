"""Generic schedules of transpositions: tiles, their edges, fused arithmetic."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.relax import op

from .run_generic import RUNGS, assembly, is_parallel, is_vectorized, random_array, run_guarded

extents = st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 50])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(extents, min_size=2, max_size=4).filter(lambda s: np.prod(s) < 30000),
    st.data(),
    st.sampled_from(RUNGS),
    st.booleans(),
)
def test_any_permutation_is_exact(
    shape: list[int], data: st.DataObject, rung: str, at_end: bool
) -> None:
    axes = data.draw(st.permutations(range(len(shape))))
    x = random_array(shape, "float32")
    result, name, _ = run_guarded(lambda x: op.permute_dims(x, axes), [x], rung=rung, at_end=at_end)
    assert name in ("generic_transpose", "generic_injective")
    np.testing.assert_array_equal(result, x.transpose(axes))


@pytest.mark.parametrize("rung", [rung for rung in RUNGS if rung != "scalar"])
@pytest.mark.parametrize("rows, columns", [*itertools.product((15, 16, 17, 47), (15, 16, 33))])
def test_tiles_and_their_edges(rung: str, rows: int, columns: int) -> None:
    x, y = random_array((rows, columns), "float32"), random_array((columns, rows), "float32", 1)
    result, name, func = run_guarded(
        lambda x, y: op.add(op.permute_dims(x, [1, 0]), y), [x, y], rung=rung
    )
    lanes = 16 if rung == "avx512" else 8
    assert (name == "generic_transpose") == (min(rows, columns) >= lanes)
    assert is_vectorized(func)
    np.testing.assert_array_equal(result, x.T + y)


def test_two_turned_operands() -> None:
    x, y = random_array((40, 35), "float32"), random_array((40, 35), "float32", 1)
    result, name, _ = run_guarded(lambda x, y: op.permute_dims(op.multiply(x, y), [1, 0]), [x, y])
    assert name == "generic_transpose"
    np.testing.assert_array_equal(result, (x * y).T)


def test_integers_and_threads() -> None:
    x = np.arange(300 * 400, dtype=np.int32).reshape(300, 400)
    result, name, func = run_guarded(lambda x: op.permute_dims(x, [1, 0]), [x], threads=2)
    assert name == "generic_transpose" and is_parallel(func)
    np.testing.assert_array_equal(result, x.T)


@pytest.mark.skipif("avx512" not in RUNGS, reason="the CPU has no AVX-512")
def test_whole_registers_are_shuffled() -> None:
    x = random_array((64, 64), "float32")
    _, _, func = run_guarded(lambda x: op.permute_dims(x, [1, 0]), [x], rung="avx512")
    text = assembly(func, "avx512")
    assert "zmm" in text and ("vunpcklps" in text or "vperm" in text or "vshuf" in text)
