"""Functions of one 8-bit value as tables in registers: when, and with every entry."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from microkernels.isa import isa_named
from tests.onnx_reference.arithmetic import quantize, quantized
from tests.tir_schedules.run_region import MCPU, machine_for, run
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.epilogue.lookup_table import find_lookups
from tir_schedules.rows.elementwise import ELEMENTWISE

DTYPES = ("uint8", "int8")
ZERO = {"uint8": 100, "int8": -20}


def constant(value: float) -> EpilogueOp:
    return EpilogueOp("constant", value=value)


def chain(source: str, target: str, *middle: EpilogueOp) -> Region:
    """quantize(middle(dequantize(x))) of all 256 values; `middle` reads 3 and numbers from 4."""
    last = 3 + len(middle)
    steps = (
        constant(0.02),
        constant(ZERO[source]),
        EpilogueOp("dequantize", (0, 1, 2)),
        *middle,
        constant(0.01),
        constant(3),
        EpilogueOp("quantize", (last, last + 1, last + 2), dtype=target),
    )
    return Region(
        op="elementwise",
        inputs=(Tensor((256,), source),),
        output=Tensor((256,), target),
        epilogue=steps,
    )


LEAKY = (
    constant(0.0),
    EpilogueOp("minimum", (3, 4)),
    constant(0.1),
    EpilogueOp("multiply", (5, 6)),
    EpilogueOp("maximum", (3, 4)),
    EpilogueOp("add", (7, 8)),
)


@pytest.mark.isa("avx512")
@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_every_entry_of_an_exact_function(source: str, target: str) -> None:
    x = np.arange(256, dtype=np.uint8).view(source)
    region = chain(source, target, *LEAKY)
    assert list(find_lookups(region)) == [len(region.epilogue)]
    real = quantized(x, 0.02, np.array(ZERO[source], source)).real()
    real = np.where(real < 0, real * np.float32(0.1), real)
    assert (run(region, [x], "avx512") == quantize(real, 0.01, np.array(3, target))).all()


@pytest.mark.sampled
@pytest.mark.isa("avx512")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", ["gelu", "sigmoid", "tanh", "hardswish", "exp"])
def test_a_table_agrees_with_the_steps_of_another_isa(function: str, dtype: str) -> None:
    x = np.arange(256, dtype=np.uint8).view(dtype)
    region = chain(dtype, dtype, EpilogueOp(function, (3,)))
    assert find_lookups(region)
    apart = run(region, [x], "avx512").astype(int) - run(region, [x], "avx2").astype(int)
    # The functions differ by a few ulp, which matter only next to a tie.
    assert np.abs(apart).max() <= 1
    assert np.count_nonzero(apart) <= 2


@pytest.mark.isa("avx512")
def test_a_function_without_a_value_everywhere() -> None:
    x = np.arange(256, dtype=np.uint8)
    real = quantized(x[100:], 0.02, np.uint8(100)).real()
    result = run(chain("uint8", "uint8", EpilogueOp("sqrt", (3,))), [x], "avx512")
    assert (result[100:] == quantize(np.sqrt(real), 0.01, np.uint8(3))).all()


@pytest.mark.isa("avx512")
def test_tables_of_an_operand_and_of_what_was_just_quantised() -> None:
    """quantize(leaky(dequantize(quantize(a)))) plus that function of b, a f32 and b int8."""
    steps: list[EpilogueOp] = [
        constant(0.02),
        constant(100),
        EpilogueOp("quantize", (0, 2, 3), dtype="uint8"),
    ]

    def leaky(source: int, zero_point: int) -> int:
        """Appends the steps of the function of `source`; returns the number of its result."""
        start = 2 + len(steps)
        steps.extend([constant(0.02), constant(zero_point)])
        steps.append(EpilogueOp("dequantize", (source, start, start + 1)))
        shift = start + 2 - 3
        for step in LEAKY:
            steps.append(EpilogueOp(step.op, tuple(arg + shift for arg in step.args), step.value))
        end = 2 + len(steps)
        steps.extend([constant(0.01), constant(3)])
        steps.append(EpilogueOp("quantize", (end - 1, end, end + 1), dtype="uint8"))
        return end + 2

    tables = [leaky(4, 100), leaky(1, -20)]
    start = 2 + len(steps)
    steps.extend([constant(0.01), constant(3)])
    steps.extend(EpilogueOp("dequantize", (table, start, start + 1)) for table in tables)
    steps.append(EpilogueOp("add", (start + 2, start + 3)))
    region = Region(
        op="elementwise",
        inputs=(Tensor((5, 99), "float32"),),
        output=Tensor((5, 99), "float32"),
        operands=(Tensor((5, 99), "int8"),),
        epilogue=tuple(steps),
    )
    assert list(find_lookups(region)) == tables
    rng = np.random.default_rng(4)
    a = rng.standard_normal((5, 99)).astype(np.float32)
    b = rng.integers(-128, 128, (5, 99), dtype=np.int8)

    def part(q: np.ndarray, zero_point: int) -> np.ndarray:
        real = quantized(q, 0.02, np.array(zero_point, q.dtype)).real()
        real = np.where(real < 0, real * np.float32(0.1), real)
        return quantized(quantize(real, 0.01, np.uint8(3)), 0.01, np.uint8(3)).real()

    wanted = part(quantize(a, 0.02, np.uint8(100)), 100) + part(b, -20)
    assert (run(region, [a, b], "avx512") == wanted).all()


def test_what_is_computed_rather_than_looked_up() -> None:
    assert not find_lookups(chain("uint8", "uint8", EpilogueOp("square", (3,))))  # as cheap
    gelu = chain("uint8", "uint8", EpilogueOp("gelu", (3,)))
    assert find_lookups(gelu)
    real = gelu.replace(inputs=(Tensor((256,), "float32"),))
    assert not find_lookups(real)  # the input is f32
    other = gelu.replace(op="matmul")
    assert not find_lookups(other)  # the input is an accumulator
    needed = gelu.replace(
        epilogue=(*gelu.epilogue, EpilogueOp("dequantize", (7, 5, 6)), EpilogueOp("add", (8, 4)))
    )
    assert not find_lookups(needed)  # an inner value has another user
    scale = Tensor((), "float32")
    steps = (
        EpilogueOp("dequantize", (0, 1, 2)),
        EpilogueOp("gelu", (3,)),
        EpilogueOp("quantize", (4, 1, 2), dtype="uint8"),
    )
    unknown = gelu.replace(operands=(scale, Tensor((), "int32")), epilogue=steps)
    assert not find_lookups(unknown)  # the scale is known at run time only


def test_code_has_no_arithmetic_of_the_function() -> None:
    region = chain("uint8", "int8", EpilogueOp("gelu", (3,)))
    config = ELEMENTWISE.default_config(region, machine_for("avx512"))
    function = ELEMENTWISE.build(region, config, isa_named("avx512"))
    target = tvm.target.Target({"kind": "llvm", "mcpu": MCPU["avx512"]})
    library = tvm.compile(function.with_attr("global_symbol", "kernel"), target=target)
    code = library.mod.inspect_source("asm")
    assert "vpermi2d" in code
    assert "vmulps" not in code
