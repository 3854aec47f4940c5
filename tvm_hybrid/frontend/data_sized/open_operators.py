"""Which operators are converted right where sizes depend on data, beside those of this room.

Others are refused: many converters read sizes, and take a symbol for an unknown one.
"""

from __future__ import annotations

from .broadcast import BROADCASTING

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
_IMAGES = frozenset({"BatchNormalization", "Conv", "GlobalAveragePool", "MaxPool", "RoiAlign"})
_OTHERS = frozenset({"Concat", "Gather", "Gemm", "MatMul", "Slice", "Split", "TopK", "Transpose"})

OPEN_OPERATORS = BROADCASTING | _ELEMENTWISE | _REDUCTIONS | _IMAGES | _OTHERS
