"""What happens to the scores of attention before the softmax: scale, mask, running maximum.

If the epilogue of the scores is a positive scale and a mask, the register tile computes scale *
accumulator + mask, an FMA for each vector, which costs no time next to those of the product. The
mask is added as it is, so that the numbers of a mask differ among each other as in the formula.
Without a mask the tile computes nothing: the softmax multiplies by the scale in the FMA that
subtracts the maximum. Any other epilogue is computed row by row from the stored accumulators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, bind, constant, like, ramp, splat
from microkernels.vector.placeholders import as_real
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Columns, Epilogue

_INFINITY = math.inf


@dataclass(frozen=True)
class Affine:
    """scale * accumulator + weight * operand, and a constant, to which the softmax is blind.

    Attributes
    ----------
    scale, weight : float
        Positive numbers.
    operand : int or None
        Number of the scores' operand that is added.
    """

    scale: float
    weight: float = 1.0
    operand: int | None = None


def affine(scores: Region) -> Affine | None:
    """The epilogue of the scores as a scale and a mask; None if it is more than that."""
    first = 1 + len(scores.operands)
    # Every value as its factors of the accumulator, of each operand and of 1.
    values: list[dict[int, float] | None] = [{0: 1.0}]
    values += [{number: 1.0} for number in range(1, first)]
    constants: dict[int, float] = {}
    for number, step in enumerate(scores.epilogue, first):
        terms = [values[argument] for argument in step.args]
        if step.op == "constant":
            constants[number] = as_real(step.number)
            values.append({-1: constants[number]})
        elif None in terms:
            return None
        elif step.op == "cast" and step.dtype == "float32":
            values.append(terms[0])
        elif step.op in ("multiply", "divide"):
            values.append(_scaled(step.op, step.args, [t or {} for t in terms], constants))
        elif step.op in ("add", "subtract"):
            sign = 1.0 if step.op == "add" else -1.0
            left, right = (t or {} for t in terms)
            values.append(
                {key: left.get(key, 0.0) + sign * right.get(key, 0.0) for key in {*left, *right}}
            )
        else:
            return None
    result = values[-1] if scores.epilogue else values[0]
    if result is None or not 2.0**-60 < result.get(0, 0.0) < 2.0**60:
        return None
    operands = [key for key in result if key > 0]
    if not operands:
        return Affine(result[0])
    key = operands[0]
    floating = scores.operands[key - 1].dtype in ("float32", "bfloat16")
    if len(operands) > 1 or not 2.0**-60 < result[key] < 2.0**60 or not floating:
        return None
    return Affine(result[0], result[key], key - 1)


def _scaled(
    op: str, args: tuple[int, ...], terms: list[dict[int, float]], constants: dict[int, float]
) -> dict[int, float] | None:
    """A value times or divided by a constant; None if neither is one."""
    if args[1] in constants:
        factor = constants[args[1]]
        if op == "divide" and factor == 0:
            return None
        return {k: v / factor if op == "divide" else v * factor for k, v in terms[0].items()}
    if op == "multiply" and args[0] in constants:
        return {k: v * constants[args[0]] for k, v in terms[1].items()}
    return None


def varies_with_rows(scores: Region, operand: int) -> bool:
    """Whether an operand differs from query to query."""
    shape = scores.operands[operand].shape
    return len(shape) >= 2 and shape[-2] != 1


class FusedScores:
    """A mask in the epilogue of the register tile.

    Parameters
    ----------
    form : Affine
        The epilogue.
    epilogue : Epilogue
        Of the scores; for its operands.
    n, lanes : int
        Keys; lanes of a vector.

    Attributes
    ----------
    scale : float
        What the softmax multiplies the scores by: 1 if the tile does so because of a mask.
    """

    def __init__(self, form: Affine, epilogue: Epilogue, n: int, lanes: int) -> None:
        self.form, self.epilogue, self.n, self.lanes = form, epilogue, n, lanes
        region = epilogue.region
        self.by_row = form.operand is not None and varies_with_rows(region, form.operand)
        # One addend for each key: the mask of all queries, -inf where there is no key.
        self.by_key = (form.operand is not None and not self.by_row) or n % lanes != 0
        self.bias: Expr | None = None
        self.scale = form.scale if form.operand is None else 1.0

    def begin(self, row: Expr) -> None:
        """Fills the addends of the keys, for the attention of which `row` is a flat row."""
        if not self.by_key:
            return
        lanes, n = self.lanes, self.n
        vectors = math.ceil(n / lanes)
        bias = self.bias = I.sblock_alloc_buffer((vectors * lanes,), "float32", align=64)

        def put(start: Expr | int, valid: int) -> None:
            columns = Columns(start, lanes, valid)
            value = constant(0, "float32", lanes)
            if not self.by_row and self.form.operand is not None:
                value = self._mask(row, columns)
            if columns.mask is not None:
                value = tirx.Select(columns.mask, value, like(-_INFINITY, value))
            I.buffer_store(bias, value, [ramp(start, lanes)])

        with opaque_block("bias"):
            if n // lanes:
                with I.serial(n // lanes) as vector:
                    put(vector * lanes, lanes)
            if n % lanes:
                put(n - n % lanes, n % lanes)

    def _mask(self, row: Expr, columns: Columns) -> Expr:
        """What the mask adds to one vector."""
        assert self.form.operand is not None
        mask = bind(self.epilogue.operand(self.form.operand, row, columns))
        weight = self.form.weight
        return mask if weight == 1.0 else bind(mask * like(weight, mask))

    def __call__(self, value: Expr, row: Expr, vector: Expr | int) -> Expr:
        """One vector of scores, from f32 accumulators."""
        lanes = self.lanes
        if self.form.operand is not None and self.form.scale != 1.0:
            value = value * like(self.form.scale, value)
        if self.by_row:
            value = value + self._mask(row, Columns(vector * lanes, lanes, lanes))
        if self.bias is not None:
            value = value + self.bias[ramp(vector * lanes, lanes)]
        return value


def can_fuse(scores: Region, lanes: int) -> Affine | None:
    """The form of an epilogue that `FusedScores` takes, else None."""
    form = affine(scores)
    if form is None:
        return None
    cut = scores.output.shape[-1] % lanes != 0
    if form.operand is not None and cut and varies_with_rows(scores, form.operand):
        return None
    return form


def hide_later_keys(
    value: Expr, row: Expr, vector: Expr | int, causal: int | Expr, lanes: int
) -> Expr:
    """Scores of keys beyond `row + causal` as -inf; `row` counts queries."""
    keys = ramp(vector * lanes, lanes)
    visible = tirx.LE(keys, splat(row + causal, lanes))
    return tirx.Select(visible, value, like(-_INFINITY, value))
