"""The matmul template on overlapping windows: one-axis convolution with channels last."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microkernels.isa import isa_named
from tests.examples import examples
from tests.tir_schedules.run_region import (
    ISAS,
    bias_relu,
    expected,
    machine_for,
    random_inputs,
    run,
)
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.epilogue.epilogue import epilogue_reference
from tir_schedules.product.matmul import MATMUL, MatmulConfig, dimensions

F = "float32"


def window_region(
    x: tuple[int, int, int],
    taps: int,
    stride: int,
    n: int,
    operands: tuple[Tensor, ...] = (),
    epilogue: tuple[EpilogueOp, ...] = (),
) -> Region:
    batch, length, channels = x
    count = (length - taps) // stride + 1
    return Region(
        op="matmul",
        inputs=(Tensor(x, F), Tensor((taps, channels, n), F, True)),
        output=Tensor((batch, count, n), F),
        attrs={"window": taps, "stride": stride},
        operands=operands,
        epilogue=epilogue,
    )


def bound(region: Region, arrays: list[np.ndarray]) -> np.ndarray:
    """(K + 1) * eps * |A| |B|: bounds a f32 sum of K products in any order (Higham, section 3.1).

    The steps of these epilogues add at most four roundings of the result.
    """
    magnitudes = [np.abs(array.astype(np.float64)) for array in arrays[:2]]
    k = dimensions(region)[2] + 1
    eps = np.finfo(np.float32).eps
    return k * eps * MATMUL.reference(region, magnitudes) + 4 * eps * np.abs(
        expected(region, arrays)
    )


def check(region: Region, isa: str, **options) -> None:
    arrays = random_inputs(region)
    result = run(region, arrays, isa, **options)
    assert (np.abs(result - expected(region, arrays)) <= bound(region, arrays)).all()


def by_definition(x: np.ndarray, w: np.ndarray, stride: int) -> np.ndarray:
    """The convolution straight from its formula, one output position at a time."""
    count = (x.shape[1] - w.shape[0]) // stride + 1
    rows = [
        np.einsum("ntc,tco->no", x[:, t * stride : t * stride + w.shape[0]], w)
        for t in range(count)
    ]
    return np.stack(rows, axis=1)


@pytest.mark.parametrize(("taps", "stride"), list(itertools.product(range(1, 6), range(1, 4))))
def test_the_reference_is_the_definition(taps: int, stride: int) -> None:
    region = window_region((2, 11, 3), taps, stride, 4)
    x, w = (array.astype(np.float64) for array in random_inputs(region))
    np.testing.assert_allclose(
        MATMUL.reference(region, [x, w]), by_definition(x, w, stride), rtol=1e-12, atol=1e-12
    )


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_every_isa_stays_inside_its_buffers(isa: str, at_end: bool, batch: int) -> None:
    for taps, stride in itertools.product((1, 2, 5), (1, 2, 3)):
        check(window_region((batch, 14, 3), taps, stride, 21), isa, at_end=at_end)


@given(
    st.integers(1, 3),
    st.integers(0, 25),
    st.integers(1, 19),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 80),
    st.integers(1, 3),
)
@examples(15)
def test_random_shapes_with_bias_and_relu(
    batch: int, more: int, channels: int, taps: int, stride: int, n: int, threads: int
) -> None:
    region = window_region(
        (batch, taps + more, channels), taps, stride, n, (Tensor((n,), F),), bias_relu()
    )
    config = MATMUL.default_config(region, machine_for(ISAS[-1], threads))
    split = MatmulConfig(**{**config.to_dict(), "threads_m": threads, "threads_n": 2})
    blocked = MatmulConfig(**{**config.to_dict(), "k_block": 3, "m_block": 2})
    for each in (config, split, blocked):
        check(region, ISAS[-1], config=each)


def test_an_output_of_another_shape_has_the_same_rows() -> None:
    flat = window_region((2, 9, 5), 3, 1, 17, (Tensor((17,), F),), bias_relu())
    region = flat.replace(output=Tensor((14, 1, 17), F))
    arrays = random_inputs(flat)
    wanted = epilogue_reference(flat, MATMUL.reference(flat, arrays[:2]), arrays[2:])
    result = run(region, arrays, ISAS[-1])
    assert (np.abs(result.reshape(wanted.shape) - wanted) <= bound(flat, arrays)).all()


def test_a_window_longer_than_the_input_is_refused() -> None:
    region = window_region((1, 4, 3), 5, 1, 8)
    assert "dimension" in str(MATMUL.reject(region, isa_named("avx512")))


def test_overlap_makes_blocks_of_rows_longer() -> None:
    region = window_region((1, 512, 256), 5, 1, 512)
    matrix = Region(
        op="matmul",
        inputs=(Tensor((508, 1280), F), Tensor((1280, 512), F, True)),
        output=Tensor((508, 512), F),
    )
    machine = machine_for(ISAS[-1])
    assert dimensions(region) == dimensions(matrix) == (508, 512, 1280)
    blocks = [MATMUL.default_config(r, machine).m_block for r in (region, matrix)]
    assert blocks[0] == min(508, machine.l2_bytes // 2 // 1024) > blocks[1]
    assert "window=5" in region.key
    assert "stride=1" in region.key
