"""What the rewrites of attention operators share: heads, cached keys, masks, the products.

    attend(q, k, v)  =  MatMul(Softmax(Mul(MatMul(q, Transpose(k)), scale) + masks), v)

Scores are float32 from the first product to the softmax, whatever the type of q, k and v, and the
scale follows the product: q and k are read as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper

from microkernels.base.errors import ModelError, UnsupportedOperatorError

from ..graph.graph import OWN_DOMAIN, describe
from ..graph.node_builder import (
    Extent,
    NodeBuilder,
    differ,
    extents_of,
    known,
    optional_input,
    plus,
    shape_text,
)

HIDDEN = -10000.0  # what ONNX Runtime adds to the scores of masked keys


@dataclass(frozen=True)
class Heads:
    """A value [batch, heads, length, size] by its name; batch and length may be open."""

    name: str
    batch: Extent
    heads: int
    length: Extent
    size: int

    @property
    def shape(self) -> tuple[Extent, int, Extent, int]:
        """Its shape."""
        return self.batch, self.heads, self.length, self.size


@dataclass(frozen=True)
class Scores:
    """What happens to the scores before the softmax, in this order.

    Attributes
    ----------
    scale : float or None
        Factor; 1 / sqrt(head size) if None.
    softcap : float
        c in c * tanh(scores / c); 0 for none.
    added : list of str
        float32 values to add, as they broadcast to [batch, heads, queries, keys].
    seen : list of str
        bool values; scores are -inf where one is false.
    sink : str
        A float32 value [heads] or of one element: the score of one more key, whose value is 0. It
        is in no mask. "" for none.
    """

    scale: float | None = None
    softcap: float = 0.0
    added: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    sink: str = ""


def refuse(node: onnx.NodeProto, reason: str) -> UnsupportedOperatorError:
    """The error for a form that is not supported."""
    return UnsupportedOperatorError(f"{describe(node)}: {reason}")


def refuse_outputs(node: onnx.NodeProto, *positions: int) -> None:
    """Raises an UnsupportedOperatorError if an output is asked for."""
    for position in positions:
        if position < len(node.output) and node.output[position]:
            raise refuse(node, f"its output {node.output[position]!r} is not supported")


def refuse_inputs(node: onnx.NodeProto, positions: dict[int, str]) -> None:
    """Raises an UnsupportedOperatorError if an input, named by position, is given."""
    for position, what in positions.items():
        if optional_input(node, position):
            raise refuse(node, f"its input {what} ({node.input[position]!r}) is not supported")


def expect_shape(node: onnx.NodeProto, what: str, found: Sequence[Extent], *wanted: Extent) -> None:
    """Raises a ModelError if a shape is known not to be the one that the others ask for."""
    if len(found) == len(wanted) and not any(map(differ, found, wanted)):
        return
    raise ModelError(
        f"{describe(node)}: {what} has the shape {shape_text(found)}; the other inputs and the "
        f"attributes ask for {shape_text(wanted)}"
    )


def heads_of(build: NodeBuilder, name: str, what: str) -> Heads:
    """An input that is [batch, heads, length, size] already."""
    batch, heads, length, size = extents_of(build, name)
    numbers = [known(build, extent, f"heads of {what}") for extent in (heads, size)]
    return Heads(name, batch, numbers[0], length, numbers[1])


def head_size(node: onnx.NodeProto, what: str, columns: int, heads: int) -> int:
    """Columns of one head.

    Raises
    ------
    ModelError
        The heads do not divide the columns.
    """
    if heads < 1 or columns % heads:
        raise ModelError(f"{describe(node)}: {what} has {columns} columns for {heads} heads")
    return columns // heads


def split_heads(
    build: NodeBuilder, value: str, batch: Extent, length: Extent, heads: int, size: int
) -> Heads:
    """[batch, length, heads * size] as heads."""
    apart = build.reshape(value, [batch, length, heads, size])
    return Heads(build.add("Transpose", apart, perm=[0, 2, 1, 3]), batch, heads, length, size)


def join_heads(build: NodeBuilder, value: Heads, output: str) -> str:
    """Heads as [batch, length, heads * size]."""
    rows = build.add("Transpose", value.name, perm=[0, 2, 1, 3])
    return build.reshape(rows, [value.batch, value.length, value.heads * value.size], output)


def append(build: NodeBuilder, past: str, length: Extent, new: Heads, output: str = "") -> Heads:
    """`past` [batch, heads, length, size] and after it the new keys or values."""
    name = build.add("Concat", past, new.name, axis=2, output=output)
    return Heads(name, new.batch, new.heads, plus(build, length, new.length), new.size)


def repeat_heads(build: NodeBuilder, value: Heads, heads: int) -> Heads:
    """Every head as often as queries share it: [h0, h0, h1, h1, ...]."""
    if value.heads == heads:
        return value
    times = heads // value.heads
    batch, groups, length, size = value.shape
    single = build.reshape(value.name, [batch, groups, 1, length, size])
    shape = build.shape([batch, groups, times, length, size])
    repeated = build.reshape(build.add("Expand", single, shape), [batch, heads, length, size])
    return Heads(repeated, batch, heads, length, size)


def as_float(build: NodeBuilder, value: str) -> str:
    """A value in float32."""
    if build.graph.elem_type(value) == TensorProto.FLOAT:
        return value
    return build.add("Cast", value, to=TensorProto.FLOAT)


def padding(build: NodeBuilder, valid: str, shape: Sequence[Extent], hidden: float) -> str:
    """0 where an integer is positive, else `hidden`; float32 of another shape."""
    zero = build.constant(0, np.int32)
    if build.graph.elem_type(valid) not in (0, TensorProto.INT32):
        valid = build.add("Cast", valid, to=TensorProto.INT32)
    seen = build.add("Greater", build.reshape(valid, shape), zero)
    numbers = [build.constant(number, np.float32) for number in (0.0, hidden)]
    return build.add("Where", seen, *numbers)


def attend(
    build: NodeBuilder,
    q: Heads,
    k: Heads,
    v: Heads,
    scores: Scores,
    elem_type: int,
    output: str = "",
) -> Heads:
    """Writes the products and the softmax between them.

    Parameters
    ----------
    q, k, v : Heads
        With the same number of heads.
    elem_type : int
        The type of q, k and v, and of the result.
    """
    value = build.add("MatMul", q.name, build.add("Transpose", k.name, perm=[0, 1, 3, 2]))
    if elem_type != TensorProto.FLOAT:
        value = build.add("Cast", value, to=TensorProto.FLOAT)
    scale = 1.0 / math.sqrt(q.size) if scores.scale is None else scores.scale
    if scores.softcap:
        factor = build.constant(scale / scores.softcap, np.float32)
        bent = build.add("Tanh", build.add("Mul", value, factor))
        value = build.add("Mul", bent, build.constant(scores.softcap, np.float32))
    elif scale != 1.0:
        value = build.add("Mul", value, build.constant(scale, np.float32))
    for mask in scores.added:
        value = build.add("Add", value, mask)
    for seen in scores.seen:
        value = build.add("Where", seen, value, build.constant(-np.inf, np.float32))
    if scores.sink:
        shape = build.shape([q.batch, q.heads, q.length, 1])
        column = build.add("Expand", build.reshape(scores.sink, [-1, 1, 1]), shape)
        value = build.add("Concat", value, column, axis=3)
    weights = build.add("Softmax", value, axis=3)
    if scores.sink:
        weights = build.add("Slice", weights, *(build.constant([x]) for x in (0, -1, 3)))
    if elem_type != TensorProto.FLOAT:
        weights = build.add("Cast", weights, to=elem_type)
    mixed = build.add("MatMul", weights, v.name, output=output)
    return Heads(mixed, q.batch, q.heads, q.length, v.size)


# CausalMask: the front end's own operator for the triangular masks of attention.
#
#     CausalMask([M, N, c], bound="last")     =   [M, N] of 0 where j <= i + c, else -inf
#     CausalMask([M, N, c], bound="first")    =   [M, N] of 0 where j >= i + c, else -inf
#     CausalMask([M, N, c], bound="unidirectional")
#                                             =   as "last", and 0 in the last row
#
# It becomes R.triu or R.tril of one number and never a constant: the square of a long sequence is
# no data of a model, and a fused attention visits only the keys that a query sees.


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
