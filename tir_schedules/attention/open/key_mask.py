"""The mask of attention as one addend for each key; how many keys is known at run time only."""

from __future__ import annotations

import math

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, bind, constant, like, materialise, ramp
from tir_schedules.attention.tiled.scores import Affine, FusedScores, affine, varies_with_rows
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.open_loops import ceil_div
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import Columns, Epilogue


def key_mask_form(scores: Region) -> Affine | None:
    """The epilogue of the scores as a scale and a mask of keys; None if it is more than that."""
    form = affine(scores)
    if form is None or (form.operand is not None and varies_with_rows(scores, form.operand)):
        return None
    return form


class KeyMask(FusedScores):
    """As `FusedScores`; behind the last key the addends are -inf.

    Parameters
    ----------
    form, epilogue, lanes
        As of `FusedScores`; the mask is the same for all queries.
    count : Expr or int
        Keys.
    room : Expr or int
        Keys, as of `extents.allocated`.
    """

    def __init__(
        self, form: Affine, epilogue: Epilogue, lanes: int, count: Expr | int, room: Expr | int
    ) -> None:
        super().__init__(form, epilogue, lanes, lanes)
        self.by_key, self.count, self.room = True, count, room

    def begin(self, row: Expr) -> None:
        """Fills the addends, for the attention of which `row` is a flat row."""
        lanes = self.lanes
        size = ceil_div(self.room, lanes) * lanes
        bias = self.bias = I.sblock_alloc_buffer((size,), "float32", align=64)

        def put(vector: Expr, valid: int | Expr) -> None:
            columns = Columns(vector * lanes, lanes, valid)
            value = constant(0, "float32", lanes)
            if self.form.operand is not None:
                value = bind(self._mask(row, columns))
            if columns.mask is not None:
                value = tirx.Select(columns.mask, value, like(-math.inf, value))
            I.buffer_store(bias, value, [ramp(vector * lanes, lanes)])

        with opaque_block("bias"):
            with I.serial(I.floordiv(self.count, lanes)) as vector, opaque_block("keys"):
                put(vector, lanes)
            if lanes > 1:
                left = materialise(I.floormod(self.count, lanes))
                with I.If(left > 0), I.Then(), opaque_block("keys"):
                    put(materialise(I.floordiv(self.count, lanes)), left)
