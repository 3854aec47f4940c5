"""Kernels of every template write a part of a larger tensor and nothing beside it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm.tirx.script.builder.ir as I
from tvm import tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from microkernels.vector.expressions import parameter
from tests.guard import guarded
from tests.tir_schedules.run_region import (
    ISAS,
    bias_relu,
    compiled,
    dtype_named,
    machine_for,
    packed,
    random_inputs,
    run,
)
from tir_schedules.assembled.side_by_side import place_output
from tir_schedules.core.placement import Placement
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import template_for
from tvm_hybrid.runtime.feeds import tensor_of

F = "float32"
IMAGE = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}
QUANTIZED = (
    EpilogueOp("cast", (0,)),
    EpilogueOp("constant", (), 0.5),
    EpilogueOp("constant", (), 3.0, "uint8"),
    EpilogueOp("quantize", (1, 2, 3), dtype="uint8"),
)


def region(op: str, n: int, *inputs: Tensor, dtype: str = F, **fields: object) -> Region:
    return Region(op=op, inputs=inputs, output=Tensor((1, 5, 6, n), dtype)).replace(**fields)


def weight(*shape: int, dtype: str = F) -> Tensor:
    return Tensor(shape, dtype, True)


X = Tensor((1, 5, 6, 20), F)
REGIONS = {
    "matmul": region(
        "matmul", 36, X, weight(20, 36), operands=(weight(36),), epilogue=bias_relu()
    ),
    "bytes": region(
        "matmul", 70, Tensor((1, 5, 6, 20), "uint8"), weight(20, 70, dtype="int8"),
        dtype="uint8", epilogue=QUANTIZED,
    ),
    "conv2d": region(
        "conv2d", 36, X, weight(3, 3, 20, 36), attrs=IMAGE, operands=(weight(36),),
        epilogue=bias_relu(),
    ),
    "elementwise": region("elementwise", 20, X, attrs={"row": 20}),
    "softmax": region("softmax", 20, X, attrs={"axis": 3}),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("isa", sorted({ISAS[0], ISAS[-1]}))
@pytest.mark.parametrize("name", REGIONS)
def test_a_part_is_written_and_nothing_else(name: str, isa: str) -> None:
    described, machine = REGIONS[name], machine_for(isa, 2)
    template, n = template_for(described.op), described.output.shape[-1]
    config = template.default_config(described, machine)
    function = template.build(described, config, machine.isa)
    arrays = random_inputs(described)
    wanted = run(described, arrays, isa, config, 2)
    shape = (*described.output.shape[:-1], n + 14)
    for first in (0, 14):  # unmapped pages lie before the first part and after the last one
        part = Placement.whole(int(np.prod(shape))).part(n + 14, first, n)
        assert part is not None
        placed = place_output(function, described.output.shape, shape, part)
        assert isinstance(placed, tirx.PrimFunc), placed
        before = np.full(shape, 85, dtype_named(described.output.dtype))
        joint = guarded(before, at_end=first != 0)
        inputs = packed(described, config, machine.isa, arrays)
        kernel = compiled(placed, isa)
        kernel(*(tensor_of(guarded(x)) for x in inputs), tensor_of(joint))
        np.testing.assert_array_equal(joint[..., first : first + n], wanted)
        rest = np.delete(joint, range(first, first + n), axis=-1)
        assert (rest == 85).all()


def test_a_view_that_runs_over_the_end_of_rows_is_refused() -> None:
    plain = REGIONS["elementwise"].replace(attrs={})
    machine = machine_for("scalar")
    template = template_for(plain.op)
    function = template.build(plain, template.default_config(plain, machine), machine.isa)
    part = Placement.whole(30 * 34).part(34, 0, 20)
    assert part is not None
    placed = place_output(function, plain.output.shape, (1, 5, 6, 34), part)
    assert placed == "its kernel stores it as 1x600"


def test_tiles_that_are_stored_as_they_are_are_refused() -> None:
    plain = region(
        "matmul", 64, Tensor((1, 5, 6, 64), "bfloat16"), weight(64, 64, dtype="bfloat16")
    )
    machine = Machine("sapphirerapids", isa_named("amx"))
    template = template_for("matmul")
    function = template.build(plain, template.default_config(plain, machine), machine.isa)
    part = Placement.whole(30 * 128).part(128, 0, 64)
    assert part is not None
    placed = place_output(function, plain.output.shape, (1, 5, 6, 128), part)
    assert placed == "its kernel passes the result's address on"


def test_prefetching_the_weight_is_no_reason() -> None:
    """The address belongs to another buffer than the result's."""
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("copy")
        x, y = parameter("X", (2, 4), F), parameter("Y", (2, 4), F)
        I.evaluate(I.address_of(x[0, 0]))
        I.buffer_store(y, x[0, 0], [0, 0])
    part = Placement.whole(16).part(8, 4, 4)
    assert part is not None
    assert isinstance(place_output(builder.get(), (2, 4), (2, 8), part), tirx.PrimFunc)
