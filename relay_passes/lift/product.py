"""Writes a contraction as a matmul.

Before

    out[q, h, k] = sum over d of left[h, q, d] * right[k, h, d]

After

    lv = R.permute_dims(right, [1, 2, 0])           # [h, d, k]
    lv1 = R.matmul(left, lv)                        # [h, q, k]
    lv2 = R.permute_dims(lv1, [1, 0, 2])

Axes of a group become one by a reshape: before the permutation where they lie together, so that it
moves nothing and "batch_matmul" reads and stores in place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from tvm import IRModule, ir, relax

from tir_schedules.tensorize.arrangement import (
    Arrangement,
    ArrangementProblem,
    ChooseArrangement,
    Contraction,
    KnownArrangement,
    Labels,
    RefusedError,
    Units,
    arrangements,
    check,
    in_memory,
    is_view,
)

from .emission import Emission

Extents = Mapping[str, Any]  # of every axis: numbers, or expressions of a shape


def emit_contraction(
    block: Emission,
    contraction: Contraction,
    operands: tuple[relax.Expr, relax.Expr],
    extents: Extents,
    dtype: str,
) -> tuple[relax.Expr, str]:
    """Emits a contraction.

    Parameters
    ----------
    block : Emission
        Receives the operators.
    contraction : Contraction
        What is computed.
    operands : tuple of relax.Expr
        Left and right, with the axes as the contraction says.
    extents : mapping
        Label -> extent, as shapes have it.
    dtype : str
        The type of the result.

    Returns
    -------
    value : relax.Expr
        With the axes of `contraction.out`; its last operator is not bound yet.
    how : str
        Which candidate was taken, and what the next one would have cost.

    Raises
    ------
    RefusedError
        If no product of matrices computes it.
    """
    a_constant, b_constant = (isinstance(operand, ir.GenericConst) for operand in operands)
    check(contraction, (a_constant, b_constant))
    if any(contraction.alone) and any(str(each.ty.dtype) != "float32" for each in operands):
        raise RefusedError("an axis that one operand alone has, of numbers that sums do not fit in")
    left, right = (
        _summed(block, operand, labels, alone)
        for operand, labels, alone in zip(
            operands, (contraction.left, contraction.right), contraction.alone, strict=True
        )
    )
    inner = contraction.without_alone()
    constants = a_constant, b_constant
    found = arrangements(inner, constants, block.lanes)
    types = str(left.ty.dtype), str(right.ty.dtype), dtype
    problem = ArrangementProblem(inner, types, constants, tuple(found))
    best, others, source = _chosen(problem, block.arrange)
    if best.swapped:
        left, right = right, left
    given = best.contraction
    a = _operand(block, given, left, given.left, best.left, extents)
    b = _operand(block, given, right, given.right, best.right, extents)
    if dtype == "int32":
        a, b = (widened(block, each) for each in (a, b))
    product = relax.op.matmul(a, b, out_dtype=dtype)
    result = _result(block, given, product, best.out, extents)
    return result, _how(best, others) + source


def _chosen(
    problem: ArrangementProblem, arrange: ChooseArrangement | None
) -> tuple[Arrangement, list[Arrangement], str]:
    """The candidate that is taken, the others, and which record says so."""
    best, *others = problem.candidates
    known = arrange(problem) if arrange is not None else None
    if known is None:
        return best, others, ""
    ordered = problem.best_first(known.choice)
    if not ordered:
        return best, others, f"; {known.source} names no candidate"
    return ordered[0], list(ordered[1:]), f"; by {known.source}"


def widened(block: Emission, value: relax.Expr) -> relax.Expr:
    """A tensor of integers as int32."""
    if str(value.ty.dtype) == "int32":
        return value
    return block.emit(relax.op.astype(value, "int32"))


def emit_elementwise(
    block: Emission,
    contraction: Contraction,
    operands: tuple[relax.Expr, relax.Expr],
    extents: Extents,
) -> relax.Expr:
    """The same, element by element: a product and a sum. Its last operator is not bound yet."""
    steps = (*contraction.steps, *contraction.alone[0], *contraction.alone[1])
    order = (*contraction.out, *steps)
    factors = []
    for operand, labels in zip(operands, (contraction.left, contraction.right), strict=True):
        kept = [label for label in order if label in labels]
        operand = _permuted(block, operand, [labels.index(label) for label in kept])
        shape = [extents[label] if label in labels else 1 for label in order]
        factors.append(block.emit(relax.op.reshape(operand, shape)))
    product = relax.op.multiply(*factors)
    if not steps:
        return product
    first = len(contraction.out)
    return relax.op.sum(block.emit(product), list(range(first, first + len(steps))))


def _summed(block: Emission, operand: relax.Expr, labels: Labels, alone: Labels) -> relax.Expr:
    """An operand summed over the axes that it alone has."""
    if not alone:
        return operand
    return block.emit(relax.op.sum(operand, [labels.index(label) for label in alone]))


def _operand(
    block: Emission,
    given: Contraction,
    expr: relax.Expr,
    stored: Labels,
    units: Units,
    extents: Extents,
) -> relax.Expr:
    """An operand with an axis for each unit."""
    if not is_view(given, stored, units):
        order = tuple(itertools.chain(*units))
        expr = _permuted(block, expr, [stored.index(label) for label in order])
        return _reshaped(block, expr, _singles(order), units, extents)
    places = in_memory(given, stored, units)
    expr = _reshaped(block, expr, _singles(stored), places, extents)
    return _permuted(block, expr, _order(places, units))


def _result(
    block: Emission, given: Contraction, product: relax.Expr, units: Units, extents: Extents
) -> relax.Expr:
    """A product as the tensor that is wanted."""
    stored = given.out
    product = block.emit(product)
    if is_view(given, stored, units):
        places = in_memory(given, stored, units)
        product = _permuted(block, product, _order(units, places))
        return _reshaped(block, product, places, _singles(stored), extents)
    order = tuple(itertools.chain(*units))
    product = _reshaped(block, product, units, _singles(order), extents)
    return _permuted(block, product, [order.index(label) for label in stored])


def _order(before: Sequence[Labels], after: Sequence[Labels]) -> list[int]:
    """The permutation from some units to the same in another order; units may be empty."""
    left = list(range(len(before)))
    order = []
    for unit in after:
        place = next(i for i in left if before[i] == unit)
        left.remove(place)
        order.append(place)
    return order


def _singles(labels: Labels) -> Units:
    return tuple((label,) for label in labels)


def _permuted(block: Emission, expr: relax.Expr, order: list[int]) -> relax.Expr:
    same = order == list(range(len(order)))
    return expr if same else block.emit(relax.op.permute_dims(expr, order))


def _reshaped(
    block: Emission,
    expr: relax.Expr,
    before: Sequence[Labels],
    after: Sequence[Labels],
    extents: Extents,
) -> relax.Expr:
    if list(before) == list(after):
        return expr
    shape = [math.prod((extents[label] for label in unit), start=1) for unit in after]
    return block.emit(relax.op.reshape(expr, shape))


def _how(best: Arrangement, others: list[Arrangement]) -> str:
    """What was taken, and why not the next candidate."""
    text = f"{best.contraction.text()}; {best.text()}"
    if others and best.cycles:
        ratio = others[0].cycles / best.cycles
        text += f"; of {1 + len(others)} candidates the next costs {ratio:.2f}x: {others[0].text()}"
    return text


_MEASURED = ("float32", "bfloat16", "uint8", "int8")


def can_be_measured(problem: ArrangementProblem) -> bool:
    """Whether there is a choice, of operands that are read as they are multiplied."""
    return problem.has_choice and all(each in _MEASURED for each in problem.types[:2])


def arranged_module(problem: ArrangementProblem, candidate: Arrangement, lanes: int) -> IRModule:
    """main(*operands), or less those that are constants, one dataflow block.

    Parameters
    ----------
    problem : ArrangementProblem
        One that `can_be_measured`.
    candidate : Arrangement
        One of its candidates.
    lanes : int
        As for `arrangements`.
    """
    given, rng = problem.contraction, np.random.default_rng(0)
    choice = problem.choice(candidate)
    block = Emission(lanes, lambda _: KnownArrangement(choice, "measuring"))
    operands: list[relax.Expr] = []
    inputs: list[relax.Var] = []
    both = zip((given.left, given.right), problem.types[:2], problem.constants, strict=True)
    for number, (labels, dtype, known) in enumerate(both):
        shape = [int(given.extents[label]) for label in labels]
        if known:
            kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
            operands.append(relax.const(rng.integers(0, 4, shape).astype(kind), dtype))
        else:
            inputs.append(relax.Var(f"x{number}", relax.TensorType(shape, dtype)))
            operands.append(inputs[-1])
    value, _ = emit_contraction(
        block, given, (operands[0], operands[1]), given.extents, problem.types[2]
    )
    result = relax.Var("result", block.builder.normalize(value).ty)
    block.bind(result, value)
    body = relax.SeqExpr([relax.DataflowBlock(block.bindings)], result)
    main = relax.Function(inputs, body, result.ty).with_attr("global_symbol", "main")
    return IRModule({"main": main})
