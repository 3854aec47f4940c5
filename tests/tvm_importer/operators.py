"""Models of operators that compute elementwise, reduce, or move elements."""

from __future__ import annotations

import numpy as np

from .graphs import I32, I64, U8, Graph


def unary() -> Graph:
    """Functions of one element, and functions along an axis."""
    g = Graph()
    x, positive = g.floats(3, 7), g.floats(3, 7, low=0.25, high=3)
    for op in ("Abs", "Ceil", "Floor", "Round", "Sign", "Neg", "Exp", "Sin", "Cos", "Erf", "Atan"):
        g.result(op, x)
    for op in ("Sigmoid", "Tanh", "Softplus", "Softsign", "Relu", "HardSwish", "Mish", "Gelu"):
        g.result(op, x)
    for op in ("Sinh", "Cosh", "Asinh", "Tan"):
        g.result(op, x)
    for op in ("Sqrt", "Log", "Reciprocal"):
        g.result(op, positive)
    g.result("Elu", x, alpha=0.7)
    g.result("Selu", x, alpha=1.5, gamma=0.8)
    g.result("LeakyRelu", x, alpha=0.2)
    g.result("HardSigmoid", x, alpha=0.3, beta=0.4)
    g.result("ThresholdedRelu", x, alpha=0.5)
    g.result("Shrink", x, lambd=0.5, bias=0.25)
    g.result("Gelu", x, approximate="tanh")
    g.result("Clip", x, g.builder.constant(-0.5, np.float32))
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        g.result(op, x, axis=0)
    for to, dtype in ((7, I64), (6, I32), (9, bool)):
        g.result("Cast", x, dtype=dtype, to=to)
    return g


def binary() -> Graph:
    """Functions of two elements, with broadcast shapes."""
    g = Graph()
    x, row, column = g.floats(2, 3, 5), g.floats(5), g.floats(3, 1, low=0.5)
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"):
        g.result(op, x, column)
    g.result("Max", x, row, column)
    g.result("Sum", row, x, column)
    g.result("Pow", column, row)
    g.result("Mod", x, column, fmod=1)
    g.result("PRelu", x, column)
    for op in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"):
        g.result(op, x, row, dtype=bool)
    a, b = g.integers(4, 3), g.integers(3, low=1)
    for op in ("Add", "Mul", "Div", "Mod", "BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        g.result(op, a, b, dtype=I32)
    g.result("BitwiseNot", a, dtype=I32)
    bits, shift = g.integers(6, dtype=U8, low=0, high=255), g.integers(6, dtype=U8, low=0, high=8)
    g.result("BitShift", bits, shift, dtype=U8, direction="LEFT")
    p, q = g.flags(4, 3), g.flags(3)
    for op in ("And", "Or", "Xor"):
        g.result(op, p, q, dtype=bool)
    g.result("Not", p, dtype=bool)
    g.result("Where", p, a, b, dtype=I32)
    return g


def reductions() -> Graph:
    """Every reduction, over axes counted from the front or the back; ArgMax, ArgMin and CumSum."""
    g = Graph()
    x, positive = g.floats(3, 4, 5), g.floats(3, 4, 5, low=0.25)
    for op in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare", "LogSumExp"):
        g.result(f"Reduce{op}", x, g.numbers(-1, 0), keepdims=0)
        g.result(f"Reduce{op}", positive, g.numbers(1))
    g.result("ReduceLogSum", positive, g.numbers(2))
    g.result("ReduceSum", g.integers(3, 6), dtype=I32)
    ties = g.integers(4, 6, low=0, high=3)
    for op in ("ArgMax", "ArgMin"):
        for last in (0, 1):
            g.result(op, ties, dtype=I64, axis=1, select_last_index=last)
        g.result(op, x, dtype=I64, axis=-2, keepdims=0)
    for exclusive in (0, 1):
        g.result("CumSum", x, g.builder.constant(1, I64), exclusive=exclusive, reverse=exclusive)
    g.results("TopK", [np.float32, I64], x, g.numbers(2), axis=1)
    g.results("TopK", [np.float32, I64], x, g.numbers(3), largest=0)
    return g


def moves() -> Graph:
    """Operators that move elements without changing them."""
    g = Graph()
    x = g.floats(2, 4, 6)
    g.result("Transpose", x, perm=[2, 0, 1])
    g.result("Reshape", x, g.numbers(0, -1))
    g.result("Flatten", x, axis=2)
    g.result("Unsqueeze", x, g.numbers(0, -1))
    g.result("Squeeze", g.floats(1, 3, 1), g.numbers(-1))
    g.result("Slice", x, g.numbers(-1, 1), g.numbers(-7, 5), g.numbers(2, 1), g.numbers(-2, 1))
    g.results("Split", [np.float32] * 2, x, g.numbers(1, 3), axis=1)
    g.result("Concat", x, x, g.floats(2, 4, 1), axis=-1)
    g.result("Tile", x, g.numbers(1, 2, 3))
    g.result("Expand", g.floats(4, 1), g.numbers(2, 1, 5))
    g.result("Pad", x, g.numbers(0, 1, 2, 0, 0, 1), g.builder.constant(1.5, np.float32))
    for mode in ("edge", "reflect"):
        g.result("Pad", x, g.numbers(0, 1, 2, 0, 0, 1), mode=mode)
    blocks = g.floats(1, 8, 2, 4)
    for mode in ("DCR", "CRD"):
        g.result("DepthToSpace", blocks, blocksize=2, mode=mode)
    g.result("SpaceToDepth", blocks, blocksize=2)
    square = g.integers(5, 6)
    for upper in (0, 1):
        g.result("Trilu", square, g.builder.constant(-1, I64), dtype=I32, upper=upper)
    g.result("EyeLike", square, dtype=I32, k=1)
    return g


def gathers() -> Graph:
    """Operators that move elements by indices that are inputs."""
    g = Graph()
    x = g.floats(4, 5, 3)
    g.result("Gather", x, g.integers(2, 2, dtype=I64, low=-5, high=5), axis=1)
    places = g.integers(4, 2, 3, dtype=I64, low=-5, high=5)
    g.result("GatherElements", x, places, axis=1)
    g.result("GatherND", x, g.integers(3, 2, dtype=I64, low=0, high=4))
    g.result("GatherND", x, g.integers(4, 1, dtype=I64, low=0, high=5), batch_dims=1)
    updates = g.floats(4, 2, 3)
    for reduction in ("add", "mul", "max", "min"):
        g.result("ScatterElements", x, places, updates, axis=1, reduction=reduction)
    different = g.builder.constant([[[0], [3]], [[4], [1]], [[2], [0]], [[1], [2]]], I64)
    g.result("ScatterElements", x, different, g.floats(4, 2, 1), axis=1)
    once = g.builder.constant([[2, 1], [0, 4]], I64)
    for reduction in ("none", "add"):
        g.result("ScatterND", x, once, g.floats(2, 3), reduction=reduction)
    return g


OPERATORS = {each.__name__: each for each in (unary, binary, reductions, moves, gathers)}
