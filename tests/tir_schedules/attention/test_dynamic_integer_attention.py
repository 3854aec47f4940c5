"""Attention of 8-bit integers with any number of sequences, queries and keys.

One kernel gives the integers of the static kernels, bit for bit.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.examples import some
from tests.microkernels.operands import random_operand
from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import INTEGER_ISAS, highest_native, machine_for, run
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.size import SymbolicSize
from tir_schedules.core.template import template_for

pytestmark = pytest.mark.turns

KEYS = SymbolicSize.of("keys")
# More queries than are read in place, which would have other sums.
SIZES = [(1, 20), (2, 33), (1, 64), (1, 131)]
HEADS = 3
ISA = highest_native(INTEGER_ISAS)
Types = tuple[str, str, str, str]


def attention(
    d: int = 32,
    e: int = 32,
    types: Types = ("uint8", "uint8", "uint8", "uint8"),
    zeros: tuple[int, int, int, int] = (128, 121, 0, 131),
    keys: int = LENGTH,
    mask: tuple[int, ...] | None = None,
    between: bool = True,
    shared: bool = False,
) -> Region:
    """q, k, v as [batch, length, heads * size]; scores are quantised, dequantised, scaled."""
    q, k, p, v = types
    operands = () if mask is None else (Tensor(mask, "float32"),)
    at = 1 + len(operands)
    steps = [
        EpilogueOp("cast", (0,)),
        EpilogueOp("constant", (), 0.0004),
        EpilogueOp("multiply", (at, at + 1)),
    ]
    if between:
        steps += [
            EpilogueOp("constant", (), 0.031),
            EpilogueOp("constant", (), 120.0),
            EpilogueOp("quantize", (at + 2, at + 3, at + 4), dtype="uint8"),
            EpilogueOp("dequantize", (at + 5, at + 3, at + 4)),
        ]
    if operands:
        steps.append(EpilogueOp("add", (at + len(steps) - 1, 1)))
    scores = Region(
        op="batch_matmul",
        inputs=(Tensor((BATCH, HEADS, LENGTH, d), q), Tensor((BATCH, HEADS, d, keys), k)),
        operands=operands,
        output=Tensor((BATCH, HEADS, LENGTH, keys), "float32"),
        attrs={"a_zero_point": zeros[0], "b_zero_point": zeros[1]},
        epilogue=tuple(steps),
    )
    softmax = Region(
        op="softmax",
        inputs=(scores.output,),
        output=Tensor(scores.output.shape, p),
        attrs={"axis": 3},
        epilogue=(
            EpilogueOp("constant", (), 1 / 255),
            EpilogueOp("constant", (), float(zeros[2])),
            EpilogueOp("quantize", (0, 1, 2), dtype=p),
        ),
    )
    product = Region(
        op="batch_matmul",
        inputs=(softmax.output, Tensor((BATCH, HEADS, keys, e), v)),
        output=Tensor((BATCH, HEADS, LENGTH, e), "uint8"),
        attrs={"a_zero_point": zeros[2], "b_zero_point": zeros[3]},
        epilogue=(
            EpilogueOp("cast", (0,)),
            EpilogueOp("constant", (), 0.003),
            EpilogueOp("multiply", (1, 2)),
            EpilogueOp("constant", (), 0.7),
            EpilogueOp("constant", (), 7.0),
            EpilogueOp("quantize", (3, 4, 5), dtype="uint8"),
        ),
    )
    sets = 1 if shared else HEADS

    def strides(rows: int, columns: int, heads: int) -> tuple[int, ...]:
        by_head = columns if heads == HEADS else 0
        return (rows * heads * columns, by_head, heads * columns, 1)

    return Region(
        op="attention",
        inputs=(
            Tensor((BATCH, LENGTH, HEADS * d), q),
            Tensor((BATCH, keys, sets * d), k),
            Tensor((BATCH, keys, sets * e), v),
            *operands,
        ),
        output=Tensor((BATCH, LENGTH, HEADS * e), "uint8"),
        attrs={
            "batch": (BATCH, HEADS),
            "q_strides": strides(LENGTH, d, HEADS),
            "k_strides": strides(keys, d, sets),
            "v_strides": strides(keys, e, sets),
            "out_strides": strides(LENGTH, e, HEADS),
        },
        parts=(scores, softmax, product),
    )


def random_inputs(region: Region, seed: int) -> list[np.ndarray]:
    """Bytes over their whole range, and a mask."""
    rng = np.random.default_rng(seed)
    return [
        rng.choice(
            np.array([0, -1, -1e4, -np.inf], np.float32), tensor.shape, p=[0.7, 0.1, 0.1, 0.1]
        )
        if tensor.dtype == "float32"
        else random_operand(rng, tensor.shape, tensor.dtype)
        for tensor in region.inputs
    ]


def check(kernel: DynamicKernel, isa: str, batch: int, length: int, keys: int = 0) -> None:
    """The dynamic kernel has the bits of the static one."""
    values = {"batch": batch, "length": length, "keys": keys}
    known = at_sizes(kernel.region, values)
    arrays = random_inputs(known, length)
    wanted = run(known, arrays, isa)
    for at_end in (True, False):
        np.testing.assert_array_equal(kernel.run(values, arrays, at_end), wanted)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", INTEGER_ISAS)
@pytest.mark.parametrize("between", [True, False])
def test_any_length(isa: str, between: bool) -> None:
    kernel = DynamicKernel(attention(mask=(BATCH, 1, 1, LENGTH), between=between), isa)
    assert all(name in kernel.config.to_dict()["scores_kernel"] for name in ("s32",))
    for sizes in some(SIZES):
        check(kernel, isa, *sizes)


TYPES: list[tuple[Types, tuple[int, int, int, int]]] = [
    (("int8", "int8", "int8", "int8"), (0, 0, -128, 0)),
    (("uint8", "int8", "uint8", "int8"), (0, 0, 0, 0)),
    (("int8", "uint8", "int8", "uint8"), (127, 0, -128, 255)),
    (("uint8", "int8", "int8", "uint8"), (255, -128, 0, 0)),
    (("int8", "uint8", "uint8", "uint8"), (-128, 255, 3, 128)),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("types", "zeros"), TYPES, ids=["-".join(x[0]) for x in TYPES])
def test_types_and_zero_points(types: Types, zeros: tuple[int, int, int, int]) -> None:
    kernel = DynamicKernel(attention(24, 40, types, zeros), ISA)
    for sizes in some(SIZES):
        check(kernel, ISA, *sizes)


@pytest.mark.sampled
@pytest.mark.parametrize(("d", "e"), [(64, 64), (4, 5), (20, 80), (96, 33)])
def test_heads_of_any_size(d: int, e: int) -> None:
    kernel = DynamicKernel(attention(d, e), ISA)
    for sizes in some(SIZES):
        check(kernel, ISA, *sizes)


@pytest.mark.sampled
@pytest.mark.parametrize("mask", [None, (LENGTH, KEYS), (BATCH, 1, LENGTH, KEYS), (KEYS,)])
def test_masks_and_another_number_of_keys(mask: tuple[int, ...] | None) -> None:
    kernel = DynamicKernel(attention(keys=KEYS, mask=mask), ISA)
    for length, keys in some([(20, 1), (20, 3), (33, 17), (20, 48), (40, 129)]):
        check(kernel, ISA, 2, length, keys)


def test_heads_that_share_k_and_v() -> None:
    kernel = DynamicKernel(attention(shared=True), ISA)
    for sizes in some(SIZES):
        check(kernel, ISA, *sizes)


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [2, 7])
def test_on_threads(threads: int) -> None:
    kernel = DynamicKernel(attention(mask=(BATCH, 1, 1, LENGTH)), ISA, threads)
    for sizes in some(SIZES):
        check(kernel, ISA, *sizes)


def test_few_queries_are_those_of_many() -> None:
    """Each query has the result that it has among more queries."""
    region = attention(keys=KEYS)
    kernel = DynamicKernel(region, ISA)
    arrays = random_inputs(at_sizes(region, {"batch": 1, "length": 20, "keys": 37}), 0)
    whole = kernel.run({"batch": 1, "length": 20, "keys": 37}, arrays)
    for length in (1, 2, 3, 7):
        few = [np.ascontiguousarray(arrays[0][:, :length]), *arrays[1:]]
        found = kernel.run({"batch": 1, "length": length, "keys": 37}, few)
        np.testing.assert_array_equal(found, whole[:, :length])


def test_what_is_refused() -> None:
    template, isa = template_for("attention"), machine_for("avx2").isa
    assert template.rejection(attention(), isa) is None
    assert "no multiple of 4" in str(template.rejection(attention(d=30), isa))
