"""Recognises products with a weight that stays at 8 bits or less, for weight_only_matmul.

    lv = R.astype(const_w, "float32")                   # int8 or uint8 [B, K / B, N]
    lv1 = R.subtract(lv, const_z)                       # f32, broadcast from [B, 1, N]; or missing
    lv2 = R.multiply(lv1, const_s)                      # likewise
    lv3 = R.reshape(lv2, [K, N])
    lv4 = R.matmul(x, lv3)

There may be a reshape of the constant; without any reshape there is one block. A strided_slice
after the last reshape drops the padding of a short last block. The number of bits follows from the
values of the constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from tvm import ir, relax

from relay_passes.ir.constants import array_of
from relay_passes.ir.graph import DataflowGraph, op_name, region_tensor, static_tensor
from tir_schedules.core.attributes import Attribute
from tir_schedules.product.narrow_weight import per_block_shape

from .anchor import Anchor


@dataclass
class _Chain:
    """Walks from a value to what it is computed from, noting the bindings passed."""

    graph: DataflowGraph
    expr: relax.Expr
    passed: list[int] = field(default_factory=list)

    def passes(self, name: str) -> relax.Call | None:
        """The call of that operator that computes the value, if it is one; its first argument is
        the value from then on."""
        call = self.graph.definition(self.expr)
        if op_name(call) != name:
            return None
        assert isinstance(call, relax.Call)
        self.passed.append(self.graph.position[self.expr])
        self.expr = call.args[0]
        return call

    def passes_constant(self, name: str) -> relax.Expr | None:
        """The constant that an operator of two arguments adds to the value; None if the value is
        computed in another way."""
        call = self.graph.definition(self.expr)
        if op_name(call) != name:
            return None
        assert isinstance(call, relax.Call)
        value, other = call.args
        if name == "relax.multiply" and isinstance(value, ir.GenericConst):
            value, other = other, value
        if not isinstance(other, ir.GenericConst):
            return None
        self.passed.append(self.graph.position[self.expr])
        self.expr = value
        return other


def match_weight_only(graph: DataflowGraph, position: int, call: relax.Call) -> Anchor | None:
    """The anchor of a matmul whose weight is a dequantised constant, else None.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    position : int
        Where the matmul's binding stands.
    call : relax.Call
        The matmul.
    """
    a, output = region_tensor(call.args[0]), region_tensor(graph.bindings[position].var)
    chain = _Chain(graph, call.args[1])
    if a is None or output is None or len(a.shape) < 2 or a.dtype != "float32":
        return None
    weight = static_tensor(call.args[1])
    if weight is None or len(weight.shape) != 2 or not _cuts_rows(chain):
        return None
    reshaped = chain.passes("relax.reshape") is not None
    blocks = static_tensor(chain.expr)
    scale = chain.passes_constant("relax.multiply")
    zero = chain.passes_constant("relax.subtract")
    if scale is None or blocks is None or len(blocks.shape) != (3 if reshaped else 2):
        return None
    if chain.passes("relax.astype") is None:
        return None
    chain.passes("relax.reshape")
    stored = static_tensor(chain.expr)
    if stored is None or not stored.constant or stored.dtype not in ("int8", "uint8"):
        return None
    shape = blocks.shape if reshaped else (1, *blocks.shape)
    same_columns = stored.shape[-1:] == shape[-1:] == weight.shape[-1:]
    parameters = [scale] if zero is None else [scale, zero]
    if not same_columns or not all(_per_block(each, shape, reshaped) for each in parameters):
        return None
    attrs: dict[str, Attribute] = {"block": shape[1]}
    attrs["bits"] = _bits(array_of(chain.expr.value), shape)
    common = None if zero is None else _common(zero)
    if common is not None:
        attrs["zero_point"] = common
        parameters = [scale]
    if graph.rounds:
        attrs["rounded"] = "bfloat16"
    inputs = (call.args[0], chain.expr, *parameters)
    absorbed = tuple(sorted(chain.passed))
    return Anchor(position, "weight_only_matmul", inputs, output, attrs, absorbed)


def _cuts_rows(chain: _Chain) -> bool:
    """Passes a slice of the first rows; False if it is any other slice."""
    shape = static_tensor(chain.expr)
    call = chain.passes("relax.strided_slice")
    if call is None:
        return True
    whole = static_tensor(chain.expr)
    axes, begin, end, *strides = ([int(x.value) for x in arg.fields] for arg in call.args[1:])
    unit = not strides or strides[0] == [1]
    return (
        whole is not None
        and shape is not None
        and (axes, begin, unit) == ([0], [0], True)
        and 0 < end[0] <= whole.shape[0]
    )


def _per_block(constant: relax.Expr, shape: tuple[int, ...], reshaped: bool) -> bool:
    """Whether a constant holds a number for each block, or column, or both, of [B, b, N]."""
    tensor = static_tensor(constant)
    if tensor is None or tensor.dtype != "float32":
        return False
    rank = 3 if reshaped else 2
    aligned = (1,) * (rank - len(tensor.shape)) + tensor.shape
    if len(aligned) != rank:
        return False
    if not reshaped:
        aligned = (1, *aligned)
    blocks, steps, columns = aligned
    # What is stored is read as [B, N]: of few dimensions, only columns may differ.
    as_read = per_block_shape(tensor.shape)
    return (
        steps == 1
        and blocks in (1, shape[0])
        and columns in (1, shape[2])
        and as_read == (blocks, columns)
    )


def _bits(weight: np.ndarray, shape: tuple[int, ...]) -> int:
    """The fewest bits that hold every number, where blocks are whole words of them."""
    low, high = int(weight.min()), int(weight.max())
    for bits in (2, 4):
        word_steps = 32 // bits
        signed = weight.dtype == np.int8
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        if least <= low and high <= most and (shape[0] == 1 or shape[1] % word_steps == 0):
            return bits
    return 8


def _common(zero: relax.Expr) -> float | None:
    """The zero point if it is one finite number for all."""
    array = zero.value.numpy()
    first = float(array.flat[0])
    return first if math.isfinite(first) and (array == array.flat[0]).all() else None
