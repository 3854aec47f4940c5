"""Integer products and integer convolutions: one integer sum, scaled afterwards.

Before

    lv = R.dequantize(a, sA, zA)
    lv1 = R.dequantize(w, sW, zW, axis=1)
    lv2 = R.matmul(lv, lv1)                             # or R.nn.conv2d, ...
    lv3 = R.dequantize(const_b, sA * sW, 0)             # int32
    lv4 = R.add(lv2, lv3)

After

    lv = R.subtract(R.astype(a, "int32"), zA)           # without the subtraction if zA is 0
    lv1 = R.subtract(R.astype(w, "int32"), zW)
    lv2 = R.add(R.matmul(lv, lv1, out_dtype="int32"), const_b)
    lv4 = R.multiply(R.astype(lv2, "float32"), sA * sW)

sum_k (a - zA) sA (w - zW) sW = sA sW sum_k (a - zA) (w - zW): the low-precision conversion of the
oneDNN Graph Compiler (arXiv 2301.01333). The integer sum is exact. It replaces a rounded sum of
rounded products, and is rounded twice: to f32, and when it is scaled. Two constant scales are
multiplied at compile time (with one more rounding), others by an operator.

A bias with scale sA * sW (the same f32 number) and no zero point is added to the integer sum. It is
stored for that purpose: ONNX Runtime makes QLinearConv and QGemm of these operators, which add it
there. Added to the scaled sum it would be rounded once more. Any other bias is added in f32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax

from microkernels.base.arrays import RANGES
from relay_passes.ir import traits
from relay_passes.ir.axes import known_integers
from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.functions import with_args
from relay_passes.ir.graph import (
    DataflowGraph,
    is_call,
    is_f32,
    known_tensor,
    op_name,
    region_tensor,
    static_tensor,
)
from relay_passes.ir.quantization import (
    LIMIT,
    Quantized,
    centred,
    known_centred,
    largest,
    largest_sums,
    read_dequantize,
)
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import Rule, RuleGraph, leave, rule
from relay_passes.ir.traits import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from tir_schedules.core.size import is_dynamic


@dataclass(frozen=True)
class IntegerProduct:
    """A product or convolution of two dequantised tensors that integers can compute.

    Attributes
    ----------
    scales : tuple of relax.Expr
        Both f32 scales; the second may be a vector with an entry for each channel.
    multiply : callable
        Emits the int32 sums.
    bounds : numpy.ndarray
        Largest possible magnitude of a sum: one number for all channels, or one for each.
    channels : int
        The axis of the result for the vector of scales, counted from the end.
    """

    scales: tuple[relax.Expr, relax.Expr]
    multiply: Callable[[Bindings], relax.Expr]
    bounds: np.ndarray
    channels: int = -1

    def along_channels(self, array: np.ndarray) -> np.ndarray:
        """Numbers in a shape that broadcasts to the result; a single number becomes a scalar."""
        shape = (-1, *(1,) * (-1 - self.channels))
        return np.asarray(array).reshape(() if array.size == 1 else shape)

    @property
    def known_scale(self) -> np.ndarray | None:
        """The product of two constant scales in f32, rounded as an operator would round it."""
        first, second = self.scales
        if not (isinstance(first, ir.GenericConst) and isinstance(second, ir.GenericConst)):
            return None
        return np.asarray(first.value.numpy() * second.value.numpy())

    def scaled(self, block: Bindings, bias: relax.Expr | None = None) -> relax.Expr:
        """The product as f32; the last operator is not bound yet."""
        total = self.multiply(block)
        if bias is not None:
            total = block.emit(relax.op.add(total, bias))
        real, known = block.emit(relax.op.astype(total, "float32")), self.known_scale
        if known is not None:
            return relax.op.multiply(real, relax.const(self.along_channels(known)))
        factors = [_as_number(block, scale) for scale in self.scales]
        scale = block.emit(relax.op.multiply(*factors))
        size = known_tensor(scale).size
        if size > 1 and self.channels < -1:
            shape = (size, *(1,) * (-1 - self.channels))
            scale = block.emit(relax.op.reshape(scale, shape))
        return relax.op.multiply(real, scale)


def integer_products(decisions: DecisionLog | None = None) -> Rule:
    """The rule that computes products and convolutions of two dequantised tensors in integers.

    Before

        lv = R.dequantize(x, sX, zX)                        # x: uint8 [N, H, W, C]
        lv1 = R.dequantize(const_w, sW, zW, axis=3)         # const_w: int8 [KH, KW, C, OC]
        lv2 = R.nn.conv2d(lv, lv1, padding=[1, 1])
        lv3 = R.add(lv2, R.dequantize(const_b, sX * sW, 0)) # int32 [OC]

    After

        lv = R.subtract(R.astype(x, "int32"), zX)           # without the subtraction if zX is 0
        lv1 = R.astype(const_w', "int32")                   # int8: const_w minus zW
        lv2 = R.nn.conv2d(lv, lv1, padding=[1, 1], out_dtype="int32")
        lv3 = R.multiply(R.astype(R.add(lv2, const_b), "float32"), sX * sW)

    Padding is 0 in x - zX, as it is 0 in the f32 tensor; so the integer tensor is padded with its
    zero point. The weight of a convolution has the form that `narrow_conv_weights` gives to all
    integer convolutions. Convolutions along one or three axes, grouped ones, and transposed ones of
    one group are rewritten, too.

    These stay in f32: convolutions whose scale is not constant over the sum (a scale of x along an
    axis, or of the weight along another axis than output channels), or whose weight is no constant
    and, minus its zero point, may not fit in int8; matrix products with a scale along K, which is
    not constant over the sum, or along M, which would need another kind of product; and all
    products whose sum could exceed 32 bits.

    Parameters
    ----------
    decisions : list of Decision, optional
        Receives why a product of two dequantised tensors is left in f32.
    """

    @rule("relax.matmul", *CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS)
    def integer_products(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
        factors = _read_factors(graph, call)
        if factors is None:
            return None
        find = _convolution if traits.is_convolution(call) else _matmul
        product = find(call, *factors)
        if isinstance(product, str):
            leave(decisions, block.var, call, product)
            return None
        bias = _integer_bias(graph, block.var, product)
        if bias is None:
            return product.scaled(block)
        # The scaled sum replaces the addition of the bias: nothing else needs the product.
        block.at(bias[0])
        return product.scaled(block, bias[1])

    return integer_products


def _read_factors(graph: DataflowGraph, call: relax.Call) -> tuple[Quantized, Quantized] | None:
    """The dequantised 8-bit factors of an f32 product; None if a factor is not such a tensor."""
    first, second = (read_dequantize(graph.definition(arg)) for arg in call.args)
    if first is None or second is None:
        return None
    types = {first.dtype, second.dtype, str(call.ty.dtype)}
    if types != {"float32"} or not {first.data_dtype, second.data_dtype} <= {*RANGES}:
        return None
    return first, second


def integers_of(block: Bindings, quantized: Quantized) -> relax.Expr:
    """The integers minus their zero point, int32."""
    zero_point = _as_number(block, quantized.quantization.zero_point)
    return centred(block.emit, quantized.data, zero_point)


def _integer_bias(
    graph: DataflowGraph, var: relax.Var, product: IntegerProduct
) -> tuple[relax.Var, relax.Expr] | None:
    """The addition of a bias to an integer product, and the bias as int32; None without such a
    bias, or if the sum may overflow."""
    user = graph.only_user(var)
    scale, tensor = product.known_scale, region_tensor(var)
    if user is None or scale is None:
        return None
    binding = graph.bindings[user]
    call = binding.value
    if op_name(call) != "relax.add" or tensor is None or binding.var.ty.dtype != tensor.dtype:
        return None
    others = [arg for arg in call.args if not arg.same_as(var)]
    read = read_dequantize(graph.definition(others[0])) if len(others) == 1 else None
    summed = region_tensor(binding.var)
    if read is None or summed is None or summed.shape != tensor.shape or read.data_dtype != "int32":
        return None
    if read.dtype != "float32" or not isinstance(read.data, ir.GenericConst):
        return None
    steps = read.quantization.known
    values = read.data.value.numpy()
    channels = tensor.shape[product.channels]
    if steps is None or np.any(steps[1]) or values.size not in (1, channels):
        return None
    # One value for each channel, along the channel axis.
    rank = len(tensor.shape)
    aligned = [1] * (rank - values.ndim) + list(values.shape)
    if values.size != 1 and aligned[product.channels] != channels:
        return None
    if read.quantization.axis is not None and values.size != steps[0].size:
        return None
    if not np.all(steps[0].reshape(-1) == scale.reshape(-1)):
        return None
    if np.any(product.bounds + np.abs(values.astype(np.int64).reshape(-1)) >= LIMIT):
        return None
    return binding.var, relax.const(product.along_channels(values))


def _as_number(block: Bindings, expr: relax.Expr) -> relax.Expr:
    """A tensor of one element as a scalar; any other tensor unchanged."""
    tensor = known_tensor(expr)
    if tensor.shape == () or tensor.size != 1:
        return expr
    if isinstance(expr, ir.GenericConst):
        return relax.const(expr.value.numpy().reshape(()))
    return block.emit(relax.op.reshape(expr, ()))


def _convolution(call: relax.Call, x: Quantized, w: Quantized) -> IntegerProduct | str:
    """A convolution of integers, or the reason why it stays in f32."""
    outputs = traits.kernel_outputs(call)
    if any(region_tensor(each) is None for each in (call, x.data, w.data)):
        return "a shape is not known at compile time"
    if x.quantization.axis is not None:
        return "the scale or zero point of the first operand differs along an axis"
    if w.quantization.axis not in (None, outputs):
        return "the scale or zero point of the weight differs along another axis than its outputs"
    if traits.is_transposed(call) and int(call.attrs.groups) != 1:
        return "a transposed convolution in groups"
    if not all(is_f32(factor.quantization.scale) for factor in (x, w)):
        return "a scale is not float32"
    weights, zeros = known_centred(w), w.quantization.zero_point
    centre = _CENTRES[w.data_dtype]
    fits = isinstance(zeros, ir.GenericConst) and bool(np.all(zeros.value.numpy() == centre))
    if weights is None and not fits:
        return "the weight is not a constant, and minus its zero point it may not fit in int8"
    # For a transposed convolution this counts more taps than a result sums.
    if weights is None:
        extents = enumerate(known_tensor(w.data).shape)
        taps = math.prod(extent for axis, extent in extents if axis != outputs)
        bounds = np.asarray(taps * largest(x) * largest(w))
    else:
        bounds = largest_sums(x, weights, outputs)
    if np.any(bounds >= LIMIT):
        return "the sum may need more than 32 bits"

    def multiply(block: Bindings) -> relax.Expr:
        integers = integers_of(block, x)
        if weights is not None:
            return _sum_of_convolutions(block, call, integers, weights)
        narrow, emit, op = w.data, block.emit, relax.op
        if centre:
            moved = op.subtract(emit(op.astype(narrow, "int32")), relax.const(centre, "int32"))
            narrow = emit(op.astype(emit(moved), "int8"))
        wide = emit(op.astype(narrow, "int32"))
        return emit(with_args(call, [integers, wide], out_dtype="int32"))

    scales = (x.quantization.scale, w.quantization.scale)
    return IntegerProduct(scales, multiply, bounds, traits.output_channels(call))


def _matmul(call: relax.Call, a: Quantized, w: Quantized) -> IntegerProduct | str:
    """A matrix product of integers, or the reason why it stays in f32."""
    a_tensor, w_tensor = region_tensor(a.data), region_tensor(w.data)
    if a_tensor is None or w_tensor is None:
        return "a shape is not known at compile time"
    if len(a_tensor.shape) < 2 or len(w_tensor.shape) < 2:
        return "an operand is a vector"
    if a.quantization.axis is not None:
        return "the scale or zero point of the first operand differs along an axis"
    if w.quantization.axis not in (None, len(w_tensor.shape) - 1):
        return (
            "the scale or zero point of the second operand differs along another axis than columns"
        )
    zeros = known_tensor(w.quantization.zero_point)
    if w.quantization.axis is not None and not zeros.constant and zeros.size != 1:
        return "zero points of columns are computed at run time"
    if not all(is_f32(factor.quantization.scale) for factor in (a, w)):
        return "a scale is not float32"
    # Bounds of the sums' magnitudes: one for all, or one for each column.
    bound = a_tensor.shape[-1] * largest(a) * largest(w)
    bounds = np.asarray(bound)
    if is_dynamic((bound,)) or bound >= LIMIT // 2:  # for most weights the simple bound suffices
        weights = known_centred(w)
        if weights is not None and weights.ndim == 2:
            bounds = largest_sums(a, weights, 1)
    if np.any(bounds >= LIMIT):
        return "the sum may need more than 32 bits"

    def multiply(block: Bindings) -> relax.Expr:
        return block.emit(relax.op.matmul(integers_of(block, a), integers_of(block, w), "int32"))

    return IntegerProduct((a.quantization.scale, w.quantization.scale), multiply, bounds)


_CENTRES = {"int8": 0, "uint8": 128}


def _sum_of_convolutions(
    block: Bindings, call: relax.Call, x: relax.Expr, weights: np.ndarray
) -> relax.Expr:
    """The sum of convolutions of x with int8 weights that add up to the given weights."""
    emit, parts = block.emit, (relax.const(part) for part in int8_parts(weights))
    wide = (emit(relax.op.astype(part, "int32")) for part in parts)
    sums = (emit(with_args(call, [x, w], out_dtype="int32")) for w in wide)
    return functools.reduce(lambda a, b: emit(relax.op.add(a, b)), sums)


def int8_parts(values: np.ndarray) -> list[np.ndarray]:
    """int8 arrays, at least one, whose sum is an array of integers."""
    parts: list[np.ndarray] = []
    left = values
    while not parts or left.any():
        parts.append(np.clip(left, *RANGES["int8"]).astype(np.int8))
        left = left - parts[-1]
    return parts


@rule(*CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS)
def narrow_conv_weights(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
    """Narrow: gives integer convolutions int8 weights without a zero point.

    Before

        lv = R.subtract(R.astype(const_w, "int32"), zW)     # const_w: uint8
        lv1 = R.nn.conv2d(x, lv, out_dtype="int32")

    After

        lv1 = R.nn.conv2d(x, R.astype(const_w', "int32"), out_dtype="int32")    # const_w': int8

    Kernels multiply int8 weights. If a weight minus its zero point does not fit in int8, it is
    split into a sum of int8 weights, and the convolution into a sum of convolutions, which is
    exact.
    """
    if str(call.ty.dtype) != "int32":
        return None
    widened = graph.definition(call.args[1])
    if is_call(widened, "relax.astype"):
        source = static_tensor(widened.args[0])
        if source is not None and source.constant and source.dtype == "int8":
            return None
    weights = known_integers(graph, call.args[1])
    if weights is None or np.abs(weights).max(initial=0) > 255:
        return None
    return _sum_of_convolutions(block, call, call.args[0], weights)
