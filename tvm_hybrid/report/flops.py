"""Counts the operations of a model's matrix products and convolutions."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvm import IRModule, relax


class ProductSums:
    """Sums of products in a Relax module, before it is lowered.

    Attributes
    ----------
    flops : int
        Two operations for every multiply-add; nothing else is counted.
    lengths : list of int
        The number K of products that each output element of each operator sums.
    float32, bfloat16 : int
        How many of the matrix products have operands of these types, and with bfloat16 how many
        convolutions too.
    quantized : int
        How many tensors are quantised as the model runs.
    """

    def __init__(self, mod: IRModule) -> None:
        self.flops = 0
        self.lengths: list[int] = []
        self.float32 = self.bfloat16 = self.quantized = 0
        for call in _calls(mod):
            # Dynamic quantisation quantises its zero point as well, a tensor of no dimensions.
            if getattr(call.op, "name", "") == "relax.quantize" and _static_shape(call) != ():
                self.quantized += 1
            length = _sum_length(call)
            shape = _static_shape(call)
            if length is None or shape is None:
                continue
            self.lengths.append(length)
            self.flops += 2 * length * math.prod(shape)
            dtype = str(call.args[0].ty.dtype)
            self.bfloat16 += dtype == "bfloat16"
            self.float32 += dtype == "float32" and getattr(call.op, "name", "") == "relax.matmul"

    def rounded(self, precision: str) -> int:
        """How many operators have bfloat16 operands when compiled in a precision."""
        return self.bfloat16 + (self.float32 if precision == "bf16" else 0)


def _calls(mod: IRModule) -> Iterator[relax.Call]:
    found: list[relax.Call] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call):
            found.append(expr)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    yield from found


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
    name = getattr(call.op, "name", "")
    if name == "relax.matmul":
        left = _static_shape(call.args[0])
        return left[-1] if left else None
    if name in ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d"):
        weight = _static_shape(call.args[1])
        output_first = str(call.attrs.kernel_layout).startswith("O")
        return math.prod(weight[1:]) if weight and output_first else None
    return None
