"""Products of two activations of dynamic sizes: one kernel for each case, compared with NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from msgspec import structs

from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import (
    BF16_ISAS,
    INTEGER_ISAS,
    ISAS,
    expected,
    highest_native,
    machine_for,
    product_bound,
    random_inputs,
)
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.size import SymbolicSize
from tir_schedules.core.template import template_for

pytestmark = pytest.mark.turns

KEYS, HEADS = SymbolicSize.of("keys"), 3
Sizes = dict[str, int]


def sizes_of(batch: int, length: int, keys: int) -> Sizes:
    return {"batch": batch, "length": length, "keys": keys}


SIZES = [
    sizes_of(*each)
    for each in [(1, 1, 1), (2, 1, 9), (1, 7, 8), (3, 5, 33), (1, 40, 17), (2, 13, 64)]
]
NOTHING = [sizes_of(*each) for each in itertools.product((0, 2), repeat=3)]


def product(
    a: tuple[int, ...],
    b: tuple[int, ...],
    out: tuple[int, ...],
    epilogue: tuple[EpilogueOp, ...] = (),
    *operands: Tensor,
    types: tuple[str, str, str] = ("float32", "float32", "float32"),
    **attrs: Attribute,
) -> Region:
    return Region(
        op="batch_matmul",
        inputs=(Tensor(a, types[0]), Tensor(b, types[1])),
        operands=operands,
        output=Tensor(out, types[2]),
        epilogue=epilogue,
        attrs=attrs,
    )


def check(kernel: DynamicKernel, values: Sizes) -> None:
    region = at_sizes(kernel.region, values)
    arrays = random_inputs(region)
    wanted = expected(region, arrays)
    out_axes = region.numbers("out_axes", range(wanted.ndim))
    shape = tuple(wanted.shape[axis] for axis in out_axes)
    exact = region.output.dtype == "int32"
    bound = np.zeros(()) if exact else product_bound(region, arrays)
    for at_end in (True, False):
        stored = kernel.run(values, arrays, at_end, shape)
        result = np.transpose(stored, np.argsort(out_axes)).astype(np.float64)
        assert (np.abs(result - wanted) <= bound + 1e-30).all()


FORMS = {
    "columns": product((BATCH, LENGTH, 24), (BATCH, 24, 40), (BATCH, LENGTH, 40)),
    "any columns": product((BATCH, LENGTH, 24), (BATCH, 24, KEYS), (BATCH, LENGTH, KEYS)),
    "any k": product((BATCH, LENGTH, KEYS), (BATCH, KEYS, 21), (BATCH, LENGTH, 21)),
    "all": product((BATCH, LENGTH, KEYS), (BATCH, KEYS, LENGTH), (BATCH, LENGTH, LENGTH)),
    "transposed": product(
        (BATCH, LENGTH, KEYS), (BATCH, 30, KEYS), (BATCH, LENGTH, 30), b_axes=(0, 2, 1)
    ),
    "heads": product(
        (BATCH, LENGTH, HEADS, 16),
        (BATCH, KEYS, HEADS, 16),
        (BATCH, HEADS, LENGTH, KEYS),
        a_axes=(0, 2, 1, 3),
        b_axes=(0, 2, 3, 1),
    ),
    "heads stored": product(
        (BATCH, HEADS, LENGTH, KEYS),
        (BATCH, KEYS, HEADS, 16),
        (BATCH, HEADS, LENGTH, 16),
        b_axes=(0, 2, 1, 3),
        out_axes=(0, 2, 1, 3),
    ),
    "one for all": product((BATCH, LENGTH, 19), (19, KEYS), (BATCH, LENGTH, KEYS)),
    "one for all, turned": product(
        (LENGTH, BATCH, 19), (19, KEYS), (BATCH, LENGTH, KEYS), a_axes=(1, 0, 2)
    ),
    "both turned": product(
        (BATCH, KEYS, LENGTH),
        (LENGTH, KEYS, BATCH),
        (BATCH, LENGTH, LENGTH),
        a_axes=(0, 2, 1),
        b_axes=(2, 1, 0),
    ),
    "added": product(
        (BATCH, HEADS, LENGTH, 16),
        (BATCH, HEADS, 16, KEYS),
        (BATCH, HEADS, LENGTH, KEYS),
        (EpilogueOp("add", (0, 1)), EpilogueOp("relu", (3,)), EpilogueOp("multiply", (4, 2))),
        Tensor((BATCH, 1, 1, KEYS), "float32"),
        Tensor((KEYS,), "float32"),
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", FORMS)
def test_floats_of_any_sizes(isa: str, form: str) -> None:
    kernel = DynamicKernel(FORMS[form], isa)
    for values in SIZES:
        check(kernel, values)


@pytest.mark.sampled
@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("form", ["any columns", "one for all", "heads"])
def test_on_threads(form: str, threads: int) -> None:
    isa = highest_native(ISAS)
    machine = machine_for(isa, threads).with_numbers(fork_us=0)
    config = template_for("batch_matmul").default_config(FORMS[form], machine)
    assert config.threads == threads and config.parallel and not config.alone_flops
    kernel = DynamicKernel(FORMS[form], isa, threads, config)
    for values in SIZES:
        check(kernel, values)


@pytest.mark.parametrize("form", ["any columns", "any k", "all"])
def test_no_elements(form: str) -> None:
    """A sum over nothing is 0."""
    kernel = DynamicKernel(FORMS[form], highest_native(ISAS))
    for values in NOTHING:
        check(kernel, values)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", INTEGER_ISAS)
@pytest.mark.parametrize("types", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")])
def test_integers_are_exact(isa: str, types: tuple[str, str]) -> None:
    out = (BATCH, LENGTH, KEYS)
    turned = product(
        (BATCH, LENGTH, 24),
        (BATCH, KEYS, 24),
        out,
        b_axes=(0, 2, 1),
        types=(*types, "int32"),
        a_zero_point=3,
        b_zero_point=2,
    )
    copied = product(
        (BATCH, LENGTH, 22), (BATCH, 22, KEYS), out, types=(*types, "int32"), a_zero_point=1
    )
    for region in (turned, copied):
        kernel = DynamicKernel(region, isa)
        for values in SIZES:
            check(kernel, values)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", BF16_ISAS)
def test_bfloat16(isa: str) -> None:
    region = product(
        (BATCH, LENGTH, 21),
        (BATCH, 21, KEYS),
        (BATCH, LENGTH, KEYS),
        types=("bfloat16", "bfloat16", "float32"),
    )
    kernel = DynamicKernel(region, isa)
    for values in SIZES:
        check(kernel, values)


# How the elements of K lie in B: adjacent, in columns, or apart.
PLACES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "rows": ((BATCH, KEYS, 19), (0, 1, 2)),
    "columns": ((BATCH, 19, KEYS), (0, 2, 1)),
    "apart": ((BATCH, KEYS, 19, 2), (0, 3, 1, 2)),
}


def dynamic_k(place: str, types: tuple[str, str, str], **attrs: Attribute) -> Region:
    b, axes = PLACES[place]
    heads = (2,) if place == "apart" else ()
    a, out = ((BATCH, *heads, LENGTH, columns) for columns in (KEYS, 19))
    return product(a, b, out, types=types, b_axes=axes, **attrs)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", INTEGER_ISAS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("types", [("uint8", "int8"), ("int8", "uint8")])
def test_integers_of_any_k_are_exact(isa: str, place: str, types: tuple[str, str]) -> None:
    region = dynamic_k(place, (*types, "int32"), a_zero_point=3, b_zero_point=2)
    kernel = DynamicKernel(region, isa)
    for values in [*SIZES, sizes_of(1, 2, 0), sizes_of(1, 3, 70_000)]:
        check(kernel, values)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", BF16_ISAS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_bfloat16_of_any_k(isa: str, place: str, dtype: str) -> None:
    region = dynamic_k(place, (dtype, dtype, "float32"), rounded="bfloat16")
    kernel = DynamicKernel(region, isa)
    for values in [*SIZES, sizes_of(1, 2, 0)]:
        check(kernel, values)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", INTEGER_ISAS)
def test_integers_that_lie_anywhere(isa: str) -> None:
    """A transposed, with a static K that is no multiple of kr."""
    region = product(
        (BATCH, 23, LENGTH),
        (BATCH, KEYS, 23),
        (BATCH, LENGTH, KEYS),
        a_axes=(0, 2, 1),
        b_axes=(0, 2, 1),
        types=("int8", "int8", "int32"),
        a_zero_point=-3,
    )
    kernel = DynamicKernel(region, isa)
    turned = product(
        (BATCH, KEYS, LENGTH),
        (BATCH, KEYS, 18),
        (BATCH, LENGTH, 18),
        a_axes=(0, 2, 1),
        types=("int8", "int8", "int32"),
        a_zero_point=-3,
    )
    both = DynamicKernel(turned, isa)
    for values in SIZES:
        check(kernel, values)
        check(both, values)


PANELS = {
    "a weight": product((17, 9), (BATCH, 9, KEYS), (BATCH, 17, KEYS)),
    "pairs": product(
        (17, 9), (BATCH, 9, KEYS), (BATCH, 17, KEYS), types=("float32", "float32", "float32"),
        rounded="bfloat16",
    ),
    "added": product(
        (BATCH, 3, 8),
        (BATCH, 8, KEYS),
        (BATCH, 3, KEYS),
        (EpilogueOp("add", (0, 1)), EpilogueOp("relu", (2,))),
        Tensor((3, 1), "float32"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("form", PANELS)
def test_b_is_packed_panel_by_panel(form: str, threads: int) -> None:
    """Columns end within a vector and a panel; as many threads share the panels."""
    isa = highest_native(BF16_ISAS if form == "pairs" else ISAS)
    machine = machine_for(isa, threads).with_numbers(fork_us=0)
    config = template_for("batch_matmul").default_config(PANELS[form], machine)
    for vectors in {1, config.vectors}:
        changed = structs.replace(config, column_shares=1, vectors=vectors)
        kernel = DynamicKernel(PANELS[form], isa, threads, changed)
        for values in [*SIZES, sizes_of(0, 0, 0), sizes_of(2, 0, 0), sizes_of(2, 1, 131)]:
            check(kernel, values)
