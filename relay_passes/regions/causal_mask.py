"""Recognises causal masks: masks of scores which only say that a query sees no later key.

    scores[i, j] is visible if j <= i + c

    lv = R.broadcast_to(R.const(-inf), (M, N)); lv1 = R.triu(lv, c + 1)     # to be added
    lv = R.broadcast_to(R.const(-inf), R.shape([M, N])), which TVM can also lower, also with triu
    const_mask                      # 0 where j <= i + c, -inf elsewhere; to be added
    R.where(const_condition, scores, R.const(-inf))     # or with the last two exchanged

An attention kernel that knows c skips the keys that no query sees, and reads no mask.

A finite number hides nothing for certain: a query sees the key if all its other scores are as low.
A mask of finite numbers therefore stays an operand that is added, with one exception: numbers of at
most -2^126, such as the lowest ones of float32 and bfloat16 and their halves, if every query sees a
key and nothing else is added to the scores. If all scores of a query are below 2^125 in magnitude,
a hidden score is then at least 2^101 below a visible one (the distance of float32 numbers of this
size), and its exponential is exactly 0. A second mask, unknown at compile time, may lower visible
scores as far. The lowest float16, -65504, is too high: scores of -40000 are possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import ir, relax

from relay_passes.ir import graph as ir_graph
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, region_tensor
from relay_passes.ir.traits import RESHAPES
from tir_schedules.core.region import EpilogueOp, Region
from tir_schedules.core.size import may_be_negative

LOWEST = -(2.0**126)  # finite numbers up to this hide scores below 2^125
_SCALES = (2.0**-60, 2.0**60)  # after a finite mask: hidden scores stay far below visible ones
_VIEWS = (*RESHAPES, "relax.broadcast_to", "relax.astype")
_FILL = {"relax.full": 1, "relax.broadcast_to": 0}  # the argument that is the number


@dataclass(frozen=True)
class CausalScores:
    """Scores without their causal mask.

    Attributes
    ----------
    region : Region
        The region without the steps and operands of the mask.
    operands : tuple of relax.Expr
        The values of the region's operands.
    causal : int or None
        Key j is visible to query i if j <= i + causal (may be symbolic); None: all are visible.
    """

    region: Region
    operands: tuple[relax.Expr, ...]
    causal: int | None


def without_causal_mask(
    graph: DataflowGraph, region: Region, operands: Sequence[relax.Expr]
) -> CausalScores:
    """Scores with their causal masks, if there are any, replaced by a number.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    region : Region
        The scores, whose result is [..., M, N] and the input of a softmax.
    operands : sequence of relax.Expr
        The values of the region's operands.
    """
    infinite = _Masks(graph, CausalScores(region, tuple(operands), None), False).removed()
    all_masks = _Masks(graph, infinite, True).removed()
    found = infinite if all_masks.operands else all_masks
    columns = region.output.shape[-1]
    sees_all = found.causal is None or not may_be_negative(found.causal + (columns * -1 + 1))
    return replace(found, causal=None) if sees_all else found


class _Masks:
    """Removes causal masks of -inf from scores; if `finite`, also masks of finite numbers."""

    def __init__(self, graph: DataflowGraph, scores: CausalScores, finite: bool) -> None:
        self.graph, self.finite = graph, finite
        self.region, self.operands, self.causal = scores.region, scores.operands, scores.causal
        self.first, self.steps = 1 + len(self.operands), list(self.region.epilogue)
        self.result = self.first + len(self.steps) - 1 if self.steps else 0
        self.shape: tuple[int, int] = (self.region.output.shape[-2], self.region.output.shape[-1])

    def removed(self) -> CausalScores:
        """The scores without the masks, and without steps that the result does not need."""
        index = 0
        while index < len(self.steps):
            mask = self.mask(index) if self.stays_hidden(index) else None
            causal = None if mask is None else _least(self.causal, mask[1])
            if mask is None or causal is None:
                index += 1
                continue
            self.causal = causal
            self.pass_by(self.first + index, mask[0])
            index = 0
        return self.without_unused()

    def number(self, value: int) -> float | None:
        """The number that a value is; None if it is no constant."""
        step = self.steps[value - self.first] if value >= self.first else None
        return step.value if step is not None and step.op == "constant" else None

    def operand(self, value: int) -> relax.Expr | None:
        """The expression of a value that is an operand, else None."""
        return self.operands[value - 1] if 1 <= value < self.first else None

    def mask(self, index: int) -> tuple[int, int] | None:
        """(masked value, c) of a step that hides keys j > i + c; None for any other step."""
        step = self.steps[index]
        if step.op == "add":
            for value, mask in (step.args, step.args[::-1]):
                expr = self.operand(mask)
                if expr is not None:
                    diagonal = additive_diagonal(self.graph, expr, self.shape, self.finite)
                    if diagonal is not None:
                        return value, diagonal
        if step.op == "where":
            condition, x, y = self.operand(step.args[0]), *step.args[1:]
            array = _matrix(condition, self.shape)
            if array is None or str(array.dtype) != "bool":
                return None
            for value, other, seen in ((x, y, True), (y, x, False)):
                number = self.number(other)
                if number is not None and number <= _highest(self.finite):
                    diagonal = _diagonal(array == seen, number == -math.inf)
                    if diagonal is not None:
                        return value, diagonal
        return None

    def stays_hidden(self, index: int) -> bool:
        """Whether keys that a step hides stay hidden up to the result, its only use.

        Keys hidden by a finite number may only be multiplied by numbers within `_SCALES`.
        """
        value, scale = self.first + index, 1.0
        for number, step in enumerate(self.steps[index + 1 :], index + 1):
            if value not in step.args:
                continue
            others = [arg for arg in step.args if arg != value]
            if len(others) != 1 or any(value in x.args for x in self.steps[number + 1 :]):
                return False
            if step.op in ("multiply", "divide"):
                factor = self.number(others[0]) or 0
                if factor <= 0 or step.args[0] != value:
                    return False
                scale = scale * factor if step.op == "multiply" else scale / factor
            elif step.op != "add":
                return False
            value = self.first + number
        return value == self.result and (not self.finite or _SCALES[0] <= scale <= _SCALES[1])

    def pass_by(self, removed: int, value: int) -> None:
        """Removes the step with the result `removed`; its users read `value` instead."""

        def renumbered(arg: int) -> int:
            arg = value if arg == removed else arg
            return arg - 1 if arg > removed else arg

        del self.steps[removed - self.first]
        self.steps = [_with_arguments(step, map(renumbered, step.args)) for step in self.steps]
        self.result = renumbered(self.result)

    def without_unused(self) -> CausalScores:
        """The region with these steps, without steps that its result does not need."""
        first, steps = self.first, self.steps
        needed = {0, self.result}
        for value in range(first + len(steps) - 1, first - 1, -1):
            if value in needed:
                needed.update(steps[value - first].args)
        order = sorted(needed)
        place = {value: number for number, value in enumerate(order)}
        kept = [value - 1 for value in order if 1 <= value < first]
        used = [steps[value - first] for value in order if value >= first]
        region = self.region.replace(
            operands=tuple(self.region.operands[number] for number in kept),
            epilogue=tuple(_with_arguments(x, map(place.__getitem__, x.args)) for x in used),
        )
        return CausalScores(region, tuple(self.operands[number] for number in kept), self.causal)


def _least(causal: int | None, diagonal: int) -> int | None:
    """The smaller of two bounds; None if that depends on symbols."""
    if causal is None or not may_be_negative(causal + diagonal * -1):
        return diagonal
    return causal if not may_be_negative(diagonal + causal * -1) else None


def _highest(finite: bool) -> float:
    """The highest number that hides a score."""
    return LOWEST if finite else -math.inf


def additive_diagonal(
    graph: DataflowGraph, mask: relax.Expr, shape: tuple[int, int], finite: bool = False
) -> int | None:
    """c, if adding a mask hides exactly the keys j > i + c from query i in every batch; else None.

    If `finite`, numbers up to `LOWEST` also hide, provided that every query sees a key.
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
    while is_call(call, *_VIEWS) and _is_matrix(mask, shape):
        mask = call.args[0]
        call = graph.definition(mask)
    if not is_call(call, "relax.triu"):
        return None
    filled = graph.definition(call.args[0])
    if is_call(filled, "relax.astype"):
        filled = graph.definition(filled.args[0])
    if not is_call(filled, *_FILL) or not _is_matrix(mask, shape):
        return None
    if ir_graph.scalar_constant(filled.args[_FILL[op_name(filled)]]) != -math.inf:
        return None
    return ir_graph.size_of(call.args[1]) + -1


def _diagonal(visible: np.ndarray, infinite: bool) -> int | None:
    """c, if keys are visible where j <= i + c; a query may see no key only if `infinite`."""
    rows, columns = visible.shape
    counts = visible.sum(axis=1)
    some = np.flatnonzero(counts)
    # If a finite number replaces all scores of a query, its softmax differs from that of -inf.
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


def _matrix(expr: relax.Expr | None, shape: tuple[int, int]) -> np.ndarray | None:
    """A constant of the shape [1, ..., M, N] as [M, N]; None for anything else."""
    if not isinstance(expr, ir.GenericConst) or not _is_matrix(expr, shape):
        return None
    return np.asarray(expr.value.numpy().reshape(shape))


def _with_arguments(step: EpilogueOp, args: Iterable[int]) -> EpilogueOp:
    return EpilogueOp(step.op, tuple(args), step.value, step.dtype)
