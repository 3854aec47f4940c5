"""Choices whose sides are both computed, so that LLVM makes vectors of them.

    y[i] = Select(x[i] > 1, x[i], p[0])

    ->  a = x[i]; b = p[0]; y[i] = Select(a > 1, a, b)

TVM makes a branch of a choice that reads elements: they might not exist. These do.
"""

from __future__ import annotations

from dataclasses import replace

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from microkernels.vector.expressions import Expr

from .expressions import (
    call_name,
    const_int,
    divisions_of,
    int64,
    loads_of,
    map_calls,
    map_loads,
    same,
)
from .nest import Nest


def with_selects(nest: Nest) -> Nest:
    """The nest with elements named that choices read, if they exist.

    Parameters
    ----------
    nest : Nest
        Its tensors have their own shapes.
    """
    analyzer = nest.analyzer()
    named: list[tuple[TensorLoad, tirx.Var]] = []

    def name(load: TensorLoad) -> Expr:
        if not _exists(load, analyzer):
            return load
        for other, var in named:
            if same(load, other):
                return var
        named.append((load, tirx.Var("read", str(load.ty.dtype))))
        return named[-1][1]

    def chosen(call: Call) -> Expr:
        if call_name(call) != "if_then_else" or not all(map(_can_do, call.args[1:])):
            return call
        return tirx.Select(*call.args)

    def _can_do(side: Expr) -> bool:
        divisors = [const_int(division.b) for division in divisions_of(side)]
        return None not in divisors and all(_exists(load, analyzer) for load in loads_of(side))

    def select(choice: tirx.Select) -> Expr:
        sides = (map_loads(side, name) for side in (choice.true_value, choice.false_value))
        return tirx.Select(choice.condition, *sides)

    def in_value(value: Expr) -> Expr:
        return tvm_ffi.structural_map(map_calls(value, chosen), (tirx.Select, select))

    found = nest.mapped(lambda store: replace(store, value=in_value(store.value)), lambda v: v)
    return replace(found, lets=(*((var, load) for load, var in named), *found.lets))


def _exists(load: TensorLoad, analyzer: Analyzer) -> bool:
    """Whether an element is known to be in its tensor."""
    return all(
        not loads_of(index)
        and analyzer.can_prove(index >= int64(0))
        and analyzer.can_prove(index < size)
        for index, size in zip(load.indices, load.source.shape, strict=True)
    )
