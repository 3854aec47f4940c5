"""Rewrites integer products so that ONNX Runtime computes them exactly on every CPU.

Where a CPU lacks VNNI, ONNX Runtime multiplies uint8 by int8 with vpmaddubsw, which saturates sums
of two products at 16 bits, with graph optimisation or without. Its kernels of uint8 by uint8 are
exact everywhere. v - z stays the same when both grow by 128, so signed operands become unsigned:

    y = MatMulInteger(a: u8, b: s8, za, zb)
    ->
    b2, zb2 = Cast(Cast(b, s32) + 128, u8), Cast(Cast(zb, s32) + 128, u8)
    y = MatMulInteger(a: u8, b2: u8, za, zb2)

Constants are computed at once; a zero point that is left out becomes 128. Products of two signed
operands are exact and stay.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from microkernels.base.integers import SHIFT

# Where an operator's inputs hold an operand: value, scale (None: there is none), zero point.
_Operand = tuple[int, int | None, int]
_TWO_OPERANDS: dict[str, tuple[_Operand, _Operand]] = {
    "MatMulInteger": ((0, None, 2), (1, None, 3)),
    "ConvInteger": ((0, None, 2), (1, None, 3)),
    "QLinearMatMul": ((0, 1, 2), (3, 4, 5)),
    "QLinearConv": ((0, 1, 2), (3, 4, 5)),
    "QGemm": ((0, 1, 2), (3, 4, 5)),
    "MatMulIntegerToFloat": ((0, 2, 4), (1, 3, 5)),
    "QAttention": ((0, 3, 6), (1, 4, 7)),
}
# Weights of operators that quantise the other operand themselves, to uint8.
_WEIGHTS: dict[str, tuple[_Operand, ...]] = {
    "DynamicQuantizeMatMul": ((1, 2, 3),),
    "DynamicQuantizeLSTM": ((1, 8, 9), (2, 10, 11)),
}
PRODUCTS = _TWO_OPERANDS.keys() | _WEIGHTS.keys()


def unsigned_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model without products of an unsigned and a signed operand.

    The given one is not changed. An operand of a type that cannot be inferred stays.
    """
    if not any(node.op_type in PRODUCTS for node in model.graph.node):
        return model
    types = _types(model)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    nodes = list(changed.graph.node)
    del changed.graph.node[:]
    rewriter = _Rewriter(changed.graph)
    for node in nodes:
        for operand in _signed(node, types):
            rewriter.shift(node, operand)
        changed.graph.node.append(node)
    return changed


def _types(model: onnx.ModelProto) -> Mapping[str, int]:
    """Element types of what is known, by name."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = (*graph.input, *graph.value_info)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return types | {item.name: item.data_type for item in graph.initializer}


def _signed(node: onnx.NodeProto, types: Mapping[str, int]) -> list[_Operand]:
    """The operands that are signed beside an unsigned one."""

    def is_signed(operand: _Operand) -> bool:
        names = (_input(node, operand[0]), _input(node, operand[2]))
        return TensorProto.INT8 in [types[name] for name in names if name in types]

    if node.op_type in _TWO_OPERANDS:
        signed = [operand for operand in _TWO_OPERANDS[node.op_type] if is_signed(operand)]
        return signed if len(signed) == 1 else []
    return [operand for operand in _WEIGHTS.get(node.op_type, ()) if is_signed(operand)]


def _input(node: onnx.NodeProto, place: int) -> str:
    return node.input[place] if place < len(node.input) else ""


class _Rewriter:
    """Appends what unsigned operands need to a graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._constants = {item.name: item for item in graph.initializer}
        self._unsigned: dict[str, str] = {}

    def shift(self, node: onnx.NodeProto, operand: _Operand) -> None:
        """Gives the node an unsigned operand and its zero point."""
        value, scale, zero = operand
        node.input.extend([""] * (zero + 1 - len(node.input)))
        node.input[value] = self._shifted(node.input[value])
        if node.input[zero]:
            node.input[zero] = self._shifted(node.input[zero])
            return
        like = None if scale is None else self._constants.get(node.input[scale])
        shape = tuple(like.dims) if like else ()
        node.input[zero] = self._constant(node.input[value] + "/zero", shape, np.uint8)

    def _shifted(self, name: str) -> str:
        if name not in self._unsigned:
            self._unsigned[name] = f"{name}/unsigned"
            if name in self._constants:
                wide = numpy_helper.to_array(self._constants[name]).astype(np.int32) + SHIFT
                tensor = numpy_helper.from_array(wide.astype(np.uint8), self._unsigned[name])
                self._graph.initializer.append(tensor)
            else:
                self._compute(name, self._unsigned[name])
        return self._unsigned[name]

    def _compute(self, name: str, result: str) -> None:
        shift = self._constant(f"{name}/shift", (), np.int32)
        wide, total = f"{name}/wide", f"{name}/total"
        self._graph.node.extend(
            [
                helper.make_node("Cast", [name], [wide], to=TensorProto.INT32),
                helper.make_node("Add", [wide, shift], [total]),
                helper.make_node("Cast", [total], [result], to=TensorProto.UINT8),
            ]
        )

    def _constant(self, name: str, shape: tuple[int, ...], dtype: type) -> str:
        """Adds an array of 128."""
        tensor = numpy_helper.from_array(np.full(shape, SHIFT, dtype), name)
        self._graph.initializer.append(tensor)
        return name
