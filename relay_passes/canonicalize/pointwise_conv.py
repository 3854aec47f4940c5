"""Writes convolutions of one tap as products of pixels and a matrix.

Before

    lv = R.nn.conv2d(x, const_w, data_layout="NHWC", kernel_layout="HWIO")     # [1, 1, C, OC]
    lv1 = R.nn.conv2d(y, const_v, data_layout="NCHW", kernel_layout="OIHW")    # [OC, C, 1, 1]
    lv2 = R.add(lv1, const_b)                                                  # [1, OC, 1, 1]

After

    lv = R.matmul(x, const_w')                                                 # [C, OC]
    planes = R.reshape(y, [N, C, H * W])
    lv1 = R.matmul(const_v', planes)                                           # [OC, C]
    planes1 = R.add(lv1, const_b')                                             # [OC, 1]
    lv2 = R.reshape(planes1, [N, OC, H, W])

Stride 1, no padding, one group; along one, two or three axes. With channels first, the weight is a
constant. A permutation to channels first directly before stays directly before the product, which
reads through it.
"""

from __future__ import annotations

import math

from tvm import ir, relax

from relay_passes.ir.axis_view import view_axes
from relay_passes.ir.convolution import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    has_one_tap,
    layouts_of,
    runs_on_planes,
)
from relay_passes.ir.graph import (
    DataflowGraph,
    is_call,
    known_tensor,
    op_name,
    region_tensor,
    relax_shape,
    static_tensor,
)
from relay_passes.ir.rewrite import Bindings, block_pass
from relay_passes.ir.traits import ELEMENTWISE
from relay_passes.ir.transposed_constants import with_axes
from relay_passes.ir.with_args import with_args


def pointwise_conv() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.pointwise_conv", _rewrite)


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    """The block with such convolutions written as products; None if there are none."""
    writer = _Writer(graph)
    for position in range(len(graph.bindings)):
        writer.write(position)
    return writer.block.bindings if writer.changes else None


def is_pointwise(graph: DataflowGraph, call: relax.Expr) -> bool:
    """Whether an expression is a convolution, channels last, that computes every pixel from one
    alone."""
    if not is_call(call, *CHANNELS_LAST) or layouts_of(call) != CHANNELS_LAST[op_name(call)]:
        return False
    if region_tensor(call.args[0]) is None:
        return False
    return has_one_tap(call) and static_tensor(call.args[1]) is not None


class _Writer:
    """The block as it is written anew.

    Attributes
    ----------
    block : Bindings
        What has been written.
    changes : bool
        Whether a convolution was found.
    """

    def __init__(self, graph: DataflowGraph) -> None:
        self.graph = graph
        self.block = Bindings()
        self.changes = False
        self._planes: dict[relax.Expr, relax.Var] = {}  # [N, C, H, W] -> the same, [N, C, H * W]

    def write(self, position: int) -> None:
        """Writes one binding."""
        binding, call = self.graph.bindings[position], self.graph.value(position)
        if is_pointwise(self.graph, call):
            self.changes = True
            rank = int(call.args[1].ty.ndim)
            weight = with_axes(self.graph, call.args[1], (rank - 2, rank - 1), self.block)
            product = relax.op.matmul(call.args[0], weight, call.attrs.out_dtype or None)
            self.block.bind(binding.var, product)
            return
        planes = None
        if runs_on_planes(call) and layouts_of(call) == CHANNELS_FIRST[op_name(call)]:
            self.changes = True
            weight = with_axes(self.graph, call.args[1], (0, 1), self.block)
            planes = relax.op.matmul(weight, self._flat(call.args[0]))
        elif op_name(call) in ELEMENTWISE:
            planes = self._elementwise(binding.var, call)
        if planes is None:
            self.block.bindings.append(binding)
            return
        tensor = known_tensor(binding.var)
        var = self.block.emit(planes, "planes")
        self._planes[binding.var] = var
        shape = relax_shape(tensor.shape, binding.var)
        self.block.bind(binding.var, relax.op.reshape(var, shape))

    def _flat(self, expr: relax.Expr) -> relax.Expr:
        """A tensor [N, C, H, W] as [N, C, H * W]."""
        if expr in self._planes:
            return self._planes[expr]
        tensor, call = region_tensor(expr), self.graph.definition(expr)
        assert tensor is not None
        batch, channels, *extents = tensor.shape
        pixels, rank = math.prod(extents), len(tensor.shape)
        last_first = (0, rank - 1, *range(1, rank - 1))
        if is_call(call, "relax.permute_dims") and view_axes(call) == last_first:
            shape = relax_shape((batch, pixels, channels), expr)
            lines = self.block.emit(relax.op.reshape(call.args[0], shape))
            return self.block.emit(relax.op.permute_dims(lines, [0, 2, 1]))
        planes = relax_shape((batch, channels, pixels), expr)
        return self.block.emit(relax.op.reshape(expr, planes))

    def _elementwise(self, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        """An operator on the result of a product, or on what was made of it, as it is flat."""
        arity, result = ELEMENTWISE[op_name(call)], region_tensor(var)
        if result is None or not any(arg in self._planes for arg in call.args[:arity]):
            return None
        shapes = [self._flat_shape(arg, result.shape) for arg in call.args[:arity]]
        operands = [
            self._planes[arg] if arg in self._planes else self._reshaped(arg, shape)
            for arg, shape in zip(call.args[:arity], shapes, strict=True)
            if shape is not None
        ]
        if len(operands) < arity:
            return None
        return with_args(call, [*operands, *call.args[arity:]])

    def _flat_shape(self, expr: relax.Expr, result: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape in which an operand broadcasts to a flat result; None if there is none."""
        tensor = region_tensor(expr)
        if tensor is None:
            return None
        rank = len(result)
        shape = (1,) * (rank - len(tensor.shape)) + tensor.shape
        if all(extent == 1 for extent in shape[2:]):
            return (*shape[:2], 1)
        return (*shape[:2], math.prod(shape[2:])) if shape[2:] == result[2:] else None

    def _reshaped(self, expr: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
        if isinstance(expr, ir.GenericConst):
            flat = shape[1:] if shape[0] == 1 else shape
            array = expr.value.numpy()
            return relax.const(array.reshape(flat) if array.ndim else array, expr.ty.dtype)
        return self.block.emit(relax.op.reshape(expr, relax_shape(shape, expr)))
