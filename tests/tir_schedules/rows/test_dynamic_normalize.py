"""Normalisations and softmax with dynamic rows: one kernel, compared with numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.tir_schedules.dynamic_regions import BATCH, LENGTH, DynamicKernel, at_sizes
from tests.tir_schedules.run_region import (
    ISAS,
    expected,
    highest_native,
    machine_for,
    random_inputs,
)
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.size import SymbolicSize
from tir_schedules.core.template import template_for

pytestmark = pytest.mark.turns

SIZES = [(1, 1), (1, 5), (2, 6), (3, 7), (1, 40)]


def rows(
    op: str, n: int, operands: tuple[Tensor, ...] = (), shape: tuple[int, ...] | None = None
) -> Region:
    shape = shape or (BATCH, LENGTH, n)
    weights = {"layer_norm": 2, "rms_norm": 1}.get(op, 0)
    attrs: dict[str, int | float] = {"axis": 2}
    if weights:
        attrs["epsilon"] = 1e-5
    return Region(
        op=op,
        inputs=(Tensor(shape, "float32"), *(Tensor((n,), "float32") for _ in range(weights))),
        operands=operands,
        output=Tensor(shape, "float32"),
        attrs=attrs,
        epilogue=(EpilogueOp("add", (0, 1)),) if operands else (),
    )


def check(region: Region, kernel: DynamicKernel) -> None:
    for sizes in SIZES:
        values = dict(zip(("batch", "length"), sizes, strict=True))
        known = at_sizes(region, values)
        arrays = random_inputs(known)
        wanted = expected(known, arrays)
        # Sums of n numbers in any order, and a few roundings of numbers of the result's size.
        n = known.output.shape[-1]
        bound = 4 * (n + 16) * np.finfo(np.float32).eps * max(1.0, np.abs(wanted).max())
        for at_end in (True, False):
            assert np.abs(kernel.run(values, arrays, at_end) - wanted).max() <= bound


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "layer_norm", "rms_norm"])
def test_any_number_of_rows(isa: str, op: str) -> None:
    region = rows(op, 70)
    check(region, DynamicKernel(region, isa))


@pytest.mark.parametrize("shape", [(BATCH, LENGTH, 33), (LENGTH, 33), (BATCH, 1, 33), (33,)])
def test_operands(shape: tuple[int, ...]) -> None:
    region = rows("layer_norm", 33, (Tensor(shape, "float32"),))
    check(region, DynamicKernel(region, highest_native(ISAS)))


@pytest.mark.parametrize("threads", [2, 5])
def test_on_threads(threads: int) -> None:
    region = rows("rms_norm", 64)
    config = template_for("rms_norm").default_config(
        region, machine_for(highest_native(ISAS), threads).with_numbers(fork_us=0)
    )
    assert config.to_dict()["threads"] == threads
    check(region, DynamicKernel(region, highest_native(ISAS), threads, config))


WIDTH = SymbolicSize.of("width")


def check_lengths(region: Region, kernel: DynamicKernel, widths: tuple[int, ...]) -> None:
    for batch, width in itertools.product((1, 5), widths):
        values = {"batch": batch, "length": 3, "width": width}
        known = at_sizes(region, values)
        arrays = random_inputs(known)
        wanted = expected(known, arrays)
        largest = np.abs(wanted).max(initial=1.0)
        bound = 4 * (width + 16) * np.finfo(np.float32).eps * largest
        if region.output.dtype == "bfloat16":
            bound += 2**-8 * largest
        for at_end in (True, False):
            found = kernel.run(values, arrays, at_end).astype(np.float64)
            assert np.abs(found - wanted).max(initial=0.0) <= bound


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_any_length_of_rows(isa: str, op: str) -> None:
    operand = Tensor((BATCH, 1, WIDTH), "float32")
    for region in (
        rows(op, WIDTH),
        rows(op, WIDTH, (operand,)),
        rows(op, WIDTH).replace(output=Tensor((BATCH, LENGTH, WIDTH), "bfloat16")),
    ):
        check_lengths(region, DynamicKernel(region, isa), (0, 1, 2, 9, 64, 77))


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "layer_norm", "rms_norm"])
def test_rows_a_multiple_of_4_kilobytes_apart(op: str) -> None:
    """Such rows are computed in sequence: 15 and 3 rows are several blocks, and single rows."""
    region = rows(op, WIDTH)
    check_lengths(region, DynamicKernel(region, highest_native(ISAS)), (1023, 1024, 2048))


def test_any_length_on_threads() -> None:
    isa = highest_native(ISAS)
    for region in (rows("softmax", WIDTH), rows("softmax", WIDTH, shape=(4, 3, WIDTH))):
        machine = machine_for(isa, 3).with_numbers(fork_us=0)
        config = template_for("softmax").default_config(region, machine)
        assert config.to_dict()["threads"] == 3
        check_lengths(region, DynamicKernel(region, isa, 3, config), (1, 30, 200))


def test_rows_with_nothing_finite_have_their_meaning() -> None:
    region = rows("softmax", WIDTH)
    kernel = DynamicKernel(region, highest_native(ISAS))
    x = np.zeros((1, 3, 11), np.float32)
    x[0, 0], x[0, 1, 10], x[0, 2, :9] = -np.inf, np.nan, -np.inf
    result = kernel.run({"batch": 1, "length": 3, "width": 11}, [x])
    assert np.isnan(result[0, :2]).all()
    np.testing.assert_array_equal(result[0, 2], [0] * 9 + [0.5] * 2)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_norms_of_any_length(isa: str, op: str) -> None:
    for region in (rows(op, WIDTH), rows(op, WIDTH, (Tensor((LENGTH, WIDTH), "float32"),))):
        check_lengths(region, DynamicKernel(region, isa), (0, 1, 2, 9, 64, 77))


def columns(op: str, shape: tuple[int, ...], operands: tuple[Tensor, ...] = ()) -> Region:
    """A region normalised along axis 2 of 4."""
    return rows(op, 1, operands, shape)


COLUMNS = {
    "any length": columns("softmax", (BATCH, 3, WIDTH, 37)),
    "any columns": columns("softmax", (BATCH, LENGTH, 5, WIDTH)),
    "all": columns("softmax", (BATCH, LENGTH, WIDTH, WIDTH)),
    "one line": columns("softmax", (1, 1, WIDTH, BATCH)),
    "operand": columns("softmax", (2, LENGTH, WIDTH, 7), (Tensor((LENGTH, 1, 7), "float32"),)),
    "logarithm": columns("log_softmax", (BATCH, 3, WIDTH, 37)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", COLUMNS)
def test_columns_of_any_sizes(isa: str, form: str) -> None:
    region = COLUMNS[form]
    check_lengths(region, DynamicKernel(region, isa), (0, 1, 2, 9, 64, 77))


@pytest.mark.parametrize("form", ["any length", "any columns"])
def test_columns_on_threads(form: str) -> None:
    isa, region = highest_native(ISAS), COLUMNS[form]
    machine = machine_for(isa, 3).with_numbers(fork_us=0)
    config = template_for("softmax").default_config(region, machine)
    assert config.to_dict()["threads"] == 3
    check_lengths(region, DynamicKernel(region, isa, 3, config), (1, 30, 200))
