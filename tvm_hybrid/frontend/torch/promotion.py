"""Casts operands of different element types to the common type that PyTorch computes in.

    mul(x: int64, 0.5)  ->  R.multiply(R.astype(x, "float32"), R.const(0.5, "float32"))
    add(x, y, alpha=2)  ->  R.add(x, R.multiply(y, R.const(2, "float32")))

TVM's converters give a number the tensor's type, and ignore `alpha`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import tvm
from tvm import relax

from microkernels.base.errors import UnsupportedOperatorError

from ..expressions import dtype_of, emit

_FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "expm1"),
    *("log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt"),
    *("tan", "tanh"),
)
# Operators whose operands get the type of the result.
_ARITHMETIC = (
    *(f"{name}.default" for name in _FUNCTIONS),
    *(f"{name}.{form}" for name in ("add", "sub", "rsub", "mul") for form in ("Tensor", "Scalar")),
    *("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode"),
    "true_divide.Tensor",
    *("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "atan2.default"),
    *("maximum.default", "minimum.default", "fmod.Tensor", "fmod.Scalar"),
    *("remainder.Tensor", "remainder.Scalar", "where.self", "cat.default", "stack.default"),
    *(f"bitwise_{name}.{form}" for name in ("and", "or", "xor") for form in ("Tensor", "Scalar")),
    *("clamp.default", "clamp.Tensor", "mean.dim", "mean.default", "cumsum.default"),
    *("cumprod.default", "sum.dim_IntList", "sum.default", "prod.default", "prod.dim_int"),
)
# Operators whose operands get their common type, as the result is bool.
_COMPARISONS = tuple(
    f"{name}.{form}"
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for form in ("Tensor", "Scalar")
)
PROMOTED = (*_ARITHMETIC, *_COMPARISONS)

Converter = Callable[[Any], Any]


def promoting(importer: Any, name: str, convert: Converter) -> Converter:
    """Wraps a converter so that its operands are cast first.

    Parameters
    ----------
    importer : tvm.relax.frontend.torch.exported_program_translator.ExportedProgramImporter
        Its `env` holds the values.
    name : str
        One of PROMOTED.
    convert : callable
        Converts a node whose operands have one type.
    """

    def promoted(node: Any) -> Any:
        kind = node.meta["val"].dtype
        if name in _COMPARISONS:
            two = (each.meta["val"] if hasattr(each, "meta") else each for each in node.args[:2])
            kind = torch.result_type(*map(_example, two))
        common = type_name(kind)
        before: dict[Any, Any] = {}
        for number, each in enumerate(node.all_input_nodes):
            value = importer.env[each]
            example = each.meta.get("val")
            if isinstance(example, (torch.SymInt, torch.SymFloat)):
                before[each] = value
                importer.env[each] = as_type(importer.sizes.tensor(example.node.expr), common)
            is_condition = name == "where.self" and number == 0
            if isinstance(getattr(value, "ty", None), relax.TensorType) and not is_condition:
                before[each] = value
                importer.env[each] = as_type(value, common)
        try:
            factor = node.kwargs.get("alpha", 1)
            if factor == 1:
                return convert(node)
            left, right = (
                importer.env[each] if hasattr(each, "meta") else relax.const(each, common)
                for each in node.args[:2]
            )
            scaled = relax.op.multiply(right, relax.const(factor, common))
            combine = relax.op.subtract if name.startswith("sub") else relax.op.add
            return emit(combine(left, scaled))
        finally:
            importer.env.update(before)

    return promoted


def as_type(value: Any, dtype: str) -> Any:
    """Casts a tensor to a type, unless it has it."""
    return value if dtype_of(value) == dtype else emit(relax.op.astype(value, dtype))


def _example(value: Any) -> Any:
    """What PyTorch's type promotion needs to know of a value."""
    if isinstance(value, torch.Tensor):
        return torch.empty([1] * value.dim(), dtype=value.dtype)
    return 0 if isinstance(value, torch.SymInt) else value


# PyTorch's tensors as constants of Relax. They are copied, so that later changes to a tensor do not
# change programs, and so that they have the alignment that kernels expect.


_TYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)


def type_name(dtype: Any) -> str:
    """TVM's name of an element type.

    Raises
    ------
    UnsupportedOperatorError
        TVM has no such type.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in _TYPES:
        raise UnsupportedOperatorError(f"tensors of type {dtype} are not supported")
    return name


def constant_of(tensor: Any) -> relax.Expr:
    """The current values of a tensor, of any strides, as a constant."""
    memory = tvm.runtime.empty(tuple(tensor.shape), type_name(tensor.dtype))
    if tensor.numel():
        torch.from_dlpack(memory).copy_(tensor.detach())
    return relax.const(memory)
