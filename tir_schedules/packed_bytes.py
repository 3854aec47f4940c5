"""Storing rows of 8-bit results: four vectors of int32 become one vector of bytes, saturated.

    16 + 16 + 16 + 16 int32  --vpackssdw, vpackuswb, vpermd-->  64 bytes, in order

Narrowing each vector by itself takes two instructions and a store for 16 bytes, after two that keep
the numbers within the type. The packing instructions saturate, so that quantising may leave that to
them (`emit_quantize_wide`). Three products 13-512-256-128, of which storing their results took an
eighth of the time, became 2% faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vectors import Expr, cast, like

from .epilogue import Columns, Epilogue, store_vector
from .quantize_steps import RANGES, can_quantize_wide, emit_quantize_wide
from .region import Region

LANES = 16  # of AVX-512
_GROUP = 4
_WITHIN = 255 * 255  # a product of two 8-bit integers less their zero points
# What lies in a 128-bit lane after both packings are four bytes of each vector.
_ORDER = [_GROUP * lane + vector for vector in range(_GROUP) for lane in range(_GROUP)]


def wide_bytes(region: Region, lanes: int, epilogue: Epilogue) -> Callable[[Expr], Expr] | None:
    """The last step of an epilogue for results that `store_bytes` stores; None if it cannot."""
    last = len(region.operands) + len(region.epilogue)
    numbers, dtype = epilogue.quantized_by(), region.output.dtype
    whole = lanes == LANES and region.output.shape[-1] % lanes == 0
    if numbers is None or not whole or last in epilogue.lookups:
        return None
    if not can_quantize_wide(*numbers, dtype):
        return None
    bounded = largest(region, region.epilogue[-1].args[0]) < 2.0**30 * numbers[0]
    return lambda value: emit_quantize_wide(value, *numbers, dtype, bounded)


def largest(region: Region, value: int) -> float:
    """A bound of the magnitude of a value in an integer product's epilogue; infinite if unknown."""
    first = 1 + len(region.operands)
    if value == 0:
        integers = region.op == "matmul" and region.inputs[1].dtype in RANGES
        return float(_WITHIN * region.inputs[0].shape[-1]) if integers else math.inf
    if value < first:
        return math.inf
    step = region.epilogue[value - first]
    if step.op == "constant":
        return abs(float(step.value or 0.0))
    bounds = [largest(region, argument) for argument in step.args]
    if step.op == "relu" or (step.op == "cast" and step.dtype == "float32"):
        return bounds[0]
    if step.op in ("maximum", "minimum"):
        return max(bounds)
    if step.op in ("add", "subtract"):
        return 2 * max(bounds)
    return math.prod(bounds) if step.op == "multiply" else math.inf


def store_bytes(
    out: Expr, values: Sequence[Expr], leading: Sequence[Expr], start: Expr, dtype: str
) -> None:
    """Stores vectors of int32 as 8-bit integers next to each other, saturated.

    Parameters
    ----------
    out : Buffer
        Of 8-bit integers.
    values : sequence of Expr
        Each 16 lanes.
    leading : sequence of Expr
        Indices of the row in `out`.
    start : Expr
        First column.
    dtype : str
        "uint8" or "int8".
    """
    for first in range(0, len(values), _GROUP):
        group = list(values[first : first + _GROUP])
        columns = start + first * LANES
        if len(group) == 1:
            low, high = (like(limit, group[0]) for limit in RANGES[dtype])
            narrow = cast(dtype, tirx.Min(tirx.Max(group[0], low), high))
            store_vector(out, narrow, leading, Columns(columns, LANES, LANES))
            continue
        valid = LANES * len(group)
        padded = group + group[-1:] * (_GROUP - len(group))
        store_vector(out, _packed(padded, dtype), leading, Columns(columns, LANES * _GROUP, valid))


def _packed(values: Sequence[Expr], dtype: str) -> Expr:
    """Four vectors of int32 as one of 8-bit integers."""
    halves = [
        I.call_llvm_pure_intrin(
            "int16x32", "llvm.x86.avx512.packssdw.512", *values[pair : pair + 2]
        )
        for pair in (0, 2)
    ]
    name = "packuswb" if dtype == "uint8" else "packsswb"
    mixed = I.call_llvm_pure_intrin("int8x64", f"llvm.x86.avx512.{name}.512", *halves)
    order = [tirx.const(number, "int32") for number in _ORDER]
    index = tirx.Shuffle(order, [tirx.const(lane, "int32") for lane in range(LANES)])
    words = I.call_llvm_pure_intrin(
        "int32x16", "llvm.x86.avx512.permvar.si.512", I.reinterpret("int32x16", mixed), index
    )
    return I.reinterpret(f"{dtype}x64", words)
