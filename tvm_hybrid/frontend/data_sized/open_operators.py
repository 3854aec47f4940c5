"""Which operators are converted right where sizes depend on data, beside those of this room.

Others are refused: many converters read sizes, and take a symbol for an unknown one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ..expressions import Expr
from .broadcast import BROADCASTING, align, joined
from .input_checks import INPUT_CHECKS
from .requests import check
from .sizes import dims_of, is_open, is_unknown

_ELEMENTWISE = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitCast", "BitwiseNot"),
        *("Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Dropout", "Elu", "Erf", "Exp", "Floor"),
        *(
            "Gelu",
            "HardSigmoid",
            "HardSwish",
            "Identity",
            "IsInf",
            "IsNaN",
            "LeakyRelu",
            "Log",
            "Mish",
        ),
        *(
            "Neg",
            "Not",
            "PRelu",
            "Reciprocal",
            "Relu",
            "Round",
            "Selu",
            "Shrink",
            "Sigmoid",
            "Sign",
            "Sin",
        ),
        *("Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu"),
    }
)
_REDUCTIONS = frozenset(
    {
        *("ArgMax", "ArgMin", "GroupNormalization", "Hardmax", "InstanceNormalization"),
        *("LayerNormalization", "LogSoftmax", "MeanVarianceNormalization", "RMSNormalization"),
        *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Softmax"),
    }
)
_IMAGES = frozenset(
    {
        *("AffineGrid", "AveragePool", "BatchNormalization", "Col2Im", "Conv", "ConvTranspose"),
        *("DeformColumns", "DepthToSpace"),
        *("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GridSample", "LRN", "LpPool"),
        *("MaxPool", "MaxPoolPlaces", "MaxRoiPool", "MaxUnpool", "Resize", "RoiAlign"),
        *("SpaceToDepth", "Upsample"),
    }
)
_QUANTIZED = frozenset(
    {
        *("ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"),
        "QuantizeLinear",
    }
)
_OTHERS = frozenset(
    {
        *("CausalMask", "Concat", "CumProd", "CumSum", "DecodeFloat", "Det", "Einsum"),
        *("EncodeFloat", "EyeLike", "FourierTable", "Frames"),
        *("Gather", "Gemm", "MatMul", "Pad", "Recurrent", "ReverseSequence", "ScatterElements"),
        "ScatterND",
        *("Slice", "Split", "TensorScatter", "TopK", "Transpose", "Trilu", "UpdateCache"),
    }
)

OPEN_OPERATORS = BROADCASTING | _ELEMENTWISE | _REDUCTIONS | _IMAGES | _QUANTIZED | _OTHERS


def prepared(
    builder: relax.BlockBuilder, op_type: str, inputs: Sequence[Any], attrs: dict[str, Any]
) -> list[Any]:
    """The inputs of an operator, of sizes that fit as far as TVM can tell.

    Where they depend on data, the program checks them before.
    """
    if not any(map(is_open, inputs)):
        return list(inputs)
    if op_type in BROADCASTING:
        return align(builder, inputs)
    if op_type == "Concat":
        return joined(builder, inputs, attrs["axis"])
    if op_type in INPUT_CHECKS:
        INPUT_CHECKS[op_type](builder, inputs, attrs)
    return list(inputs)


def check_result(
    builder: relax.BlockBuilder, inputs: Sequence[Any], result: Expr, is_right: bool
) -> None:
    """Has the program check the sizes of a result that depend on data.

    Parameters
    ----------
    is_right
        Whether the operator is converted right where sizes depend on data.

    Raises
    ------
    ValueError
        It is not, or the sizes are not known in terms of others.
    """
    values = list(result) if isinstance(result, relax.Tuple) else [result]
    opened = list(filter(is_open, values))
    if not is_right and (opened or any(map(is_open, inputs))):
        raise ValueError("a size of an input or of the result depends on data")
    if any(map(is_unknown, values)):
        raise ValueError("sizes of its inputs that depend on data are not known to fit")
    for value in opened:
        for size in dims_of(value):
            check(builder, size >= 0)
