"""Kernels side by side: which thread runs which, whether it pays, and that results are equal."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tests.stand_ins import running
from tests.tir_schedules.run_region import (
    BF16_ISAS,
    INTEGER_ISAS,
    machine_for,
    packed,
    random_inputs,
    tensor_of,
)
from tir_schedules.assembled.side_by_side import (
    Piece,
    combine,
    estimate,
    piece_of,
    serial_us,
    tasks_of,
)
from tir_schedules.assembled.task_parts import Share, assign
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import template_for

TWO = Machine("znver4", isa_named("avx512"), 2)

F = "float32"
DENSE = Region(
    op="matmul",
    inputs=(Tensor((3, 33), F), Tensor((33, 50), F, constant=True)),
    operands=(Tensor((50,), F),),
    output=Tensor((3, 50), F),
    epilogue=(EpilogueOp("add", (0, 1)), EpilogueOp("relu", (2,))),
)
SOFTMAX = Region(
    op="softmax", inputs=(Tensor((5, 19), F),), output=Tensor((5, 19), F), attrs={"axis": 1}
)
BF16 = Region(
    op="matmul",
    inputs=(Tensor((3, 33), F), Tensor((33, 20), "bfloat16", constant=True)),
    output=Tensor((3, 20), "bfloat16"),
)
INT8 = Region(
    op="matmul",
    inputs=(Tensor((4, 40), "uint8"), Tensor((40, 24), "int8", constant=True)),
    output=Tensor((4, 24), "int32"),
    attrs={"a_zero_point": 3, "b_zero_point": 0},
)


def built(region: Region, machine: Machine) -> tirx.PrimFunc:
    template = template_for(region.op)
    return template.build(region, template.default_config(region, machine), machine.isa)


def test_the_longest_come_first() -> None:
    assert assign([1.0, 3.0, 2.0], 2) == (Share((1,)), Share((2, 0)))
    assert assign([1.0, 1.0], 8) == (Share((0,)), Share((1,)))
    assert assign([4.0, 3.0, 3.0, 2.0], 2) == (Share((0, 3)), Share((1, 2)))


def test_pieces_that_are_long_enough_pay() -> None:
    # 10 us on each of two threads, one call (0.35 us) and one fork (1 us) instead of two calls.
    found = estimate([Piece(10.0, 1, 0), Piece(10.0, 1, 0)], TWO)
    assert found.pays and found.shares == (Share((0,)), Share((1,)))
    assert found.separate.total == pytest.approx(20.7)
    assert found.merged.total == pytest.approx(11.35)
    assert "an estimated 11.3 us instead of 20.7 (compute -10.0, calls and" in str(found)


@pytest.mark.parametrize(
    "pieces",
    [
        [Piece(0.5, 1, 0), Piece(0.5, 1, 0)],  # a fork costs more than one kernel
        [Piece(100.0, 1, 0), Piece(0.3, 1, 0)],  # one kernel is nearly all of the work
        [Piece(20.0, 2, 0), Piece(25.0, 2, 0)],  # all threads are busy already
        [Piece(10.0, 1, 1 << 20), Piece(10.0, 1, 1 << 20)],  # 1 MB is fetched from another core
    ],
    ids=["short", "uneven", "parallel", "large results"],
)
def test_others_do_not(pieces: list[Piece]) -> None:
    assert not estimate(pieces, TWO).pays


def test_an_estimate_grows_with_the_work() -> None:
    machine = machine_for("avx512", threads=2)
    narrow = INT8.replace(inputs=(Tensor((4, 40), "uint8"), Tensor((40, 24), "int8")))
    wide = narrow.replace(inputs=(Tensor((4, 40), F), Tensor((40, 24), F)))
    assert 0 < serial_us(narrow, machine) < serial_us(wide, machine)
    # One row: reading 4 MB of weights from L3 takes longer than multiplying.
    weights = Tensor((1024, 1024), F, constant=True)
    row = Region(op="matmul", inputs=(Tensor((1, 1024), F), weights), output=Tensor((1, 1024), F))
    assert serial_us(row, machine) > 4 * 1024 * 1024 / 99e3
    larger = SOFTMAX.replace(inputs=(Tensor((50, 19), F),), output=Tensor((50, 19), F))
    assert serial_us(larger, machine) > 5 * serial_us(SOFTMAX, machine)
    assert piece_of(SOFTMAX, 1, machine).result_bytes == 4 * 5 * 19


def test_tasks_are_iterations_of_the_parallel_loop() -> None:
    large = Region(
        op="matmul",
        inputs=(Tensor((64, 256), F), Tensor((256, 256), F, constant=True)),
        output=Tensor((64, 256), F),
    )
    assert tasks_of(built(DENSE, machine_for("scalar", threads=4))) == 1
    assert tasks_of(built(large, machine_for("scalar", threads=4))) == 4
    assert tasks_of(built(large, machine_for("scalar", threads=1))) == 1


def check(isa: str, regions: list[Region], threads: int) -> None:
    """The combined kernel gives the results of the single kernels, to the bit."""
    machine = machine_for(isa)
    kernels = [built(region, machine) for region in regions]
    shares = assign([1.0] * len(regions), threads)
    module = {f"k{i}": kernel for i, kernel in enumerate(kernels)}
    module["together"] = combine(kernels, shares)
    named = {name: f.with_attr("global_symbol", name) for name, f in module.items()}
    library = running.compiled(tvm.IRModule(named), isa)
    read, single, results = [], [], []
    for i, region in enumerate(regions):
        config = template_for(region.op).default_config(region, machine)
        arrays = packed(region, config, machine.isa, random_inputs(region, seed=i))
        tensors = [tensor_of(np.ascontiguousarray(array)) for array in arrays]
        outputs = [tvm.runtime.empty(region.output.shape, region.output.dtype) for _ in range(2)]
        library[f"k{i}"](*tensors, outputs[0])
        read += tensors
        single.append(outputs[0])
        results.append(outputs[1])
    library["together"](*read, *results)
    for one, other in zip(single, results, strict=True):
        np.testing.assert_array_equal(bits(other), bits(one))


def bits(tensor: tvm.runtime.Tensor) -> np.ndarray:
    return np.frombuffer(tensor.numpy().tobytes(), np.uint8)


def test_every_kernel_computes_what_it_did_alone() -> None:
    check(BF16_ISAS[-1], [DENSE, SOFTMAX, BF16, DENSE, BF16], 2)
    check(INTEGER_ISAS[-1], [INT8, DENSE, INT8], 3)


def test_on_the_plainest_cpu() -> None:
    check("scalar", [DENSE, SOFTMAX], 2)


def test_parameters_are_inputs_then_results() -> None:
    machine = machine_for("scalar")
    together = combine([built(DENSE, machine), built(SOFTMAX, machine)], (Share((0,)), Share((1,))))
    names = [str(param.name) for param in together.params]
    assert names == ["A", "W", "operand0", "X", "C", "Y"]
    assert tasks_of(together) == 2
