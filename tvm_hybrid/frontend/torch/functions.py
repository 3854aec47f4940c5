"""Functions of one operand or none for which TVM's converters compute other results than PyTorch.

operator              TVM's converter, or its kernel         here
expm1, log1p          exp(x) - 1, log(x + 1): 0 for small x  corrected
elu(x, a, s, t)       s and t are ignored                    (exp(t * x) - 1) * a * s, or s * x
sign(NaN), of bool    NaN; fails in LLVM                     0; x
full(-inf), of NaN    fails                                  a constant that is broadcast
arange(5, 0, -2)      an element too many                    a constant
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx
from tvm import relax

from ..expressions import dtype_of, emit
from ..onnx.ops.elementwise import integer_power
from .promotion import as_type, constant_of, type_name

# Operators that TVM's converters import correctly: tests compare several forms of each with eager
# mode.
#
# An operator that is not here and has no converter of ours is refused by name: some of TVM's
# converters compute other results than PyTorch, and some ignore arguments. If you add a name, add
# test cases for all forms of the operator (`tests/tvm_hybrid/pytorch/aten`).
TRUSTED = frozenset(
    [
        *("_adaptive_avg_pool3d.default", "_native_batch_norm_legit.no_stats"),
        *("_to_copy.default", "abs.default", "acos.default", "acosh.default", "alias.default"),
        *("argmax.default", "argmin.default", "as_strided.default", "asin.default"),
        *("asinh.default", "atan.default", "atan2.default", "atanh.default"),
        *("bitwise_and.Scalar", "bitwise_and.Tensor", "bitwise_not.default"),
        *("bitwise_or.Scalar", "bitwise_or.Tensor", "bitwise_xor.Scalar", "bitwise_xor.Tensor"),
        *("ceil.default", "clone.default", "cond"),
        *("constant_pad_nd.default", "copy.default", "cos.default", "cosh.default"),
        *("cumprod.default", "cumsum.default", "diagonal.default", "div.Scalar", "div.Tensor"),
        *("embedding.default", "empty.memory_format", "eq.Scalar", "eq.Tensor", "exp.default"),
        *("expand.default", "flip.default", "floor.default", "fmod.Scalar", "fmod.Tensor"),
        *("gather.default", "ge.Scalar", "ge.Tensor", "gt.Scalar", "gt.Tensor"),
        *("hamming_window.default", "hamming_window.periodic", "hamming_window.periodic_alpha"),
        *("hamming_window.periodic_alpha_beta", "hardtanh.default", "index.Tensor"),
        "index_select.default",
        *("isinf.default", "isnan.default", "le.Scalar", "le.Tensor", "leaky_relu.default"),
        *("log.default", "log10.default", "log2.default", "logical_and.default"),
        *("logical_not.default", "logical_or.default", "logical_xor.default", "lt.Scalar"),
        *("lt.Tensor", "masked_select.default", "max_pool2d_with_indices.default"),
        *("max_pool3d_with_indices.default", "maximum.default", "minimum.default"),
        *("native_dropout.default", "neg.default", "permute.default", "prod.default"),
        *("reciprocal.default", "relu.default", "repeat.default", "round.decimals"),
        *("round.default", "rsqrt.default", "scalar_tensor.default"),
        *("select.int", "sigmoid.default", "sin.default", "sinh.default"),
        *("slice_scatter.default", "sort.default", "split_with_sizes.default", "sqrt.default"),
        *("squeeze.dims", "sub.Scalar", "sub.Tensor", "tan.default", "tanh.default"),
        *("topk.default", "trunc.default", "unsqueeze.default", "view.default", "where.self"),
    ]
)
"""Names of these operators, such as "sub.Tensor"."""


Value = Any  # relax.Expr, a tensor


def expm1(node: Any, importer: Any) -> Value:
    """`aten.expm1`: (exp(x) - 1) * x / log(exp(x)) by Kahan; the errors of exp cancel."""
    x = importer.env[node.args[0]]
    one = _number(x, 1)
    exp = emit(relax.op.exp(x))
    less = emit(relax.op.subtract(exp, one))
    corrected = emit(relax.op.divide(relax.op.multiply(less, x), relax.op.log(exp)))
    # log(exp(x)) is 0 for tiny x, and infinite for the largest x.
    far = emit(relax.op.greater(relax.op.abs(x), _number(x, math.log(2))))
    nothing = emit(relax.op.equal(exp, one))
    return emit(relax.op.where(nothing, x, emit(relax.op.where(far, less, corrected))))


def log1p(node: Any, importer: Any) -> Value:
    """`aten.log1p`: log(1 + x) * x / ((1 + x) - 1) by Kahan; the error of the sum cancels."""
    x = importer.env[node.args[0]]
    one = _number(x, 1)
    more = emit(relax.op.add(x, one))
    logarithm = emit(relax.op.log(more))
    kept = relax.op.subtract(more, one)
    corrected = emit(relax.op.divide(relax.op.multiply(logarithm, x), kept))
    far = emit(relax.op.greater(relax.op.abs(x), one))
    nothing = emit(relax.op.equal(more, one))
    return emit(relax.op.where(nothing, x, emit(relax.op.where(far, logarithm, corrected))))


def elu(node: Any, importer: Any) -> Value:
    """`aten.elu`: x, alpha, scale, input_scale."""
    x = importer.env[node.args[0]]
    given: tuple[float, ...] = node.args[1:]
    alpha, scale, inner = (*given, 1.0, 1.0, 1.0)[:3]
    if scale == inner == 1:
        return importer.create_convert_map()["elu.default"](node)
    less = relax.op.subtract(relax.op.exp(relax.op.multiply(x, _number(x, inner))), _number(x, 1))
    below = emit(relax.op.multiply(less, _number(x, alpha * scale)))
    above = emit(relax.op.multiply(x, _number(x, scale)))
    return emit(relax.op.where(relax.op.greater(x, _number(x, 0)), above, below))


def sign(node: Any, importer: Any) -> Value:
    """`aten.sign`."""
    x = importer.env[node.args[0]]
    dtype = str(x.ty.dtype)
    if dtype == "bool":
        return x
    zero = _number(x, 0)
    positive, negative = (
        emit(relax.op.astype(compare(x, zero), dtype))
        for compare in (relax.op.greater, relax.op.less)
    )
    return emit(relax.op.subtract(positive, negative))


def full(node: Any, importer: Any) -> Value:
    """`aten.full` and `aten.full_like`."""
    value = node.args[1]
    if not isinstance(value, float) or math.isfinite(value):
        return importer.create_convert_map()[node.target.__name__](node)
    made = node.meta["val"]
    sizes = relax.ShapeExpr([importer.sizes.of(size) for size in made.shape])
    number = relax.const(value, type_name(made.dtype))
    return emit(relax.op.broadcast_to(number, sizes))


def arange(node: Any, importer: Any) -> Value:
    """`aten.arange.start_step`; stays an operator for rising whole numbers, else a constant."""
    start, end, step = (*node.args, 1)[:3]
    counts_up = isinstance(step, int) and step > 0 and not isinstance(start, float)
    if counts_up or any(isinstance(each, fx.Node) for each in (start, end, step)):
        return importer.create_convert_map()["arange.start_step"](node)
    return constant_of(torch.arange(start, end, step, dtype=node.meta["val"].dtype))


def _number(x: Value, value: float) -> Value:
    return relax.const(value, str(x.ty.dtype))


# Activations that torch's decompositions would split.
#
#     aten.silu(x)          ->    R.nn.silu(x)
#     aten.hardswish(x)     ->    R.divide(R.multiply(x, R.clip(R.add(x, 3), 0, 6)), 6)
#     aten.hardsigmoid(x)   ->    R.divide(R.clip(R.add(x, 3), 0, 6), 6)
#
# Torch's tables put casts around the parts, which nobody could tell from casts that a model's
# author wrote, and which round. The whole operators round as others of their type do. In float16,
# whose products overflow, the formulas stay float32 between such casts.


WHOLE = ("silu", "hardswish", "hardsigmoid")


def hard(node: Any, importer: Any, swish: bool) -> Any:
    """`aten.hardswish.default` and `aten.hardsigmoid.default`."""
    given = importer.env[node.args[0]]
    x = as_type(given, "float32") if dtype_of(given) == "float16" else given
    kind = dtype_of(x)
    value = emit(relax.op.add(x, relax.const(3.0, kind)))
    value = emit(relax.op.clip(value, relax.prim_value(0.0), relax.prim_value(6.0)))
    if swish:
        value = emit(relax.op.multiply(x, value))
    value = emit(relax.op.divide(value, relax.const(6.0, kind)))
    return as_type(value, dtype_of(given))


# Arithmetic of two operands for which TVM's converters compute other results than PyTorch.
#
# operator                   TVM's converter, or its kernel                   here
# ne(x, y)                   false beside NaN                                 not (x == y)
# add, mul of bool           fail in LLVM                                     or, and
# remainder(x, y) of floats  x - floor(x / y) * y: NaN for an infinite y      from fmod
# div(x, y, "floor")         floor(x / y), one too large near whole numbers   from fmod
# div(x, number, mode)       the number is an int32                           of x's type
# pow of whole numbers       fails in LLVM                                    by repeated squaring
# pow(x, 0.5), pow(x, -0.5)  inf of -inf, as in C                             sqrt(x), rsqrt(x): NaN
# mm, bmm                    float32, for operands of any type                the operands' type
#
# The operands have been promoted to one type before (`promotion`).


_ROOTS = {0.5: relax.op.sqrt, -0.5: relax.op.rsqrt}


def product(node: Any, importer: Any) -> Value:
    """`aten.mm` and `aten.bmm`."""
    x, y = (importer.env[each] for each in node.args)
    if dtype_of(x) in ("float32", "float16", "bfloat16"):
        return importer.create_convert_map()[node.target.__name__](node)
    return emit(relax.op.matmul(x, y))


def not_equal(node: Any, importer: Any) -> Value:
    """`aten.ne`."""
    return emit(relax.op.logical_not(emit(relax.op.equal(*_operands(node, importer)))))


def combined(
    node: Any, importer: Any, of_numbers: Callable[..., Value], of_bools: Callable[..., Value]
) -> Value:
    """`aten.add` and `aten.mul`; the factor `alpha` has been applied before."""
    x, y = _operands(node, importer)
    return emit((of_bools if dtype_of(x) == "bool" else of_numbers)(x, y))


def remainder(node: Any, importer: Any) -> Value:
    """`aten.remainder`: the result has the divisor's sign."""
    x, y = _operands(node, importer)
    if "float" not in dtype_of(x):
        return emit(relax.op.floor_mod(x, y))
    rest = emit(relax.op.mod(x, y))
    return emit(relax.op.where(_other_sign(rest, y), relax.op.add(rest, y), rest))


def divide(node: Any, importer: Any) -> Value:
    """`aten.div` with a rounding mode, `aten.floor_divide` and `aten.true_divide`."""
    x, y = _operands(node, importer)
    mode = node.kwargs.get("rounding_mode")
    if mode is None:
        return emit(relax.op.divide(x, y))
    if "float" not in dtype_of(x):
        # R.divide of whole numbers rounds towards 0.
        return emit((relax.op.divide if mode == "trunc" else relax.op.floor_divide)(x, y))
    if mode == "trunc":
        return emit(relax.op.trunc(emit(relax.op.divide(x, y))))
    # As in PyTorch: (x - fmod(x, y)) / y is nearly whole, and is then rounded.
    rest = emit(relax.op.mod(x, y))
    quotient = emit(relax.op.divide(relax.op.subtract(x, rest), y))
    less = emit(relax.op.subtract(quotient, _number(x, 1)))
    quotient = emit(relax.op.where(_other_sign(rest, y), less, quotient))
    whole = emit(relax.op.floor(quotient))
    far = emit(relax.op.greater(relax.op.subtract(quotient, whole), _number(x, 0.5)))
    whole = emit(relax.op.where(far, relax.op.add(whole, _number(x, 1)), whole))
    none = emit(relax.op.equal(y, _number(x, 0)))
    return emit(relax.op.where(none, relax.op.divide(x, y), whole))


def _other_sign(rest: Value, y: Value) -> Value:
    """Whether a remainder is not 0 and differs in sign from the divisor."""
    zero = relax.const(0, dtype_of(rest))
    positive = relax.op.logical_and(relax.op.greater(rest, zero), relax.op.less(y, zero))
    negative = relax.op.logical_and(relax.op.less(rest, zero), relax.op.greater(y, zero))
    return emit(relax.op.logical_or(positive, negative))


def power(node: Any, importer: Any) -> Value:
    """`aten.pow`; like PyTorch, exponents 0.5 and -0.5 become roots, except in float16."""
    exponent = node.args[1]
    x, y = _operands(node, importer)
    if "float" not in dtype_of(x):
        return emit(integer_power(x, y))
    roots = _ROOTS if isinstance(exponent, float) and dtype_of(x) != "float16" else {}
    root = roots.get(exponent)
    return emit(relax.op.power(x, y) if root is None else root(x))


def _operands(node: Any, importer: Any) -> tuple[Value, Value]:
    """The two operands as tensors; one may be given as a number."""
    found = [importer.env[each] if isinstance(each, fx.Node) else each for each in node.args[:2]]
    dtype = next(dtype_of(each) for each in found if isinstance(each, relax.Expr))
    x, y = (each if isinstance(each, relax.Expr) else relax.const(each, dtype) for each in found)
    return x, y


def cast(node: Any, importer: Any) -> Any:
    """`prims.convert_element_type.default`: tensor, type."""
    return emit(relax.op.astype(importer.env[node.args[0]], type_name(node.args[1])))


def clamp(node: Any, importer: Any) -> Any:
    """`aten.clamp.default` and `aten.clamp.Tensor`: limits are numbers or tensors, or missing.

    clamp(x: int64, None, 15)        ->  R.minimum(x, R.const(15, "int64"))
    clamp(x, 1.0, -1.0)              ->  R.minimum(R.maximum(x, R.const(1.0)), R.const(-1.0))
    clamp.Tensor(x, low, None)       ->  R.maximum(x, low)

    TVM's converter uses infinity for a missing limit, which integers do not have.
    """
    x = importer.env[node.args[0]]
    dtype = str(x.ty.dtype)
    low, high = (*node.args[1:], None, None)[:2]
    low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
    numbers = not any(isinstance(each, fx.Node) for each in (low, high))
    crossed = numbers and None not in (low, high) and low > high
    if "float" in dtype and numbers and not crossed:
        return importer.create_convert_map()["clamp.default"](node)
    for limit, limited in ((low, relax.op.maximum), (high, relax.op.minimum)):
        if limit is not None:
            is_tensor = isinstance(limit, fx.Node)
            x = emit(limited(x, importer.env[limit] if is_tensor else relax.const(limit, dtype)))
    return x


_ADD = partial(combined, of_numbers=relax.op.add, of_bools=relax.op.logical_or)
_MULTIPLY = partial(combined, of_numbers=relax.op.multiply, of_bools=relax.op.logical_and)
CONVERTERS: dict[str, Callable[..., Value]] = {
    **{f"ne.{form}": not_equal for form in ("Tensor", "Scalar")},
    **{f"add.{form}": _ADD for form in ("Tensor", "Scalar")},
    **{f"mul.{form}": _MULTIPLY for form in ("Tensor", "Scalar")},
    **{f"remainder.{form}": remainder for form in ("Tensor", "Scalar")},
    **{f"div.{form}_mode": divide for form in ("Tensor", "Scalar")},
    "true_divide.Tensor": divide,
    **{f"pow.{form}": power for form in ("Tensor_Tensor", "Tensor_Scalar", "Scalar")},
    "expm1.default": expm1,
    "log1p.default": log1p,
    "elu.default": elu,
    "sign.default": sign,
    "arange.start_step": arange,
    "full.default": full,
    "full_like.default": full,
    "hardswish.default": partial(hard, swish=True),
    "hardsigmoid.default": partial(hard, swish=False),
    "convert_element_type.default": cast,
    "clamp.default": clamp,
    "clamp.Tensor": clamp,
}
