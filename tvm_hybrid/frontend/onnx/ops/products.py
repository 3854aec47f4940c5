"""Matrix products in floats and integers; integer convolutions, determinants, diagonals.

operator               Relax
MatMulInteger          R.matmul(R.subtract(R.astype(a, "int32"), za), R.astype(b, "int32"),
                       out_dtype="int32"); no subtract for a zero point of 0
ConvInteger            R.nn.conv2d of such operands
QLinearMatMul          R.quantize(R.astype(MatMulInteger, "float32") * (sa * sb / sy), 1, zy)
MatMulNBits            R.matmul with a weight that is dequantized in blocks

The product of the scales is one float32 number per tensor, column or channel, multiplied from left
to right as in ONNX Runtime; it is a constant if the scales are constant.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import tvm.tirx.script.builder.ir as I
from numpy.typing import NDArray
from tvm import relax, tirx

from microkernels.base.arrays import RANGES
from relay_passes.ir.quantization import centred
from tir_schedules.core.emission import opaque_block

from ... import expressions as ex
from ...expressions import Expr, cast, dtype_of, literal, normalize
from ..evaluate import computed
from ..graph.graph import CONTRIB_DOMAIN, dtype_named
from ..graph.kernels import emit_kernel
from ..graph.requests import check_equal, check_product
from ..graph.sizes import dims_of, index, is_dynamic, plain, plain_dims
from ..operators import BFLOAT16, apply, operator
from . import quantized as q
from .pooling import window_form
from .quantized import single
from .windows import CONVOLUTIONS, arguments_of, check_channels, kernel_of, with_pads


@operator("MatMul")
def _matmul(a: Expr, b: Expr) -> Expr:
    check_product(a, b)
    return _added(a, b, None)


def _added(a: Expr, b: Expr, bias: Expr | None) -> Expr:
    """A product plus a bias; in bfloat16 the sum is rounded once."""
    wide = {"out_dtype": "float32"} if ex.dtype_of(a) == BFLOAT16 else {}
    total = relax.op.matmul(a, b, **wide)
    if bias is not None:
        total = total + (ex.cast(bias, "float32") if wide else bias)
    return relax.op.astype(total, BFLOAT16) if wide else total


@operator("Gemm")
def _gemm(a: Expr, b: Expr, c: Expr, *, alpha: float = 1, beta: float = 1, **turned: int) -> Expr:
    """Gemm; factors and transposes are folded into constant operands.

    Gemm(a, W, c, alpha=2, beta=0.5, transB=1)    ->    a * (constant 2*W^T) + (constant c/2)
    """
    a, b = _turned(a, turned.get("transA")), _turned(b, turned.get("transB"))
    check_product(a, b)
    if alpha != 1.0 and ex.constant(b) is not None:
        b = computed("Mul", b, ex.number(b, alpha))
    elif alpha != 1.0:
        a = computed("Mul", a, ex.number(a, alpha))
    if c is not None and beta not in (0.0, 1.0):
        c = computed("Mul", c, ex.number(c, beta))
    return _added(a, b, c if beta else None)


def _turned(value: Expr, is_turned: int | None) -> Expr:
    """Transposes the last two axes of matrices if `is_turned`; a vector stays as it is."""
    rank = ex.rank_of(value)
    order = [*range(rank - 2), rank - 1, rank - 2]
    return computed("Transpose", value, perm=order) if is_turned and rank > 1 else value


@operator("FusedMatMul", "TransposeMatMul", domain=CONTRIB_DOMAIN)
def _fused_matmul(a: Expr, b: Expr, *, alpha: float = 1.0, **turned: int) -> Expr:
    """FusedMatMul(a, b, transA, transB, alpha)    ->    a or a^T, times b or b^T, times alpha"""
    if turned.get("transBatchA") or turned.get("transBatchB"):
        raise ValueError("transBatchA/transBatchB is unsupported")
    a, b = _turned(a, turned.get("transA")), _turned(b, turned.get("transB"))
    product = apply("MatMul", a, b)
    return product if alpha == 1.0 else apply("Mul", product, ex.number(product, alpha))


@operator("MatMulInteger")
def _matmul_integer(a: Expr, b: Expr, left: Expr, right: Expr) -> Expr:
    _check_integers(a, left)
    _check_integers(b, right)
    check_product(a, b)
    a = centred(ex.normalize, a, None if left is None else _of_rows(left, a))
    b = centred(ex.normalize, b, None if right is None else _of_columns(right, b))
    return relax.op.matmul(a, b, out_dtype="int32")


@operator("ConvInteger")
def _conv_integer(x: Expr, weight: Expr, left: Expr, right: Expr, **attrs: Any) -> Expr:
    rank = ex.rank_of(x) - 2
    if rank not in CONVOLUTIONS:
        raise ValueError(f"a convolution over {rank} dimensions is not supported")
    _check_integers(x, left)
    _check_integers(weight, right)
    check_channels(x, weight, attrs)
    if right is not None:
        right = _of_channels(right, weight, rank + 1)
    x, attrs = with_pads("ConvInteger", x, kernel_of(weight, attrs), window_form(attrs, rank))
    # The operator pads with zero points, so padding is 0 after the zero point is subtracted.
    x, weight = centred(ex.normalize, x, single(left)), centred(ex.normalize, weight, right)
    return CONVOLUTIONS[rank](x, weight, **arguments_of(attrs), out_dtype="int32")


def _check_integers(value: Expr, zero_point: Expr | None) -> None:
    dtype = ex.dtype_of(value)
    if dtype not in RANGES:
        raise ValueError(f"an operand of the type {dtype} is not uint8 or int8")
    if zero_point is not None and ex.dtype_of(zero_point) != dtype:
        raise ValueError(f"a zero point of another type than its operand, {dtype}")


def _broadcast(value: Expr, fits: bool, shape: Sequence[int], whom: str) -> Expr:
    """Reshapes a scale or zero point to broadcast to the result; rank 0 if it is one number."""
    found = ex.known_dims(value)
    if math.prod(found) == 1:
        return ex.reshaped(value, ())
    if not fits:
        raise ValueError(f"a scale or zero point of the shape {found}, and {whom}")
    if len(found) > 1:
        return value
    return ex.reshaped(value, [found[0] if size == -1 else size for size in shape])


def _of_rows(value: Expr, operand: Expr) -> Expr:
    """Checks a value of one number, or one for each row of a left operand, and reshapes it."""
    dims = ex.static_dims(operand)
    fits = dims is None or ex.known_dims(value) in (dims[-2:-1], (*dims[:-1], 1))
    return _broadcast(value, fits, (-1, 1), f"an operand {dims}: there is one for all or each row")


def _of_columns(value: Expr, operand: Expr) -> Expr:
    """Checks a value of one number, or one for each column of a right operand, and reshapes it."""
    dims, found = ex.static_dims(operand), ex.known_dims(value)
    fits = dims is None or (found[-1:] == dims[-1:] and found[-2:-1] in ((), (1,)))
    return _broadcast(value, fits, (-1,), f"the product has {(dims or [0])[-1]} columns")


def _of_channels(value: Expr, weight: Expr, ones: int) -> Expr:
    """A value of one number, or one per output channel, with `ones` axes of size 1 after it."""
    dims = ex.known_dims(weight)
    fits = ex.known_dims(value) == dims[:1]
    shape = (-1, *[1] * ones)
    return _broadcast(value, fits, shape, f"the convolution has {dims[0]} output channels")


def _factor(*scales: Expr, over: Expr | None = None) -> Expr:
    """The product of scales in float32, from left to right, divided by the output's scale."""
    singles = (ex.cast(each, "float32") for each in scales)
    factor = functools.reduce(functools.partial(computed, "Mul"), singles)
    return factor if over is None else computed("Div", factor, ex.cast(single(over), "float32"))


def _rounded(value: Expr, zero_point: Expr | None, dtype: str) -> Expr:
    """Rounds a float value to 8 bits with scale 1."""
    return q.requantized(value, ex.literal(np.array(1, np.float32)), zero_point, dtype)


def _scaled(sums: Expr, factor: Expr) -> Expr:
    return apply("Mul", ex.cast(sums, "float32"), factor)


@operator("QLinearMatMul")
def _qlinear_matmul(*given: Expr) -> Expr:
    a, sa, za, b, sb, zb, scale, zero = given
    factor = _factor(_of_rows(sa, a), _of_columns(sb, b), over=scale)
    return _rounded(_scaled(apply("MatMulInteger", a, b, za, zb), factor), zero, ex.dtype_of(a))


@operator("QGemm", domain=CONTRIB_DOMAIN)
def _qgemm(*given: Expr, alpha: float = 1.0, **turned: int) -> Expr:
    """QGemm(A, sa, za, B, sb, zb, C, sy, zy); without sy the result stays float.

    ->  QuantizeLinear(Cast(MatMulInteger(A', B', za, zb) + C) * (alpha * sa * sb / sy), 1, zy)
    """
    a, sa, za, b, sb, zb, c, scale, zero = [*given, *[None] * 9][:9]
    a, b = _turned(a, turned.get("transA")), _turned(b, turned.get("transB"))
    scales: tuple[Expr, ...] = single(sa), _of_columns(sb, b)
    if alpha != 1.0:
        scales = ex.literal(np.array(alpha, np.float32)), *scales
    total = apply("MatMulInteger", a, b, single(za), zb)
    value = _scaled(total if c is None else apply("Add", total, c), _factor(*scales, over=scale))
    return value if scale is None else _rounded(value, zero, ex.dtype_of(a))


@operator("QLinearConv")
@operator("QLinearConv", domain=CONTRIB_DOMAIN)
def _qlinear_conv(*given: Expr, **attrs: Any) -> Expr:
    """QLinearConv(x, sx, zx, w, sw, zw, sy, zy, B)

    ->  QuantizeLinear(Cast(ConvInteger(x, w, zx, zw) + B) * (sx * sw / sy), 1, zy)
    """
    x, sx, zx, w, sw, zw, scale, zero, bias = [*given, *[None] * 9][:9]
    axes = ex.rank_of(w) - 2
    factor = _factor(single(sx), _of_channels(sw, w, axes), over=scale)

    def real(value: Expr) -> Expr:
        total = apply("ConvInteger", value, w, single(zx), zw, **attrs)
        if bias is not None:
            total = apply("Add", total, ex.reshaped(bias, (-1, *[1] * axes)))
        return _scaled(total, factor)

    value = q.channels_first(x, real) if attrs.get("channels_last") else real(x)
    return _rounded(value, zero, ex.dtype_of(x))


@operator("MatMulIntegerToFloat", domain=CONTRIB_DOMAIN)
def _matmul_integer_to_float(*given: Expr) -> Expr:
    """MatMulIntegerToFloat(a, b, sa, sb, za, zb, bias)

    ->  Cast(MatMulInteger(a, b, za, zb)) * (sa * sb) + bias
    """
    a, b, sa, sb, za, zb, bias = [*given, *[None] * 7][:7]
    factor = _factor(single(sa), _of_columns(sb, b))
    product = _scaled(apply("MatMulInteger", a, b, single(za), zb), factor)
    return product if bias is None else apply("Add", product, bias)


@operator("DynamicQuantizeMatMul", domain=CONTRIB_DOMAIN)
def _dynamic_quantize_matmul(a: Expr, b: Expr, scale: Expr, zero: Expr, bias: Expr) -> Expr:
    """Quantizes the first operand of a DynamicQuantizeMatMul, then applies MatMulIntegerToFloat."""
    q, q_scale, q_zero = apply("DynamicQuantizeLinear", a)
    return _matmul_integer_to_float(q, b, q_scale, scale, q_zero, zero, bias)


@operator("MatMulInteger16", domain=CONTRIB_DOMAIN, static=True)
def _matmul_integer_16(a: Expr, b: Expr) -> Expr:
    """ONNX Runtime's product of int16 or uint16 matrices, in 32 bits."""
    wide = "uint32" if ex.dtype_of(a) == ex.dtype_of(b) == "uint16" else "int32"
    return relax.op.matmul(ex.cast(a, wide), ex.cast(b, wide))


INT8_LEVEL = 4  # the accuracy_level that permits int8 activations; passed on as a type argument


@operator("MatMulNBits", domain=CONTRIB_DOMAIN)
def _matmul_nbits(
    x: Expr, packed: Expr, scales: Expr, zeros: Expr, order: Expr, bias: Expr, **attrs: Any
) -> Expr:
    """ONNX Runtime's product with a weight of few bits, which is unpacked to one number per byte.

    MatMulNBits(x, B: uint8 [N, K / b, b * bits / 8], scales: [N, K / b], zero_points, bias)
        ->  x * (blocks of weight: int8 [K, N], scales^T, zero_points^T) + bias
    """
    bits, block = attrs.get("bits", 4), attrs["block_size"]
    columns, depth = attrs["N"], attrs["K"]
    if bits not in q.BITS or block < 1 or block * bits % 8:
        raise ValueError(f"{bits} bits in blocks of {block}")
    if order is not None:
        raise ValueError("g_idx (rows in another order) is not supported; quantise without it")
    if attrs.get("weight_prepacked", 0):
        raise ValueError("its weight is packed for a GPU")
    blocks = -(-depth // block)
    weight = q.unpack(_array(packed, (columns, blocks, block * bits // 8)), bits)
    weight = weight.reshape(columns, blocks * block)[:, :depth]
    scale, offsets = _array(scales, (columns, blocks)), None
    if zeros is not None and ex.dtype_of(zeros) == "uint8":
        per_row = -(-blocks * bits // 8)
        offsets = q.unpack(_array(zeros, (columns, per_row)), bits)[:, :blocks]
    elif zeros is not None:
        offsets = _array(zeros, (columns, blocks))
    # Without zero points the middle of the range means 0, and the weight is stored as the
    # difference from it.
    middle = 1 << (bits - 1)
    if offsets is None or (offsets == middle).all():
        weight, offsets = (weight.astype(np.int16) - middle).astype(np.int8), None
    # int8 or uint8 [K, N]; the product reads it by rows.
    zero_point = None if offsets is None or not offsets.any() else ex.literal(offsets.T)
    how = q.Parameters(ex.literal(scale.T), zero_point, 0, block)
    value = ex.cast(q.dequantized_blocks(ex.literal(weight.T), how), ex.dtype_of(scales))
    product = apply("MatMul", x, value)
    # At this level, x may be quantized to int8 in blocks.
    if attrs.get("accuracy_level", 0) == INT8_LEVEL:
        int8 = relax.TensorType(None, "int8")
        product = relax.Call(product.op, product.args, product.attrs, [int8])
    return product if bias is None else apply("Add", product, bias)


def _array(value: Expr, shape: Sequence[int]) -> NDArray[Any]:
    """A constant reshaped to a shape; older models store scales and zero points flat."""
    array = ex.known_array(value, "its weight, scales and zero points must be constant")
    if array.shape not in (shape, (math.prod(shape),)):
        raise ValueError(f"an array of the shape {array.shape}; its attributes ask for {shape}")
    return array.reshape(shape)


# Determinants, identity matrices and Einsum.
#
# operator    Relax
# Det         a kernel: Gaussian elimination in at least float32, with a column's largest as pivot
# EyeLike     R.eye


WRITTEN = (2, 3, 4)
"""Sizes of matrices that get separate code if the size is dynamic."""


@operator("Det")
def _det(x: Expr) -> Expr:
    dtype = dtype_of(x)
    *batch, rows, columns = plain_dims(x)
    misfit = f"matrices of {rows} rows and {columns} columns are not square"
    check_equal(dims_of(x)[-2], dims_of(x)[-1], misfit)
    if rows == 0 and all(isinstance(size, int) for size in batch):
        return literal(np.ones(batch, x.ty.dtype.dtype))
    wide = dtype if dtype == "float64" else "float32"
    count = math.prod(batch)
    flat = normalize(relax.op.reshape(cast(x, wide), (count, rows, rows)))

    # Elimination works on a copy with one more row, as scratch memory for exchanging rows.
    results = [([count], wide), ([count, rows + 1, rows], wide)]
    found, _ = emit_kernel("det", [flat], results, _eliminate)
    return cast(relax.op.reshape(found, tuple(batch)), dtype)


def _eliminate(source: Expr, out: Expr, work: Expr) -> None:
    """Writes the determinants; small matrices get separate code, and need no memory."""
    count, size, _ = plain(source.shape)
    is_known = isinstance(size, int)
    with ExitStack() as others:
        for few in () if is_known else WRITTEN:
            others.enter_context(I.If(tirx.EQ(size, index(few))))
            with I.Then():
                _matrices(source, out, None, count, few)
            others.enter_context(I.Else())
        _matrices(source, out, None if is_known and size in WRITTEN else work, count, size)


def _matrices(source: Expr, out: Expr, memory: Expr | None, count: Expr, size: Expr) -> None:
    """Multiplies the pivots of each matrix; each exchange of rows changes the sign."""
    with I.parallel(count) as n, opaque_block("matrix"):
        found = I.sblock_alloc_buffer([1], out.dtype)
        before = [] if memory is None else [n]
        work = I.sblock_alloc_buffer([size + 1, size], out.dtype) if memory is None else memory
        size = index(size)

        def get(row: Expr | int, column: Expr | int) -> Expr:
            return work[(*before, row, column)]

        def put(row: Expr | int, column: Expr | int, value: Expr) -> None:
            I.buffer_store(work, value, [*before, row, column])

        I.buffer_store(found, tirx.const(1, out.dtype), [0])
        with I.serial(size) as i, I.serial(size) as j:
            put(i, j, source[n, i, j])
        with I.serial(size) as k:
            with I.serial(size - 1 - k) as below:
                row = k + 1 + below
                with I.If(tirx.abs(get(row, k)) > tirx.abs(get(k, k))), I.Then():
                    I.buffer_store(found, -found[0], [0])
                    with I.serial(size) as j:
                        put(size, j, get(k, j))
                        put(k, j, get(row, j))
                        put(row, j, get(size, j))
            with I.serial(size - 1 - k) as below:
                row = k + 1 + below
                # Below a pivot of 0 there are only zeros, or NaN, which must stay.
                nothing = get(row, k) == tirx.const(0, out.dtype)
                quotient = get(row, k) / get(k, k)
                put(size, 0, tirx.Select(nothing, tirx.const(0, out.dtype), quotient))
                with I.serial(size - 1 - k) as right:
                    column = k + 1 + right
                    put(row, column, get(row, column) - get(size, 0) * get(k, column))
            I.buffer_store(found, found[0] * get(k, k), [0])
        I.buffer_store(out, found[0], [n])


@operator("EyeLike")
def _eye_like(x: Expr, *, dtype: int = 0, k: int = 0) -> Expr:
    rows, columns = dims_of(x)
    return relax.op.eye(rows, columns, k, dtype_named(dtype) if dtype else dtype_of(x))


@operator("Einsum")
def _einsum(*inputs: Expr, equation: str) -> Expr:
    """Einsum as Relax's operator, which a pass may turn into a product."""
    if any(map(is_dynamic, inputs)):
        terms = equation.replace(" ", "").split("->")[0].split(",")
        if len(inputs) > 1 and any("." in term for term in terms):
            raise ValueError("dimensions without a letter in several inputs of dynamic sizes")
        found: dict[str, Any] = {}
        for term, value in zip(terms, inputs, strict=True):
            dims, (before, _, behind) = dims_of(value), term.partition("...")
            places = [*enumerate(before), *((i - len(behind), c) for i, c in enumerate(behind))]
            for place, letter in places:
                check_equal(found.setdefault(letter, dims[place]), dims[place])
    return relax.op.einsum(inputs, equation)
