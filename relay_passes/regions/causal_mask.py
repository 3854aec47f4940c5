"""Recognises causal masks: masks of scores which only say that a query sees no later key.

    scores[i, j] is visible if j <= i + c

    lv = R.broadcast_to(R.const(-inf), (M, N)); lv1 = R.triu(lv, c + 1)     # to be added
    lv = R.broadcast_to(R.const(-inf), R.shape([M, N])), which TVM can also lower, likewise
    const_mask                      # 0 where j <= i + c, -inf elsewhere; to be added
    R.where(const_condition, scores, R.const(-inf))     # or with the last two exchanged

An attention kernel that knows c skips the keys that no query sees, and reads no mask.

A finite number hides nothing: a query whose other keys have scores as low sees the key. A mask of
finite numbers therefore stays an operand, which is added, with one exception: numbers of at most
-2^126, such as the lowest ones of float32 and bfloat16 and their halves, where every query sees a
key and nothing else is added to the scores. If all scores of a query are below 2^125 in magnitude,
a hidden one is then at least 2^101 below a visible one (the distance of float32 numbers of this
size), and its exponential is exactly 0. A second mask, which is not known now, may lower visible
scores as far. The least number of float16, -65504, is too high: scores of -40000 are possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import ir, relax

from relay_passes.ir.graph import (
    DataflowGraph,
    is_call,
    op_name,
    region_tensor,
    scalar_constant,
    size_of,
)
from relay_passes.ir.traits import RESHAPES
from tir_schedules.core.region import Region, Step
from tir_schedules.core.size import may_be_negative

LOWEST = -(2.0**126)  # a finite number up to which a mask may hide scores below 2^125
_SCALES = (2.0**-60, 2.0**60)  # behind a finite mask: hidden scores stay far below visible ones
_VIEWS = (*RESHAPES, "relax.broadcast_to", "relax.astype")
_FILL = {"relax.full": 1, "relax.broadcast_to": 0}  # which argument is the number


@dataclass(frozen=True)
class _Mask:
    """A step that masks causally.

    Attributes
    ----------
    index : int
        Of the step.
    causal : int
        Key j is visible to query i if j <= i + causal.
    value : int
        What is masked.
    """

    index: int
    causal: int
    value: int


@dataclass(frozen=True)
class CausalScores:
    """Scores without their causal mask.

    Attributes
    ----------
    region : Region
        Without the steps and the operands that only wrote the mask.
    operands : tuple of relax.Expr
        What its operands stand for.
    causal : int or None
        Key j is visible to query i if j <= i + causal, which may be symbolic; None: every key.
    """

    region: Region
    operands: tuple[relax.Expr, ...]
    causal: int | None


def without_causal_mask(
    graph: DataflowGraph, region: Region, operands: Sequence[relax.Expr]
) -> CausalScores:
    """Scores with their causal masks, if there are any, as a number.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    region : Region
        The scores, whose result is [..., M, N] and the input of a softmax.
    operands : sequence of relax.Expr
        What the region's operands stand for.
    """
    infinite = _without_masks(graph, CausalScores(region, tuple(operands), None), False)
    all_masks = _without_masks(graph, infinite, True)
    found = infinite if all_masks.operands else all_masks
    columns = region.output.shape[-1]
    sees_all = found.causal is None or not may_be_negative(found.causal + (columns * -1 + 1))
    return replace(found, causal=None) if sees_all else found


def _without_masks(graph: DataflowGraph, scores: CausalScores, finite: bool) -> CausalScores:
    """Scores without their causal masks of -inf; with `finite`, also without those of numbers."""
    region, operands, causal = scores.region, scores.operands, scores.causal
    first, steps = 1 + len(region.operands), list(region.epilogue)
    result = first + len(steps) - 1 if steps else 0

    def next_mask() -> _Mask | None:
        for index in range(len(steps)):
            if _stays_hidden(steps, index, first, result, finite):
                mask = _mask(graph, region, steps, index, operands, finite)
                if mask is not None and _least(causal, mask.causal) is not None:
                    return mask
        return None

    while (mask := next_mask()) is not None:
        causal = _least(causal, mask.causal)
        steps, result = _passing_by(steps, first + mask.index, mask.value, result, first)
    return CausalScores(*_without_unused(region, steps, result, operands), causal)


def _least(causal: int | None, diagonal: int) -> int | None:
    """The smaller one of two bounds; None if that depends on symbols."""
    if causal is None or not may_be_negative(causal + diagonal * -1):
        return diagonal
    return causal if not may_be_negative(diagonal + causal * -1) else None


def _mask(
    graph: DataflowGraph,
    region: Region,
    steps: Sequence[Step],
    index: int,
    operands: Sequence[relax.Expr],
    finite: bool,
) -> _Mask | None:
    """The mask that a step is, if it masks causally, by -inf or also by a finite number."""
    step, first = steps[index], 1 + len(operands)
    shape = region.output.shape[-2], region.output.shape[-1]

    def operand(value: int) -> relax.Expr | None:
        return operands[value - 1] if 1 <= value < first else None

    def hides(value: int) -> float | None:
        constant = steps[value - first] if value >= first else None
        number = None if constant is None or constant.op != "constant" else constant.value
        return number if number is not None and number <= _highest(finite) else None

    if step.op == "add":
        for value, mask in (step.args, step.args[::-1]):
            expr = operand(mask)
            diagonal = None if expr is None else additive_diagonal(graph, expr, shape, finite)
            if diagonal is not None:
                return _Mask(index, diagonal, value)
    if step.op == "where":
        condition = operand(step.args[0])
        _, x, y = step.args
        for value, other, seen in ((x, y, True), (y, x, False)):
            number = hides(other)
            if condition is not None and number is not None:
                diagonal = _condition_diagonal(condition, shape, seen, number)
                if diagonal is not None:
                    return _Mask(index, diagonal, value)
    return None


def _highest(finite: bool) -> float:
    """The highest number that hides a score."""
    return LOWEST if finite else -math.inf


def additive_diagonal(
    graph: DataflowGraph, mask: relax.Expr, shape: tuple[int, int], finite: bool = False
) -> int | None:
    """c, if adding a mask hides exactly the keys j > i + c from query i, for all batches alike.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    mask : relax.Expr
        What is added to the scores.
    shape : tuple of int
        Numbers of queries and keys.
    finite : bool
        Whether finite numbers of at most `LOWEST` hide, too, if every query sees a key.
    """
    if isinstance(mask, ir.GenericConst):
        array = _matrix(mask, shape)
        if array is None or str(array.dtype) != "float32":
            return None
        hidden = array <= _highest(finite)
        if not np.all(hidden | (array == 0)):
            return None
        return _diagonal(~hidden, bool(np.all(array[hidden] == -np.inf)))
    call = graph.definition(mask)
    while isinstance(call, relax.Call) and op_name(call) in _VIEWS and _is_matrix(mask, shape):
        mask = call.args[0]
        call = graph.definition(mask)
    if not isinstance(call, relax.Call) or op_name(call) != "relax.triu":
        return None
    filled = graph.definition(call.args[0])
    if is_call(filled, "relax.astype"):
        filled = graph.definition(filled.args[0])
    number = _FILL.get(op_name(filled))
    if not isinstance(filled, relax.Call) or number is None:
        return None
    if not _is_matrix(mask, shape) or scalar_constant(filled.args[number]) != -math.inf:
        return None
    return size_of(call.args[1]) + -1


def _condition_diagonal(
    condition: relax.Expr, shape: tuple[int, int], seen: bool, number: float
) -> int | None:
    """c, if a constant condition equals `seen` exactly where j <= i + c."""
    array = _matrix(condition, shape) if isinstance(condition, ir.GenericConst) else None
    if array is None or str(array.dtype) != "bool":
        return None
    return _diagonal(array == seen, number == -math.inf)


def _diagonal(visible: np.ndarray, infinite: bool) -> int | None:
    """c, if keys are visible where j <= i + c; a query that sees no key only if `infinite`.

    With a finite number in place of all its scores the softmax of such a query is none of -inf.
    """
    rows, columns = visible.shape
    counts = visible.sum(axis=1)
    some = np.flatnonzero(counts)
    if not len(some) or (len(some) < rows and not infinite):
        return None
    first = int(some[0])
    causal = int(counts[first]) - 1 - first
    return causal if np.array_equal(visible, np.tri(rows, columns, causal, bool)) else None


def _is_matrix(expr: relax.Expr, shape: tuple[int, int]) -> bool:
    """Whether a tensor has the shape [1, ..., M, N]."""
    tensor = region_tensor(expr)
    if tensor is None:
        return False
    return tensor.shape[-2:] == shape and math.prod(tensor.shape[:-2]) == 1


def _matrix(expr: relax.Expr, shape: tuple[int, int]) -> np.ndarray | None:
    return expr.value.numpy().reshape(shape) if _is_matrix(expr, shape) else None


def _stays_hidden(steps: Sequence[Step], index: int, first: int, result: int, finite: bool) -> bool:
    """Whether what a step hides stays hidden up to the result, its only use.

    What hides by a finite number may be multiplied by numbers within `_SCALES` only.
    """
    value, scale = first + index, 1.0
    for number, step in enumerate(steps[index + 1 :], index + 1):
        if value not in step.args:
            continue
        others = [arg for arg in step.args if arg != value]
        if len(others) != 1 or any(value in later.args for later in steps[number + 1 :]):
            return False
        if step.op in ("multiply", "divide"):
            constant = steps[others[0] - first] if others[0] >= first else None
            factor = (constant.value or 0) if constant and constant.op == "constant" else 0
            if factor <= 0 or step.args[0] != value:
                return False
            scale = scale * factor if step.op == "multiply" else scale / factor
        elif step.op != "add":
            return False
        value = first + number
    return value == result and (not finite or _SCALES[0] <= scale <= _SCALES[1])


def _passing_by(
    steps: Sequence[Step], removed: int, value: int, result: int, first: int
) -> tuple[list[Step], int]:
    """Steps without the one whose result is `removed`, for which `value` is used; the result."""

    def renumbered(arg: int) -> int:
        arg = value if arg == removed else arg
        return arg - 1 if arg > removed else arg

    kept = [step for number, step in enumerate(steps, first) if number != removed]
    return [_with_arguments(step, map(renumbered, step.args)) for step in kept], renumbered(result)


def _without_unused(
    region: Region, steps: Sequence[Step], result: int, operands: Sequence[relax.Expr]
) -> tuple[Region, tuple[relax.Expr, ...]]:
    """A region with other steps, without what its result does not need."""
    first = 1 + len(region.operands)
    needed = {0, result}
    for value in range(first + len(steps) - 1, first - 1, -1):
        if value in needed:
            needed.update(steps[value - first].args)
    order = sorted(needed)
    place = {value: number for number, value in enumerate(order)}
    kept = [value - 1 for value in order if 1 <= value < first]
    epilogue = tuple(
        _with_arguments(steps[value - first], (place[arg] for arg in steps[value - first].args))
        for value in order
        if value >= first
    )
    changed = region.replace(
        operands=tuple(region.operands[number] for number in kept), epilogue=epilogue
    )
    return changed, tuple(operands[number] for number in kept)


def _with_arguments(step: Step, args: Iterable[int]) -> Step:
    return Step(step.op, tuple(args), step.value, step.dtype)
