"""CausalMask: the front end's own operator for the triangular masks of attention.

    CausalMask([M, N, c], bound="last")     =   [M, N] of 0 where j <= i + c, else -inf
    CausalMask([M, N, c], bound="first")    =   [M, N] of 0 where j >= i + c, else -inf

It becomes R.triu or R.tril of one number and never a constant: the square of a long sequence is
no data of a model, and a fused attention visits only the keys that a query sees.
"""

from __future__ import annotations

from onnx import TensorProto, helper

from ..graph import OWN_DOMAIN
from ..node_builder import Extent, NodeBuilder


def keys_up_to(build: NodeBuilder, rows: Extent, columns: Extent, last: Extent) -> list[str]:
    """The mask, float32, of queries i that see keys j <= i + `last`; none if they see all."""
    numbers = isinstance(last, int) and isinstance(columns, int)
    sees_all = numbers and int(last) >= int(columns) - 1
    return [] if sees_all else [_mask(build, rows, columns, "last", last)]


def keys_from(build: NodeBuilder, rows: Extent, columns: Extent, first: Extent) -> list[str]:
    """The mask, float32, of queries i that see keys j >= i + `first`; none if they see all."""
    numbers = isinstance(first, int) and isinstance(rows, int)
    sees_all = numbers and int(rows) - 1 + int(first) <= 0
    return [] if sees_all else [_mask(build, rows, columns, "first", first)]


def _mask(build: NodeBuilder, rows: Extent, columns: Extent, bound: str, diagonal: Extent) -> str:
    sizes = build.shape([rows, columns, diagonal])
    mask = build.add("CausalMask", sizes, domain=OWN_DOMAIN, bound=bound)
    dims = [extent if isinstance(extent, int) else None for extent in (rows, columns)]
    build.graph.types[mask] = helper.make_tensor_type_proto(TensorProto.FLOAT, dims)
    return mask
