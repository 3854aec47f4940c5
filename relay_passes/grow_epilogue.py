"""Growing a region: which operators after an anchor are computed in its registers.

Operators are taken in order as long as they are fusible; the region is then cut back to the largest
part of which exactly one value is needed outside. Reshapes that only regroup leading dimensions
are passed through, and a final permutation of the result may be taken into the store.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from tvm import relax

from tir_schedules.fusible_ops import FUSIBLE_BY_RELAX
from tir_schedules.region import Region, Step, Tensor

from .anchors import Anchor
from .graph import DataflowGraph, binding_value, op_name, scalar_constant, static_tensor

ACC = ("acc", 0)
Value = tuple[str, int]
VALUE_DTYPES = ("float32", "bool")
CAST_DTYPES = ("float16", "float64", "int8", "uint8", "int32", "int64")
MAX_OPERANDS = 12


@dataclass
class Growth:
    """A region while it grows.

    Attributes
    ----------
    members : list of int
        Positions of the bindings inside, in order; the anchor is the first.
    result : relax.Var
        The one value needed outside.
    operands : list of (relax.Expr, Tensor)
        What the epilogue reads: the expression and the tensor the kernel sees, which has another
        shape only if a reshape was passed.
    """

    anchor: Anchor
    output: Tensor
    members: list[int]
    result: relax.Var
    values: dict[relax.Var, Value] = field(default_factory=dict)
    operands: list[tuple[relax.Expr, Tensor]] = field(default_factory=list)
    steps: list[tuple[str, tuple[Value, ...], float | None, str]] = field(default_factory=list)

    def copy(self) -> Growth:
        """An independent copy, to come back to."""
        return Growth(
            self.anchor,
            self.output,
            list(self.members),
            self.result,
            dict(self.values),
            list(self.operands),
            list(self.steps),
        )

    def region(self) -> Region:
        """The region as it stands, its values numbered."""
        base = self.anchor.region()
        assert base is not None
        offset = {"acc": 0, "operand": 1, "step": 1 + len(self.operands)}
        steps = tuple(
            Step(op, tuple(offset[kind] + index for kind, index in args), value, dtype)
            for op, args, value, dtype in self.steps
        )
        return base.replace(
            operands=tuple(tensor for _, tensor in self.operands),
            output=self.output,
            epilogue=steps,
        )


def grow(
    graph: DataflowGraph,
    anchor: Anchor,
    taken: set[int],
    accepts: Callable[[Region], bool],
) -> Growth:
    """The largest region around an anchor.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    anchor : Anchor
        Where to start.
    taken : set of int
        Positions that belong to other regions.
    accepts : callable
        Whether the template can build a region.
    """
    var = graph.bindings[anchor.position].var
    growth = Growth(anchor, anchor.output, [anchor.position], var, {var: ACC})
    best = growth.copy()
    queue = list(graph.users.get(var, ()))
    heapq.heapify(queue)
    seen: set[int] = set()
    while queue:
        position = heapq.heappop(queue)
        if position in seen or position in taken:
            continue
        seen.add(position)
        trial = growth.copy()
        if not _absorb(graph, trial, position) or not accepts(trial.region()):
            continue
        growth = trial
        var = graph.bindings[position].var
        for user in graph.users.get(var, ()):
            heapq.heappush(queue, user)
        escaping = [v for v in growth.values if graph.escapes(v, growth.members)]
        if escaping == [var]:
            growth.result = var
            best = growth.copy()
    return _with_output_permutation(graph, best, taken, accepts)


def _absorb(graph: DataflowGraph, growth: Growth, position: int) -> bool:
    """Adds one binding to the region if it is fusible."""
    binding = graph.bindings[position]
    call = binding_value(binding)
    output = static_tensor(binding.var)
    name = op_name(call)
    if output is None or "out_axes" in growth.anchor.attrs or growth.output.dtype in CAST_DTYPES:
        return False
    if name in ("relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.flatten"):
        return _pass_reshape(growth, binding.var, call.args[0], output) and _note(growth, position)
    if output.shape != growth.output.shape:
        return False
    if name == "relax.astype" and output.dtype in CAST_DTYPES:
        return _cast(growth, binding.var, call.args[0], output) and _note(growth, position)
    if output.dtype not in VALUE_DTYPES:
        return False
    value = _steps_for(graph, growth, name, call)
    if value is None or len(growth.operands) > MAX_OPERANDS:
        return False
    growth.values[binding.var] = value
    return _note(growth, position)


def _note(growth: Growth, position: int) -> bool:
    growth.members.append(position)
    return True


def _cast(growth: Growth, var: relax.Var, source: relax.Expr, output: Tensor) -> bool:
    """Takes a cast of a f32 value; it ends the region, whose result has the new type."""
    if source not in growth.values or str(source.ty.dtype) != "float32":
        return False
    growth.values[var] = _step(growth, "cast", (growth.values[source],), output.dtype)
    growth.output = output
    return True


def _pass_reshape(growth: Growth, var: relax.Var, source: relax.Expr, output: Tensor) -> bool:
    """Passes a reshape that keeps the last dimension."""
    if source not in growth.values or growth.anchor.op != "matmul":
        return False
    before = growth.output.shape
    if not output.shape or output.shape[-1] != before[-1]:
        return False
    operands = []
    for expr, tensor in growth.operands:
        if all(extent == 1 for extent in tensor.shape[:-1]):
            shape = tensor.shape[-1:]
        elif tensor.shape[:-1] == before[:-1]:
            shape = (*output.shape[:-1], tensor.shape[-1])
        else:
            return False
        operands.append((expr, Tensor(shape, tensor.dtype)))
    growth.operands = operands
    growth.output = output
    growth.values[var] = growth.values[source]
    return True


def _steps_for(graph: DataflowGraph, growth: Growth, name: str, call: relax.Call) -> Value | None:
    """Adds the steps of one operator; None if it is not fusible."""
    if name == "relax.clip":
        value = _value_of(graph, growth, call.args[0])
        low, high = (float(bound.value) for bound in call.args[1:])
        if value is None:
            return None
        value = _step(growth, "maximum", (value, _constant(growth, low)))
        return _step(growth, "minimum", (value, _constant(growth, high)))
    if name == "relax.nn.leakyrelu":
        value = _value_of(graph, growth, call.args[0])
        if value is None:
            return None
        zero = _constant(growth, 0.0)
        below = _step(growth, "minimum", (value, zero))
        slope = _constant(growth, float(call.attrs.alpha))
        above = _step(growth, "maximum", (value, zero))
        return _step(growth, "add", (above, _step(growth, "multiply", (below, slope))))
    if name == "relax.power":
        exponent = scalar_constant(call.args[1])
        operator = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt"}.get(exponent or 0.0)
        value = _value_of(graph, growth, call.args[0])
        if operator is None or value is None:
            return None
        return _step(growth, operator, (value,))
    entry = FUSIBLE_BY_RELAX.get(name)
    if entry is None or len(call.args) < entry.arity:
        return None
    arguments = [_value_of(graph, growth, arg) for arg in call.args[: entry.arity]]
    if any(argument is None for argument in arguments):
        return None
    dtype = str(call.ty.dtype)
    return _step(growth, entry.name, tuple(a for a in arguments if a is not None), dtype)


def _step(growth: Growth, op: str, args: tuple[Value, ...], dtype: str = "float32") -> Value:
    growth.steps.append((op, args, None, dtype))
    return ("step", len(growth.steps) - 1)


def _constant(growth: Growth, number: float) -> Value:
    entry = ("constant", (), number, "float32")
    if entry not in growth.steps:
        growth.steps.append(entry)
    return ("step", growth.steps.index(entry))


def _value_of(graph: DataflowGraph, growth: Growth, expr: relax.Expr) -> Value | None:
    """The value an argument stands for: inside the region, a number, or an operand."""
    if isinstance(expr, relax.Var) and expr in growth.values:
        return growth.values[expr]
    tensor = static_tensor(expr)
    if tensor is None or tensor.dtype not in VALUE_DTYPES:
        return None
    number = scalar_constant(expr)
    if number is not None and tensor.dtype == "float32":
        return _constant(growth, number)
    if not _broadcasts(tensor.shape, growth.output.shape):
        return None
    operand = (expr, Tensor(tensor.shape, tensor.dtype))
    if operand not in growth.operands:
        growth.operands.append(operand)
    return ("operand", growth.operands.index(operand))


def _broadcasts(shape: tuple[int, ...], output: tuple[int, ...]) -> bool:
    if len(shape) > len(output):
        return False
    aligned = output[len(output) - len(shape) :]
    return all(extent in (1, full) for extent, full in zip(shape, aligned, strict=True))


def _with_output_permutation(
    graph: DataflowGraph,
    growth: Growth,
    taken: set[int],
    accepts: Callable[[Region], bool],
) -> Growth:
    """Takes a permutation that is the result's only use into the store of a batch_matmul."""
    users = graph.users.get(growth.result, [])
    if growth.anchor.op != "batch_matmul" or len(users) != 1 or users[0] in taken:
        return growth
    call = binding_value(graph.bindings[users[0]])
    inside_only = isinstance(growth.result, relax.DataflowVar)
    if op_name(call) != "relax.permute_dims" or not inside_only or call.attrs.axes is None:
        return growth
    rank = len(growth.output.shape)
    axes = ",".join(str(int(axis) % rank) for axis in call.attrs.axes)
    anchor = growth.anchor
    permuted = growth.copy()
    permuted.anchor = Anchor(
        anchor.position,
        anchor.op,
        anchor.inputs,
        anchor.output,
        {**anchor.attrs, "out_axes": axes},
        anchor.absorbed,
    )
    if not accepts(permuted.region()):
        return growth
    permuted.members.append(users[0])
    permuted.result = graph.bindings[users[0]].var
    return permuted
