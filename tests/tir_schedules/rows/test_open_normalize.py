"""Norms and softmax of any number of rows: one kernel, compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tir_schedules.open_regions import BATCH, LENGTH, OpenKernel, at_sizes
from tests.tir_schedules.run_region import (
    ISAS,
    expected,
    highest_native,
    machine_for,
    random_inputs,
)
from tir_schedules.core.region import Region, Step, Tensor
from tir_schedules.core.template import template_for

SIZES = [(1, 1), (1, 5), (2, 6), (3, 7), (1, 40)]


def rows(op: str, n: int, operands: tuple[Tensor, ...] = ()) -> Region:
    weights = {"layer_norm": 2, "rms_norm": 1}.get(op, 0)
    attrs: dict[str, int | float] = {"axis": 2}
    if weights:
        attrs["epsilon"] = 1e-5
    return Region(
        op=op,
        inputs=(
            Tensor((BATCH, LENGTH, n), "float32"),
            *(Tensor((n,), "float32") for _ in range(weights)),
        ),
        operands=operands,
        output=Tensor((BATCH, LENGTH, n), "float32"),
        attrs=attrs,
        epilogue=(Step("add", (0, 1)),) if operands else (),
    )


def check(region: Region, kernel: OpenKernel) -> None:
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
    check(region, OpenKernel(region, isa))


@pytest.mark.parametrize("shape", [(BATCH, LENGTH, 33), (LENGTH, 33), (BATCH, 1, 33), (33,)])
def test_operands(shape: tuple[int, ...]) -> None:
    region = rows("layer_norm", 33, (Tensor(shape, "float32"),))
    check(region, OpenKernel(region, highest_native(ISAS)))


@pytest.mark.parametrize("threads", [2, 5])
def test_on_threads(threads: int) -> None:
    region = rows("rms_norm", 64)
    config = template_for("rms_norm").default_config(
        region, machine_for(highest_native(ISAS), threads).with_numbers(fork_us=0)
    )
    assert config.to_dict()["threads"] == threads
    check(region, OpenKernel(region, highest_native(ISAS), threads, config))


def test_rows_of_unknown_length_are_refused() -> None:
    region = Region(
        op="softmax",
        inputs=(Tensor((2, LENGTH), "float32"),),
        output=Tensor((2, LENGTH), "float32"),
        attrs={"axis": 1},
    )
    template = template_for("softmax")
    assert "not known" in str(template.rejection(region, machine_for("avx2").isa))
    assert template.open_part
