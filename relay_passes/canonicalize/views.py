"""Views: reshapes that change nothing go, permutations compose and sink."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tvm import DataType, ir, relax

from relay_passes.ir.axes import AxisView, identity, reduced_axes, view_axes
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, is_call, known_tensor, op_name, region_tensor
from relay_passes.ir.rewrite import Bindings, block_rewrite
from relay_passes.ir.rules import RuleGraph, rule
from relay_passes.ir.traits import MOVABLE, RESHAPES, SOFTMAXES

_REDUCTIONS = ("relax.sum", "relax.mean", "relax.max", "relax.min", "relax.prod")


@block_rewrite
def sink_permutes(graph: DataflowGraph) -> list[relax.Binding] | None:
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

    Reshapes that only add or drop axes of extent 1 move along. Constants are permuted at compile
    time. A chain is rewritten only if it then has neither more permutations nor more elements to
    move. Permutations that a batch_matmul takes into its store stay.

    It needs A-normal form.
    """
    refused: set[int] = set()
    while True:
        plan = _Plan(graph, refused)
        chains = plan.chains()
        worse = [chain for chain in chains if not plan.pays(chain)]
        if not worse:
            return plan.block.bindings if chains else None
        refused.update(position for chain in worse for position in chain)


def _widens(call: relax.Call) -> bool:
    """Whether a cast makes elements larger: 8 bits are moved, not what they are widened to."""
    source, result = region_tensor(call.args[0]), region_tensor(call)
    if source is None or result is None:
        return False
    return DataType(source.dtype).bits < DataType(result.dtype).bits


@dataclass
class _Plan:
    """The block with every operator sunk through that can be, but for those refused.

    Attributes
    ----------
    views : dict
        What every variable is a view of, if of another value.
    links : dict
        Position of a view or of a sunk operator -> positions of the views it reads through.
    """

    graph: DataflowGraph
    refused: set[int]
    block: Bindings = field(default_factory=Bindings)
    views: dict[relax.Var, AxisView] = field(default_factory=dict)
    links: dict[int, set[int]] = field(default_factory=dict)
    sunk: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for position, binding in enumerate(self.graph.bindings):
            view = None if position in self.refused else self.view(position)
            if view is None:
                self.block.bindings.append(binding)
                continue
            self.views[binding.var] = view
            if position not in self.sunk and view.source.same_as(binding.value.args[0]):
                self.block.bindings.append(binding)  # nothing to compose with
                continue
            self.block.bind(binding.var, view.emit(self.block))

    def view(self, position: int) -> AxisView | None:
        """What a binding is a view of, once its operator has been applied to the source."""
        call = self.graph.bindings[position].value
        axes = view_axes(call)
        if axes is not None:
            product = self.graph.definition(call.args[0])
            matrix = product.args[1] if is_call(product, "relax.matmul") else None
            if matrix is not None and not isinstance(matrix, ir.GenericConst):
                return None
            source = self._look(call.args[0])
            self.links[position] = self._read(call.args[:1])
            return None if source is None else source.then(axes)
        name = op_name(call)
        if not isinstance(call, relax.Call) or (name == "relax.astype" and _widens(call)):
            return None
        if name in MOVABLE:
            view, arguments = self._elementwise(call, MOVABLE[name])
        elif name in _REDUCTIONS:
            view, arguments = self._reduction(call)
        else:
            return None
        if view is not None:
            self.links[position] = self._read(arguments)
            self.sunk.add(position)
        return view

    def chains(self) -> list[set[int]]:
        """Views and sunk operators that hang together, where at least one operator was sunk or
        two permutations met."""
        chains: list[set[int]] = []
        for position, read in self.links.items():
            joined = [chain for chain in chains if chain & read]
            chains = [chain for chain in chains if not chain & read]
            chains.append({position}.union(*joined))
        return [chain for chain in chains if len(chain) > 1]

    def pays(self, chain: set[int]) -> bool:
        """Whether a chain is no more work than before, and has a permutation to move."""
        before, after = [(0, 0)], [(0, 0)]
        of_window = False
        for position in chain:
            binding = self.graph.bindings[position]
            view = self.views[binding.var]
            call = binding.value
            axes = view_axes(call)
            source = None if axes is None else identity(call.args[0])
            if source is not None and axes is not None:
                before.append(source.then(axes).cost)
            if self.graph.escapes(binding.var, chain):
                after.append(view.cost)
            of_window |= op_name(self.graph.definition(view.source)) == "relax.nn.conv1d"
        count_before, moved_before = map(sum, zip(*before, strict=True))
        count_after, moved_after = map(sum, zip(*after, strict=True))
        if count_after > count_before or moved_after > moved_before:
            return False
        return count_after < count_before or bool(chain & self.sunk and (count_before or of_window))

    def _look(self, expr: relax.Expr) -> AxisView | None:
        known = self.views.get(expr) if isinstance(expr, relax.Var) else None
        return identity(expr) if known is None else known

    def _read(self, arguments: list[relax.Expr]) -> set[int]:
        """Positions of the views among arguments."""
        return {
            self.graph.position[arg]
            for arg in arguments
            if isinstance(arg, relax.Var) and arg in self.views
        }

    def _elementwise(
        self, call: relax.Call, arity: int
    ) -> tuple[AxisView | None, list[relax.Expr]]:
        """The view that the result is; the arguments read through views."""
        arguments = list(call.args[:arity])
        output = region_tensor(call)
        if output is None:
            return None, []
        rank = len(output.shape)
        views = [self.views.get(arg) for arg in arguments if isinstance(arg, relax.Var)]
        candidates = [v for v in views if v is not None and len(v.axes) == rank and not v.trivial]
        if not candidates:
            return None, []
        leader = max(candidates, key=lambda view: view.moves)
        if any(axis is None and output.shape[i] != 1 for i, axis in enumerate(leader.axes)):
            return None, []
        permuted = [self._permuted(arg, leader, rank) for arg in arguments]
        if any(view is None for view in permuted):
            return None, []
        operands = [self._operand(view) for view in permuted if view is not None]
        applied = with_args(call, [*operands, *call.args[arity:]])
        result = self.block.emit(applied)
        tensor = known_tensor(result)
        return leader.of(result, tensor.shape), arguments

    def _permuted(self, expr: relax.Expr, leader: AxisView, rank: int) -> AxisView | None:
        """An operand of `rank` axes or less in the axes of the leader's source; None if that takes
        a permutation."""
        view = self._look(expr)
        if view is None:
            return None
        if len(view.shape) == 0:
            return view
        aligned = (None,) * (rank - len(view.axes)) + view.axes
        axes = tuple(
            aligned[leader.axes.index(axis)] if axis in leader.axes else None
            for axis in range(len(leader.source_shape))
        )
        permuted = AxisView(view.source, view.source_shape, axes)
        short = permuted.without_leading_ones()
        constant = isinstance(view.source, ir.GenericConst)
        if constant or short.trivial:
            return short
        return None if permuted.moves else permuted

    def _operand(self, view: AxisView) -> relax.Expr:
        expr = view.source if view.trivial else view.emit(self.block)
        return self.block.emit(expr) if isinstance(expr, relax.Call) else expr

    def _reduction(self, call: relax.Call) -> tuple[AxisView | None, list[relax.Expr]]:
        """The view that the result is; the argument if it is a view."""
        view = self._look(call.args[0])
        if view is None or view.trivial:
            return None, []
        reduced = reduced_axes(call)
        found = [axis for i, axis in enumerate(view.axes) if i in reduced]
        inner = [axis for axis in found if axis is not None]
        if len(inner) < len(found):
            return None, []
        keepdims = bool(call.attrs.keepdims)
        result = self.block.emit(with_args(call, [view.source], axis=inner))
        tensor = known_tensor(result)
        if keepdims:
            return view.of(result, tensor.shape), [call.args[0]]
        left = [axis for axis in range(len(view.source_shape)) if axis not in inner]
        axes = tuple(
            None if axis is None else left.index(axis)
            for i, axis in enumerate(view.axes)
            if i not in reduced
        )
        return AxisView(result, tensor.shape, axes), [call.args[0]]


@rule(*RESHAPES, "relax.broadcast_to")
def drop_views(graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Drops reshapes that change nothing, or that a softmax or a reduction does not need.

    Before

        lv = R.reshape(x, [320, 40])                    # x: [1, 8, 40, 40]
        lv1 = R.nn.softmax(lv, axis=-1)
        gv = R.reshape(lv1, [1, 8, 40, 40])

    After

        gv = R.nn.softmax(x, axis=-1)

    Older ONNX models write every softmax so. Of the axes that the reshape joins, only one may have
    more than one element. A reshape of a reshape becomes one reshape; a reshape or a broadcast to
    the same shape is dropped. And axes that a reduction keeps for a reshape to drop are not kept:

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
    """A softmax over the last axis of a reshaped value, as one of the value itself."""
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
    # One axis has all elements of the trailing ones that the last one stands for.
    extent, axes = flat.shape[-1], range(len(shape))
    first = next((i for i in reversed(axes) if math.prod(shape[i:]) == extent), len(shape))
    axis = next((i for i in axes[first:] if shape[i] == extent), None)
    if axis is None:
        return None
    return with_args(softmax, [view.args[0]], axis=-1 if axis == axes[-1] else axis)


@rule(*RESHAPES, "relax.permute_dims")
def compose_views(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Composes views: permutations in a row, with axes of extent 1 put in or left out, become one.

    Before

        lv = R.expand_dims(x, axis=[3])                 # x: [4, 8, 64]
        lv1 = R.permute_dims(lv, axes=[0, 1, 3, 2])
        lv2 = R.permute_dims(lv1, axes=[1, 0, 3, 2])
        gv = R.reshape(lv2, R.shape([8, 4, 64]))

    After

        gv = R.permute_dims(x, axes=[1, 0, 2])

    torch.export writes the operands of an einsum so. A permutation that others read too stays.
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
