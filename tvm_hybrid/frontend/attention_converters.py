"""Converters of the front end's own operators for attention.

operator                               Relax
CausalMask([M, N, c], bound="last")    R.triu(R.broadcast_to(-inf, (M, N)), k=c + 1)
CausalMask([M, N, c], bound="first")   R.tril(R.broadcast_to(-inf, (M, N)), k=c - 1)
CausalMask([M, N, c], bound=           as "last" if M + c >= N for sure; else R.concat of the
           "unidirectional")           mask of M - 1 rows as "last" and a row of zeros
UpdateCache(new, before, [N], past)    a kernel: out[b, h, j] = new[b, h, j - before[b]] where there
                                       is such a row, else past[b, h, j]; N rows

TVM 0.27 cannot lower R.full of infinities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.sym import Analyzer

from relay_passes.lower.update_rows import ROW_UPDATE

from .data_sized.elements import known_elements
from .data_sized.sizes import size_in
from .expressions import Converter, Expr, literal


def _causal_mask(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Expr:
    sizes = known_elements(builder, inputs[0])
    if sizes is None:
        raise ValueError("the sizes of a causal mask depend on data")
    rows, columns, diagonal = sizes
    bound = attrs["bound"].decode()
    beyond = rows + diagonal - columns
    sees_all = beyond >= 0 if isinstance(beyond, int) else Analyzer().can_prove(beyond >= 0)
    is_apart = bound == "unidirectional" and not sees_all
    hidden = literal(np.array(-np.inf, np.float32))
    shape = (rows - 1 if is_apart else rows, columns)
    full = builder.normalize(relax.op.broadcast_to(hidden, shape))
    if bound == "first":
        return relax.op.tril(full, diagonal - 1)
    mask = relax.op.triu(full, diagonal + 1)
    if not is_apart:
        return mask
    zeros = relax.op.broadcast_to(literal(np.array(0, np.float32)), (1, columns))
    return relax.op.concat([builder.normalize(each) for each in (mask, zeros)], 0)


def _update_cache(
    builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]
) -> Expr:
    new, before, size, *past = inputs
    elements = known_elements(builder, size)
    rows = size_in(builder, size) if elements is None else elements.item()

    def compute(new: te.Tensor, before: te.Tensor, *past: te.Tensor) -> te.Tensor:
        batch, heads, length, columns = new.shape
        nothing = tirx.const(0, new.dtype)

        def element(b: Expr, h: Expr, j: Expr, d: Expr) -> Expr:
            place = j - before[b, 0]
            is_new = tirx.all(place >= 0, place < length)
            kept = nothing
            if past:
                kept = tirx.if_then_else(j < past[0].shape[2], past[0][b, h, j, d], nothing)
            return tirx.if_then_else(is_new, new[b, h, place, d], kept)

        return te.compute((batch, heads, rows, columns), element, name="cache")

    places = [0, 1, *range(2, 2 + len(past))]
    named = {"primfunc_name_hint": "update_cache", "primfunc_attrs": {ROW_UPDATE: places}}
    return builder.emit_te(compute, new, before, *past, **named)


ATTENTION_CONVERTERS: dict[str, Converter] = {
    "CausalMask": _causal_mask,
    "UpdateCache": _update_cache,
}
