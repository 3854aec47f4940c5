"""Convolutions of one tap are products of pixels and a matrix.

Before

    lv = R.nn.conv2d(x, const_w, data_layout="NHWC", kernel_layout="HWIO")     # [1, 1, C, OC]

After

    lv = R.matmul(x, const_w')                                                 # [C, OC]

Channels last, stride 1, no padding, one group; along one, two or three axes. The weight is a
constant, or dequantised or cast from one.
"""

from __future__ import annotations

from tvm import ir, relax

from .graph import DataflowGraph, op_name, static_tensor
from .rewrite_blocks import Bindings, block_pass
from .turned_constants import is_turnable, with_axes

_LAYOUTS = {
    "relax.nn.conv1d": ("NWC", "WIO"),
    "relax.nn.conv2d": ("NHWC", "HWIO"),
    "relax.nn.conv3d": ("NDHWC", "DHWIO"),
}


def pointwise_conv() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.pointwise_conv", _rewrite)


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    """The block with such convolutions written as products; None if there are none."""
    found = [is_pointwise(graph, graph.value(i)) for i in range(len(graph.bindings))]
    if not any(found):
        return None
    block = Bindings()
    for position, binding in enumerate(graph.bindings):
        if not found[position]:
            block.bindings.append(binding)
            continue
        call = graph.value(position)
        rank = int(call.args[1].ty.ndim)
        weight = with_axes(graph, call.args[1], (rank - 2, rank - 1), block)
        block.bind(binding.var, relax.op.matmul(call.args[0], weight, call.attrs.out_dtype or None))
    return block.bindings


def is_pointwise(graph: DataflowGraph, call: relax.Expr) -> bool:
    """Whether an expression is a convolution that computes every pixel from one alone."""
    layouts = _LAYOUTS.get(op_name(call))
    if layouts is None:
        return False
    attrs = call.attrs
    given = tuple(map(str, (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)))
    weight = static_tensor(call.args[1])
    if given != (*layouts, layouts[0]) or weight is None or static_tensor(call.args[0]) is None:
        return False
    single = all(extent == 1 for extent in weight.shape[:-2])
    plain = all(int(stride) == 1 for stride in attrs.strides) and int(attrs.groups) == 1
    padded = any(int(margin) for margin in attrs.padding)
    return single and plain and not padded and is_turnable(graph, call.args[1])
