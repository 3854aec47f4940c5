"""Which operators are converted right where sizes depend on data, beside those of this room.

Others are refused: many converters read sizes, and take a symbol for an unknown one.
"""

from __future__ import annotations

from .broadcast import BROADCASTING

_ELEMENTWISE = frozenset(
    {
        *("Abs", "BitwiseNot", "Cast", "Ceil", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor"),
        *("Gelu", "HardSigmoid", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Neg", "Not"),
        *("Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Tanh"),
    }
)
_REDUCTIONS = frozenset(
    {
        *("ArgMax", "ArgMin", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin"),
        *("ReduceProd", "ReduceSum", "ReduceSumSquare", "Softmax"),
    }
)
_OTHERS = frozenset({"Concat", "Gather", "Gemm", "MatMul", "Slice", "TopK", "Transpose"})

OPEN_OPERATORS = BROADCASTING | _ELEMENTWISE | _REDUCTIONS | _OTHERS
