"""Quantised models that onnxruntime.quantization makes from float models."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnxruntime import quantization
from onnxruntime.quantization import QuantFormat, QuantType

Feeds = Mapping[str, NDArray[Any]]
TYPES = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8}
PRODUCTS = ("MatMul", "Gemm", "Gather")


class _Samples(quantization.CalibrationDataReader):
    """Calibration inputs, in the form that the quantiser reads."""

    def __init__(self, feeds: Sequence[Feeds]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feeds | None:
        return next(self._feeds, None)


def static(
    model: onnx.ModelProto,
    samples: Sequence[Feeds],
    activation: str = "u8",
    weight: str = "s8",
    *,
    per_channel: bool = True,
    operators: bool = False,
    kinds: Sequence[str] | None = PRODUCTS,
    **options: Any,
) -> onnx.ModelProto:
    """Quantises a model statically with ONNX Runtime's quantiser.

    Parameters
    ----------
    model : onnx.ModelProto
        A float model with known shapes.
    samples : sequence of mapping
        Calibration inputs.
    activation, weight : {"u8", "s8"}
        Types of activations and weights.
    per_channel : bool
        Whether each column of a weight has its own scale.
    operators : bool
        Whether to write QOperator form instead of QDQ.
    kinds : sequence of str or None
        The operators to quantise; None for all that the quantiser supports.
    **options
        extra_options of the quantiser.
    """
    return _written(
        model,
        lambda source, path: quantization.quantize_static(
            source,
            path,
            _Samples(samples),
            quant_format=QuantFormat.QOperator if operators else QuantFormat.QDQ,
            op_types_to_quantize=kinds,
            per_channel=per_channel,
            activation_type=TYPES[activation],
            weight_type=TYPES[weight],
            extra_options=options,
        ),
    )


def dynamic(
    model: onnx.ModelProto, weight: str = "s8", *, per_channel: bool = True, **options: Any
) -> onnx.ModelProto:
    """Dynamic quantisation: the ranges of activations are computed at run time."""
    return _written(
        model,
        lambda source, path: quantization.quantize_dynamic(
            source, path, per_channel=per_channel, weight_type=TYPES[weight], extra_options=options
        ),
    )


def _written(model: onnx.ModelProto, write: Callable[[Path, Path], None]) -> onnx.ModelProto:
    """Runs a quantiser from file to file without showing its advice; returns the new model.

    Files are used because the quantiser changes a model that it gets in memory.
    """
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, path = Path(folder) / "model.onnx", Path(folder) / "quantized.onnx"
            onnx.save(model, source)
            write(source, path)
            return onnx.load(path)
    finally:
        logger.setLevel(level)


def integer_products(model: onnx.ModelProto) -> int:
    """Counts the matrix products with two quantised operands."""
    producer = {name: node for node in model.graph.node for name in node.output}

    def is_dequantized(name: str) -> bool:
        node = producer.get(name)
        while node is not None and node.op_type in ("Transpose", "Reshape"):
            node = producer.get(node.input[0])
        return node is not None and node.op_type == "DequantizeLinear"

    count = 0
    for node in model.graph.node:
        if node.op_type in ("MatMul", "Gemm"):
            count += all(map(is_dequantized, node.input[:2]))
        else:
            count += node.op_type in ("MatMulInteger", "QLinearMatMul", "QGemm")
    return count
