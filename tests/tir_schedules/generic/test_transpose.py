"""Generic schedules of transposes: tiles, their edges, fused arithmetic."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, tirx
from tvm.relax import op

from tests.examples import examples
from tests.tir_schedules.run_generic import (
    ISAS,
    assembly,
    is_parallel,
    is_vectorized,
    lowered,
    random_array,
    run_guarded,
    run_module,
    scheduled,
)

EPSILON = float(np.finfo(np.float32).eps)
extents = st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 50])


@examples(40)
@given(
    st.lists(extents, min_size=2, max_size=4).filter(lambda s: np.prod(s) < 30000),
    st.data(),
    st.sampled_from(["float32", "uint8", "int16", "int64"]),
    st.sampled_from(ISAS),
    st.booleans(),
)
def test_any_permutation_is_exact(
    shape: list[int], data: st.DataObject, dtype: str, isa: str, at_end: bool
) -> None:
    axes = data.draw(st.permutations(range(len(shape))))
    x = (np.arange(np.prod(shape)) * 37).reshape(shape).astype(dtype)
    result, name, _ = run_guarded(lambda x: op.permute_dims(x, axes), [x], isa=isa, at_end=at_end)
    assert name in ("generic_transpose", "generic_injective")
    np.testing.assert_array_equal(result, x.transpose(axes))


@pytest.mark.sampled
@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "scalar"])
@pytest.mark.parametrize("rows, columns", [*itertools.product((15, 16, 17, 47), (15, 16, 33))])
def test_tiles_and_their_edges(isa: str, rows: int, columns: int) -> None:
    x, y = random_array((rows, columns), "float32"), random_array((columns, rows), "float32", 1)
    result, name, func = run_guarded(
        lambda x, y: op.add(op.permute_dims(x, [1, 0]), y), [x, y], isa=isa
    )
    assert name == "generic_transpose" and is_vectorized(func)
    np.testing.assert_array_equal(result, x.T + y)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["int8", "float16"])
@pytest.mark.parametrize("channels", [16, 24, 100])
@pytest.mark.parametrize("to_last", [True, False])
def test_narrow_elements_move_by_words(dtype: str, channels: int, to_last: bool) -> None:
    shape, axes = ((channels, 7, 9), [1, 2, 0]) if to_last else ((7, 9, channels), [2, 0, 1])
    x = (np.arange(np.prod(shape)) * 37 % 251 - 120).reshape(shape)
    x = x.astype(dtype)
    result, name, _ = run_guarded(lambda x: op.permute_dims(x, axes), [x])
    assert name == "generic_transpose"
    np.testing.assert_array_equal(result, x.transpose(axes))


def test_bfloat16_is_moved_as_bits() -> None:
    x = random_array((40, 70), "float32").astype(ml_dtypes.bfloat16)
    mod, names, _ = scheduled(
        lowered(lambda x: op.permute_dims(x, [1, 0]), [(x.shape, "bfloat16")])
    )
    assert names == ["generic_transpose"]
    (result,) = run_module(mod, [x])
    np.testing.assert_array_equal(result.view(np.uint16), x.T.view(np.uint16))


@pytest.mark.sampled
@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "scalar"])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("planes", [2, 3, 4])
def test_planes_of_an_image_become_pixels_and_back(isa: str, dtype: str, planes: int) -> None:
    x = (np.arange(planes * 77) % 253).reshape(planes, 7, 11).astype(dtype)
    result, name, func = run_guarded(lambda x: op.permute_dims(x, [1, 2, 0]), [x], isa=isa)
    assert name == "generic_transpose" and is_vectorized(func)
    np.testing.assert_array_equal(result, x.transpose(1, 2, 0))
    back, _, func = run_guarded(lambda x: op.permute_dims(x, [2, 0, 1]), [result], isa=isa)
    assert is_vectorized(func)
    np.testing.assert_array_equal(back, x)


def test_pixels_are_normalised_on_the_way() -> None:
    x = (np.arange(3 * 9 * 20) % 251).reshape(3, 9, 20).astype("uint8")
    mean, scale, other = (random_array(shape, "float32", 1) for shape in ((3,), (3,), (9, 20, 3)))

    def build(x: relax.Expr, mean: relax.Expr, scale: relax.Expr, other: relax.Expr) -> relax.Expr:
        pixels = op.astype(op.permute_dims(x, [1, 2, 0]), "float32")
        return op.add(op.multiply(op.subtract(pixels, mean), scale), other)

    result, name, _ = run_guarded(build, [x, mean, scale, other])
    assert name == "generic_transpose"
    expected = (x.transpose(1, 2, 0).astype(np.float32) - mean) * scale + other
    # Whether the product is rounded before the addition is left to LLVM; 256 * 4 bounds it.
    np.testing.assert_allclose(result, expected, rtol=0, atol=1024 * EPSILON)


@pytest.mark.parametrize("times", [2, 3, 8])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_elements_are_repeated_by_shuffles(times: int, dtype: str) -> None:
    x = (np.arange(5 * 70) % 251).reshape(5, 70).astype(dtype)
    result, name, func = run_guarded(lambda x: op.repeat(x, times, 1), [x])
    assert name == "generic_transpose" and is_vectorized(func)
    np.testing.assert_array_equal(result, x.repeat(times, 1))


@pytest.mark.sampled
@pytest.mark.parametrize("step", [2, 3, 4])
@pytest.mark.parametrize("count", [4, 16, 33])
def test_every_nth_element(step: int, count: int) -> None:
    x = random_array((3, step * (count - 1) + 1), "float32")
    result, _, func = run_guarded(
        lambda x: op.strided_slice(x, [1], [0], [x.ty.shape[1]], [step]), [x]
    )
    assert is_vectorized(func)
    np.testing.assert_array_equal(result, x[:, ::step])


def test_two_transposed_operands() -> None:
    x, y = random_array((40, 35), "float32"), random_array((40, 35), "float32", 1)
    result, name, _ = run_guarded(lambda x, y: op.permute_dims(op.multiply(x, y), [1, 0]), [x, y])
    assert name == "generic_transpose"
    np.testing.assert_array_equal(result, (x * y).T)


def test_integers_and_threads() -> None:
    x = np.arange(300 * 400, dtype=np.int32).reshape(300, 400)
    result, name, func = run_guarded(lambda x: op.permute_dims(x, [1, 0]), [x], threads=2)
    assert name == "generic_transpose" and is_parallel(func)
    np.testing.assert_array_equal(result, x.T)


@pytest.mark.skipif("avx512" not in ISAS, reason="the CPU has no AVX-512")
def test_whole_registers_are_shuffled() -> None:
    x = random_array((64, 64), "float32")
    _, _, func = run_guarded(lambda x: op.permute_dims(x, [1, 0]), [x], isa="avx512")
    text = assembly(func, "avx512")
    assert "zmm" in text and ("vunpcklps" in text or "vperm" in text or "vshuf" in text)


@pytest.mark.parametrize("channels", [16, 40])
@pytest.mark.parametrize("phases", [2, 3])
def test_rows_in_turns_are_transposed(phases: int, channels: int) -> None:
    """After rows are split by phases, each phase knows the tensor of its rows."""
    parts = [random_array((5, 18, channels), "float32", seed) for seed in range(phases)]

    def build(*rows: relax.Expr) -> relax.Expr:
        own = [op.reshape(each, (5, 1, 18 * channels)) for each in rows]
        whole = op.reshape(op.concat(own, 1), (5 * phases, 18, channels))
        return op.permute_dims(whole, [2, 0, 1])

    result, name, func = run_guarded(build, parts)
    wanted = np.stack(parts, 1).reshape(5 * phases, 18, channels).transpose(2, 0, 1)
    np.testing.assert_array_equal(result, wanted)
    choices: list[tirx.Select] = []
    tvm_ffi.structural_walk(func.body, (tirx.Select, choices.append))
    assert name == "generic_transpose" and not choices


@pytest.mark.parametrize(
    ("shape", "axes", "runs"),
    [
        ((64, 131), (1, 0), 1),  # results are close together: 9 tiles form runs of 3, not of 4
        ((131, 64), (1, 0), 1),  # inputs are closer together than results
        ((2, 64, 8, 16), (0, 2, 3, 1), 1),
        ((400, 300), (1, 0), 1),
        ((300, 400), (1, 0), 0),  # both are far apart
        ((32, 400), (1, 0), 0),  # two tiles of the input at once
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_runs_of_tiles(
    threads: int, shape: tuple[int, ...], axes: tuple[int, ...], runs: int
) -> None:
    x = random_array(shape, "float32")
    result, name, func = run_guarded(lambda x: op.permute_dims(x, axes), [x], threads, "avx512")
    assert name == "generic_transpose" and func.script().count("run in ") == runs
    np.testing.assert_array_equal(result, x.transpose(axes))
