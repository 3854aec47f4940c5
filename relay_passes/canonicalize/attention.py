"""Attention becomes plain operators, with its scale after the product."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from tvm import relax

from relay_passes.ir.algebra import LARGEST, LEAST, number_factor
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, is_call, known_tensor, region_tensor, static_tensor
from relay_passes.ir.moving_operators import Scaled, moves
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import RuleGraph, rule
from tir_schedules.core.region import Tensor

_FLOATS = ("float32", "float16", "bfloat16")
_HEADS_FIRST = [0, 2, 1, 3]


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

    R.nn.attention_bias adds its bias after the scale. If k and v have fewer heads than q,
    consecutive heads of q share one. "BottomRight" has TVM's meaning: key j is visible to query i
    if j <= i + |M - N|. A window of w keys hides those with j < i - w + 1; it is not decomposed
    unless M = N and the mask is causal, as TVM defines no other form. Symbolic shapes and
    R.nn.attention_var_len are not decomposed either. Operands of bfloat16 have scores in float32,
    and rounded probabilities. With operands of float16 everything is float16, which `widen_f16`
    changes to float32, unless a bias is float32.

    scaled_dot_product_attention arrives from PyTorch in this form, too: between permutations of [B,
    H, S, D], which cancel those here (`compose_views`).
    """
    tensors = [static_tensor(arg) for arg in call.args]
    known = [tensor for tensor in tensors if tensor is not None]
    if len(known) < len(tensors) or any(len(tensor.shape) != 4 for tensor in known):
        return None
    q, k, v = known[:3]
    if q.dtype not in _FLOATS or any(tensor.dtype != q.dtype for tensor in (k, v)):
        return None
    batch, queries, heads, size = q.shape
    keys, groups = v.shape[1:3]
    if k.shape != (batch, keys, groups, size) or v.shape[0] != batch or heads % groups:
        return None
    window, mask = call.attrs.window_size, call.attrs.causal_mask
    if window is not None and (mask is None or queries != keys):
        return None
    return relax.op.permute_dims(_plain(block, call, q, v), _HEADS_FIRST)


def _plain(block: Bindings, call: relax.Call, q: Tensor, v: Tensor) -> relax.Var:
    """All operators but the last permutation."""
    queries, heads, keys = q.shape[1], q.shape[2], v.shape[1]

    def turned(number: int, order: list[int]) -> relax.Var:
        return block.emit(relax.op.permute_dims(call.args[number], order))

    def repeated(value: relax.Var) -> relax.Var:
        """Heads of k or v, each repeated for the heads of q that share it."""
        batch, groups, *matrix = known_tensor(value).shape
        if groups == heads:
            return value
        apart = block.emit(relax.op.expand_dims(value, 2))
        shape = (batch, groups, heads // groups, *matrix)
        wide = block.emit(relax.op.broadcast_to(apart, shape))
        return block.emit(relax.op.reshape(wide, (batch, heads, *matrix)))

    biased = len(call.args) > 3 and str(call.args[3].ty.dtype) == "float32"
    narrow = q.dtype == "bfloat16" or (q.dtype == "float16" and biased)
    wide = "float32" if narrow else None
    rows, columns = turned(0, _HEADS_FIRST), repeated(turned(1, [0, 2, 3, 1]))
    scores = block.emit(relax.op.matmul(rows, columns, out_dtype=wide))
    given = call.attrs.scale
    scale = 1.0 / math.sqrt(q.shape[3]) if given is None else float(given.value)
    kind = str(scores.ty.dtype)
    scores = block.emit(relax.op.multiply(scores, relax.const(scale, kind)))
    masks: list[relax.Expr] = []
    if len(call.args) > 3:
        fits = str(call.args[3].ty.dtype) == kind
        bias = call.args[3] if fits else block.emit(relax.op.astype(call.args[3], kind))
        masks.append(bias)
    if call.attrs.causal_mask is not None:
        bottom_right = str(call.attrs.causal_mask) == "BottomRight"
        last, hidden = abs(queries - keys) if bottom_right else 0, relax.const(-np.inf, kind)
        if last < keys - 1:
            full = block.emit(relax.op.broadcast_to(hidden, (queries, keys)))
            masks.append(block.emit(relax.op.triu(full, last + 1)))
        if call.attrs.window_size is not None:
            full = block.emit(relax.op.broadcast_to(hidden, (queries, keys)))
            masks.append(block.emit(relax.op.tril(full, -int(call.attrs.window_size))))
    for mask in masks:
        scores = block.emit(relax.op.add(scores, mask))
    weights = block.emit(relax.op.nn.softmax(scores, -1))
    if narrow:
        weights = block.emit(relax.op.astype(weights, q.dtype))
    values = repeated(turned(2, _HEADS_FIRST))
    mixed = block.emit(relax.op.matmul(weights, values, out_dtype=wide))
    return block.emit(relax.op.astype(mixed, q.dtype)) if narrow else mixed


@rule("relax.matmul")
def sink_scale(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Sink: moves the scale of an attention's query or key after their product.

    Before

        lv = R.multiply(q, R.const(0.125))              # or R.divide(q, R.const(8.0))
        lv1 = R.permute_dims(lv, [0, 2, 1, 3])
        lv2 = R.matmul(lv1, k)

    After

        lv = R.permute_dims(q, [0, 2, 1, 3])
        lv1 = R.matmul(lv, k)
        lv2 = R.multiply(lv1, R.const(0.125))

    The product then reads q in place, and the scale is a step of its epilogue; scales of both
    operands become one. A scale moves only if it is a constant number and nothing else reads the
    scaled value. It moves past operators that only move elements and past roundings to bfloat16.
    Products with constant operands keep their scales.

    Each term q k is rounded once less and the sum once more. With K terms, results differ by at
    most (K + 3) 2^-24 of the sum of their magnitudes. They are equal if the scale is a power of two
    and nothing underflows. With bfloat16 operands, rounding q is as precise as rounding q * scale:
    2^-9.
    """
    tensors = [region_tensor(arg) for arg in call.args]
    variable = all(tensor is not None and not tensor.constant for tensor in tensors)
    types = {str(arg.ty.dtype) for arg in call.args}
    if not variable or not types <= {"float32", "bfloat16"} or str(call.ty.dtype) != "float32":
        return None
    operands = [_scaled(graph, arg) for arg in call.args]
    factor = math.prod(operand.factor for operand in operands)
    if factor == 1.0 or not LEAST <= abs(factor) <= LARGEST:
        return None
    product = block.emit(with_args(call, [operand.unscaled(block) for operand in operands]))
    return relax.op.multiply(product, relax.const(np.float32(factor)))


def _scaled(graph: DataflowGraph, expr: relax.Expr) -> Scaled:
    """A value as a number times its source, followed back through values of one user."""
    call = graph.definition(expr)
    if not isinstance(call, relax.Call) or graph.only_user(expr) is None:
        return Scaled(expr)
    number = number_factor(call)
    if number is not None:
        value, factor = number
        inner = _scaled(graph, value)
        return replace(inner, factor=inner.factor * factor)
    rounds = is_call(call, "relax.astype") and str(call.ty.dtype) == "bfloat16"
    inner = _scaled(graph, call.args[0]) if moves(call) or rounds else Scaled(expr)
    if inner.factor == 1.0:
        return Scaled(expr)
    wide = graph.definition(inner.source) if rounds else None
    if is_call(wide, "relax.astype") and str(wide.args[0].ty.dtype) == "bfloat16":
        return replace(inner, source=wide.args[0])  # drops a cast to f32 and back
    return replace(inner, path=(*inner.path, call))
