"""Which operators are converted right where sizes depend on data, beside those of this room.

Others are refused: many converters read sizes, and take a symbol for an unknown one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ..expressions import Expr
from .access import check_extreme
from .broadcast import BROADCASTING, PRODUCTS, align, check_product, joined
from .requests import check
from .sizes import dims_of, is_open, is_unknown

_ELEMENTWISE = frozenset(
    {
        *("Abs", "Atan", "BitwiseNot", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Elu", "Erf"),
        *("Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN"),
        *("LeakyRelu", "Log", "Neg", "Not", "PRelu", "Reciprocal", "Relu", "Round", "Selu"),
        *("Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tanh"),
        "ThresholdedRelu",
    }
)
_REDUCTIONS = frozenset(
    {
        *("ArgMax", "ArgMin", "LayerNormalization", "LogSoftmax", "ReduceL1", "ReduceL2"),
        *("ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
        *("ReduceSumSquare", "Softmax"),
    }
)
_IMAGES = frozenset(
    {
        *("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "GlobalAveragePool"),
        *("GlobalMaxPool", "MaxPool", "Resize", "RoiAlign"),
    }
)
_QUANTIZED = frozenset(
    {
        *("ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"),
        "QuantizeLinear",
    }
)
_OTHERS = frozenset(
    {"Concat", "Gather", "Gemm", "MatMul", "Pad", "Slice", "Split", "TopK", "Transpose"}
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
    if op_type in PRODUCTS:
        check_product(builder, *inputs[:2])
    elif op_type in ("ArgMax", "ArgMin"):
        check_extreme(builder, inputs[0], attrs.get("axis", 0))
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
