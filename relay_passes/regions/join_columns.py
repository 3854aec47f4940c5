"""Joins the arguments of equal operators on several tensors along the last axis.

(w0 [K, N0], w1 [K, N1])              ->  [K, N0 + N1]
(bias [N0], scalar)                   ->  [N0 + N1]
(s * c0 [N0], s * c1 [N1]), s shared  ->  s * [N0 + N1]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax

from relay_passes.ir.constants import array_of
from relay_passes.ir.graph import DataflowGraph, is_call, region_tensor
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.with_args import with_args

# Operators that stand between a product and its constants: a weight's zero point, scales that are
# found at run time.
_REBUILT = ("relax.astype", "relax.subtract", "relax.add", "relax.multiply", "relax.divide")


class ColumnJoiner:
    """Joins expressions of one block, emitting what has to be computed.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    out : Bindings
        Receives the operators that joining repeats.
    widths : sequence of int
        Columns of each tensor.
    end : int
        Position before which every variable that is shared has to be bound.
    """

    def __init__(
        self, graph: DataflowGraph, out: Bindings, widths: Sequence[int], end: int
    ) -> None:
        self.graph, self.out, self.widths, self.end = graph, out, tuple(widths), end

    def join(self, exprs: Sequence[relax.Expr]) -> relax.Expr | None:
        """What the joined operator takes for the arguments of the single ones; None if nothing."""
        if all(isinstance(expr, ir.GenericConst) for expr in exprs):
            return self._constants(exprs)
        if all(expr.same_as(exprs[0]) for expr in exprs):
            return exprs[0] if self._is_shared(exprs[0]) else None
        found = [self.graph.definition(expr) for expr in exprs]
        first = found[0]
        if not is_call(first, *_REBUILT) or not alike(found):
            return None
        columns = zip(*(call.args for call in found if call is not None), strict=True)
        joined = [self.join(arguments) for arguments in columns]
        arguments = [argument for argument in joined if argument is not None]
        if len(arguments) < len(joined):
            return None
        return self.out.emit(with_args(first, arguments))

    def _is_shared(self, expr: relax.Expr) -> bool:
        """Whether a value is the same in every column, and there in time."""
        tensor = region_tensor(expr)
        position = self.graph.position.get(expr)
        in_time = position is None or position < self.end
        return tensor is not None and tensor.shape[-1:] in ((), (1,)) and in_time

    def _constants(self, exprs: Sequence[relax.Expr]) -> relax.Expr | None:
        arrays = [array_of(expr.value) for expr in exprs]
        if len({array.dtype for array in arrays}) > 1:
            return None
        if all(array.size == 1 and (array == arrays[0]).all() for array in arrays):
            return exprs[0]
        rank = max(1, *(array.ndim for array in arrays))
        parts = []
        for array, width in zip(arrays, self.widths, strict=True):
            full = array.reshape((1,) * (rank - array.ndim) + array.shape)
            if full.shape[-1] not in (1, width):
                return None
            parts.append(np.broadcast_to(full, (*full.shape[:-1], width)))
        if len({part.shape[:-1] for part in parts}) > 1:
            return None
        return relax.const(tvm.runtime.tensor(np.concatenate(parts, axis=-1)))


def alike(calls: Sequence[relax.Expr | None]) -> bool:
    """Whether all call the same operator with the same attributes."""
    first = calls[0]
    return isinstance(first, relax.Call) and all(
        isinstance(call, relax.Call)
        and call.op.same_as(first.op)
        and len(call.args) == len(first.args)
        and tvm_ffi.structural_equal(call.attrs, first.attrs)
        for call in calls
    )
