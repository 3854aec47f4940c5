"""Products whose weight is scaled row by row at run time: alone, in chains, on threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from microkernels.isa import isa_named
from tests.tir_schedules.chain_regions import INPUT, ChainBuilder, configs, f32_layer
from tests.tir_schedules.pair_regions import pair
from tests.tir_schedules.run_region import (
    ISAS,
    bias_relu,
    expected,
    machine_for,
    product_bound,
    random_inputs,
    run,
)
from tir_schedules.chains.mlp_chain import MLP_CHAIN
from tir_schedules.core.config import Config
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.product.matmul import MATMUL, MatmulConfig
from tvm_hybrid.tuning.verification.bounds import expected_result, random_arguments


def scaled_region(
    lead: tuple[int, ...],
    k: int,
    n: int,
    operands: tuple[Tensor, ...] = (),
    epilogue: tuple[EpilogueOp, ...] = (),
    scale: Tensor | None = None,
) -> Region:
    return Region(
        op="matmul",
        inputs=(
            Tensor((*lead, k), "float32"),
            Tensor((k, n), "float32", True),
            scale or Tensor((*(1 for _ in lead), k), "float32"),
        ),
        output=Tensor((*lead, n), "float32"),
        operands=operands,
        attrs={"weight_scale": "input"},
        epilogue=epilogue,
    )


def check(region: Region, isa: str, config: Config | None = None, at_end: bool = True) -> None:
    """Compares with float64.

    Each term has one more rounding than a product, 2^-24 of it: within `product_bound`, which has
    (K + 1) 2^-23 for the K roundings of 2^-24 that a sum of K products has. The addition and the
    selection after it add 2^-24 of the result.
    """
    arrays = random_inputs(region)
    wanted = expected(region, arrays)
    result = run(region, arrays, isa, config=config, threads=2, at_end=at_end)
    slack = 4 * np.finfo(np.float32).eps * np.abs(wanted)
    assert (np.abs(result - wanted) <= product_bound(region, arrays) + slack).all()


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("at_end", [False, True])
def test_tile_minus_one_tile_tile_plus_one(isa: str, at_end: bool) -> None:
    lanes = machine_for(isa).isa.f32_lanes
    default = MATMUL.default_config(scaled_region((64,), 64, 64), machine_for(isa))
    m, n = default.rows, default.vectors * lanes
    for rows, columns, k in [(m - 1, n - 1, 1), (m, n, 2), (m + 1, n + 1, 17)]:
        check(scaled_region((max(rows, 1),), k, columns), isa, at_end=at_end)


def test_blocks_and_threads() -> None:
    region = scaled_region((1, 11, 2), 37, 83, (Tensor((83,), "float32"),), bias_relu())
    default = MATMUL.default_config(region, machine_for(ISAS[-1])).to_dict()
    for m_block, k_block, threads_m, threads_n, threads_k in [
        (22, 37, 2, 1, 1),
        (8, 10, 1, 2, 1),
        (4, 1, 3, 1, 1),
        (22, 12, 1, 2, 3),  # 12 steps a thread: blocks have at most 10 of all 37
    ]:
        tile = {"rows": 4, "vectors": min(2, default["vectors"])}
        blocks = {"m_block": m_block, "k_block": k_block}
        grid = {"threads_m": threads_m, "threads_n": threads_n, "threads_k": threads_k}
        check(region, ISAS[-1], MatmulConfig(**{**default, **tile, **blocks, **grid}))


@pytest.mark.parametrize("shape", [(20,), (1, 20), (1, 1, 1, 20)], ids=str)
def test_factors_of_every_rank(shape: tuple[int, ...]) -> None:
    check(scaled_region((1, 3, 5), 20, 33, scale=Tensor(shape, "float32")), ISAS[-1])


def test_factors_that_are_infinite_or_nan_spoil_what_they_spoil() -> None:
    region = scaled_region((6,), 3, 20)
    arrays = random_inputs(region)
    arrays[2][0, 1] = np.inf
    arrays[1][1, :7] = 0
    result = run(region, arrays, ISAS[-1])
    assert np.isnan(result[:, :7]).all() and np.isinf(result[:, 7:]).all()


def chain(rows: int, first: bool) -> Region:
    """Two layers, the first or the second of which is scaled."""
    builder = ChainBuilder([Tensor((rows, 19), "float32")])
    scaled = scaled_region((rows,), *((19, 24) if first else (24, 35)), scale=None)
    plain = f32_layer((rows,), *((24, 35) if first else (19, 24)))
    parts = [scaled, plain] if first else [plain, scaled]
    builder.add(parts[1], builder.add(parts[0], INPUT))
    return builder.region()


@pytest.mark.sampled
@pytest.mark.parametrize("first", [True, False])
def test_within_a_chain(first: bool) -> None:
    region = chain(23, first)
    assert MLP_CHAIN.reject(region, machine_for(ISAS[-1]).isa) is None
    arrays = random_inputs(region)
    magnitudes = [np.abs(array.astype(np.float64)) for array in arrays]
    # A chain of two products of magnitudes bounds the sum of magnitudes; (K + 2) 2^-24 of it for
    # each product as above, 3 for bias and rounding between the layers; relu adds nothing.
    terms = (19 + 24) + 2 * 2 + 2 * 3
    bound = terms * 2.0**-24 * expected(region, magnitudes)
    wanted = expected(region, arrays)
    for config in configs(region, ISAS[-1]).values():
        result = run(region, arrays, ISAS[-1], config=config)
        assert (np.abs(result - wanted) <= 1.01 * bound).all()


def test_behind_a_depthwise_convolution() -> None:
    given = pair((9, 10), 20, 24)
    first, second = given.parts
    scaled = second.replace(
        inputs=(*second.inputs, Tensor((20,), "float32")), attrs={"weight_scale": "input"}
    )
    builder = ChainBuilder([first.inputs[0]])
    builder.add(scaled, builder.add(first, INPUT))
    region = builder.region().replace(op=given.op)
    arrays = random_inputs(region)
    # Magnitudes without the clipping of the inner activation, which only reduces differences.
    unbounded = first.replace(epilogue=(EpilogueOp("add", (0, 1)),))
    inner = expected(unbounded, [np.abs(array) for array in (*arrays[:2], arrays[2])])
    magnitudes = inner @ np.abs(arrays[3] * arrays[4][:, None]) + np.abs(arrays[5])
    bound = ((3 * 3 + 2) + (20 + 3)) * 2.0**-24 * magnitudes
    result = run(region, arrays, ISAS[-1])
    assert (np.abs(result - expected(region, arrays)) <= 1.01 * bound).all()


def test_a_tuner_knows_right_from_wrong() -> None:
    region = scaled_region((1, 4, 9), 16, 24)
    arrays = random_arguments(region, MATMUL, 0)
    wanted = expected_result(region, MATMUL, arrays)
    assert wanted.difference(run(region, arrays, ISAS[-1])) is None
    arrays[2][..., -1] *= 1.01
    assert wanted.difference(run(region, arrays, ISAS[-1])) is not None


def matmul_of(inputs: Sequence[Tensor], **attrs: str | int) -> Region:
    return Region(
        op="matmul", inputs=tuple(inputs), output=Tensor((8, 6), "float32"), attrs={**attrs}
    )


@pytest.mark.parametrize(
    ("region", "reason"),
    [
        (scaled_region((8,), 5, 6, scale=Tensor((8, 5), "float32")), "scales"),
        (scaled_region((8,), 5, 6, scale=Tensor((5, 1), "float32")), "scales"),
        (scaled_region((8,), 5, 6, scale=Tensor((5,), "float16")), "scales"),
        (scaled_region((8,), 5, 6, scale=Tensor((5,), "float32", True)), "scales"),
        (scaled_region((8,), 5, 6).replace(attrs={}), "3 inputs"),
        (scaled_region((8,), 5, 6).replace(attrs={"weight_scale": 2.0}), "weight_scale=2.0"),
        (
            matmul_of(
                [Tensor((8, 5), "uint8"), Tensor((5, 6), "int8", True), Tensor((5,), "float32")],
                weight_scale="input",
            ),
            "int8",
        ),
        (
            matmul_of(
                [
                    Tensor((8, 5), "bfloat16"),
                    Tensor((5, 6), "bfloat16", True),
                    Tensor((5,), "float32"),
                ],
                weight_scale="input",
            ),
            "bfloat16",
        ),
        (
            matmul_of(
                [
                    Tensor((1, 9, 5), "float32"),
                    Tensor((2, 5, 6), "float32", True),
                    Tensor((5,), "float32"),
                ],
                weight_scale="input",
                window=2,
                stride=1,
            ),
            "windows",
        ),
    ],
)
def test_what_it_does_not_build_has_a_reason(region: Region, reason: str) -> None:
    assert reason in str(MATMUL.reject(region, isa_named("avx512")))
