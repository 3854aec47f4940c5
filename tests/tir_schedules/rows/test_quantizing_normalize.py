"""Normalisations whose epilogue stores 8-bit integers or bfloat16: the f32 result, converted."""

from __future__ import annotations

import numpy as np
import pytest

from microkernels.isa import isa_named
from tests.onnx_reference.arithmetic import quantize
from tests.tir_schedules.run_region import ISAS, dtype_named, random_inputs, run
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.rows.normalize import NormalizeConfig

F = "float32"
CONFIGS: list[NormalizeConfig | None] = [
    None,
    NormalizeConfig(rows=3, unroll=2, keep=False, chunk=1 << 20),
    NormalizeConfig(rows=2, unroll=1, keep=False, chunk=1),  # merges statistics of chunks
]


def region_for(op: str, shape: tuple[int, ...], axis: int = -1) -> Region:
    """The operator in f32, without an epilogue."""
    axis %= len(shape)
    attrs: dict[str, Attribute] = {"axis": axis}
    weights = {"layer_norm": 2, "rms_norm": 1}.get(op, 0)
    if weights:
        attrs["epsilon"] = 1e-5
    inputs = (Tensor(shape, F), *[Tensor(shape[axis:], F, True)] * weights)
    return Region(op=op, inputs=inputs, output=Tensor(shape, F), attrs=attrs)


def storing(region: Region, dtype: str, scale: float) -> Region:
    """The operator with its result in another type."""
    steps: tuple[EpilogueOp, ...] = (EpilogueOp("cast", (0,), dtype=dtype),)
    if dtype != "bfloat16":
        numbers = (EpilogueOp("constant", value=scale), EpilogueOp("constant", value=3.0))
        steps = (*numbers, EpilogueOp("quantize", (0, 1, 2), dtype=dtype))
    return region.replace(output=Tensor(region.output.shape, dtype), epilogue=steps)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "bfloat16"])
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "layer_norm", "rms_norm"])
def test_the_result_is_converted_in_registers(op: str, dtype: str, isa: str) -> None:
    """Kernels with and without the conversion compute equal f32 numbers."""
    scale = {"softmax": 1 / 255, "log_softmax": 0.06}.get(op, 0.02)
    for shape, configs in [((5, 1), CONFIGS[:1]), ((2, 3, 37), CONFIGS), ((4, 80), CONFIGS[:1])]:
        region = region_for(op, shape)
        arrays = random_inputs(region)
        for number, config in enumerate(configs if isa == ISAS[-1] else configs[:1]):
            real = run(region, arrays, isa, config=config)
            wanted = real.astype(dtype_named(dtype))
            if dtype != "bfloat16":
                wanted = quantize(real, scale, np.array(3, dtype))
            narrow = storing(region, dtype, scale)
            result = run(narrow, arrays, isa, config=config, at_end=number == 0)
            np.testing.assert_array_equal(result.astype(F), wanted.astype(F))


def test_what_is_rejected_is_told_why() -> None:
    isa = isa_named("avx512")
    template = template_for("softmax")
    inner = storing(region_for("softmax", (4, 5, 6), 1), "uint8", 0.1)
    assert template.reject(inner, isa) == "output of type uint8 along an inner axis"
    wide = region_for("softmax", (4, 5)).replace(output=Tensor((4, 5), "float64"))
    assert template.reject(wide, isa) == "output of type float64"
