"""CausalMask: the front end's own operator for the triangular masks of attention.

    CausalMask(rows=M, columns=N, last=c)     =   [M, N] of 0 where j <= i + c, else -inf
    CausalMask(rows=M, columns=N, first=c)    =   [M, N] of 0 where j >= i + c, else -inf

It becomes R.triu or R.tril of one number and never a constant: the square of a long sequence is
no data of a model, and a fused attention visits only the keys that a query sees.
"""

from __future__ import annotations

from onnx import TensorProto

from ..graph import OWN_DOMAIN
from ..node_builder import NodeBuilder


def keys_up_to(build: NodeBuilder, rows: int, columns: int, last: int) -> list[str]:
    """The mask, float32, of queries i that see keys j <= i + `last`; none if they see all."""
    return [] if last >= columns - 1 else [_mask(build, rows, columns, "last", last)]


def keys_from(build: NodeBuilder, rows: int, columns: int, first: int) -> list[str]:
    """The mask, float32, of queries i that see keys j >= i + `first`; none if they see all."""
    return [] if rows - 1 + first <= 0 else [_mask(build, rows, columns, "first", first)]


def _mask(build: NodeBuilder, rows: int, columns: int, side: str, diagonal: int) -> str:
    attributes = {"rows": rows, "columns": columns, side: diagonal}
    mask = build.add("CausalMask", output="", domain=OWN_DOMAIN, **attributes)
    build.graph.declare(mask, TensorProto.FLOAT, (rows, columns))
    return mask
