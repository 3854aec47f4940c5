"""Questions about TIR expressions: what they read, how their indices step, what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer, detect_linear_equation
from tvm.tirx.expr import BinaryOpExpr, CmpExpr

from microkernels.vector import ieee
from microkernels.vector.expressions import Expr, Index

Tree = TypeVar("Tree", Expr, tirx.Stmt)  # an expression, or a statement
Kind = TypeVar("Kind", bound=Expr)  # a class of expressions

COSTS: dict[str, float] = {
    "exp": 20,
    "log": 20,
    "erf": 25,
    "tanh": 20,
    "sigmoid": 22,
    "pow": 45,
    "rsqrt": 8,
    "sqrt": 8,
    "softplus": 28,
    **dict.fromkeys(("sin", "cos", "tan"), 45),
    **dict.fromkeys(("asin", "acos", "atan", "cosh"), 25),
    **dict.fromkeys(("sinh", "log1p", "fmod"), 40),
    **dict.fromkeys(("asinh", "acosh", "atanh"), 55),
    "isnan": 2,
    "reinterpret": 0,
    "if_then_else": 3,
}
"""Cost of one call, in additions."""

OTHER_CALL_COST = 10.0
DIVIDE_COST = 4.0

_FREE = (tirx.IntImm, tirx.FloatImm, tirx.Var)
_DIVIDES = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def int64(value: int) -> Expr:
    """An index constant."""
    return tirx.const(value, "int64")


def ramp_at(start: Expr, lanes: int) -> Expr:
    """The positions of `lanes` neighbours from `start` on."""
    return tirx.Ramp(start, int64(1), lanes)


def const_int(value: Index) -> int | None:
    """The value of an integer constant, or None."""
    if isinstance(value, int):
        return value
    return int(value.value) if isinstance(value, tirx.IntImm) else None


def call_name(expression: Expr) -> str:
    """The name of a call's operator without its dialect; empty if the expression is no call.

    For a pure function that is called by its name, the result is that name.
    """
    if not isinstance(expression, Call):
        return ""
    name = str(getattr(expression.op, "name", "")).rsplit(".", 1)[-1]
    return str(expression.args[0].value) if name == "call_pure_extern" else name


def substitute(tree: Tree, values: Mapping[tirx.Var, Expr]) -> Tree:
    """The expression or statement with variables replaced."""
    if not values:
        return tree
    return tvm_ffi.structural_map(tree, (tirx.Var, lambda var: values.get(var, var)))


def folded(extent: Expr) -> Expr:
    """An extent, as a number if it contains no variable."""
    if isinstance(extent, tirx.IntImm) or variables_of(extent):
        return extent
    return Analyzer().simplify(extent)


def resized_buffers(
    buffers: Iterable[tirx.Var], values: Mapping[tirx.Var, Any]
) -> dict[tirx.Var, tirx.Var]:
    """A new buffer for each buffer with an extent that `values` changes."""
    found = {}
    for buffer in buffers:
        shape = getattr(buffer, "shape", None)
        if shape is None or not any(variables_of(extent) & values.keys() for extent in shape):
            continue
        found[buffer] = tirx.decl_buffer(
            [folded(substitute(extent, values)) for extent in shape],
            str(buffer.dtype),
            str(buffer.name),
            strides=[substitute(stride, values) for stride in buffer.strides],
            elem_offset=substitute(buffer.elem_offset, values),
            scope=buffer.scope(),
            data_alignment=int(buffer.data_alignment),
            offset_factor=int(buffer.offset_factor),
            layout=None,
        )
    return found


def with_sizes(
    body: tirx.Stmt, values: Mapping[tirx.Var, Any], known: Mapping[tirx.Var, tirx.Var]
) -> tirx.Stmt:
    """A statement with sizes replaced by `values`; `known` buffers have a replacement already.

    buffer = T.sblock_alloc_buffer((n, 64))     # n -> batch * 2

    ->  buffer = T.sblock_alloc_buffer((batch * 2, 64))
    """
    renewed = {**resized_buffers(variables_of(body), values), **known}
    return substitute(body, {**values, **renewed})


def map_loads(expression: Expr, change: Callable[[TensorLoad], Expr]) -> Expr:
    """The expression with every load replaced by `change(load)`, innermost loads first."""
    return tvm_ffi.structural_map(expression, (TensorLoad, change))


def nodes_of(tree: Expr | tirx.Stmt, kinds: Any) -> list[Any]:
    """Every node of some classes."""
    found: list[Any] = []
    tvm_ffi.structural_walk(tree, (kinds, found.append))
    return found


def loads_of(expression: Expr) -> list[TensorLoad]:
    """Every load, loads within indices of loads included."""
    return nodes_of(expression, TensorLoad)


def variables_of(expression: Expr | tirx.Stmt) -> set[tirx.Var]:
    """Every variable, buffers included."""
    return set(nodes_of(expression, tirx.Var))


def variables_beside_loads(expression: Expr) -> set[tirx.Var]:
    """The variables that are used as numbers, not only in indices."""
    return variables_of(map_loads(expression, lambda load: tirx.const(0, load.ty.dtype)))


def calls_of(tree: Expr | tirx.Stmt, name: str) -> list[Call]:
    """Every call of the operator called `name`."""
    return [call for call in nodes_of(tree, Call) if call_name(call) == name]


def divisions_of(expression: Expr) -> list[Expr]:
    """Every floor division and every remainder."""
    return nodes_of(expression, (tirx.FloorDiv, tirx.FloorMod))


def node_count(expression: Expr) -> int:
    """Number of nodes, shared ones counted at every use."""
    return len(nodes_of(expression, tirx.Expr))


def same(left: Expr, right: Expr) -> bool:
    """Whether two expressions are equal, node by node."""
    return bool(tvm_ffi.structural_equal(left, right))


def distinct(expressions: Iterable[Kind]) -> list[Kind]:
    """The expressions without repetitions, in order."""
    found: list[Kind] = []
    for each in expressions:
        if not any(same(each, other) for other in found):
            found.append(each)
    return found


def same_indices(left: Iterable[Expr], right: Iterable[Expr]) -> bool:
    """Whether two lists of indices are equal, expression by expression."""
    return all(same(a, b) for a, b in zip(left, right, strict=True))


def cost_of(expression: Expr) -> float:
    """Arithmetic work of one evaluation, in additions; index arithmetic and loads are free.

    A load at a loaded index (a gather) counts two.
    """
    total = 2.0 * sum(
        len(loads_of(index)) for load in loads_of(expression) for index in load.indices
    )

    def visit(node: Expr) -> None:
        nonlocal total
        if isinstance(node, Call):
            total += COSTS.get(call_name(node), OTHER_CALL_COST)
        elif isinstance(node, _DIVIDES):
            total += DIVIDE_COST
        elif isinstance(node, tirx.Cast):
            total += 0.5
        elif not isinstance(node, _FREE):
            total += 1

    # Skip the inside of loads: the sizes of their buffers are expressions, too.
    outside = map_loads(expression, lambda load: tirx.Var("load", load.ty.dtype))
    tvm_ffi.structural_walk(outside, (tirx.Expr, visit))
    return total


def strides_of(
    offset: Expr, axes: list[tirx.Var], analyzer: Analyzer
) -> dict[tirx.Var, int | None]:
    """For every axis, how far a flat offset moves with one step; None if that is not constant.

    The `analyzer` knows the range of every axis.
    """
    coefficients = list(detect_linear_equation(offset, axes)) if axes else []
    steps = list(map(const_int, coefficients[:-1]))
    if coefficients and None not in steps:
        return dict(zip(axes, steps, strict=True))
    strides: dict[tirx.Var, int | None] = dict.fromkeys(axes, 0)
    for axis in set(axes) & variables_of(offset):
        moved = substitute(offset, {axis: axis + int64(1)})
        strides[axis] = const_int(analyzer.simplify(moved - offset))
    return strides


def map_calls(expression: Expr, change: Callable[[Call], Expr]) -> Expr:
    """The expression with every call replaced by `change(call)`, innermost calls first."""
    return tvm_ffi.structural_map(expression, (Call, change))


_ARITHMETIC: dict[type, Callable[[Expr, Expr], Expr]] = {
    tirx.Add: ieee.add,
    tirx.Sub: ieee.subtract,
    tirx.Mul: ieee.multiply,
    tirx.Div: ieee.divide,
    tirx.Max: ieee.maximum,
    tirx.Min: ieee.minimum,
}
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def guard_floats(tree: Tree) -> Tree:
    """Gives floats in TVM's own expressions their IEEE 754 meaning (`microkernels.vector.ieee`).

        max(x, 0)    ->  max(0, x)             in this order x86 keeps a NaN in x
        max(x, y)    ->  llvm.maximum(x, y)
        x - y        ->  hidden(x) - y         TVM makes 0 of x - x
        x == x       ->  hidden(x) == x

    TVM's simplifier and x86 then compute every float right. TVM folds some expressions, such as
    x * 0, while they are built, before this can see them; see relay_passes/legalize/axes.py.
    """
    kinds = (*_ARITHMETIC, *_COMPARISONS)
    return tvm_ffi.structural_map(tree, ((kinds, _arithmetic), (tirx.Not, _negation)))


def _arithmetic(node: BinaryOpExpr | CmpExpr) -> Expr:
    if not ieee.is_float(node.a):
        return node
    if isinstance(node, BinaryOpExpr):
        return _ARITHMETIC[type(node)](node.a, node.b)
    return type(node)(ieee.hidden(node.a), node.b)


def _negation(node: tirx.Not) -> Expr:
    """Not as Select if it negates a comparison of floats or a load; else unchanged."""
    inner = node.a
    # TVM would invert a comparison inside of Not, which is wrong for a NaN. A load may become a
    # comparison later, when nests are merged.
    compared = isinstance(inner, _COMPARISONS) and ieee.is_float(inner.a)
    if not compared and not isinstance(inner, TensorLoad):
        return node
    return tirx.Select(inner, tirx.const(False, "bool"), tirx.const(True, "bool"))
