"""Folds constants per channel behind a product into its weight and one term.

Before

    lv = R.nn.conv2d(x, const_w)
    lv1 = R.add(lv, const_b)
    lv2 = R.multiply(lv1, const_s)                  # [C, 1, 1]
    gv = R.add(lv2, const_t)

After

    lv = R.nn.conv2d(x, const_w * s)
    gv = R.add(lv, const_b * s + t)

Likewise for convolutions over one and three axes, transposed ones, and R.matmul by a matrix. Only
where nothing else reads what is between. A weight with another reader stays what it is. A term
alone stays: a kernel adds it for nothing.
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
from relay_passes.ir.rewrite import Bindings, block_pass
from relay_passes.ir.with_args import with_args

_FLOATS = ("float16", "float32", "float64")


def fold_factors() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.fold_factors", _rewrite)


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    """The bindings with new values where chains of factors end; None if there are none."""
    ends = dict(
        found
        for position in range(len(graph.bindings))
        if (found := _chain(graph, position)) is not None
    )
    if not ends:
        return None
    readers = constant_readers(graph)
    block, changed = Bindings(), False
    for position, binding in enumerate(graph.bindings):
        factors = ends.get(position)
        product = None if factors is None else graph.definition(factors.x)
        if factors is None or not isinstance(product, relax.Call) or readers[product.args[1]] > 1:
            block.bindings.append(binding)
            continue
        weight = _weight(product, factors)
        if weight is None:
            block.bindings.append(binding)
            continue
        changed = True
        _bind(block, binding.var, product, weight, factors)
    return block.bindings if changed else None


def _chain(graph: DataflowGraph, position: int) -> tuple[int, ChannelFactors] | None:
    """(where the last factor or term of a product is, all of them), if there are some to fold."""
    product = graph.value(position)
    axis = _channels(product)
    if axis is None:
        return None
    var = graph.bindings[position].var
    tensor = region_tensor(var)
    assert tensor is not None
    count = tensor.shape[axis]
    found = ChannelFactors(var, np.ones(count), np.zeros(count))
    end, steps = position, 0
    while (user := graph.only_user(var)) is not None:
        step = factors_of(graph.value(user), axis)
        if step is None:
            break
        found, end, steps = found.then(step), user, steps + 1
        var = graph.bindings[user].var
    if steps < 2 and bool((found.factor == 1).all()):
        return None
    return end, found


def _channels(call: relax.Expr) -> int | None:
    """Where the channels of a product's result are, from the end; None for other operators."""
    axis = -1
    if is_convolution(call):
        axis = output_channels(call)
    elif not is_call(call, "relax.matmul"):
        return None
    weight = call.args[1]
    tensor, result = region_tensor(weight), region_tensor(call)
    if not isinstance(weight, ir.GenericConst) or tensor is None or result is None:
        return None
    if tensor.dtype not in _FLOATS or result.dtype != tensor.dtype:
        return None
    if not is_convolution(call) and (len(tensor.shape) != 2 or len(result.shape) < 2):
        return None
    return axis if isinstance(result.shape[axis], int) else None


def _weight(product: relax.Call, found: ChannelFactors) -> relax.Expr | None:
    """The scaled weight of a product; None if its type has no room for it."""
    weight = product.args[1]
    if bool((found.factor == 1).all()):
        return weight
    array = array_of(weight.value)
    with np.errstate(over="ignore"):
        scaled = _scaled(array, found.factor, product).astype(array.dtype)
    fits = array.dtype.itemsize > 2 or bool(np.isfinite(scaled).all())
    return constant_of(scaled) if fits else None


def _bind(
    block: Bindings,
    var: relax.Var,
    product: relax.Call,
    weight: relax.Expr,
    found: ChannelFactors,
) -> None:
    """Binds a product with another weight, plus a term if there is one."""
    scaled = with_args(product, [product.args[0], weight])
    if not found.term.any():
        block.bind(var, scaled)
        return
    axis = _channels(product) or -1
    term = found.term.astype(str(product.ty.dtype)).reshape(-1, *(1,) * (-axis - 1))
    block.bind(var, relax.op.add(block.emit(scaled), constant_of(term)))


def _scaled(weight: np.ndarray, factor: np.ndarray, product: relax.Call) -> np.ndarray:
    """A weight times one number for each output channel."""
    if not is_convolution(product):  # [in, out]
        return weight * factor
    axis = kernel_outputs(product)
    ones = (1,) * (weight.ndim - axis - 1)
    if not is_transposed(product):
        return weight * factor.reshape(-1, *ones)
    # Of each group of inputs, those of its outputs.
    groups, inputs = int(product.attrs.groups), str(product.attrs.kernel_layout).index("I")
    parts = np.stack(np.split(weight, groups, inputs))
    factors = factor.reshape(groups, *(1,) * axis, -1, *ones)
    return np.concatenate(list(parts * factors), inputs)
