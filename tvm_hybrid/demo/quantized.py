"""Quantises the demonstration's models with onnxruntime, statically: 8 bits, QDQ form.

Weights become int8 with a scale for each output column, activations uint8 with a scale and a zero
point found from samples.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from microkernels.base.errors import QuantizeError

from ..report.timing import ContestantError


def quantize(source: Path, path: Path, samples: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Writes the quantised form of a model.

    Parameters
    ----------
    source : Path
        An ONNX model in float32.
    path : Path
        Where to write the other.
    samples : sequence of mapping
        Inputs from which the ranges of activations are found.

    Raises
    ------
    ContestantError
        If onnxruntime is not installed.
    QuantizeError
        If it cannot quantise the model.
    """
    try:
        from onnxruntime import quantization
    except ImportError as error:
        raise ContestantError(
            "onnxruntime is not installed; pip install 'tvm_hybrid[bench]' brings it"
        ) from error

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]  # has no types
        """The samples, one after the other."""

        def __init__(self) -> None:
            self._rest = iter(samples)

        def get_next(self) -> Mapping[str, np.ndarray] | None:
            return next(self._rest, None)

    try:
        with _quiet():
            quantization.quantize_static(
                source,
                path,
                Samples(),
                quant_format=quantization.QuantFormat.QDQ,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                per_channel=True,
            )
    except Exception as error:
        raise QuantizeError(f"onnxruntime cannot quantise {source.name}: {error}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the quantiser's advice, which goes to the root logger."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
