"""Which outputs of a compiled model may share memory with something that outlives the call.

An output that a kernel writes has memory of its own. An output that is a view of an input or of a
weight, or that is returned twice, has not; a session copies it before it returns it.
"""

from __future__ import annotations

import tvm
from tvm import IRModule, relax
from tvm.relax.analysis import has_reshape_pattern


def shared_outputs(mod: IRModule, function: str = "main") -> tuple[bool, ...]:
    """For every output of a lowered module, whether it may share memory; True if in doubt.

    Parameters
    ----------
    mod : tvm.IRModule
        A module in which kernels are called by `call_tir`.
    function : str
        The function whose outputs are meant.
    """
    body = mod[function]
    values: dict[relax.Var, relax.Expr] = {}
    for block in body.body.blocks:
        for binding in block.bindings:
            if isinstance(binding, relax.VarBinding):
                values[binding.var] = binding.value
    result = _resolve(body.body.body, values)
    is_tuple = isinstance(result, relax.Tuple)
    outputs = [_resolve(field, values) for field in result.fields] if is_tuple else [result]
    return tuple(
        not _is_fresh(mod, output) or sum(_is_same(output, other) for other in outputs) > 1
        for output in outputs
    )


def _resolve(value: relax.Expr, values: dict[relax.Var, relax.Expr]) -> relax.Expr:
    """Follows names and fields of tuples to what makes the value: a call, or a result of one."""
    while True:
        if isinstance(value, relax.Var) and value in values:
            value = values[value]
            continue
        if isinstance(value, relax.TupleGetItem):
            source = _resolve(value.tuple_value, values)
            if isinstance(source, relax.Tuple):
                value = source.fields[value.index]
                continue
            return relax.TupleGetItem(source, value.index)
        return value


def _is_same(one: relax.Expr, other: relax.Expr) -> bool:
    if isinstance(one, relax.TupleGetItem) and isinstance(other, relax.TupleGetItem):
        return one.index == other.index and bool(one.tuple_value.same_as(other.tuple_value))
    return bool(one.same_as(other))


def _is_fresh(mod: IRModule, value: relax.Expr) -> bool:
    if isinstance(value, relax.TupleGetItem):
        value = value.tuple_value
    if not isinstance(value, relax.Call) or value.op != tvm.ir.Op.get("relax.call_tir"):
        return False
    return not has_reshape_pattern(mod[value.args[0]])
