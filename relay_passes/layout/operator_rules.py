"""How operators run in either layout, channels first or channels last.

    R.nn.max_pool2d(x, layout="NCHW")       R.nn.max_pool2d(x', layout="NHWC")
    R.softmax(x, axis=1)                    R.softmax(x', axis=3)
    R.add(x, const_b)  # [1, C, 1, 1]       R.add(x', const_b')  # [C]

Convolutions run channels last. Those of one tap also run channels first, if that saves the reorders
of both x and the result. An operator that is not listed runs as imported: for example transposed
convolutions, which `decompose_conv_transpose` has replaced, and flattening.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax

from relay_passes.ir import traits
from relay_passes.ir.axes import moves, reduced_axes, view_axes
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import is_call, op_name, relax_shape
from relay_passes.ir.moving_operators import parts_of_concat
from relay_passes.ir.quantization import is_transposable
from relay_passes.ir.strided_view import match_regroup
from relay_passes.ir.traits import runs_on_planes

from .channel_layouts import LABELS, Form, Forms, How, Operand, Order, Role, permuted, same_memory
from .minimum_cut import FIRST, LAST

# A product with channels first fills vectors with the pixels of an image. With few pixels, vectors
# are not full and reorders are cheap; such convolutions run channels first only on request.
LEAST_PIXELS = 256
_FLOATS = ("float32", "bfloat16")  # kernels support a weight of these types that is no constant
_Match = Callable[[Forms, relax.Call, Form], "Role | None"]
_MatchAlong = Callable[[relax.Call, Form], "Role | None"]


def role_of(forms: Forms, position: int) -> Role | None:
    """How the operator at a position can run in either layout; None if it runs as imported."""
    binding = forms.graph.bindings[position]
    value = binding.value
    if isinstance(value, relax.TupleGetItem):
        return _item(forms, binding.var, value)
    match, result = _MATCHES.get(op_name(value)), forms.of(binding.var)
    along = _ALONG.get(op_name(value))
    if result is None or not isinstance(value, relax.Call):
        return None
    if along is not None:
        x = forms.labelled(value.args[0])
        return along(value, x) if x is not None and x.axis == result.axis else None
    regrouped = _regrouped(forms, position) if is_call(value, "relax.reshape") else None
    return match(forms, value, result) if match and regrouped is None else regrouped


def _item(forms: Forms, var: relax.Var, value: relax.TupleGetItem) -> Role | None:
    """An item of a tuple, in the layout of the operator that makes the tuple; None if the tuple is
    read as imported."""
    whole, item = forms.labelled(value.tuple_value), forms.of(var)
    made = forms.graph.position.get(value.tuple_value)
    if whole is None or item is None or made is None or role_of(forms, made) is None:
        return None
    # A permutation after a split may turn rows into channels: the tuple is then read as imported.
    # A tuple cannot be reordered, so its operator runs as imported, too.
    if item.rank == whole.rank and item.axis != whole.axis:
        return None
    number = value.index
    return Role((Operand(value.tuple_value),), lambda _, x: relax.TupleGetItem(x[0], number))


def _alike(forms: Forms, expr: relax.Expr, result: Form) -> bool:
    """Whether an operand is not transposable at compile time and has the result's channel axis."""
    form = forms.labelled(expr)
    if form is None or (form.axis, form.rank) != (result.axis, result.rank):
        return False
    return not is_transposable(forms.graph, expr)


def _operand(forms: Forms, expr: relax.Expr, result: Form, trims: bool = False) -> Operand:
    """An operand in the layout of the result, or permuted to it."""
    if _alike(forms, expr, result):
        return Operand(expr)
    return Operand(expr, How.TRANSPOSED, (result.order(FIRST), result.order(LAST)), trims)


def _elementwise(forms: Forms, call: relax.Call, result: Form) -> Role | None:
    if result.axis is None:
        return None
    arity = traits.ELEMENTWISE[op_name(call)]
    exprs = list(call.args[:arity])
    if any(forms.of(expr) is None for expr in exprs):
        return None
    trims = any(_alike(forms, expr, result) for expr in exprs)
    operands = tuple(_operand(forms, expr, result, trims) for expr in exprs)
    rest = list(call.args[arity:])
    return Role(operands, lambda _, read: with_args(call, [*read, *rest]))


def _concat(forms: Forms, call: relax.Call, result: Form) -> Role | None:
    parts = parts_of_concat(call)
    if result.axis is None or not parts or call.attrs.axis is None:
        return None
    if not all(_alike(forms, p, result) or is_transposable(forms.graph, p) for p in parts):
        return None
    axis = int(call.attrs.axis) % result.rank
    return Role(
        tuple(_operand(forms, part, result) for part in parts),
        lambda label, read: relax.op.concat(read, result.order(label).index(axis)),
    )


def _on_first(call: relax.Call, x: Form, attributes: Callable[[Order], dict[str, Any]]) -> Role:
    """An operator on its first operand, with attributes that depend on the order of the axes."""
    rest = list(call.args[1:])

    def build(label: int, read: list[relax.Expr]) -> relax.Expr:
        return with_args(call, [*read, *rest], **attributes(x.order(label)))

    return Role((Operand(call.args[0]),), build)


def _along(call: relax.Call, x: Form) -> Role | None:
    """Operators with an attribute `axis` whose result or items have the argument's layout."""
    if call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % x.rank
    if op_name(call) in traits.QUANTIZING and not any(int(each.ty.ndim) for each in call.args[1:]):
        return _on_first(call, x, lambda _: {})
    return _on_first(call, x, lambda order: {"axis": order.index(axis)})


def _normalization(call: relax.Call, x: Form) -> Role | None:
    """Normalisations with attributes for the channel axis and the reduced axes."""
    channel = int(call.attrs.channel_axis) % x.rank
    axes = [int(axis) % x.rank for axis in call.attrs.axes]

    def attributes(order: Order) -> dict[str, Any]:
        return {"channel_axis": order.index(channel), "axes": sorted(map(order.index, axes))}

    return _on_first(call, x, attributes)


def _windows(call: relax.Call, x: Form) -> Role | None:
    """Pools and resizes."""
    layout, resize = str(call.attrs.layout), op_name(call) in traits.RESIZES
    if len(layout) != x.rank or layout.index("C") != x.axis or layout[0] != "N":
        return None
    if not resize and str(call.attrs.out_layout) != layout:
        return None
    names = ("layout",) if resize else ("layout", "out_layout")
    return _on_first(
        call, x, lambda order: dict.fromkeys(names, "".join(layout[axis] for axis in order))
    )


def _reduction(forms: Forms, call: relax.Call, result: Form) -> Role | None:
    x = forms.labelled(call.args[0])
    if x is None or (call.attrs.axis is None and "arg" in op_name(call)):
        return None  # the index depends on the order of all axes
    axes = reduced_axes(call)
    keepdims = bool(call.attrs.keepdims)
    left = [axis for axis in range(x.rank) if keepdims or axis not in axes]

    def kept(label: int) -> Order:
        return tuple(left.index(axis) for axis in x.order(label) if axis in left)

    shape = result.shape
    labels = tuple(
        each for each in LABELS if same_memory(shape, kept(each), shape, result.order(each))
    )

    def build(label: int, read: list[relax.Expr]) -> relax.Expr:
        if call.attrs.axis is None:
            return with_args(call, read)
        stored = sorted(map(x.order(label).index, axes))
        one = isinstance(call.attrs.axis, int)
        reduced = with_args(call, read, axis=stored[0] if one else stored)
        if permuted(shape, kept(label)) == result.stored(label):
            return reduced
        return relax.op.reshape(reduced, relax_shape(result.stored(label), call.args[0]))

    return Role((Operand(call.args[0]),), build, labels) if labels else None


def _pad(call: relax.Call, x: Form) -> Role | None:
    width = [int(each) for each in call.attrs.pad_width]

    def attributes(order: Order) -> dict[str, Any]:
        return {"pad_width": [n for axis in order for n in width[2 * axis : 2 * axis + 2]]}

    return _on_first(call, x, attributes)


def _slice(call: relax.Call, x: Form) -> Role | None:
    if not isinstance(call.args[1], relax.Tuple):
        return None
    axes, rest = [int(each.value) % x.rank for each in call.args[1].fields], list(call.args[2:])

    def build(label: int, read: list[relax.Expr]) -> relax.Expr:
        stored = relax.op.strided_slice(
            read[0], [x.order(label).index(axis) for axis in axes], [0] * len(axes), [1] * len(axes)
        ).args[1]
        return with_args(call, [*read, stored, *rest])

    return Role((Operand(call.args[0]),), build)


def _view(forms: Forms, call: relax.Call, result: Form) -> Role | None:
    """Permutations cost the bytes they move; a reshape only runs where it moves none."""
    x = forms.of(call.args[0])
    if x is None or (x.axis is None and result.axis is None):
        return None
    axes = view_axes(call) if op_name(call) == "relax.permute_dims" else None
    operand = Operand(call.args[0], How.PLAIN if x.axis is None else How.SAME)

    def permutation(label: int) -> tuple[int, ...]:
        before = x.order(label)
        assert axes is not None
        named = [axes[axis] for axis in result.order(label)]
        return tuple(before.index(axis) for axis in named if axis is not None)

    def build(label: int, read: list[relax.Expr]) -> relax.Expr:
        before, after = x.stored(label), result.stored(label)
        if axes is not None and moves(before, permutation(label)):
            return relax.op.permute_dims(read[0], permutation(label))
        shape = relax_shape(after, call.args[0])
        return read[0] if before == after else relax.op.reshape(read[0], shape)

    if axes is not None:
        moved = [result.bytes * moves(x.stored(label), permutation(label)) for label in LABELS]
        return Role((operand,), build, bytes=(moved[0], moved[1]))
    labels = tuple(
        label
        for label in LABELS
        if same_memory(x.shape, x.order(label), result.shape, result.order(label))
    )
    return Role((operand,), build, labels) if labels else None


def _broadcast(forms: Forms, call: relax.Call, result: Form) -> Role | None:
    if result.axis is None or forms.of(call.args[0]) is None:
        return None
    return Role(
        (_operand(forms, call.args[0], result),),
        lambda label, read: relax.op.broadcast_to(read[0], relax_shape(result.stored(label), call)),
    )


def _convolution(forms: Forms, call: relax.Call, result: Form) -> Role | None:
    x, attrs = forms.labelled(call.args[0]), call.attrs
    data, kernel = str(attrs.data_layout), str(attrs.kernel_layout)
    if x is None or x.axis != result.axis or len(data) != x.rank or data.index("C") != x.axis:
        return None
    if data[0] != "N" or str(attrs.out_layout) not in ("", data):
        return None
    if not is_transposable(forms.graph, call.args[1]):  # permuted when the program runs
        weight = forms.of(call.args[1])
        if weight is None or weight.dtype not in _FLOATS:
            return None

    def letters(label: int) -> tuple[str, str]:
        stored = "".join(data[axis] for axis in x.order(label))
        axes = stored.replace("N", "").replace("C", "")
        return stored, axes + "IO" if label == LAST else "OI" + axes

    def build(label: int, read: list[relax.Expr]) -> relax.Expr:
        stored, wanted = letters(label)
        return with_args(call, read, data_layout=stored, kernel_layout=wanted, out_layout=stored)

    first, last = (tuple(map(kernel.index, letters(label)[1])) for label in LABELS)
    operands = (Operand(call.args[0]), Operand(call.args[1], How.TRANSPOSED, (first, last)))
    if not runs_on_planes(call):
        return Role(operands, build, (LAST,))
    pixels = math.prod(x.shape[2:] if x.axis == 1 else x.shape[1:-1])
    if not forms.planes or pixels < LEAST_PIXELS:
        return Role(operands, build, (LAST,), (FIRST,))
    packed = max(x.bytes, result.bytes) + 1
    return Role(operands, build, bytes=(packed, 0))


def _regrouped(forms: Forms, position: int) -> Role | None:
    """A reshape, a permutation and a reshape as one operator."""
    regroup = match_regroup(forms.graph, position)
    var = forms.graph.bindings[position].var
    result = forms.of(var)
    x = None if regroup is None else forms.of(regroup.source)
    if regroup is None or result is None or x is None:
        return None
    if (x.axis is None and result.axis is None) or 0 in x.shape:
        return None
    views = [regroup.between(x.order(label), result.order(label)) for label in LABELS]
    known = [view for view in views if view is not None]
    if len(known) < len(views):
        return None
    shaped = (regroup.source, *regroup.steps)  # their shapes define all symbols

    def build(label: int, read: list[relax.Expr]) -> relax.Expr:
        return known[label].of(read[0], known[label].apart, shaped, lambda expr: expr)

    orders = [view.reorder(view.apart)[1] for view in known]
    moved = [result.bytes * (order != sorted(order)) for order in orders]
    operand = Operand(regroup.source, How.PLAIN if x.axis is None else How.SAME)
    absorbs = tuple(forms.graph.position[step] for step in regroup.steps[:-1])
    return Role((operand,), build, bytes=(moved[0], moved[1]), absorbs=absorbs)


_MATCHES: dict[str, _Match] = {
    **dict.fromkeys(traits.ELEMENTWISE, _elementwise),
    **dict.fromkeys(traits.CONVOLUTIONS, _convolution),
    **dict.fromkeys(traits.REDUCTIONS, _reduction),
    **dict.fromkeys(("relax.permute_dims", *traits.RESHAPES), _view),
    "relax.concat": _concat,
    "relax.broadcast_to": _broadcast,
}
# Operators with channels on one axis of both the first operand and the result.
_ALONG: dict[str, _MatchAlong] = {
    **dict.fromkeys((*traits.POOLS, *traits.RESIZES), _windows),
    **dict.fromkeys((*traits.SOFTMAXES, *traits.CHANNEL_WISE, *traits.QUANTIZING), _along),
    **dict.fromkeys(("relax.split", "relax.cumsum", "relax.flip"), _along),
    **dict.fromkeys(traits.GROUP_NORMS, _normalization),
    "relax.nn.pad": _pad,
    "relax.strided_slice": _slice,
}
