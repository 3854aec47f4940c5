"""batch_matmul of 8-bit integers and of bfloat16: stored orders, zero points, sizes, every ISA."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microkernels.isa import isa_named
from tests.examples import examples
from tests.microkernels.operands import random_operand
from tests.onnx_reference.arithmetic import integer_product, quantize
from tests.tir_schedules.bf16_products import exact, normal, small_integers
from tests.tir_schedules.run_region import BF16_ISAS, INTEGER_ISAS, dtype_named, machine_for, run
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.product.batch_matmul import BATCH_MATMUL, BatchMatmulConfig

Shape = tuple[int, ...]
F, B = "float32", "bfloat16"
BEST = INTEGER_ISAS[-1]
TYPES = list(itertools.product(("uint8", "int8"), repeat=2))
TRANSPOSED, PLAIN = (0, 2, 1), (0, 1, 2)
ZEROS: list[tuple[int | str, int]] = [(0, 0), ("input", 2), (3, 0), (0, 5), ("input", 0), (7, -3)]


def region_of(
    a: Shape,
    b: Shape,
    a_dtype: str = "uint8",
    b_dtype: str = "int8",
    a_zero: int | str = 0,
    b_zero: int = 0,
    a_axes: Shape | None = None,
    b_axes: Shape | None = None,
    out_axes: Shape | None = None,
    **fields: Any,
) -> Region:
    """A product of tensors of logical shapes `a` and `b`, stored so that the axes restore them."""
    axes = {"a_axes": a_axes, "b_axes": b_axes, "out_axes": out_axes}
    attrs: dict[str, Attribute] = {k: tuple(v) for k, v in axes.items() if v}
    integers = dtype_named(b_dtype).kind in "iu"
    if integers:
        attrs |= {"a_zero_point": a_zero, "b_zero_point": b_zero}
    else:
        attrs["rounded"] = B
    inputs = [Tensor(stored(a, a_axes), a_dtype), Tensor(stored(b, b_axes), b_dtype)]
    if a_zero == "input":
        inputs.append(Tensor((), a_dtype))
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    output = fields.pop("output", Tensor((*batch, a[-2], b[-1]), "int32" if integers else F))
    return Region(op="batch_matmul", inputs=tuple(inputs), output=output, attrs=attrs, **fields)


def stored(logical: Shape, axes: Shape | None) -> Shape:
    """The shape that the permutation `axes` turns into the logical one."""
    if axes is None:
        return logical
    return tuple(logical[axes.index(axis)] for axis in range(len(axes)))


def axes_of(region: Region, name: str, rank: int) -> list[int]:
    return list(region.numbers(name, range(rank)))


def values(region: Region) -> list[np.ndarray]:
    """Integers of the whole range; small integers for bfloat16, whose sums are exact."""
    rng = np.random.default_rng(0)
    return [
        small_integers(rng, tensor.shape, tensor.dtype)
        if dtype_named(tensor.dtype).kind not in "iu"
        else np.asarray(random_operand(rng, tensor.shape, tensor.dtype))
        for tensor in (*region.inputs, *region.operands)
    ]


def product(region: Region, arrays: list[np.ndarray]) -> np.ndarray:
    """The product of the logical tensors, exact."""
    a, b = (
        x.transpose(axes_of(region, name, x.ndim))
        for x, name in zip(arrays, ("a_axes", "b_axes"), strict=False)
    )
    if "rounded" in region.attrs:
        return exact(a, b)[0]
    a_zero = region.attrs["a_zero_point"]
    a_zero = int(arrays[2]) if a_zero == "input" else int(a_zero)
    b_zero = int(region.attrs["b_zero_point"])
    return integer_product(a.astype(np.int64) - a_zero, b.astype(np.int64) - b_zero)


def check(region: Region, isa: str, **options: Any) -> None:
    """The kernel has the numbers of the definition, to the bit."""
    arrays = values(region)
    order = axes_of(region, "out_axes", len(region.output.shape))
    wanted = product(region, arrays).transpose(order)
    result = run(region, arrays, isa, stored_shape=wanted.shape, **options)
    np.testing.assert_array_equal(result, wanted)


every_integer_isa = pytest.mark.parametrize("isa", INTEGER_ISAS)
every_bf16_isa = pytest.mark.parametrize("isa", BF16_ISAS)


@pytest.mark.sampled
@every_integer_isa
@pytest.mark.parametrize(("a", "b"), TYPES)
def test_types_and_zero_points(isa: str, a: str, b: str) -> None:
    stored_orders, n = [PLAIN, TRANSPOSED], min(17, 2 * machine_for(isa).isa.f32_lanes + 1)
    first = 0 if isa == BEST else TYPES.index((a, b)) % 2
    for a_zero, b_zero in ZEROS[first :: 1 if isa == BEST else 2]:
        for axes in stored_orders if isa == BEST and b_zero else stored_orders[first:][:1]:
            region = region_of((2, 5, 13), (2, 13, n), a, b, a_zero, b_zero, b_axes=axes)
            check(region, isa, at_end=axes == PLAIN)


@pytest.mark.sampled
@every_integer_isa
@pytest.mark.parametrize("transposed", [False, True])
def test_integers_of_sizes_around_the_tile_and_the_vector(isa: str, transposed: bool) -> None:
    lanes = machine_for(isa).isa.f32_lanes
    for m, n, k in [
        (1, 1, 1),
        (5, lanes + 15, 4 * lanes + 1),
        (3, lanes, 4 * lanes - 1),
        (7, 4 * lanes + 1, 8 * lanes),
    ]:
        axes, at_end = TRANSPOSED if transposed else None, n % 2 == 0
        region = region_of((3, m, k), (3, k, n), "int8", "uint8", -7, 11, b_axes=axes)
        check(region, isa, at_end=at_end)


@pytest.mark.sampled
@every_bf16_isa
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [F, B])
def test_bfloat16_of_sizes_around_the_tile_and_the_vector(
    isa: str, transposed: bool, dtype: str
) -> None:
    lanes = machine_for(isa).isa.f32_lanes
    for m, n, k in [(1, 1, 1), (5, lanes + 15, 4 * lanes - 1), (7, 2 * lanes, 2 * lanes)]:
        axes, at_end = TRANSPOSED if transposed else None, n % 2 == 0
        check(region_of((3, m, k), (3, k, n), dtype, dtype, b_axes=axes), isa, at_end=at_end)


@pytest.mark.sampled
@pytest.mark.parametrize("k", range(1, 10))
@pytest.mark.parametrize("axes", [PLAIN, TRANSPOSED], ids=["plain", "transposed"])
def test_every_short_k(k: int, axes: Shape) -> None:
    for isa in {*INTEGER_ISAS} & {"scalar", "avx2", BEST}:
        check(region_of((2, 3, k), (2, k, 9), "uint8", "uint8", 9, 4, b_axes=axes), isa)
    check(region_of((2, 3, k), (2, k, 9), F, B, b_axes=axes), BF16_ISAS[-1])


@pytest.mark.sampled
@pytest.mark.parametrize("b_axes", list(itertools.permutations(range(3))), ids=str)
def test_any_stored_order(b_axes: Shape) -> None:
    for a_axes in (PLAIN, (2, 1, 0)):
        shapes = (2, 5, 9), (2, 9, 21)
        integers = region_of(*shapes, "int8", "int8", "input", 3, a_axes=a_axes, b_axes=b_axes)
        check(integers, BEST)
        check(region_of(*shapes, F, B, a_axes=a_axes, b_axes=b_axes), BF16_ISAS[-1])


def test_zero_points_of_the_columns_of_an_activation_are_refused() -> None:
    region = region_of((2, 3, 8), (2, 8, 5))
    zeros = Tensor((5,), "int8", constant=True)
    changed = region.replace(
        inputs=(*region.inputs, zeros), attrs={**region.attrs, "b_zero_point": "input"}
    )
    isa = isa_named("avx512")
    assert BATCH_MATMUL.reject(region, isa) is None
    assert BATCH_MATMUL.reject(changed, isa) == "a zero point for each column of an activation"


def test_attention_heads_are_read_and_written_in_place() -> None:
    head = (0, 2, 1, 3)
    for isa, dtypes in [(BEST, ("int8", "uint8")), (BF16_ISAS[-1], (F, F))]:
        scores = (1, 3, 20, 18), (1, 3, 18, 23)
        check(region_of(*scores, *dtypes, a_axes=head, b_axes=(0, 2, 3, 1)), isa)
        context = (1, 3, 20, 23), (1, 3, 23, 18)
        check(region_of(*context, *dtypes, b_axes=head, out_axes=head), isa)


@given(
    st.sampled_from([((2,), (2,)), ((2,), (1,)), ((1,), (3,)), ((2, 3), (3,)), ((4,), ())]),
    st.tuples(st.integers(1, 20), st.integers(1, 70), st.integers(1, 40)),
    st.sampled_from([*TYPES, (F, F), (B, F)]),
    st.tuples(st.sampled_from([0, 3, "input"]), st.sampled_from([0, 100])),
    st.sampled_from([None, 1, 3]),
    st.integers(1, 3),
    st.booleans(),
)
@examples(30)
def test_batches_broadcast_on_threads_in_blocks(
    batches: tuple[Shape, Shape],
    sizes: tuple[int, int, int],
    dtypes: tuple[str, str],
    zeros: tuple[int | str, int],
    k_block: int | None,
    threads: int,
    packs_first: bool,
) -> None:
    m, k, n = sizes
    isa = BEST if dtypes in TYPES else BF16_ISAS[-1]
    region = region_of(
        (*batches[0], m, k), (*batches[1], k, n), *dtypes, *(zeros if dtypes in TYPES else (0, 0))
    )
    default = BATCH_MATMUL.default_config(region, machine_for(isa)).to_dict()
    changes = {"row_shares": min(threads, m), "parallel": threads > 1, "packs_first": packs_first}
    if k_block is not None:
        changes |= {"k_block": k_block, "m_block": 3}
    check(region, isa, config=BatchMatmulConfig(**{**default, **changes}))


def test_blocks_of_rows_on_threads_with_unequal_shares() -> None:
    """Sums of rows are counted within a block, in the code for both chunk sizes."""
    region = region_of((1, 41, 37), (1, 37, 33), "int8", "int8", 3, 5)
    default = BATCH_MATMUL.default_config(region, machine_for(BEST)).to_dict()
    config = BatchMatmulConfig(**{**default, "row_shares": 3, "m_block": 5, "parallel": True})
    check(region, BEST, config=config)


@pytest.mark.sampled
@every_bf16_isa
def test_sums_of_any_values_are_within_the_bound(isa: str) -> None:
    rng = np.random.default_rng(1)
    region = region_of((2, 7, 65), (2, 65, 33), F, F, b_axes=TRANSPOSED)
    arrays = [normal(rng, tensor.shape, F) for tensor in region.inputs]
    wanted, bound = exact(arrays[0], arrays[1].transpose(TRANSPOSED))
    assert (np.abs(run(region, arrays, isa) - wanted) <= bound).all()


@pytest.mark.sampled
@every_integer_isa
def test_attention_scores_are_requantised(isa: str) -> None:
    """Scaled, masked and quantised in registers."""
    steps = (
        EpilogueOp("cast", (0,)),
        EpilogueOp("constant", value=0.0021),
        EpilogueOp("multiply", (2, 3)),
        EpilogueOp("add", (4, 1)),
        EpilogueOp("constant", value=0.11),
        EpilogueOp("constant", value=131.0),
        EpilogueOp("quantize", (5, 6, 7), dtype="uint8"),
    )
    mask = Tensor((2, 1, 1, 19), F)
    output = Tensor((2, 3, 7, 19), "uint8")
    region = region_of(
        (2, 3, 7, 16), (2, 3, 16, 19), "uint8", "uint8", 128, 121,
        operands=(mask,), epilogue=steps, output=output,
    )  # fmt: skip
    arrays = values(region)
    real = product(region, arrays).astype(np.float32) * np.float32(0.0021) + arrays[-1]
    wanted = quantize(real, 0.11, np.uint8(131))
    assert len(np.unique(wanted)) > 50
    np.testing.assert_array_equal(run(region, arrays, isa), wanted)


@pytest.mark.parametrize("dtypes", [("int8", "uint8"), (F, B)], ids=str)
def test_space_holds_the_default_and_builds(dtypes: tuple[str, str]) -> None:
    isa = BEST if "int8" in dtypes else BF16_ISAS[-1]
    region = region_of((2, 30, 70), (2, 70, 50), *dtypes)
    configs = list(BATCH_MATMUL.space(region, machine_for(isa)))
    assert configs[0] == BATCH_MATMUL.default_config(region, machine_for(isa))
    assert len(set(configs)) == len(configs)
    for config in configs[:: max(1, len(configs) // 5)]:
        check(region, isa, config=config)


def test_what_it_does_not_build_has_a_reason() -> None:
    isa = isa_named("avx512")
    region = region_of((2, 3, 8), (2, 8, 5), "uint8", "int8", "input", 2)
    assert BATCH_MATMUL.reject(region, isa) is None
    assert "inputs" in str(BATCH_MATMUL.reject(region.replace(inputs=region.inputs[:2]), isa))
    columns = (*region.inputs, Tensor((5,), "int32", True))
    broken = region.replace(inputs=columns, attrs={**region.attrs, "b_zero_point": "input"})
    assert "zero point" in str(BATCH_MATMUL.reject(broken, isa))
    mixed = region_of((2, 3, 8), (2, 8, 5), F, "int8")
    assert "operands of type float32 and int8" in str(BATCH_MATMUL.reject(mixed, isa))
    bare = region_of((2, 3, 8), (2, 8, 5), B, F)
    assert "operands of type" in str(BATCH_MATMUL.reject(bare.replace(attrs={}), isa))
