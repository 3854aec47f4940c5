"""Matches anchors: the operators from which regions grow.

An anchor is one call, together with the permutations of its inputs that its template reads without
a copy.
"""

from __future__ import annotations

import json
import math

from tvm import ir, relax

from relay_passes.ir.axes import permutation
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, region_tensor, static_tensor
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import rule
from relay_passes.ir.traits import CHANNELS_LAST, CONVERSIONS, layouts_of
from tir_schedules.core.attributes import Attribute
from tir_schedules.product.staged_panels import SCALE
from tir_schedules.recurrent.problem import RECURRENT
from tir_schedules.recurrent.recurrent import RECURRENT_ATTRS

from . import integer_anchor
from .integer_anchor import Anchor, Matcher, Operand, feeds_this_alone

_PACKED_AT_RUN_TIME = ("float32", "bfloat16", "int8")
_UNKNOWN = "a shape is not known at compile time"
_NO_INTEGERS = "no kernel supports its zero point or integer type"


def match_conv(graph: DataflowGraph, position: int, call: relax.Call) -> Anchor | str | None:
    """The anchor of a convolution with channels last; a str says why there is none.

        lv = R.nn.conv2d(x, const_w, data_layout="NHWC", kernel_layout="HWIO", out_layout="NHWC")

    A weight that is no constant is packed by operators (`pack_dynamic_weights`). For 8-bit integers
    and 16-bit floats, `integer_anchor` finds the tensors that x and the weight are computed from.
    """
    attrs = call.attrs
    layouts = layouts_of(call)
    if layouts != CHANNELS_LAST[op_name(call)]:
        return f"its layouts {', '.join(layouts)} are not channels last"
    operands = _operands(graph, call)
    if operands is None:
        return _NO_INTEGERS
    x, w = operands
    weight = region_tensor(w.source)
    if weight is None or region_tensor(x.source) is None:
        return _UNKNOWN
    is_dynamic = not isinstance(w.source, ir.GenericConst)
    if is_dynamic and (weight.dtype not in _PACKED_AT_RUN_TIME or 0 in weight.shape):
        return "the weight is not a constant"
    groups = int(attrs.groups)
    described: dict[str, Attribute] = {
        "strides": tuple(map(int, attrs.strides)),
        "padding": tuple(map(int, attrs.padding)),
        "dilation": tuple(map(int, attrs.dilation)),
        "groups": groups,
    }
    op, otherwise = _plain_name(call), ""
    *_, per_group, channels = weight.shape
    if 1 == per_group < groups == channels and op != "conv3d":
        op, otherwise = "depthwise_conv2d", op
    if str(call.ty.dtype) == "int32":
        integer_anchor.quantized_on_the_way(graph, x)
    elif weight.dtype in ("bfloat16", "float16"):
        integer_anchor.rounded_on_the_way(graph, x)
    inputs = (x.source, w.source, *(x.inputs[n] for n in ("range", "a") if n in x.inputs))
    absorbed = tuple(sorted({*x.absorbed, *w.absorbed}))
    attributes = {**x.attrs, **w.attrs, **described}
    dynamic_weight = 1 if is_dynamic else None
    output = region_tensor(call)
    return Anchor(position, op, inputs, output, attributes, absorbed, otherwise, dynamic_weight)


def _plain_name(call: relax.Call) -> str:
    """An operator's name without its modules: "conv2d" for "relax.nn.conv2d"."""
    return op_name(call).rpartition(".")[2]


def _matmul(graph: DataflowGraph, position: int, call: relax.Call) -> Anchor | str | None:
    a, b, output = (region_tensor(each) for each in (*call.args, call))
    if a is None or b is None or output is None:
        return _UNKNOWN
    if len(a.shape) < 2 or len(b.shape) < 2:
        return "an operand is a vector"
    if (a.dtype, b.dtype, output.dtype) == ("float32", "float32", "float32"):
        weight_only = integer_anchor.match_weight_only(graph, position, call)
        if weight_only is not None:
            return weight_only
    operands = _operands(graph, call)
    if operands is None:
        return _NO_INTEGERS
    left, right = operands
    if (a.dtype, b.dtype) == ("float32", "float32"):
        note_scaled_weight(graph, right)
    is_dynamic = right.source in graph.weights and a.dtype == b.dtype
    rounds = a.dtype in ("bfloat16", "float16")
    op, dynamic_weight, axes, taken = "batch_matmul", None, dict[str, Attribute](), graph.taken
    if (is_dynamic or isinstance(right.source, ir.GenericConst)) and len(b.shape) == 2:
        op, dynamic_weight = "matmul", 1 if is_dynamic else None
        if a.dtype == "int32":
            integer_anchor.quantized_on_the_way(graph, left)
        elif rounds:
            integer_anchor.rounded_on_the_way(graph, left)
        elif graph.fuse and a.dtype == "float32" and graph.position.get(left.source) not in taken:
            left.passes(graph, "relax.astype")  # reads the tensor before the cast
    else:
        if rounds:
            axes["rounded"] = a.dtype
        for name, operand in (("a_axes", left), ("b_axes", right)):
            if rounds:  # the rounding may be before or after the permutation
                integer_anchor.rounded_on_the_way(graph, operand)
            axes[name] = tuple(range(len(operand.source.ty.shape.values)))
            free = graph.position.get(operand.source) not in taken
            moved = operand.passes(graph, "relax.permute_dims") if free else None
            if moved is not None:
                axes[name] = permutation(moved)
                if rounds:
                    integer_anchor.rounded_on_the_way(graph, operand)
    further = {**left.inputs, **right.inputs}
    names = (name for name in ("range", "a", "b", "scale") if name in further)
    inputs = (left.source, right.source, *(further[name] for name in names))
    absorbed = tuple(sorted({*left.absorbed, *right.absorbed}))
    attrs = {**left.attrs, **right.attrs, **axes}
    return Anchor(position, op, inputs, output, attrs, absorbed, dynamic_weight=dynamic_weight)


def _operands(graph: DataflowGraph, call: relax.Call) -> tuple[Operand, Operand] | None:
    """Both factors of a product; None if they are integers that no kernel multiplies."""
    if str(call.ty.dtype) != "int32":
        return Operand(call.args[0]), Operand(call.args[1])
    left = integer_anchor.integer_operand(graph, "a", call.args[0])
    right = integer_anchor.integer_operand(graph, "b", call.args[1])
    return None if left is None or right is None else (left, right)


def _conv1d(graph: DataflowGraph, position: int, call: relax.Call) -> Anchor | str | None:
    """A static convolution whose windows are contiguous is a matmul of overlapping rows."""
    attrs = call.attrs
    x, w = region_tensor(call.args[0]), region_tensor(call.args[1])
    plain = int(attrs.groups) == 1 and int(attrs.dilation[0]) == 1 and not any(attrs.padding)
    plain = plain and layouts_of(call) == CHANNELS_LAST["relax.nn.conv1d"]
    known = isinstance(call.args[1], ir.GenericConst) and x is not None and not x.is_dynamic
    if not plain or not known or w is None or w.dtype != "float32":
        return match_conv(graph, position, call)
    window: dict[str, Attribute] = {"window": w.shape[0], "stride": int(attrs.strides[0])}
    return Anchor(position, "matmul", tuple(call.args), region_tensor(call), window)


def match_conversion(graph: DataflowGraph, position: int) -> Anchor | None:
    """The elementwise anchor at a position, for conversions outside all other regions.

    The conversion becomes the first step of the epilogue; the anchor is the tensor that it
    converts.
    """
    call = graph.bindings[position].value
    if op_name(call) not in CONVERSIONS:
        return None
    source, output = region_tensor(call.args[0]), region_tensor(call)
    if source is None or output is None or source.constant or source.shape != output.shape:
        return None
    if op_name(call) == "relax.astype" and "bfloat16" not in (source.dtype, output.dtype):
        return None
    return Anchor(position, "elementwise", (call.args[0],), source)


def _softmax(_graph: DataflowGraph, position: int, call: relax.Call) -> Anchor | str | None:
    output = region_tensor(call)
    if output is None:
        return _UNKNOWN
    axis = int(call.attrs.axis) % max(1, len(output.shape))
    return Anchor(position, _plain_name(call), (call.args[0],), output, {"axis": axis})


def _norm(_graph: DataflowGraph, position: int, call: relax.Call) -> Anchor | str | None:
    output = region_tensor(call)
    if output is None:
        return _UNKNOWN
    rank, name = len(output.shape), _plain_name(call)
    axes = sorted(int(axis) % rank for axis in call.attrs.axes)
    if axes != list(range(axes[0], rank)):
        return f"normalised axes {axes} are not the last ones"
    if name == "layer_norm" and not (call.attrs.center and call.attrs.scale):
        return "layer_norm without scale or shift"
    attrs: dict[str, Attribute] = {"axis": axes[0], "epsilon": float(call.attrs.epsilon)}
    return Anchor(position, name, tuple(call.args), output, attrs)


def _recurrent(graph: DataflowGraph, position: int, call: relax.Call) -> Anchor | str | None:
    """The anchor of a call of the front end's function for a recurrent layer."""
    attrs = getattr(graph.programs.get(call.args[0]), "attrs", None) or {}
    if RECURRENT_ATTRS not in attrs:
        return None
    inputs = tuple(call.args[1].fields)
    weight = region_tensor(inputs[1])
    # A computed weight is packed in every run; the template packs no int8 weight by operators.
    is_dynamic = weight is not None and not weight.constant and weight.dtype != "int8"
    known = json.loads(attrs[RECURRENT_ATTRS])
    dynamic_weight = 1 if is_dynamic else None
    output = region_tensor(call)
    return Anchor(position, RECURRENT, inputs, output, known, dynamic_weight=dynamic_weight)


MATCHERS: dict[str, Matcher] = {
    "relax.call_tir": _recurrent,
    "relax.matmul": _matmul,
    "relax.nn.conv1d": _conv1d,
    "relax.nn.conv2d": match_conv,
    "relax.nn.conv3d": match_conv,
    **dict.fromkeys(["relax.nn.softmax", "relax.nn.log_softmax"], _softmax),
    **dict.fromkeys(["relax.nn.layer_norm", "relax.nn.rms_norm"], _norm),
}


def scale_weight(threads: int) -> ir.transform.Pass:
    """Scale weight: moves factors of the columns of activations to the rows of a weight.

    Before: x is [1, H, W, C] and s is [1, 1, 1, C], as after squeeze and excite

        lv = R.multiply(x, s)
        lv1 = R.matmul(lv, const_w)             # [C, N]

    After

        lv = R.reshape(s, R.shape([C, 1]))
        lv1 = R.multiply(lv, const_w)
        lv2 = R.matmul(x, lv1)

    The product then reads x directly, and its kernel scales the weight, block by block in cache
    (tir_schedules/product/narrow_weight.py). That scales N * C numbers per thread instead of H * W
    * C in a pass over memory. Conditions: the product is f32, its factors are equal for all rows,
    nothing else reads the scaled activations, and a thread has more rows than the weight has
    columns.

    Each term is rounded as often as before, (s w) instead of (x s): with K terms, results differ by
    at most (2 K + 4) 2^-24 of the sum of their magnitudes, unless a number over- or underflows.

    It needs A-normal form, and must run right before `partition`.

    Parameters
    ----------
    threads : int
        Threads that share the rows of a product.
    """

    @rule("relax.matmul")
    def scale_weight(graph: DataflowGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
        product = graph.definition(call.args[0])
        if not is_call(product, "relax.multiply") or str(call.ty.dtype) != "float32":
            return None
        a, w = static_tensor(call.args[0]), static_tensor(call.args[1])
        if a is None or w is None or not w.constant or len(a.shape) < 2 or len(w.shape) != 2:
            return None
        if (a.dtype, w.dtype) != ("float32", "float32"):
            return None
        k, n = w.shape
        if not k or math.ceil(math.prod(a.shape[:-1]) / threads) <= n:
            return None
        if not feeds_this_alone(graph, call.args[0]):
            return None
        for x, scale in ((*product.args,), (*product.args[::-1],)):
            tensor, factors = static_tensor(x), static_tensor(scale)
            if tensor is None or factors is None or tensor.shape != a.shape:
                continue
            if not factors.constant and (factors.size, factors.shape[-1:]) == (k, (k,)):
                column = block.emit(relax.op.reshape(scale, (-1, 1)))
                return relax.op.matmul(x, block.emit(relax.op.multiply(column, call.args[1])))
        return None

    return scale_weight()


def note_scaled_weight(graph: DataflowGraph, found: Operand) -> None:
    """Lets the kernel scale a constant weight if only this product reads the scaled weight.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    found : Operand
        The second operand of an f32 product. Its source becomes the constant, and the factors of
        the constant's rows become the input "scale".
    """
    product = graph.definition(found.source)
    if not is_call(product, "relax.multiply") or not feeds_this_alone(graph, found.source):
        return
    column, weight = product.args
    view, shape, w = graph.definition(column), static_tensor(column), static_tensor(weight)
    if not is_call(view, "relax.reshape") or shape is None or w is None:
        return
    if not w.constant or len(w.shape) != 2:
        return
    factors = static_tensor(view.args[0])
    if factors is None or shape.shape != (w.shape[0], 1) or factors.shape[-1:] != w.shape[:1]:
        return
    found.absorbed.append(graph.position[column])
    found.passes(graph, "relax.multiply", 1)
    found.attrs[SCALE] = "input"
    found.inputs["scale"] = view.args[0]
