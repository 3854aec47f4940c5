"""A loop as functions that call each other, halving the range of iterations.

    loop(low, high, going, states)  =  part(low, high, states) if going and low < high
                                       else going, states, no rows
    part(low, high, states)         =  step(low, states) if high - low <= 1 else both(...)
    both(low, high, states)         =  loop(low, middle), then loop(middle, high) of its results;
                                       the rows of both, joined
    step(low, states)               =  the body, once

Relax has no loop. A function that called itself for the next iteration would need a stack frame for
each; halving needs as many as the number of iterations has bits. When the condition ends the loop,
every remaining range ends at once, so the limit may be any int64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import onnx
from onnx import TensorProto, helper
from tvm import relax, tirx
from tvm.ir import GlobalVar
from tvm.relax.utils import copy_with_new_vars

from microkernels.base.errors import ModelError, UnsupportedOperatorError
from tir_schedules.generic.expressions import substitute, variables_of

from ..expressions import Expr, emit, literal, match_cast, reshaped, writing_to
from .graph.elements import known_elements
from .graph.freeze_shapes import new_size
from .graph.graph import OWN_DOMAIN, Graph, copied
from .graph.kernels import fields
from .graph.node_builder import attributes_of
from .graph.parameters import require_value
from .graph.sizes import INDEX, dims_of

UNLIMITED = np.iinfo(np.int64).max


class Loop(NamedTuple):
    """The form of a loop.

    Parameters
    ----------
    body
        (i, states, captured) -> (going, states, rows); a single tensor if there is only `going`.
    states
        Number of states.
    steps
        Number of iterations; None if it depends on data or on dynamic sizes.
    ends_early
        Whether a condition may end the loop before the limit.
    sizes
        The initial states and the captured values, as the loop is called with them.
    """

    body: relax.Function
    states: int
    steps: int | None
    ends_early: bool
    sizes: OwnSizes

    @property
    def made(self) -> list[relax.TensorType]:
        """The types of the body's results."""
        return list(getattr(self.body.ret_ty, "fields", [self.body.ret_ty]))

    @property
    def rows(self) -> list[relax.TensorType]:
        """The types of an iteration's rows."""
        return self.made[1 + self.states :]


def repeat(library: relax.BlockBuilder, loop: Loop, limit: Expr | None, condition: Expr) -> Expr:
    """Runs a loop; returns the final states and all rows, as a tuple if there are several.

    Parameters
    ----------
    library
        Receives the loop's functions.
    """
    high = literal(np.array(UNLIMITED, INDEX)) if limit is None else reshaped(limit, ())
    arguments = [literal(np.array(0, INDEX)), high, reshaped(condition, ()), *loop.sizes.values]
    results = fields(emit(relax.Call(_functions(library, loop), arguments)))[1:]
    for position, row in enumerate(loop.rows, loop.states):
        size: Expr | int | None = loop.steps
        if size is None:  # an expression of other sizes if the limit is one
            found = None if loop.ends_early else known_elements(high)
            size = new_size() if found is None else found.item()
        results[position] = match_cast(results[position], _stacked(row, size))
    return loop.sizes.undone(relax.Tuple(results) if len(results) > 1 else results[0])


def _functions(library: relax.BlockBuilder, loop: Loop) -> GlobalVar:
    """Adds a loop's functions; returns the one that runs a range of iterations."""
    body = library.add_func(copy_with_new_vars(loop.body), "loop_body")
    going, integer = relax.TensorType((), "bool"), relax.TensorType((), INDEX)
    values = [parameter.ty for parameter in loop.body.params[1:]]
    ranged = [integer, integer, *values]
    rows = [relax.TensorType(dtype=row.dtype, ndim=row.ndim + 1) for row in loop.rows]
    first = 1 + loop.states
    result = relax.TupleType([going, *loop.made[1:first], *rows])
    empty = relax.Function.create_empty(_parameters([integer, integer, going, *values]), result)
    whole = library.add_func(copy_with_new_vars(empty), "loop")

    def step(low: Expr, *values: Expr) -> relax.Tuple:
        made = fields(emit(relax.Call(body, [low, *values])))
        rows = [emit(relax.op.expand_dims(row, [0])) for row in made[first:]]
        return relax.Tuple([reshaped(made[0], ()), *made[1:first], *rows])

    def both(low: Expr, high: Expr, *values: Expr) -> relax.Tuple:
        size = emit(relax.op.subtract(high, low))
        half = emit(relax.op.floor_divide(size, literal(np.array(2, INDEX))))
        middle = emit(relax.op.add(low, half))
        going = literal(np.array(True))
        before = fields(emit(relax.Call(whole, [low, middle, going, *values])))
        further = [middle, high, *before[:first], *values[loop.states :]]
        after = fields(emit(relax.Call(whole, further)))
        joined = []
        for index, row in enumerate(loop.rows):
            parts = [
                match_cast(made[first + index], _stacked(row, new_size()))
                for made in (before, after)
            ]
            joined.append(emit(relax.op.concat(parts, 0)))
        return relax.Tuple([*after[:first], *joined])

    def stop(going: Expr, *values: Expr) -> relax.Tuple:
        nothing = [emit(relax.op.zeros([0, *_sizes(row)], str(row.dtype))) for row in loop.rows]
        return relax.Tuple([going, *values[: loop.states], *nothing])

    once = library.add_func(_function([integer, *values], step), "loop_step")
    halves = library.add_func(_function(ranged, both), "loop_both")
    end = library.add_func(_function([going, *values], stop), "loop_stop")

    def part(low: Expr, high: Expr, *values: Expr) -> Expr:
        size = emit(relax.op.subtract(high, low))
        single = emit(relax.op.less_equal(size, literal(np.array(1, INDEX))))
        several = relax.Call(halves, [low, high, *values])
        return emit(relax.If(single, relax.Call(once, [low, *values]), several))

    some = library.add_func(_function(ranged, part), "loop_part")

    def run(low: Expr, high: Expr, going: Expr, *values: Expr) -> Expr:
        left = emit(relax.op.less(low, high))
        runs = emit(relax.op.logical_and(going, left))
        ended = relax.Call(end, [going, *values])
        return emit(relax.If(runs, relax.Call(some, [low, high, *values]), ended))

    library.update_func(whole, _function([integer, integer, going, *values], run))
    return whole


def _function(types: Sequence[relax.Type], write: Callable[..., Expr]) -> relax.Function:
    """A function with parameters of these types, whose body is what `write` returns for them."""
    builder, parameters = relax.BlockBuilder(), _parameters(types)
    with writing_to(builder), builder.function("function", parameters, private=True):
        builder.emit_func_output(write(*parameters))
    return copy_with_new_vars(builder.get()["function"])


def _parameters(types: Sequence[relax.Type]) -> list[relax.Var]:
    return [relax.Var(f"p{index}", found) for index, found in enumerate(types)]


def _stacked(row: relax.TensorType, size: Expr | int) -> relax.TensorType:
    return relax.TensorType([size, *_sizes(row)], row.dtype)


def _sizes(row: relax.TensorType) -> list[Expr]:
    assert isinstance(row.shape, relax.ShapeExpr)  # `loop_of` checks it
    return list(row.shape.values)


# The graph of a loop's body; it is typed, folded and rewritten separately.
#
#     Repeat(limit, condition, states..., captured..., body)
#         body: (i, states..., captured...) -> (going, states..., rows...)
#
# A state keeps its type. A row is the part that one iteration adds to an output of the loop.


def is_repeat(node: onnx.NodeProto) -> bool:
    """Whether a node is a loop that is not written out."""
    return node.op_type == "Repeat" and node.domain == OWN_DOMAIN


def loop_of(
    node: onnx.NodeProto,
    graph: Graph,
    value: Callable[[str], Expr],
    convert: Callable[[Graph, dict[str, list[Expr]]], relax.Function],
) -> Loop:
    """Converts the body of a Repeat, and declares the loop's outputs.

    Constants that the body reads are moved into it, and are no longer inputs of the node.

    Parameters
    ----------
    value
        Returns the expression of a name.
    convert
        Converts the body, given the shapes of its inputs after the counter.

    Raises
    ------
    InputValueError
        A state changes its type, and inputs decide the number of iterations.
    ModelError
        The loop never ends.
    UnsupportedOperatorError
        A state changes its type, or the rank of a state or of a row is not known.
    """
    source = f"Loop node {node.name!r}"
    attributes = attributes_of(node)
    proto, count = attributes["body"], attributes["states"]
    values = dict(zip((item.name for item in proto.input[1:]), node.input[2:], strict=True))
    states, captured = list(values)[:count], list(values)[count:]
    fed = [name for name in captured if values[name] not in graph.constants]
    body = graph.inner([proto.input[0].name, *states, *fed])
    body.declare(proto.input[0].name, TensorProto.INT64, ())
    for name in [*states, *fed]:
        dims = _dims(graph, values[name], source)
        body.declare(name, graph.elem_type(values[name]), dims)
    for name in captured:
        if name not in fed:
            body.add_constant(name, graph.constants[values[name]])
            if values[name] in graph.narrow:
                body.narrow[name] = graph.narrow[values[name]]
    body.nodes = list(map(copied, proto.node))
    # Separate outputs by Identity: one may be an input, a constant, or given twice.
    body.outputs = [body.fresh(item.name) for item in proto.output]
    for item, output in zip(proto.output, body.outputs, strict=True):
        body.nodes.append(helper.make_node("Identity", [item.name], [output]))
    given = [values[name] for name in [*states, *fed]]
    # The body is converted for the current sizes of the values, which may be dynamic.
    sizes = OwnSizes([value(name) for name in given])
    own = zip([*states, *fed], sizes.values, strict=True)
    function = convert(body, {name: list(dims_of(each)) for name, each in own})

    def refuse(what: str) -> NoReturn:
        # If inputs decide the number of iterations, known values let the loop be written out.
        for parameter in node.input[:2]:
            require_value(source, parameter, graph)
        raise UnsupportedOperatorError(
            f"{source}: {what}, and it has too many iterations, or a number of them that is no "
            "constant, to be written out"
        )

    for name, made in zip(states, body.outputs[1:], strict=False):
        before = body.elem_type(name), body.dims(name)
        after = body.elem_type(made), body.dims(made)
        if before[0] != after[0] or _differ(before[1], after[1]):
            refuse(
                f"its state {name!r} has another type or shape after an iteration ({after[1]} "
                f"after {before[1]})"
            )
    conditions = graph.constants.get(node.input[1]), body.constants.get(body.outputs[0])
    ends_early = not all(each is not None and bool(each.all()) for each in conditions)
    if not ends_early and not node.input[0]:
        raise ModelError(f"{source} never ends: it has no limit, and its condition is always true")
    limit = None if ends_early else graph.constants.get(node.input[0])
    steps = None if limit is None else int(np.maximum(limit, 0).item())
    loop = Loop(function.without_attr("global_symbol"), count, steps, ends_early, sizes)
    if not all(isinstance(row.shape, relax.ShapeExpr) for row in loop.rows):
        refuse("the sizes of what an iteration adds to an output are not known")
    for output, made in zip(node.output, body.outputs[1:], strict=True):
        shape = _dims(body, made, source)
        if made not in body.outputs[1 : 1 + count]:
            shape = (steps, *shape)
        graph.declare(output, body.elem_type(made), shape)
    kept = [*node.input[:2], *given]
    del node.input[:], node.attribute[:]
    node.input.extend(kept)
    return loop


def _dims(graph: Graph, name: str, source: str) -> tuple[int | None, ...]:
    dims = graph.dims(name)
    if dims is None:
        raise UnsupportedOperatorError(
            f"{source}: the rank of {name!r}, which it reads or makes, is not known"
        )
    return dims


def _differ(one: tuple[int | None, ...] | None, other: tuple[int | None, ...] | None) -> bool:
    """Whether two shapes differ for certain; dynamic sizes are only compared as expressions."""
    if one is None or other is None or len(one) != len(other):
        return True
    return any(a != b for a, b in zip(one, other, strict=True) if None not in (a, b))


class OwnSizes:
    """The values of a loop, with sizes that the loop's functions can read from them.

        x: R.Tensor(((t - 25) // 4 + 1, 8))    ->    R.match_cast(x, R.Tensor((found_1, 8)))

    TVM wants every symbol in a function's parameters to be a size of one of them. `t` is not one:
    a function of x alone cannot compute it. So the loop gets a new symbol for such a size, and the
    results get the old expression again.

    Parameters
    ----------
    values : sequence of relax.Expr
        The initial states and the captured values.

    Attributes
    ----------
    values : list of relax.Expr
        The arguments of the loop.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        sizes = [size for value in values for size in dims_of(value)]
        self._readable = {size for size in sizes if isinstance(size, tirx.Var)}
        self._symbols: dict[str, tirx.Var] = {}  # by the size as text
        self._meanings: dict[tirx.Var, Expr] = {}
        self.values = [
            self._with(value, [self._own(each) for each in dims_of(value)]) for value in values
        ]

    def undone(self, results: Expr) -> Expr:
        """The loop's results with the sizes of the calling function."""
        if not self._meanings:
            return results
        if isinstance(results, relax.Tuple):
            return relax.Tuple([self._meant(each) for each in results.fields])
        return self._meant(results)

    def _own(self, size: Expr) -> Expr:
        if variables_of(size) <= self._readable:
            return size
        text = str(size)
        if text not in self._symbols:
            self._symbols[text] = new_size()
            self._meanings[self._symbols[text]] = size
        return self._symbols[text]

    def _meant(self, value: Expr) -> Expr:
        sizes = [substitute(each, self._meanings) for each in dims_of(value)]
        return self._with(value, sizes)

    def _with(self, value: Expr, sizes: list[Expr]) -> Expr:
        """Casts a value to these sizes, unless it has them already."""
        if all(new.same_as(old) for new, old in zip(sizes, dims_of(value), strict=True)):
            return value
        return match_cast(value, relax.TensorType(sizes, value.ty.dtype))
