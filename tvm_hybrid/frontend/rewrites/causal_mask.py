"""CausalMask: the front end's own operator for the triangular masks of attention.

    CausalMask([M, N, c], bound="last")     =   [M, N] of 0 where j <= i + c, else -inf
    CausalMask([M, N, c], bound="first")    =   [M, N] of 0 where j >= i + c, else -inf
    CausalMask([M, N, c], bound="unidirectional")
                                            =   as "last", and 0 in the last row

It becomes R.triu or R.tril of one number and never a constant: the square of a long sequence is
no data of a model, and a fused attention visits only the keys that a query sees.
"""

from __future__ import annotations

import numpy as np
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


_LOWEST = float(np.finfo(np.float32).min)
_FAR = -(2.0**126)  # what is at least as high stays far above the lowest number


def unidirectional(
    build: NodeBuilder,
    queries: Extent,
    keys: Extent,
    before: Extent,
    padding: list[str],
    hidden: float,
    bias: list[str],
) -> list[str]:
    """The masks of ONNX Runtime's operators with the attribute `unidirectional`.

    Its documentation says that a token sees only those before it. Its CPU kernel (PrepareMask) says
    which those are, and it is followed:

    - Query i sees the keys j <= i + `before`: the diagonal begins behind the past, also where there
      are more keys than queries (MultiHeadAttention with keys of another length).
    - The last query sees all keys. With as many new keys as queries it does so anyhow. A single
      query of a decoder, to which all keys so far are given as new ones, needs it.
    - The lowest float32 number takes the place of the padding mask where a key is later. A query
      all of whose keys have numbers as low (by `mask_filter_value` or `attention_bias`) sees later
      keys, too.

    -inf does the same as the lowest number, and is faster, where other numbers are far higher.

    Parameters
    ----------
    queries, keys, before : int or str
        New queries; all keys; keys of the past.
    padding, bias : list of str
        What else is added to the scores, or nothing: the padding mask, and attention_bias.
    hidden : float
        The padding mask's number.
    """
    numbers = isinstance(before, int) and isinstance(keys, int)
    if queries == 1 or (numbers and int(before) >= int(keys) - 1):
        return [*padding, *bias]
    causal = _mask(build, queries, keys, "unidirectional", before)
    if not bias and (not padding or hidden >= _FAR):
        return [*padding, causal]
    zero, lowest = (build.constant(number, np.float32) for number in (0.0, _LOWEST))
    later = build.add("Less", causal, zero)
    return [build.add("Where", later, lowest, padding[0] if padding else zero), *bias]


def _mask(build: NodeBuilder, rows: Extent, columns: Extent, bound: str, diagonal: Extent) -> str:
    sizes = build.shape([rows, columns, diagonal])
    mask = build.add("CausalMask", sizes, domain=OWN_DOMAIN, bound=bound)
    dims = [extent if isinstance(extent, int) else None for extent in (rows, columns)]
    build.graph.types[mask] = helper.make_tensor_type_proto(TensorProto.FLOAT, dims)
    return mask
