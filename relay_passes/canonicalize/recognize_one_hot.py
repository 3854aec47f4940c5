"""Makes look-ups of products with one-hot rows, and applies to the table what follows them.

Before

    lv = R.equal(R.reshape(ids, [1, 2048, 1]), R.const(arange(257)))
    lv1 = R.matmul(R.astype(lv, "float32"), const_w)        # [257, 64]
    lv2 = R.add(lv1, const_bias)
    gv = R.nn.gelu_tanh(lv2)

After

    lv = R.where(R.less(ids, 0), 257, ids)
    lv1 = R.minimum(lv, 257)
    gv = R.take(const_table, lv1, axis=0)                   # gelu_tanh([w; 0] + bias)

A number that is no class selects the row of zeros at the end. The table is computed in float64 and
rounded once; elementwise operators move to it where it is no larger than what is looked up.
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from relay_passes.ir.constants import array_of
from relay_passes.ir.graph import AnyBinding, DataflowGraph, known_tensor, op_name, static_tensor
from relay_passes.ir.rewrite import Bindings, block_pass, rewrite_values
from relay_passes.ir.traits import RESHAPES
from relay_passes.ir.used_variables import variables
from tir_schedules.epilogue.fusible_ops import FUSIBLE_BY_RELAX

_INDICES = ("int32", "int64")
_LONGEST = 6  # elementwise operators after a look-up


def recognize_one_hot() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.recognize_one_hot", _rewrite)


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    found: dict[relax.Var, tuple[np.ndarray, relax.Expr, bool]] = {}
    for position, binding in enumerate(graph.bindings):
        lookup = _one_hot_product(graph, binding.var) or _take(graph, binding.var)
        if lookup is not None:
            table, index, bounded = lookup
            last, moved = _move(graph, binding.var, table)
            if last != position or not bounded:
                found[graph.bindings[last].var] = moved, index, bounded
    block = Bindings()

    def looked_up(binding: AnyBinding) -> relax.Expr | None:
        if binding.var not in found:
            return None
        table, index, bounded = found[binding.var]
        place = index if bounded else _bounded(block, index, len(table) - 1)
        return relax.op.take(relax.const(table), place, axis=0, mode="clip")

    return rewrite_values(graph, block, looked_up)


def _bounded(block: Bindings, index: relax.Expr, classes: int) -> relax.Expr:
    """Indices with what is no class replaced by the number of classes."""
    dtype = str(index.ty.dtype)
    none, zero = relax.const(classes, dtype), relax.const(0, dtype)
    negative = block.emit(relax.op.less(index, zero))
    return block.emit(relax.op.minimum(block.emit(relax.op.where(negative, none, index)), none))


def _called(graph: DataflowGraph, expr: relax.Expr, *names: str) -> relax.Call | None:
    """The call of one of some operators that a variable is bound to."""
    call = graph.definition(expr)
    return call if isinstance(call, relax.Call) and op_name(call) in names else None


def _one_hot_product(
    graph: DataflowGraph, var: relax.Var
) -> tuple[np.ndarray, relax.Expr, bool] | None:
    """(weight with a row of zeros, numbers of classes, False) of a product with one-hot rows."""
    product = _called(graph, var, "relax.matmul")
    cast = None if product is None else _called(graph, product.args[0], "relax.astype")
    equal = None if cast is None else _called(graph, cast.args[0], "relax.equal")
    if product is None or equal is None or not isinstance(product.args[1], ir.GenericConst):
        return None
    weight, rows = array_of(product.args[1].value), static_tensor(product.args[0])
    if rows is None or weight.ndim != 2 or {str(weight.dtype), rows.dtype} != {"float32"}:
        return None
    for spread, classes in (equal.args, reversed(equal.args)):
        if not isinstance(classes, ir.GenericConst):
            continue
        numbers = classes.value.numpy()
        wanted = np.arange(len(weight)).reshape((1,) * (numbers.ndim - 1) + (-1,))
        if numbers.shape != wanted.shape or (numbers != wanted).any():
            continue
        index = _without_last_axis(graph, spread, rows.shape)
        if index is not None:
            return np.vstack([weight, np.zeros_like(weight[:1])]), index, False
    return None


def _without_last_axis(
    graph: DataflowGraph, spread: relax.Expr, rows: tuple[int, ...]
) -> relax.Expr | None:
    """The integers [...] that were viewed as [..., 1] for a comparison of the shape `rows`."""
    view, tensor = _called(graph, spread, *RESHAPES), static_tensor(spread)
    if view is None or tensor is None or tensor.shape != (*rows[:-1], 1):
        return None
    source = static_tensor(view.args[0])
    known = source is not None and source.shape == rows[:-1] and source.dtype in _INDICES
    return view.args[0] if known else None


def _take(graph: DataflowGraph, var: relax.Var) -> tuple[np.ndarray, relax.Expr, bool] | None:
    """(table, indices, True) of a look-up of rows in a constant."""
    call = _called(graph, var, "relax.take")
    if call is None or not isinstance(call.args[0], ir.GenericConst) or call.attrs.axis is None:
        return None
    if int(call.attrs.axis) != 0 or str(call.attrs.mode) != "clip":
        return None
    table = array_of(call.args[0].value)
    known = table.ndim == 2 and str(table.dtype) == "float32" and static_tensor(var) is not None
    return (table, call.args[1], True) if known else None


def _move(graph: DataflowGraph, var: relax.Var, table: np.ndarray) -> tuple[int, np.ndarray]:
    """The last of the elementwise operators after a look-up, and the table with all of them."""
    tensor = known_tensor(var)
    position = graph.position[var]
    if table.size > tensor.size:
        return position, table
    exact = table.astype(np.float64)
    for _ in range(_LONGEST):
        users = graph.users.get(graph.bindings[position].var, [])
        if len(users) != 1 or graph.escapes(graph.bindings[position].var, users):
            break
        moved = _apply(graph.value(users[0]), graph.bindings[position].var, exact)
        after = static_tensor(graph.bindings[users[0]].var)
        if moved is None or after is None or after != tensor:
            break
        position, exact = users[0], moved
    return position, exact.astype(np.float32)


def _apply(call: relax.Expr, var: relax.Var, table: np.ndarray) -> np.ndarray | None:
    """An elementwise operator on rows; None unless its other operands are one row or one number."""
    entry = FUSIBLE_BY_RELAX.get(op_name(call))
    if entry is None or len(call.args) != entry.arity or variables(call) != [var]:
        return None
    arguments = []
    for argument in call.args:
        if not isinstance(argument, ir.GenericConst):
            arguments.append(table)
            continue
        array = argument.value.numpy()
        if array.size not in (1, array.shape[-1] if array.ndim else 1):
            return None
        arguments.append(array.reshape(-1).astype(np.float64))
    result = entry.numpy(*arguments)
    return result if result.shape == table.shape and result.dtype == np.float64 else None
