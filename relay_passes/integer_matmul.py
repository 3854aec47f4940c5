"""Integers: a product of two dequantised tensors becomes an integer product, scaled afterwards.

Before

    lv = R.dequantize(a, sA, zA)                        # a: uint8 [M, K]
    lv1 = R.dequantize(w, sW, zW, axis=1)               # w: int8 [K, N], sW: f32 [N]
    lv2 = R.matmul(lv, lv1)

After

    lv = R.subtract(R.astype(a, "int32"), zA)           # without the subtraction if zA is 0
    lv1 = R.subtract(R.astype(w, "int32"), zW)
    lv2 = R.matmul(lv, lv1, out_dtype="int32")
    lv3 = R.multiply(R.astype(lv2, "float32"), sA * sW)

sum_k (a - zA) sA (w - zW) sW = sA sW sum_k (a - zA) (w - zW): the low-precision conversion of the
oneDNN Graph Compiler (arXiv 2301.01333). The integer sum is exact; it replaces a rounded sum of
rounded products, and is rounded twice: to f32, and when it is scaled. The two factors are
multiplied now if they are constants (which rounds as well), else by an operator of their own.

A scale that differs along K stands inside the sum, and one that differs along M would need a
product of another form: such matmuls stay in f32, as do those whose sum could leave 32 bits.
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from .decisions import Decision, DecisionLog
from .graph import DataflowGraph, binding_value, op_name, static_tensor
from .quantization import INTEGERS, Quantized, read_dequantize
from .rewrite_blocks import Bindings, block_pass


def integer_matmul(decisions: DecisionLog | None = None) -> ir.transform.Pass:
    """The pass; it needs A-normal form.

    Parameters
    ----------
    decisions : list of Decision, optional
        Receives why a product of two dequantised tensors is left in f32.
    """
    log = [] if decisions is None else decisions
    return block_pass("tvm_hybrid.integer_matmul", lambda graph: _rewrite(graph, log))


def _rewrite(graph: DataflowGraph, decisions: DecisionLog) -> list[relax.Binding] | None:
    """The block with integer products; None if there are none."""
    block = Bindings()
    found = False
    for binding in graph.bindings:
        operands = _operands(graph, binding_value(binding))
        reason = None if operands is None else _refusal(*operands)
        if reason is not None:
            decisions.append(
                Decision(node=str(binding.var.name), op="matmul", taken=False, reason=reason)
            )
        if operands is None or reason is not None:
            block.bindings.append(binding)
            continue
        found = True
        _emit(block, binding.var, *operands)
    return block.bindings if found else None


def _operands(graph: DataflowGraph, call: relax.Expr) -> tuple[Quantized, Quantized] | None:
    """What the operands of a f32 matmul are dequantised from; None if not both are, from 8 bits."""
    if op_name(call) != "relax.matmul" or str(call.ty.dtype) != "float32":
        return None
    first, second = (read_dequantize(graph.definition(arg)) for arg in call.args)
    if first is None or second is None:
        return None
    types = (first.dtype, second.dtype)
    if types != ("float32", "float32") or not {first.data_dtype, second.data_dtype} <= {*INTEGERS}:
        return None
    return first, second


def _refusal(a: Quantized, w: Quantized) -> str | None:
    """Why a product cannot be computed in integers; None if it can."""
    a_tensor, w_tensor = static_tensor(a.data), static_tensor(w.data)
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
    if w.quantization.axis is not None and not _number_or_constant(w.quantization.zero_point):
        return "zero points of columns are computed at run time"
    if any(str(q.quantization.scale.ty.dtype) != "float32" for q in (a, w)):
        return "a scale is not float32"
    if a_tensor.shape[-1] * _largest(a) * _largest(w) >= 2**31:
        return "the sum may need more than 32 bits"
    return None


def _number_or_constant(expr: relax.Expr) -> bool:
    tensor = static_tensor(expr)
    return tensor is not None and (tensor.constant or int(np.prod(tensor.shape)) == 1)


def _largest(quantized: Quantized) -> int:
    """Largest magnitude that integers less their zero point can have."""
    low, high = INTEGERS[quantized.data_dtype]
    zero_point = quantized.quantization.zero_point
    if not isinstance(zero_point, ir.GenericConst):
        return high - low
    zeros = zero_point.value.numpy().astype(np.int64)
    if isinstance(quantized.data, ir.GenericConst):
        values = quantized.data.value.numpy()
        low, high = int(values.min(initial=high)), int(values.max(initial=low))
    return int(max(abs(high - zeros.min()), abs(low - zeros.max())))


def _emit(block: Bindings, var: relax.Var, a: Quantized, w: Quantized) -> None:
    product = block.emit(relax.op.matmul(_widened(block, a), _widened(block, w), "int32"))
    real = block.emit(relax.op.astype(product, "float32"))
    scale = _product(block, a.quantization.scale, w.quantization.scale)
    block.bind(var, relax.op.multiply(real, scale))


def _widened(block: Bindings, quantized: Quantized) -> relax.Expr:
    """The integers less their zero point."""
    data = block.emit(relax.op.astype(quantized.data, "int32"))
    zero_point = quantized.quantization.zero_point
    if isinstance(zero_point, ir.GenericConst):
        zeros = zero_point.value.numpy().astype(np.int32)
        if not zeros.any():
            return data
        return block.emit(relax.op.subtract(data, relax.const(_scalar_or_vector(zeros))))
    number = _as_scalar(block, zero_point)
    return block.emit(relax.op.subtract(data, block.emit(relax.op.astype(number, "int32"))))


def _product(block: Bindings, first: relax.Expr, second: relax.Expr) -> relax.Expr:
    """The product of two scales, each a number or a vector."""
    if all(isinstance(scale, ir.GenericConst) for scale in (first, second)):
        # In f32, as an operator would.
        return relax.const(_scalar_or_vector(first.value.numpy() * second.value.numpy()))
    return block.emit(relax.op.multiply(_as_scalar(block, first), _as_scalar(block, second)))


def _scalar_or_vector(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).reshape(() if array.size == 1 else -1)


def _as_scalar(block: Bindings, expr: relax.Expr) -> relax.Expr:
    """A tensor of one element without axes; another as it is."""
    tensor = static_tensor(expr)
    assert tensor is not None
    if tensor.shape == () or int(np.prod(tensor.shape)) != 1:
        return expr
    if isinstance(expr, ir.GenericConst):
        return relax.const(expr.value.numpy().reshape(()))
    return block.emit(relax.op.reshape(expr, ()))
