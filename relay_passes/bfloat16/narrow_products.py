"""Products of bfloat16 and float16: they read their operands before these are widened."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np
from tvm import ir, relax

from microkernels.machines.machine import Machine
from relay_passes.ir import traits
from relay_passes.ir.algebra import LARGEST, LEAST, number_factor
from relay_passes.ir.constants import array_of
from relay_passes.ir.decisions import Decision, DecisionLog
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, static_tensor
from relay_passes.ir.moving_operators import Scaled, moves, moves_all, only_needed_for
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import Rule, RuleGraph, rule
from tir_schedules.attention.problem import MOST_QUERIES
from tir_schedules.convolution.direct.conv2d import half_conv_pays
from tir_schedules.core.region import Region, Tensor
from tir_schedules.product import matmul

from .widening import HALF, NARROW, WIDE, KeepsHalf


def narrow_products(kind: str = NARROW) -> Rule:
    """Makes the rule: products of values that were widened from bfloat16 read the narrow values.

    It must run before passes that compute bfloat16 values in float32.

    Before

        lv = R.multiply(R.astype(q, "float32"), R.const(0.5))       # q, k, v: bfloat16
        lv1 = R.permute_dims(R.astype(k, "float32"), [0, 1, 3, 2])
        lv2 = R.matmul(lv, lv1)
        lv3 = R.nn.softmax(lv2)
        lv4 = R.matmul(lv3, R.astype(v, "float32"))
        gv = R.astype(lv4, "bfloat16")

    After

        lv1 = R.permute_dims(k, [0, 1, 3, 2])
        lv2 = R.multiply(R.matmul(q, lv1, out_dtype="float32"), R.const(0.5))
        lv3 = R.astype(R.nn.softmax(lv2), "bfloat16")
        lv4 = R.matmul(lv3, v, out_dtype="float32")
        gv = R.astype(lv4, "bfloat16")

    Convolutions of widened images and weights are rewritten, too. torch.export writes the attention
    of a bfloat16 model like this: all of it in float32, rounded once. A product of two bfloat16
    numbers is exact in float32, so the scores lose nothing. The softmax's results are rounded if
    the values are bfloat16 and the product will be, as in all attention of bfloat16 models: an
    error of 2^-9 of each weight besides an error of 2^-9 of the result. With `kind="float16"` the
    rule applies to float16.

    Parameters
    ----------
    kind : str
        The narrow type: "bfloat16" or "float16".
    """

    @rule("relax.matmul", *traits.CONVOLUTIONS)
    def narrow_products(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
        if str(call.ty.dtype) != WIDE:
            return None
        if traits.is_convolution(call):
            x, w = (_exactly(graph, arg, kind) for arg in call.args)
            return None if x is None or w is None else with_args(call, [x, w], out_dtype=WIDE)
        left, right = (_widened(graph, arg, kind) for arg in call.args)
        if left is not None and right is None and kind == HALF:  # a weight that was constant-folded
            weight = _exactly(graph, call.args[1], kind)
            right = None if weight is None else Scaled(weight)
        if right is None:
            return None
        if left is not None:
            a, factor = left.unscaled(block), left.factor * right.factor
        elif _is_of_softmax(graph, call.args[0]) and only_needed_for(
            graph, block.var, lambda value: _narrows(value, kind), moves
        ):
            a, factor = block.emit(relax.op.astype(call.args[0], kind)), right.factor
        else:
            return None
        product = relax.op.matmul(a, right.unscaled(block), out_dtype=WIDE)
        if not LEAST <= abs(factor) <= LARGEST:
            return None
        if factor == 1.0:
            return product
        return relax.op.multiply(block.emit(product), relax.const(np.float32(factor)))

    return narrow_products


def _exactly(graph: DataflowGraph, expr: relax.Expr, kind: str) -> relax.Expr | None:
    """A value in the narrow type; None if it is not exactly representable or not widened."""
    if isinstance(expr, ir.GenericConst):
        array, narrow = array_of(expr.value), np.dtype(getattr(ml_dtypes, kind, kind))
        with np.errstate(over="ignore"):
            for part in (array.reshape(-1)[:_FEW], array):  # a few numbers rule out most weights
                numbers = part.astype(narrow)
                if not np.array_equal(numbers.astype(np.float32), part):
                    return None
        return relax.const(numbers, kind)
    cast = graph.definition(expr)
    return cast.args[0] if cast is not None and _widens(cast, kind) else None


def _widened(graph: DataflowGraph, expr: relax.Expr, kind: str) -> Scaled | None:
    """An f32 value as narrow numbers times a factor, perhaps moved; None if it has no such form."""
    call = graph.definition(expr)
    if not isinstance(call, relax.Call):
        return None
    if _widens(call, kind):
        return Scaled(call.args[0])
    number = number_factor(call)
    if number is not None:
        found = _widened(graph, number[0], kind)
        return found and replace(found, factor=found.factor * number[1])
    found = _widened(graph, call.args[0], kind) if moves(call) else None
    return found and replace(found, path=(*found.path, call))


def _widens(call: relax.Expr, kind: str) -> bool:
    """Whether an expression casts the narrow type to float32."""
    if not is_call(call, "relax.astype") or str(call.attrs.dtype) != WIDE:
        return False
    return str(call.args[0].ty.dtype) == kind


def _narrows(call: relax.Expr, kind: str) -> bool:
    return is_call(call, "relax.astype") and str(call.attrs.dtype) == kind


def _is_of_softmax(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether a value is a softmax, perhaps moved or with rows set to zero."""
    call = graph.definition(expr)
    while moves_all(call) or is_call(call, "relax.where"):
        call = graph.definition(call.args[2 if is_call(call, "relax.where") else 0])
    return is_call(call, "relax.nn.softmax")


# Which products of a float16 model keep their operands: those that AMX tiles multiply faster.
#
#     lv = R.matmul(x, const_w)      # float16, 128x768x768
#     Granite Rapids:      True      # R.matmul(x, const_w, out_dtype="float32") on tiles of fp16
#     any other CPU:       False     # R.matmul(R.astype(x, "float32"), const_w', ...)
#
# Only products of static shape are considered: those with constant weights, batches of products of
# two activations, and convolutions with constant weights in one group. Batches of few rows stay
# f32: such an attention reads keys and values where they are stored.


_FEW = 64  # elements of a constant to look at first

HALF_PRODUCT = "float16 product"  # the "operator" of a decision
SLOWER = "tiles are estimated to be too little faster for these sizes"


def half_products(machine: Machine, decisions: DecisionLog) -> KeepsHalf:
    """Makes a function that decides which products' operands stay float16, and notes why."""
    if not matmul.multiplies_half(machine):
        return lambda graph, call: False
    weighted = functools.cache(functools.partial(matmul.weighted_half_pays, machine))
    batched = functools.cache(functools.partial(matmul.batched_half_pays, machine))

    def reason_for(graph: DataflowGraph, call: relax.Call) -> str | None:
        """Why a product does not run on tiles; None if it does."""
        tensors = [static_tensor(each) for each in (*call.args, call)]
        shapes = [each.shape for each in tensors if each is not None]
        if len(shapes) < 3 or any(len(shape) < 2 or 0 in shape for shape in shapes):
            return "a size is dynamic or 0, or an operand is a vector"
        a, b, output = shapes
        if is_call(call, "relax.matmul") and len(b) > 2:
            if a[-2] <= MOST_QUERIES:
                return "the matrices of its batch have few rows"
            return None if batched(a, b, output) else SLOWER
        if not _is_constant(graph, call.args[1]):
            return "the weight is not a constant"
        if is_call(call, "relax.matmul"):
            return None if weighted(math.prod(a[:-1]), b[1], b[0]) else SLOWER
        region = _region_of(call, shapes)
        if region is None:
            return "a convolution in groups"
        if traits.has_one_tap(call):  # a matrix product of pixels
            *_, inputs, outputs = region.inputs[1].shape
            pays = weighted(math.prod(output) // outputs, outputs, inputs)
        else:
            pays = half_conv_pays(region, machine)
        return None if pays else SLOWER

    def keeps(graph: DataflowGraph, call: relax.Call) -> bool:
        reason = reason_for(graph, call)
        if reason is not None:
            name = op_name(call).removeprefix("relax.")
            text = f"computed in float32, not on tiles of fp16: {reason}"
            decisions.append(Decision(node=name, op=HALF_PRODUCT, taken=True, reason=text))
        return reason is None

    return keeps


def _is_constant(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether a value is a constant, perhaps moved; it is folded before kernels are chosen."""
    while not isinstance(expr, ir.GenericConst):
        call = graph.definition(expr)
        if call is None or not moves(call):
            return False
        expr = call.args[0]
    return True


def _region_of(call: relax.Call, shapes: Sequence[tuple[int, ...]]) -> Region | None:
    """A convolution of one group as a region with channels last; None for any other convolution."""
    attrs, name = call.attrs, op_name(call)
    if name not in traits.CHANNELS_LAST or int(attrs.groups) != 1:
        return None
    # `shapes` are the shapes of the operands and the result.
    layouts = zip(traits.layouts_of(call), traits.CHANNELS_LAST[name], strict=True)
    image, kernel, result = (
        tuple(shape[layout.index(letter)] for letter in wanted)
        for shape, (layout, wanted) in zip(shapes, layouts, strict=True)
    )
    return Region(
        op=name.rpartition(".")[2],
        inputs=(Tensor(image, WIDE), Tensor(kernel, WIDE, True)),
        output=Tensor(result, WIDE),
        attrs={
            "strides": tuple(map(int, attrs.strides)),
            "padding": tuple(map(int, attrs.padding)),
            "dilation": tuple(map(int, attrs.dilation)),
            "groups": 1,
        },
    )
