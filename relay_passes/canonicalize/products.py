"""Products: plain operands, and per-channel constants around them folded into weight and term."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tvm import ir, relax

from relay_passes.ir.algebra import ChannelFactors, factors_of, uniform_constant
from relay_passes.ir.constants import array_of, constant_of
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, is_call, known_tensor, region_tensor, same_shape
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule
from relay_passes.ir.traits import (
    CONVOLUTIONS,
    RESHAPES,
    TRANSPOSED_CONVOLUTIONS,
    is_convolution,
    kernel_outputs,
    output_channels,
)

_FLOATS = ("float16", "float32", "float64")


@rule("relax.matmul", *CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS)
def fold_factors(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Folds per-channel constants after a product into its weight and one term.

    Before

        lv = R.nn.conv2d(x, const_w)
        lv1 = R.add(lv, const_b)
        lv2 = R.multiply(lv1, const_s)                  # [C, 1, 1]
        gv = R.add(lv2, const_t)

    After

        lv = R.nn.conv2d(x, const_w * s)
        gv = R.add(lv, const_b * s + t)

    Also for convolutions over one and three axes, transposed ones, and R.matmul by a matrix. Only
    if nothing else reads the values in between. A weight with another reader is not changed. A
    single term stays: a kernel adds it at no cost.
    """
    axis, var = _channels(call), block.var
    if axis is None:
        return None
    count = known_tensor(var).shape[axis]
    found = ChannelFactors(var, np.ones(count), np.zeros(count))
    steps = 0
    while (user := graph.only_user(var)) is not None:
        step = factors_of(graph.value(user), axis)
        if step is None:
            break
        found, steps, var = found.then(step), steps + 1, graph.bindings[user].var
    weight, factors = call.args[1], bool((found.factor != 1).any())
    if not (steps > 1 or factors) or graph.readers(weight) > 1:
        return None
    if factors:
        array = array_of(weight.value)
        with np.errstate(over="ignore"):
            scaled = _times(array, found.factor, call, "O").astype(array.dtype)
        if array.dtype.itemsize <= 2 and not np.isfinite(scaled).all():
            return None  # the type has no room for it
        weight = constant_of(scaled)
    block.at(var)
    product = with_args(call, [call.args[0], weight], call.ty)
    if not found.term.any():
        return product
    term = found.term.astype(str(call.ty.dtype)).reshape(-1, *(1,) * (-axis - 1))
    return relax.op.add(block.emit(product), constant_of(term))


def _channels(call: relax.Call, incoming: bool = False) -> int | None:
    """The channel axis of a product's result, or of its first operand, counted from the end; None
    if nothing can be folded into the product."""
    weight = call.args[1]
    tensor, other = region_tensor(weight), region_tensor(call.args[0] if incoming else call)
    if not isinstance(weight, ir.GenericConst) or tensor is None or other is None:
        return None
    if tensor.dtype not in _FLOATS[incoming:] or str(call.ty.dtype) != tensor.dtype:
        return None
    if not is_convolution(call):
        return -1 if len(tensor.shape) == 2 and len(other.shape) >= 2 else None
    layout = str(call.attrs.data_layout)
    return layout.index("C") - len(layout) if incoming else output_channels(call)


def _times(weight: np.ndarray, numbers: np.ndarray, product: relax.Call, of: str) -> np.ndarray:
    """A weight times one number for each of the product's outputs ("O") or inputs ("I")."""
    if not is_convolution(product):  # [in, out]
        return weight * (numbers if of == "O" else numbers[:, None])
    layout = str(product.attrs.kernel_layout)
    axis, others = layout.index(of), layout.index("I" if of == "O" else "O")
    # If the weight's axis covers one group, each group of the other axis gets its group's numbers.
    groups = numbers.size // weight.shape[axis]
    parts = np.stack(np.split(weight, groups, others))
    shape = [groups, *(1,) * weight.ndim]
    shape[1 + axis] = -1
    return np.concatenate(list(parts * numbers.reshape(shape)), others)


@rule("relax.matmul", *CONVOLUTIONS)
def fold_input_factors(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Folds per-channel constants before a product into its weight and one term.

    Before

        lv = R.multiply(x, const_s)                     # [C, 1, 1]
        lv1 = R.add(lv, const_t)
        gv = R.nn.conv2d(lv1, const_w)

    After

        lv = R.nn.conv2d(x, const_w * s)
        gv = R.add(lv, const_b)                         # for each output, the sum of const_w * t

    Also for convolutions over one and three axes, and R.matmul by a matrix. Only if nothing else
    reads the values in between. A term stays before padding, which is zero after the term, and
    before a matrix product without a constant term after it. A factor of a product of two computed
    values stays: it is part of an activation or of a norm. Constants after a matrix product stay:
    that product adds them at no cost. A weight with another reader is not changed. Constants
    between two products belong to the first one (`fold_factors`).
    """
    axis = _channels(call, incoming=True)
    if axis is None:
        return None
    if is_convolution(call):  # a term may move after it, and costs nothing there
        takes_terms = not any(int(amount) for amount in call.attrs.padding)
    else:
        user = graph.only_user(block.var)
        behind = None if user is None else factors_of(graph.value(user), -1)
        takes_terms = behind is not None and bool(behind.term.any())
    found: ChannelFactors | None = None
    x = call.args[0]
    if _is_taken(graph, x, axis):
        return None
    while graph.only_user(x) is not None:
        step = factors_of(graph.definition(x), axis)
        if step is None or _is_part(graph, step) or (step.term.any() and not takes_terms):
            break
        found, x = step if found is None else step.then(found), step.x
    if found is None or graph.readers(call.args[1]) > 1:
        return None
    scaled = call.args[1]
    weight = array_of(scaled.value)
    if bool((found.factor != 1).any()):
        scaled = constant_of(_times(weight, found.factor, call, "I").astype(weight.dtype))
    product = with_args(call, [found.x, scaled])
    if not found.term.any():
        return product
    sums = _times(weight.astype(np.float64), found.term, call, "I")
    outputs = kernel_outputs(call) if is_convolution(call) else 1
    total = sums.sum(tuple(axis for axis in range(weight.ndim) if axis != outputs))
    spatial = -output_channels(call) - 1 if is_convolution(call) else 0
    term = constant_of(total.astype(weight.dtype).reshape(-1, *(1,) * spatial))
    return relax.op.add(block.emit(product), term)


def _is_taken(graph: RuleGraph, x: relax.Expr, axis: int) -> bool:
    """Whether `fold_factors` folds all factors and terms of a value into a product before them."""
    while graph.only_user(x) is not None:
        call = graph.definition(x)
        step = factors_of(call, axis)
        if step is None:
            if not is_call(call, "relax.matmul", *CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS):
                return False
            return _channels(call) == axis and graph.readers(call.args[1]) == 1
        x = step.x
    return False


def _is_part(graph: DataflowGraph, step: ChannelFactors) -> bool:
    """Whether a factor ends an activation or a norm, or a term belongs to a product before it."""
    call = graph.definition(step.x)
    if is_call(call, "relax.multiply", "relax.divide"):
        computed = not any(isinstance(arg, ir.GenericConst) for arg in call.args)
        return computed and bool((step.factor != 1).any())
    return call is not None and (is_convolution(call) or is_call(call, "relax.matmul"))


@rule("relax.add")
def drop_zero_biases(graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Drops biases that are all zeros.

    Before

        lv = R.matmul(x, w)
        gv = R.add(lv, R.zeros([64]))                   # a constant

    After

        gv = R.matmul(x, w)

    torch's ONNX exporter writes one for each convolution without a bias. Adding 0.0 does not change
    the sum of a product: it is never -0.0, as every sum begins with 0.0.
    """
    for value, bias in (call.args, reversed(call.args)):
        product = graph.definition(value)
        if product is None or not (is_call(product, "relax.matmul") or is_convolution(product)):
            continue
        if uniform_constant(bias) == 0 and same_shape(value, call):
            return value
    return None


@rule("relax.matmul")
def plain_products(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Restores the batch axes of a product's operands, and avoids repeating an operand.

    Before

        lv = R.reshape(q, R.shape([8, 5, 16]))          # q: [2, 4, 5, 16]
        lv1 = R.reshape(k, R.shape([8, 16, 7]))         # k: [2, 4, 16, 7]
        gv = R.matmul(lv, lv1)
        lv2 = R.broadcast_to(w, R.shape([8, 16, 7]))    # w: [16, 7]
        gv1 = R.matmul(lv, lv2)

    After

        lv = R.matmul(q, k)
        gv = R.reshape(lv, R.shape([8, 5, 7]))
        gv1 = R.matmul(lv, w)

    torch.export writes every product of more than two axes as one of three. The operators around
    it, such as the mask and the softmax of an attention, have the original batch axes.
    """
    narrow = _not_repeated(graph, block, call)
    product = _not_flattened(graph, block, call if narrow is None else narrow)
    if product is None:
        return narrow
    return relax.op.reshape(block.emit(product), call.ty.shape)


def _not_repeated(graph: DataflowGraph, block: Bindings, call: relax.Call) -> relax.Call | None:
    """The product of operands without their broadcasts; None if no broadcast can be dropped."""
    args = list(call.args)
    for number, arg in enumerate(args):
        wide = graph.definition(arg)
        cast = wide if is_call(wide, "relax.astype") else None  # torch.export adds one in float16
        if cast is not None:
            wide = graph.definition(cast.args[0])
        if not is_call(wide, "relax.broadcast_to"):
            continue
        operand = wide.args[0]
        whole, source = region_tensor(arg), region_tensor(operand)
        if whole is None or source is None or whole.shape[-2:] != source.shape[-2:]:
            continue
        if cast is not None:
            operand = block.emit(with_args(cast, [operand]))
        others = [*args[:number], operand, *args[number + 1 :]]
        product = block.builder.normalize(with_args(call, others))
        if same_shape(product, call):
            args = others
    unchanged = all(new.same_as(old) for new, old in zip(args, call.args, strict=True))
    return None if unchanged else with_args(call, args)


def _not_flattened(graph: DataflowGraph, block: Bindings, call: relax.Call) -> relax.Call | None:
    """The product with the original batch axes of its operands; None if they were not flattened."""
    tensors = [region_tensor(arg) for arg in call.args]
    if any(tensor is None or len(tensor.shape) != 3 for tensor in tensors):
        return None
    before = [list(_unflattened(graph, arg)) for arg in call.args]
    if not all(before) or tensors[0] is None or tensors[1] is None:
        return None
    if tensors[0].shape[0] != tensors[1].shape[0]:
        return None
    batch = before[0][0].ty.shape.values[:-2]
    shapes = [[*batch, *arg.ty.shape.values[-2:]] for arg in call.args]
    args = []
    for arg, shape, sources in zip(call.args, shapes, before, strict=True):
        wanted = block.builder.normalize(relax.op.reshape(arg, shape))
        found = next((each for each in sources if same_shape(each, wanted)), None)
        args.append(block.emit(wanted) if found is None else found)
    return with_args(call, args)


def _unflattened(graph: DataflowGraph, expr: relax.Expr) -> Iterator[relax.Expr]:
    """The forms of a matrix before its batch axes were flattened to one, the nearest first."""
    matrix = region_tensor(expr)
    while matrix is not None:
        call = graph.definition(expr)
        same = is_call(call, "relax.broadcast_to") and same_shape(call.args[0], expr)
        if not (same or is_call(call, *RESHAPES)) or call is None:
            return
        expr = call.args[0]
        tensor = region_tensor(expr)
        if tensor is None or tensor.shape[-2:] != matrix.shape[-2:]:
            return
        if len(tensor.shape) > 3:
            yield expr
