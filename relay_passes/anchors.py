"""Anchors: the operators that regions grow from, and how each is described.

An anchor is one call, together with the permutations of its inputs that its template reads in
place.
"""

from __future__ import annotations

from tvm import ir, relax

from tir_schedules.region import Scalar, Tensor

from .anchor import Anchor, Matcher
from .graph import DataflowGraph, binding_value, op_name, static_tensor


def match_anchor(graph: DataflowGraph, position: int) -> Anchor | str | None:
    """The anchor at a position of a block.

    Returns
    -------
    Anchor, str or None
        A str says why a call that could be an anchor is none; None means an ordinary operator.
    """
    call = binding_value(graph.bindings[position])
    matcher = _MATCHERS.get(op_name(call))
    return None if matcher is None else matcher(graph, position, call)


def _output(graph: DataflowGraph, position: int) -> Tensor | None:
    return static_tensor(graph.bindings[position].var)


def _matmul(graph: DataflowGraph, position: int, call: relax.Call) -> Anchor | str | None:
    a, b = static_tensor(call.args[0]), static_tensor(call.args[1])
    output = _output(graph, position)
    if a is None or b is None or output is None:
        return "a shape is not known at compile time"
    if len(a.shape) < 2 or len(b.shape) < 2:
        return "an operand is a vector"
    if isinstance(call.args[1], ir.GenericConst) and len(b.shape) == 2:
        activation, absorbed = _before_cast(graph, call.args[0])
        return Anchor(position, "matmul", (activation, call.args[1]), output, {}, absorbed)
    (a_stored, a_axes, a_from), (b_stored, b_axes, b_from) = (
        _permuted(graph, arg) for arg in call.args
    )
    attrs: dict[str, Scalar] = {"a_axes": a_axes, "b_axes": b_axes}
    return Anchor(
        position, "batch_matmul", (a_stored, b_stored), output, attrs, tuple(a_from + b_from)
    )


def _conv1d(graph: DataflowGraph, position: int, call: relax.Call) -> Anchor | str | None:
    """A convolution whose windows are contiguous: a matmul of overlapping rows."""
    attrs = call.attrs
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    if layouts != ("NWC", "WIO", "NWC") or not isinstance(call.args[1], ir.GenericConst):
        return None
    w, output = static_tensor(call.args[1]), _output(graph, position)
    if w is None or output is None:
        return "a shape is not known at compile time"
    if int(attrs.groups) != 1 or int(attrs.dilation[0]) != 1 or any(map(int, attrs.padding)):
        return "groups, dilation or padding"
    window: dict[str, Scalar] = {"window": w.shape[0], "stride": int(attrs.strides[0])}
    return Anchor(position, "matmul", tuple(call.args), output, window)


def _before_cast(graph: DataflowGraph, expr: relax.Expr) -> tuple[relax.Expr, tuple[int, ...]]:
    """What an activation is cast to f32 from, and the binding of the cast; itself if it is not."""
    call = graph.definition(expr)
    if op_name(call) != "relax.astype" or str(expr.ty.dtype) != "float32":
        return expr, ()
    assert call is not None
    return call.args[0], (graph.position[expr],)


def _permuted(graph: DataflowGraph, expr: relax.Expr) -> tuple[relax.Expr, str, list[int]]:
    """What an operand is a permutation of: (stored tensor, axes, bindings passed)."""
    call = graph.definition(expr)
    if op_name(call) == "relax.permute_dims":
        assert call is not None
        rank = len(expr.ty.shape.values)
        axes = call.attrs.axes
        order = [int(axis) % rank for axis in axes] if axes is not None else range(rank)[::-1]
        return call.args[0], ",".join(map(str, order)), [graph.position[expr]]
    return expr, ",".join(map(str, range(len(expr.ty.shape.values)))), []


def _softmax(name: str) -> Matcher:
    def match(graph: DataflowGraph, position: int, call: relax.Call) -> Anchor | str | None:
        output = _output(graph, position)
        if output is None:
            return "a shape is not known at compile time"
        axis = int(call.attrs.axis) % max(1, len(output.shape))
        return Anchor(position, name, (call.args[0],), output, {"axis": axis})

    return match


def _norm(name: str) -> Matcher:
    def match(graph: DataflowGraph, position: int, call: relax.Call) -> Anchor | str | None:
        output = _output(graph, position)
        if output is None:
            return "a shape is not known at compile time"
        rank = len(output.shape)
        axes = sorted(int(axis) % rank for axis in call.attrs.axes)
        if axes != list(range(axes[0], rank)):
            return f"normalised axes {axes} are not the last ones"
        if name == "layer_norm" and not (call.attrs.center and call.attrs.scale):
            return "layer_norm without scale or shift"
        attrs: dict[str, Scalar] = {"axis": axes[0], "epsilon": float(call.attrs.epsilon)}
        return Anchor(position, name, tuple(call.args), output, attrs)

    return match


_MATCHERS: dict[str, Matcher] = {
    "relax.matmul": _matmul,
    "relax.nn.conv1d": _conv1d,
    "relax.nn.softmax": _softmax("softmax"),
    "relax.nn.log_softmax": _softmax("log_softmax"),
    "relax.nn.layer_norm": _norm("layer_norm"),
    "relax.nn.rms_norm": _norm("rms_norm"),
}
