"""Views: redundant reshapes are dropped; permutations are composed and moved down."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tvm import DataType, ir, relax

from relay_passes.ir.axes import AxisView, identity, moves, permutation, reduced_axes, view_axes
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, is_call, known_tensor, op_name, region_tensor
from relay_passes.ir.quantization import transposed
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule
from relay_passes.ir.traits import MOVABLE, RESHAPES, SOFTMAXES

_REDUCTIONS = ("relax.sum", "relax.mean", "relax.max", "relax.min", "relax.prod")
_DEEPEST = 3  # elementwise operators between a permutation and the one that rejoins its readers


@rule(*MOVABLE, *_REDUCTIONS)
def sink_permutes(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Sink: moves permutations down past elementwise operators and reductions.

    There they cancel with their inverses, vanish in a reduction, or stay at the end.

    Before

        lv = R.permute_dims(y, [0, 2, 1])               # y: [1, 508, 512]
        lv1 = R.add(lv, const_b)                        # const_b: [512, 1]
        lv2 = R.nn.relu(lv1)
        gv = R.max(lv2, axis=[2])

    After

        lv = R.add(y, const_b')                         # const_b': [1, 512]
        lv1 = R.nn.relu(lv)
        gv = R.max(lv1, axis=[1])

    Constants are permuted at compile time. All readers of a permutation must move with it: one
    operator, or several that meet in one. Permutations that become part of a batch_matmul's store
    stay, and so do those before a cast that makes elements larger.
    """
    reduces = is_call(call, *_REDUCTIONS)
    turn = _permutation(graph, call, 0 if reduces else _DEEPEST)
    if turn is None:
        return None
    order = permutation(turn)
    if not reduces:
        before = _Before(graph, block, order)
        made = before.applied(call)
        members = [graph.position[var] for var in (block.var, *before.found)]
        if made is None or any(graph.escapes(var, members) for var in before.found):
            return None
        return relax.op.permute_dims(block.emit(made), order)
    if graph.only_user(call.args[0]) is None:
        return None
    reduced = reduced_axes(call)
    axes = [order[axis] for axis in reduced]
    result = block.emit(with_args(call, [turn.args[0]], axis=axes))
    left = [axis for axis in range(len(order)) if axis not in axes]
    if bool(call.attrs.keepdims):
        left, reduced = list(range(len(order))), []
    kept = [left.index(axis) for i, axis in enumerate(order) if i not in reduced]
    return AxisView(result, known_tensor(result).shape, tuple(kept)).emit(block)


def _permutation(graph: DataflowGraph, call: relax.Call, depth: int) -> relax.Call | None:
    """The first permutation before an operator, perhaps behind elementwise ones; else None."""
    for arg in call.args[: MOVABLE.get(op_name(call), 1)]:
        value = graph.definition(arg)
        if is_call(value, "relax.permute_dims"):
            tensor, product = region_tensor(value.args[0]), graph.definition(value.args[0])
            if is_call(product, "relax.matmul") and isinstance(product.args[1], relax.Var):
                continue  # it becomes part of the product's store
            if tensor is not None and moves(tensor.shape, permutation(value)):
                return value
        elif (
            depth
            and isinstance(value, relax.Call)
            and {op_name(value), op_name(call)} <= {*MOVABLE}
        ):
            found = _permutation(graph, value, depth - 1)
            if found is not None:
                return found
    return None


@dataclass
class _Before:
    """Computes values in the axis order before a permutation.

    Attributes
    ----------
    order : tuple of int
        The permutation.
    found : dict
        Permuted values, and their unpermuted forms.
    """

    graph: RuleGraph
    block: Bindings
    order: tuple[int, ...]
    found: dict[relax.Var, relax.Expr] = field(default_factory=dict)

    def applied(self, call: relax.Call) -> relax.Call | None:
        """An elementwise operator on unpermuted operands; None if an operand has none."""
        arity, result = MOVABLE[op_name(call)], region_tensor(call)
        if result is None or len(result.shape) != len(self.order) or _widens(call):
            return None
        args = [self._operand(arg, result.shape) for arg in call.args[:arity]]
        known = [arg for arg in args if arg is not None]
        return with_args(call, [*known, *call.args[arity:]]) if len(known) == arity else None

    def _operand(self, expr: relax.Expr, result: tuple[int, ...]) -> relax.Expr | None:
        tensor, value, order = region_tensor(expr), self.graph.definition(expr), self.order
        if tensor is None:
            return None
        whole = (1,) * (len(order) - len(tensor.shape)) + tensor.shape
        inverse = tuple(order.index(axis) for axis in range(len(order)))
        if isinstance(expr, ir.GenericConst) or not moves(whole, inverse):
            return transposed(self.graph, expr, inverse, True, self.block)
        if not isinstance(expr, relax.Var) or not isinstance(value, relax.Call):
            return None
        if tensor.shape != result or expr in self.found:
            return self.found.get(expr)
        if is_call(value, "relax.permute_dims") and permutation(value) == order:
            self.found[expr] = value.args[0]
        elif op_name(value) in MOVABLE and (inner := self.applied(value)) is not None:
            self.found[expr] = self.block.emit(inner)
        return self.found.get(expr)


def _widens(call: relax.Call) -> bool:
    """Whether a cast makes elements larger: it is cheaper to move the smaller ones."""
    if not is_call(call, "relax.astype"):
        return False
    source, result = (DataType(str(each.ty.dtype)).bits for each in (call.args[0], call))
    return bool(source < result)


@rule(*RESHAPES, "relax.broadcast_to")
def drop_views(graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Drops reshapes that change nothing, or that a softmax or a reduction does not need.

    Before

        lv = R.reshape(x, [320, 40])                    # x: [1, 8, 40, 40]
        lv1 = R.nn.softmax(lv, axis=-1)
        gv = R.reshape(lv1, [1, 8, 40, 40])

    After

        gv = R.nn.softmax(x, axis=-1)

    Older ONNX models write every softmax like this. Of the axes that the reshape joins, only one
    may have more than one element. A reshape of a reshape becomes one reshape; a reshape or a
    broadcast to the operand's shape is dropped. If a reshape drops the axes that a reduction keeps,
    the reduction drops them instead:

        lv = R.mean(x, axis=[2, 3], keepdims=True)      # a global pool
        gv = R.reshape(lv, [1, 64])                     # R.mean(x, axis=[2, 3])
    """
    result, source = region_tensor(call), region_tensor(call.args[0])
    if result is None or source is None:
        return None
    if result.shape == source.shape:
        return call.args[0]
    if op_name(call) == "relax.broadcast_to":
        return None
    softmax = _softmax(graph, call.args[0], result.shape)
    if softmax is not None:
        return softmax
    inner = graph.definition(call.args[0])
    if is_call(inner, "relax.mean", "relax.sum", "relax.max", "relax.min"):
        if graph.only_user(call.args[0]) is None or not inner.attrs.keepdims:
            return None
        axes = reduced_axes(inner)
        left = tuple(size for axis, size in enumerate(source.shape) if axis not in axes)
        if result.shape != left:
            return None
        return with_args(inner, [inner.args[0]], axis=axes, keepdims=False)
    if not is_call(inner, *RESHAPES):
        return None
    first = region_tensor(inner.args[0])
    if first is not None and first.shape == result.shape:
        return inner.args[0]
    return relax.op.reshape(inner.args[0], call.ty.shape)


def _softmax(graph: DataflowGraph, value: relax.Expr, shape: tuple[int, ...]) -> relax.Expr | None:
    """A softmax over the last axis of a reshaped value, as a softmax of the value itself."""
    softmax = graph.definition(value)
    if not is_call(softmax, *SOFTMAXES):
        return None
    view = graph.definition(softmax.args[0])
    if not is_call(view, *RESHAPES):
        return None
    source, flat = region_tensor(view.args[0]), region_tensor(view)
    if source is None or flat is None or source.shape != shape:
        return None
    if int(softmax.attrs.axis) % len(flat.shape) != len(flat.shape) - 1:
        return None
    # The softmax's axis must be one of the joined axes, with all of their elements.
    extent, axes = flat.shape[-1], range(len(shape))
    first = next((i for i in reversed(axes) if math.prod(shape[i:]) == extent), len(shape))
    axis = next((i for i in axes[first:] if shape[i] == extent), None)
    if axis is None:
        return None
    return with_args(softmax, [view.args[0]], axis=-1 if axis == axes[-1] else axis)


@rule(*RESHAPES, "relax.permute_dims")
def compose_views(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Composes views: consecutive permutations, with axes of extent 1 added or dropped, become one.

    Before

        lv = R.expand_dims(x, axis=[3])                 # x: [4, 8, 64]
        lv1 = R.permute_dims(lv, axes=[0, 1, 3, 2])
        lv2 = R.permute_dims(lv1, axes=[1, 0, 3, 2])
        gv = R.reshape(lv2, R.shape([8, 4, 64]))

    After

        gv = R.permute_dims(x, axes=[1, 0, 2])

    torch.export writes the operands of an einsum like this. A permutation with other readers stays.
    """
    chain: list[relax.Call] = []
    view: AxisView | None = None
    current: relax.Expr | None = call
    while isinstance(current, relax.Call):
        axes, source = view_axes(current), current.args[0] if current.args else None
        inner = None if axes is None or source is None else identity(source)
        if axes is None or inner is None or source is None:
            break
        moves = inner.then(axes).moves
        if chain and moves and graph.only_user(chain[-1].args[0]) is None:
            break
        last = tuple(range(len(axes))) if view is None else view.axes
        view = inner.then(axes).then(last)
        chain.append(current)
        current = graph.definition(source)
    if view is None or not any(is_call(each, "relax.permute_dims") for each in chain):
        return None
    shape = view.source_shape
    if view.moves:
        shape = tuple(shape[axis] for axis in view.order)
    fewest = int(view.moves) + int(shape != view.shape)
    return view.emit(block) if fewest < len(chain) else None
