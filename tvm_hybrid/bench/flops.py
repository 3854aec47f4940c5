"""Counts the operations of a model's matrix products and convolutions, and what rounds."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvm import IRModule, relax

from relay_passes.ir.moving_operators import moves
from relay_passes.ir.traits import CONVOLUTIONS, SOFTMAXES, SUMS

from .accuracy.compare import Tolerance, tolerance_for


class ProductSums:
    """Sums of products in a Relax module, before it is lowered.

    Attributes
    ----------
    flops : int
        Two operations for every multiply-add; nothing else is counted.
    lengths : list of int
        The number K of products that each output element of each operator sums.
    half_lengths : list of int
        The same of what is summed in float16, reductions and normalisations as well.
    float32, bfloat16 : int
        How many of the matrix products have operands of these types, and with bfloat16 how many
        convolutions, and other operators with such results, too.
    halves : int
        How many operators have float16 results.
    quantized : int
        How many tensors are quantised as the model runs.
    """

    def __init__(self, mod: IRModule) -> None:
        self.flops = 0
        self.lengths: list[int] = []
        self.half_lengths: list[int] = []
        self.float32 = self.bfloat16 = self.halves = self.quantized = 0
        for call in _calls(mod):
            # Dynamic quantisation quantises its zero point as well, a tensor of no dimensions.
            if _name(call) == "relax.quantize" and _static_shape(call) != ():
                self.quantized += 1
            length = _sum_length(call)
            shape = _static_shape(call)
            half = _dtype(call) == "float16"
            self.halves += half and not moves(call)
            if length is None or shape is None:
                self.bfloat16 += _dtype(call) == "bfloat16" and not moves(call)
                self.half_lengths += _reduced(call) if half else []
                continue
            (self.half_lengths if half else self.lengths).append(length)
            self.flops += 2 * length * math.prod(shape)
            dtype = _dtype(call.args[0])
            self.bfloat16 += dtype == "bfloat16"
            self.float32 += dtype == "float32" and _name(call) == "relax.matmul"

    def rounded(self, precision: str) -> int:
        """How many operators have bfloat16 operands when compiled in a precision."""
        return self.bfloat16 + (self.float32 if precision == "bf16" else 0)

    def tolerance(self, precision: str = "auto") -> Tolerance:
        """How far the model's results may be from the reference's when compiled in a precision."""
        rounded = self.rounded(precision)
        return tolerance_for(self.lengths, rounded, self.quantized, self.half_lengths, self.halves)


def _calls(mod: IRModule) -> Iterator[relax.Call]:
    found: list[relax.Call] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call):
            found.append(expr)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    yield from found


def _name(call: relax.Call) -> str:
    return str(getattr(call.op, "name", ""))


def _dtype(expr: relax.Expr) -> str:
    return str(getattr(getattr(expr, "ty", None), "dtype", ""))


def _static_shape(expr: relax.Expr) -> tuple[int, ...] | None:
    shape = getattr(getattr(expr, "ty", None), "shape", None)
    if shape is None:
        return None
    try:
        return tuple(int(size) for size in shape)
    except TypeError:
        return None


def _sum_length(call: relax.Call) -> int | None:
    """K of a matrix product or a convolution; None for other operators."""
    name = _name(call)
    if name == "relax.matmul":
        left = _static_shape(call.args[0])
        return left[-1] if left else None
    if name in CONVOLUTIONS:
        weight = _static_shape(call.args[1])
        output_first = str(call.attrs.kernel_layout).startswith("O")
        return math.prod(weight[1:]) if weight and output_first else None
    return None


def _reduced(call: relax.Call) -> list[int]:
    """How many elements of its argument each element of a call's result adds up, if it does."""
    name = _name(call)
    given = _static_shape(call.args[0]) if call.args else None
    if given is None or not math.prod(given):
        return []
    if name in SUMS:
        return [math.prod(given) // math.prod(_static_shape(call) or (1,))]
    if name in SOFTMAXES:
        return [given[int(call.attrs.axis)]]
    if name in ("relax.nn.layer_norm", "relax.nn.rms_norm"):
        return [math.prod(given[int(axis)] for axis in call.attrs.axes)]
    if name.startswith("relax.nn.avg_pool"):
        return [math.prod(map(int, call.attrs.pool_size))]
    return []
