"""Operators by their effect on rounding errors."""

from __future__ import annotations

from math import prod, sqrt

import numpy as np

# These move, choose or compare values, or compute with integers: they never round.
EXACT = frozenset(
    [
        "Abs",
        "And",
        "ArgMax",
        "ArgMin",
        "BitShift",
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "Cast",
        "CastLike",
        "Ceil",
        "Clip",
        "Compress",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "ConvInteger",
        "DepthToSpace",
        "Equal",
        "Expand",
        "EyeLike",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "GlobalMaxPool",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "MatMulInteger",
        "Max",
        "MaxPool",
        "Min",
        "Mod",
        "Neg",
        "NonZero",
        "Not",
        "OneHot",
        "Or",
        "Pad",
        "Range",
        "ReduceMax",
        "ReduceMin",
        "Relu",
        "Reshape",
        "ReverseSequence",
        "Round",
        "ScatterElements",
        "ScatterND",
        "Shape",
        "Sign",
        "Size",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "ThresholdedRelu",
        "Tile",
        "TopK",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Where",
        "Xor",
    ]
)

# Sums, whose errors are relative to the sums of the absolute values.
PRODUCTS = frozenset(
    ["MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "FusedMatMul", "FusedConv", "FusedGemm"]
)
SUMS = PRODUCTS.union(
    [
        "AveragePool",
        "CumSum",
        "GlobalAveragePool",
        "Mean",
        "ReduceL1",
        "ReduceMean",
        "ReduceSum",
        "ReduceSumSquare",
        "Resize",
        "Sum",
    ]
)

# Operators that contain products, whose operands `precision="bf16"` rounds too.
ROUNDED = PRODUCTS.union(
    ["Attention", "GroupQueryAttention", "GRU", "LSTM", "MatMulNBits", "MultiHeadAttention", "RNN"]
)

# These may give 0 for results below 2^-126: see docs/numerics.md.
EXPONENTIALS = frozenset(
    [
        "Celu",
        "Elu",
        "Erf",
        "Exp",
        "Gelu",
        "Mish",
        "Pow",
        "Selu",
        "Sigmoid",
        "Softmax",
        "Softplus",
        "Tanh",
    ]
)

# A product that one of these operators reads may be fused with it, and then be neither rounded nor
# overflow.
FUSING = frozenset(["Add", "Sub", "Sum"])

# The sign of their zeros follows the formula, however they are compiled.
SIGNED = frozenset(
    [
        "Abs",
        "Ceil",
        "Concat",
        "DepthToSpace",
        "Div",
        "Expand",
        "Flatten",
        "Floor",
        "Gather",
        "Identity",
        "Mul",
        "Neg",
        "Reshape",
        "Round",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Sqrt",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "Where",
    ]
)


def length(op: str, shapes: list[tuple[int, ...]], result: tuple[int, ...]) -> int:
    """Approximate number of terms in each sum."""
    first = shapes[0]
    if op in ("MatMul", "FusedMatMul"):
        return first[-1] if first else 1
    if op in ("Conv", "FusedConv"):
        return prod(shapes[1][1:])
    if op == "ConvTranspose":
        return shapes[1][0] * prod(shapes[1][2:])
    if op == "Gemm":
        return max(first, default=1)
    if op == "Einsum":
        return max((max(shape, default=1) for shape in shapes), default=1)
    return max(1, prod(first) // max(1, prod(result)))


def unit_roundoff(dtype: np.dtype) -> float:
    """Half the distance from 1 to a type's next number."""
    return {"float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}.get(str(dtype), 2.0**-24)


def growth(terms: int) -> float:
    """Factor by which a sum's rounding errors grow with its length.

    The probabilistic bound: see `tvm_hybrid.bench.compare`.
    """
    return sqrt(max(terms, 1))
