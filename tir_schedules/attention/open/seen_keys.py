"""How many keys any query sees, by a mask that is read when the kernel runs.

    scores = where(mask, scores, -inf)        mask: bool [..., queries, keys]

Keys behind the last one that the mask shows to any query have probabilities of 0: nothing is
multiplied by them. A cache of fixed size is so read as far as it is filled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, materialise, ramp
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.extents import as_expr, extent
from tir_schedules.core.region import Region

_WORD = 8  # elements of the mask that are looked at together


def hiding_mask(scores: Region) -> int | None:
    """Number of the scores' operand that hides keys one by one; None if there is none."""
    if not scores.epilogue or scores.epilogue[-1].op != "where":
        return None
    mask, _, other = scores.epilogue[-1].args
    operands = len(scores.operands)
    number = other - operands - 1
    if not 0 < mask <= operands or number < 0:
        return None
    hidden, operand = scores.epilogue[number], scores.operands[mask - 1]
    if hidden.op != "constant" or hidden.number != -math.inf or operand.dtype != "bool":
        return None
    by_key = bool(operand.shape) and operand.shape[-1] == scores.output.shape[-1]
    return mask - 1 if by_key else None


def count_seen(scores: Region, operands: Sequence[Expr]) -> Expr | None:
    """Emits the search for the last key that is seen: how many there are up to it, at least one.

    None if there is no mask. `operands` are the parameters of the scores' operands.
    """
    number = hiding_mask(scores)
    if number is None:
        return None
    tensor = scores.operands[number]
    n, size = (as_expr(extent(each)) for each in (tensor.shape[-1], tensor.size))
    data = operands[number].data
    mask = I.decl_buffer((extent(tensor.size),), "int8", data=data, align=1)
    zero, one = (tirx.const(value, "int32") for value in (0, 1))
    seen = I.sblock_alloc_buffer((1,), "int32")
    end = I.sblock_alloc_buffer((1,), "int32")
    I.buffer_store(seen, zero, [zero])
    rows = materialise(I.floordiv(size, tirx.Max(n, one)))
    with I.serial(rows) as row, opaque_block("seen"):
        start = materialise(row * n)
        I.buffer_store(end, n, [zero])
        for elements in (_WORD, 1):
            # A condition is an And, whose second half TVM's code evaluates only if the first holds.
            first = start + end[zero] - elements
            some = I.reinterpret(f"int{8 * elements}", mask[ramp(first, elements)])
            nothing = tirx.EQ(some, tirx.const(0, f"int{8 * elements}"))
            with I.While(tirx.And(end[zero] >= seen[zero] + elements, nothing)):
                I.buffer_store(end, end[zero] - elements, [zero])
        I.buffer_store(seen, tirx.Max(seen[zero], end[zero]), [zero])
    return materialise(tirx.Max(seen[zero], one))
