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

from relay_passes.ir.algebra import ChannelFactors, constant_readers, factors_of, uniform_constant
from relay_passes.ir.constants import array_of, constant_of
from relay_passes.ir.convolution import (
    is_convolution,
    is_transposed,
    kernel_outputs,
    output_channels,
)
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, is_call, region_tensor, same_shape
from relay_passes.ir.rewrite import Bindings, block_pass, rewrite_values, value_pass

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


_FLOATS_in = ("float32", "float64")


def fold_input_factors() -> ir.transform.Pass:
    """Folds constants per channel in front of a product into its weight and one term.

    Before

        lv = R.multiply(x, const_s)                     # [C, 1, 1]
        lv1 = R.add(lv, const_t)
        gv = R.nn.conv2d(lv1, const_w)

    After

        lv = R.nn.conv2d(x, const_w * s)
        gv = R.add(lv, const_b)                         # of each output, the sum of const_w * t

    Likewise for convolutions over one and three axes, and R.matmul by a matrix. Only where nothing
    else reads what is between. A term stays in front of padding, which is zero after the term, and
    of a matrix product to which no constant is added anyway. A factor of a product of two computed
    values stays: it is part of an activation or of a norm. So does what is behind a matrix product:
    that adds it for nothing. A weight with another reader stays what it is. `fold_factors` runs
    first, and takes what is behind a product; run again, it joins the terms.

    The pass; it needs A-normal form.
    """
    return block_pass("tvm_hybrid.fold_input_factors", _rewrite_in)


def _rewrite_in(graph: DataflowGraph) -> list[relax.Binding] | None:
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
    axis = _channels_in(product)
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


def _channels_in(call: relax.Expr) -> int | None:
    """Where the channels of a product's first operand are, from the end; None if it is none."""
    if not is_convolution(call) and not is_call(call, "relax.matmul"):
        return None
    weight = call.args[1]
    tensor, x = region_tensor(weight), region_tensor(call.args[0])
    if not isinstance(weight, ir.GenericConst) or tensor is None or x is None:
        return None
    if tensor.dtype not in _FLOATS_in or not x.dtype == tensor.dtype == str(call.ty.dtype):
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


def drop_zero_biases() -> ir.transform.Pass:
    """Drops biases of zeros.

    Before

        lv = R.matmul(x, w)
        gv = R.add(lv, R.zeros([64]))                   # a constant

    After

        gv = R.matmul(x, w)

    torch's ONNX exporter writes one at each convolution that has no bias. No sum of a product is
    -0.0, as all of them begin with 0.0: what is dropped would not change it.

    The pass; it needs A-normal form.
    """
    return value_pass("tvm_hybrid.drop_zero_biases", _product_bias)


def _product_bias(graph: DataflowGraph, _block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """The product that zeros are added to; None if a value is no such sum."""
    if not is_call(call, "relax.add"):
        return None
    for value, bias in (call.args, reversed(call.args)):
        product = graph.definition(value)
        if product is None or not (is_call(product, "relax.matmul") or is_convolution(product)):
            continue
        if uniform_constant(bias) == 0 and same_shape(value, call):
            return value
    return None
