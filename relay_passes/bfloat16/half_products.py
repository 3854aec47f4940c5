"""Which products of a float16 model keep their operands: those that AMX tiles multiply faster.

    lv = R.matmul(x, const_w)      # float16, 128x768x768
    Granite Rapids:      True      # R.matmul(x, const_w, out_dtype="float32") on tiles of fp16
    any other CPU:       False     # R.matmul(R.astype(x, "float32"), const_w', ...) as ever

Only products of known sizes by constant weights are asked about.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from tvm import ir, relax

from microkernels.machines.machine import Machine
from relay_passes.ir.graph import DataflowGraph, is_call, static_tensor
from relay_passes.ir.moving_operators import moves
from tir_schedules.product.half_product import half_pays, multiplies_half

KeepsHalf = Callable[[DataflowGraph, relax.Call], bool]


def half_products(machine: Machine) -> KeepsHalf:
    """Tells, for a machine, whether a product's operands stay float16."""
    if not multiplies_half(machine):
        return lambda graph, call: False
    pays = functools.cache(lambda m, n, k: half_pays(m, n, k, machine))

    def keeps(graph: DataflowGraph, call: relax.Call) -> bool:
        if not is_call(call, "relax.matmul"):
            return False
        a, b = map(static_tensor, call.args)
        if a is None or b is None or len(a.shape) < 2 or len(b.shape) != 2:
            return False
        sizes = math.prod(a.shape[:-1]), b.shape[1], b.shape[0]
        return min(sizes) > 0 and _is_constant(graph, call.args[1]) and pays(*sizes)

    return keeps


def _is_constant(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether a value is a constant, perhaps moved; it is folded before kernels are chosen."""
    while not isinstance(expr, ir.GenericConst):
        call = graph.definition(expr)
        if call is None or not moves(call):
            return False
        expr = call.args[0]
    return True
