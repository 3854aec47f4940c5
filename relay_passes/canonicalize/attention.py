"""Attention becomes plain operators, with its scale behind the product."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import relax

from relay_passes.ir.algebra import LARGEST, LEAST, number_factor
from relay_passes.ir.axes import permutation
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, region_tensor, static_tensor
from relay_passes.ir.moving_operators import moves, on
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule

_FLOATS = ("float32", "float16", "bfloat16")
_HEADS_FIRST = [0, 2, 1, 3]


@dataclass(frozen=True)
class _Problem:
    """What a call computes.

    Attributes
    ----------
    batch, heads, groups : int
        Sequences, heads of q, heads of k and v.
    queries, keys, size, value_size : int
        M, N, and the columns of a head of q and of v.
    dtype : str
        Of q, k, v and the result.
    """

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    size: int
    value_size: int
    dtype: str


@rule("relax.nn.attention", "relax.nn.attention_bias")
def decompose_attention(_graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Decomposes R.nn.attention into the plain operators that partition and merge know.

    Before

        gv = R.nn.attention(q, k, v, causal_mask="TopLeft")     # q: [B, M, H, D], k: [B, N, H, D]

    After

        lv = R.permute_dims(q, [0, 2, 1, 3])
        lv1 = R.permute_dims(k, [0, 2, 3, 1])
        lv2 = R.matmul(lv, lv1)                                 # out_dtype float32
        lv3 = R.multiply(lv2, R.const(1 / sqrt(D)))
        lv4 = R.broadcast_to(R.const(-inf), [M, N])
        lv5 = R.triu(lv4, 1)
        lv6 = R.add(lv3, lv5)
        lv7 = R.nn.softmax(lv6)
        lv8 = R.permute_dims(v, [0, 2, 1, 3])
        lv9 = R.matmul(lv7, lv8)
        gv = R.permute_dims(lv9, [0, 2, 1, 3])

    R.nn.attention_bias adds its bias after the scale; where k and v have fewer heads than q,
    consecutive heads of q share one. "BottomRight" is what TVM calls it: key j is visible to query
    i if j <= i + |M - N|. A window of w keys hides those with j < i - w + 1; it is left alone
    unless M = N and a mask is causal, as TVM defines no other form, and so are symbolic shapes and
    R.nn.attention_var_len. Operands of bfloat16 have scores in float32, and probabilities rounded.
    With operands of float16 all is float16, of which `widen_f16` makes float32, unless a bias is
    float32.

    This is also how scaled_dot_product_attention arrives from PyTorch: between permutations of
    [B, H, S, D], which cancel those here (`unturn`).
    """
    problem = _problem(call)
    if problem is None:
        return None
    return relax.op.permute_dims(_plain(block, call, problem), _HEADS_FIRST)


@rule("relax.permute_dims")
def unturn(graph: RuleGraph, _block: Bindings, call: relax.Call) -> relax.Expr | None:
    """A permutation of its inverse is what they permute.

    Before

        lv = R.permute_dims(x, [0, 2, 1, 3])
        gv = R.permute_dims(lv, [0, 2, 1, 3])

    After

        gv = x
    """
    inner = graph.definition(call.args[0])
    if not is_call(inner, "relax.permute_dims"):
        return None
    turned, back = permutation(inner), permutation(call)
    same = [turned[axis] for axis in back] == [*range(len(turned))]
    return inner.args[0] if same else None


def _problem(call: relax.Call) -> _Problem | None:
    """Extents of a call; None if it stays."""
    tensors = [static_tensor(arg) for arg in call.args]
    known = [tensor for tensor in tensors if tensor is not None]
    if len(known) < len(tensors) or any(len(tensor.shape) != 4 for tensor in known):
        return None
    q, k, v = known[:3]
    batch, queries, heads, size = q.shape
    _, keys, groups, value_size = v.shape
    if q.dtype not in _FLOATS or any(tensor.dtype != q.dtype for tensor in (k, v)):
        return None
    if k.shape != (batch, keys, groups, size) or v.shape[0] != batch or heads % groups:
        return None
    window, mask = call.attrs.window_size, call.attrs.causal_mask
    if window is not None and (mask is None or queries != keys):
        return None
    return _Problem(batch, heads, groups, queries, keys, size, value_size, q.dtype)


def _plain(block: Bindings, call: relax.Call, problem: _Problem) -> relax.Var:
    """Everything but the last permutation."""
    q = block.emit(relax.op.permute_dims(call.args[0], _HEADS_FIRST))
    k = relax.op.permute_dims(call.args[1], [0, 2, 3, 1])
    k = _repeated(block, block.emit(k), problem, (problem.size, problem.keys))
    biased = len(call.args) > 3 and str(call.args[3].ty.dtype) == "float32"
    narrow = problem.dtype == "bfloat16" or (problem.dtype == "float16" and biased)
    wide = "float32" if narrow else None
    scores = block.emit(relax.op.matmul(q, k, out_dtype=wide))
    given = call.attrs.scale
    scale = 1.0 / math.sqrt(problem.size) if given is None else float(given.value)
    kind = str(scores.ty.dtype)
    scores = block.emit(relax.op.multiply(scores, relax.const(scale, kind)))
    for mask in _masks(block, call, problem, kind):
        scores = block.emit(relax.op.add(scores, mask))
    weights = block.emit(relax.op.nn.softmax(scores, -1))
    if narrow:
        weights = block.emit(relax.op.astype(weights, problem.dtype))
    v = relax.op.permute_dims(call.args[2], _HEADS_FIRST)
    v = _repeated(block, block.emit(v), problem, (problem.keys, problem.value_size))
    mixed = block.emit(relax.op.matmul(weights, v, out_dtype=wide))
    return block.emit(relax.op.astype(mixed, problem.dtype)) if narrow else mixed


def _repeated(
    block: Bindings, value: relax.Expr, problem: _Problem, matrix: tuple[int, int]
) -> relax.Expr:
    """Heads of k or v, each as often as heads of q share it."""
    if problem.groups == problem.heads:
        return value
    times = problem.heads // problem.groups
    apart = block.emit(relax.op.expand_dims(value, 2))
    shape = (problem.batch, problem.groups, times, *matrix)
    repeated = block.emit(relax.op.broadcast_to(apart, shape))
    return block.emit(relax.op.reshape(repeated, (problem.batch, problem.heads, *matrix)))


def _masks(block: Bindings, call: relax.Call, problem: _Problem, kind: str) -> list[relax.Expr]:
    """What is added to scores of some type."""
    masks: list[relax.Expr] = []
    if len(call.args) > 3:
        bias = call.args[3]
        fits = str(bias.ty.dtype) == kind
        masks.append(bias if fits else block.emit(relax.op.astype(bias, kind)))
    if call.attrs.causal_mask is None:
        return masks
    bottom_right = str(call.attrs.causal_mask) == "BottomRight"
    last = abs(problem.queries - problem.keys) if bottom_right else 0
    shape = (problem.queries, problem.keys)
    hidden = relax.const(-np.inf, kind)
    if last < problem.keys - 1:
        full = block.emit(relax.op.broadcast_to(hidden, shape))
        masks.append(block.emit(relax.op.triu(full, last + 1)))
    if call.attrs.window_size is not None:
        full = block.emit(relax.op.broadcast_to(hidden, shape))
        masks.append(block.emit(relax.op.tril(full, -int(call.attrs.window_size))))
    return masks


@dataclass(frozen=True)
class _Scaled:
    """A value times a number.

    Attributes
    ----------
    source : relax.Expr
        What is multiplied.
    factor : float
        By what.
    path : tuple of relax.Call
        Operators from there to the value, the first to be applied first.
    """

    source: relax.Expr
    factor: float
    path: tuple[relax.Call, ...] = ()

    def unscaled(self, block: Bindings) -> relax.Expr:
        """The value without the factor."""
        value = self.source
        for call in self.path:
            value = block.emit(on(call, value))
        return value


@rule("relax.matmul")
def sink_scale(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Sink: moves the scale of an attention's query or key behind their product.

    Before

        lv = R.multiply(q, R.const(0.125))              # or R.divide(q, R.const(8.0))
        lv1 = R.permute_dims(lv, [0, 2, 1, 3])
        lv2 = R.matmul(lv1, k)

    After

        lv = R.permute_dims(q, [0, 2, 1, 3])
        lv1 = R.matmul(lv, k)
        lv2 = R.multiply(lv1, R.const(0.125))

    The product then reads q in place, and the scale is a step of its epilogue; scales of both
    operands become one. A scale moves only if it is a constant number, past operators that only
    move elements and past roundings to bfloat16, and if nothing else reads the scaled value.
    Products with constant operands keep their scales.

    Each term q k is rounded once less and the sum once more. With K terms, results differ by at
    most (K + 3) 2^-24 of the sum of their magnitudes. They do not differ if the scale is a power of
    two and nothing underflows. With bfloat16 operands, rounding q is as precise as rounding q *
    scale: 2^-9.
    """
    operands = _operands(graph, call)
    factor = math.prod(operand.factor for operand in operands)
    if factor == 1.0 or not LEAST <= abs(factor) <= LARGEST:
        return None
    product = block.emit(with_args(call, [operand.unscaled(block) for operand in operands]))
    return relax.op.multiply(product, relax.const(np.float32(factor)))


def _operands(graph: DataflowGraph, call: relax.Call) -> list[_Scaled]:
    """Both operands of a product of two variables that is summed in f32; else nothing."""
    if str(call.ty.dtype) != "float32":
        return []
    tensors = [region_tensor(arg) for arg in call.args]
    if any(
        tensor is None or tensor.constant or tensor.dtype not in ("float32", "bfloat16")
        for tensor in tensors
    ):
        return []
    return [_scaled(graph, arg) for arg in call.args]


def _scaled(graph: DataflowGraph, expr: relax.Expr) -> _Scaled:
    """A value as a number times what it is computed from, as far back as nothing else needs it."""
    call = graph.definition(expr)
    if not isinstance(call, relax.Call) or len(_users(graph, expr)) != 1:
        return _Scaled(expr, 1.0)
    number = number_factor(call)
    if number is not None:
        value, factor = number
        inner = _scaled(graph, value)
        if inner.factor != 1.0:
            return _Scaled(inner.source, inner.factor * factor, inner.path)
        return _Scaled(value, factor)
    rounds = op_name(call) == "relax.astype" and str(call.ty.dtype) == "bfloat16"
    if not (moves(call) or rounds):
        return _Scaled(expr, 1.0)
    inner = _scaled(graph, call.args[0])
    if inner.factor == 1.0:
        return _Scaled(expr, 1.0)
    narrow = _before_widening(graph, inner.source) if rounds else None
    if narrow is not None:
        return _Scaled(narrow, inner.factor, inner.path)
    return _Scaled(inner.source, inner.factor, (*inner.path, call))


def _users(graph: DataflowGraph, expr: relax.Expr) -> list[int]:
    """Positions where a value is used; twice the same if it is needed outside."""
    users = [*graph.users_of(expr)]
    return users if isinstance(expr, relax.DataflowVar) else users * 2


def _before_widening(graph: DataflowGraph, value: relax.Expr) -> relax.Expr | None:
    """The bfloat16 tensor that a f32 value was widened from, else None."""
    call = graph.definition(value)
    if not isinstance(call, relax.Call) or op_name(call) != "relax.astype":
        return None
    return call.args[0] if str(call.args[0].ty.dtype) == "bfloat16" else None
