"""Folds constants per channel in front of a product into its weight and one term.

Before

    lv = R.multiply(x, const_s)                     # [C, 1, 1]
    lv1 = R.add(lv, const_t)
    gv = R.nn.conv2d(lv1, const_w)

After

    lv = R.nn.conv2d(x, const_w * s)
    gv = R.add(lv, const_b)                         # of each output, the sum of const_w * t

Likewise for convolutions over one and three axes, and R.matmul by a matrix. Only where nothing else
reads what is between. A term stays in front of padding, which is zero after the term, and of a
matrix product to which no constant is added anyway. A factor of a product of two computed values
stays: it is part of an activation or of a norm. So does what is behind a matrix product: that adds
it for nothing. A weight with another reader stays what it is.
`fold_factors` runs first, and takes what is behind a product; run again, it joins the terms.
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from relay_passes.ir.channel_factors import ChannelFactors, constant_readers, factors_of
from relay_passes.ir.constants import array_of, constant_of
from relay_passes.ir.convolution import (
    is_convolution,
    is_transposed,
    kernel_outputs,
    output_channels,
)
from relay_passes.ir.graph import DataflowGraph, is_call, region_tensor
from relay_passes.ir.rewrite import Bindings, block_pass, rewrite_values
from relay_passes.ir.with_args import with_args

_FLOATS = ("float32", "float64")


def fold_input_factors() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.fold_input_factors", _rewrite)


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    """The bindings with other products; None if all stay."""
    found = {
        position: factors
        for position in range(len(graph.bindings))
        if (factors := _factors(graph, position)) is not None
    }
    if not found:
        return None
    readers = constant_readers(graph)
    block = Bindings()

    def folded(position: int, call: relax.Expr) -> relax.Expr | None:
        factors = found.get(position)
        if factors is None or not isinstance(call, relax.Call) or readers[call.args[1]] > 1:
            return None
        return _product(block, call, factors)

    return rewrite_values(
        graph, block, lambda binding: folded(graph.position[binding.var], binding.value)
    )


def _factors(graph: DataflowGraph, position: int) -> ChannelFactors | None:
    """All factors and terms in front of the product at a position that it can take in."""
    product = graph.value(position)
    axis = _channels(product)
    if axis is None or not isinstance(product, relax.Call):
        return None
    takes_terms = _takes_terms(graph, position, product)
    found: ChannelFactors | None = None
    x = product.args[0]
    while graph.only_user(x) is not None:
        step = factors_of(graph.definition(x), axis)
        if step is None or _is_part(graph, step) or (step.term.any() and not takes_terms):
            break
        found, x = step if found is None else step.then(found), step.x
    return found


def _channels(call: relax.Expr) -> int | None:
    """Where the channels of a product's first operand are, from the end; None if it is none."""
    if not is_convolution(call) and not is_call(call, "relax.matmul"):
        return None
    weight = call.args[1]
    tensor, x = region_tensor(weight), region_tensor(call.args[0])
    if not isinstance(weight, ir.GenericConst) or tensor is None or x is None:
        return None
    if tensor.dtype not in _FLOATS or not x.dtype == tensor.dtype == str(call.ty.dtype):
        return None
    if not is_convolution(call):
        return -1 if len(tensor.shape) == 2 and len(x.shape) >= 2 else None
    layout = str(call.attrs.data_layout)
    return None if is_transposed(call) else layout.index("C") - len(layout)


def _takes_terms(graph: DataflowGraph, position: int, product: relax.Call) -> bool:
    """Whether a term may move behind a product, and costs nothing there."""
    if is_convolution(product):
        return not any(int(amount) for amount in product.attrs.padding)
    user = graph.only_user(graph.bindings[position].var)
    behind = None if user is None else factors_of(graph.value(user), -1)
    return behind is not None and bool(behind.term.any())


def _is_part(graph: DataflowGraph, step: ChannelFactors) -> bool:
    """Whether a factor ends an activation or a norm, or a term is that of a product before it."""
    call = graph.definition(step.x)
    if is_call(call, "relax.multiply", "relax.divide"):
        computed = not any(isinstance(arg, ir.GenericConst) for arg in call.args)
        return computed and bool((step.factor != 1).any())
    return call is not None and (is_convolution(call) or is_call(call, "relax.matmul"))


def _product(block: Bindings, call: relax.Call, found: ChannelFactors) -> relax.Expr:
    """A product of the scaled weight, plus a term if there is one."""
    weight = array_of(call.args[1].value)
    scaled = call.args[1]
    if bool((found.factor != 1).any()):
        scaled = constant_of(_by_inputs(weight, found.factor, call).astype(weight.dtype))
    product = with_args(call, [found.x, scaled])
    if not found.term.any():
        return product
    sums = _by_inputs(weight.astype(np.float64), found.term, call)
    outputs = kernel_outputs(call) if is_convolution(call) else 1
    total = sums.sum(tuple(axis for axis in range(weight.ndim) if axis != outputs))
    behind = -output_channels(call) - 1 if is_convolution(call) else 0
    term = constant_of(total.astype(weight.dtype).reshape(-1, *(1,) * behind))
    return relax.op.add(block.emit(product), term)


def _by_inputs(weight: np.ndarray, values: np.ndarray, call: relax.Call) -> np.ndarray:
    """A weight times one number for each input channel."""
    if not is_convolution(call):  # [in, out]
        return weight * values[:, None]
    # Of each group of outputs, those of its inputs.
    groups, layout = int(call.attrs.groups), str(call.attrs.kernel_layout)
    inputs, outputs = layout.index("I"), layout.index("O")
    parts = np.stack(np.split(weight, groups, outputs))
    shape = [groups, *(1,) * weight.ndim]
    shape[1 + inputs] = weight.shape[inputs]
    return np.concatenate(list(parts * values.reshape(shape)), outputs)
