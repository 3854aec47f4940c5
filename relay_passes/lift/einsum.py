"""Einsum: sums of products by labels become matmuls.

Before

    gv = R.einsum((q, k), "bqhd,bkhd->bhqk")

After

    lv = R.permute_dims(q, [0, 2, 1, 3])
    lv1 = R.permute_dims(k, [0, 2, 3, 1])
    gv = R.matmul(lv, lv1)

Three operands and more are multiplied two at a time: `in_turns` says in which order.
An ellipsis stands for as many labels as it has axes. An einsum with one label twice in an operand
stays, and so does one of a single operand.
"""

from __future__ import annotations

import itertools
from typing import Any

from tvm import relax

from relay_passes.ir.graph import region_tensor
from tir_schedules.core.size import is_open
from tir_schedules.tensorize.contraction import Labels, RefusedError

from .emission import Emission
from .in_turns import Operand, multiply_in_turns
from .product import Extents

_MOST = 6  # operands
_ELLIPSIS = "..."


def emit_einsum(block: Emission, call: relax.Call) -> tuple[relax.Expr, str]:
    """Emits an einsum as matmuls.

    Parameters
    ----------
    block : Emission
        Receives the operators.
    call : relax.Call
        Of R.einsum.

    Returns
    -------
    value : relax.Expr
        The result; its last operator may be not bound yet.
    how : str
        Which candidates were taken.

    Raises
    ------
    RefusedError
        If it is no sum of products of matrices; says why.
    """
    values = list(call.args[0])
    inputs, out = _labels(str(call.attrs.subscripts), [int(value.ty.ndim) for value in values])
    operands = [Operand(value, labels) for value, labels in zip(values, inputs, strict=True)]
    dtypes = {str(value.ty.dtype) for value in values}
    if dtypes not in ({"float32"}, {"float16"}, {"bfloat16"}):
        raise RefusedError(f"{' by '.join(sorted(dtypes))}: no kernel multiplies that")
    sizes, extents = _extents(operands)
    return multiply_in_turns(block, operands, out, sizes, extents, str(call.ty.dtype))


def _labels(subscripts: str, ranks: list[int]) -> tuple[list[Labels], Labels]:
    """The labels of every operand, and those of the result."""
    given, arrow, result = subscripts.replace(" ", "").partition("->")
    parts = given.split(",")
    if len(parts) != len(ranks) or not 2 <= len(ranks) <= _MOST:
        raise RefusedError(f"{len(ranks)} operands")
    inputs = [_spelled(part, rank) for part, rank in zip(parts, ranks, strict=True)]
    for labels in inputs:
        if len(set(labels)) < len(labels):
            raise RefusedError("a label twice in an operand: a diagonal")
    letters = list(itertools.chain(*inputs))
    # Those of an ellipsis end at the last one, as axes that are broadcast do.
    further = sorted({label for label in letters if label.startswith(_ELLIPSIS)}, reverse=True)
    if arrow:
        before, dots, after = result.partition(_ELLIPSIS)
        return inputs, (*before, *(further if dots else ()), *after)
    once = sorted(x for x in letters if letters.count(x) == 1 and x not in further)
    return inputs, (*further, *once)


def _spelled(part: str, rank: int) -> Labels:
    """The labels of an operand, with one for each axis of an ellipsis, counted from its end."""
    before, dots, after = part.partition(_ELLIPSIS)
    count = rank - len(before) - len(after)
    if count < 0 or (count and not dots):
        raise RefusedError(f"{part}: labels of another number of axes")
    return (*before, *(f"{_ELLIPSIS}{place}" for place in reversed(range(count))), *after)


def _extents(operands: list[Operand]) -> tuple[dict[str, int], Extents]:
    """The extent of every label, as a size and as shapes have it."""
    sizes: dict[str, int] = {}
    extents: dict[str, Any] = {}
    for operand in operands:
        tensor = region_tensor(operand.value)
        if tensor is None:
            raise RefusedError("a shape is not known at compile time")
        shape = operand.value.ty.shape.values
        for label, size, extent in zip(operand.labels, tensor.shape, shape, strict=True):
            if sizes.setdefault(label, size) != size:
                raise RefusedError(f"the label {label} has the extents {sizes[label]} and {size}")
            if not is_open([size]) and size == 0:
                raise RefusedError("an extent of 0")
            extents.setdefault(label, extent)
    return sizes, extents
