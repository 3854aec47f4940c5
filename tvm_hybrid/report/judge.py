"""Judges the contestants of a benchmark: whose results are right, and by how much others differ."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from microkernels.errors import TvmHybridError

from ..frontend.read_model import read_model
from .compare import Tolerance, describe, distance
from .onnx_runtime import literal_session, outputs_of, why_products_differ

logger = logging.getLogger("tvm_hybrid")


class Judge:
    """Knows what a model's outputs are.

    Parameters
    ----------
    outputs : sequence of numpy.ndarray
        The right ones.
    tolerance : Tolerance
        How far others may be from them.
    why : str
        As `onnx_runtime.why_products_differ` tells it of the model.
    """

    def __init__(self, outputs: Sequence[Any], tolerance: Tolerance, why: str = "") -> None:
        self._outputs, self._tolerance, self._why = outputs, tolerance, why

    @staticmethod
    def of(
        path: Path, feeds: Mapping[str, np.ndarray], tolerance: Tolerance, ours: Sequence[Any]
    ) -> Judge:
        """ONNX Runtime without optimisation; where it cannot run the model, ours are the right."""
        try:
            model = read_model(path)
            outputs = outputs_of(literal_session(model), feeds)
        except TvmHybridError as error:
            logger.warning("nobody judges our own results: %s", error)
            return Judge(ours, tolerance)
        return Judge(outputs, tolerance, why_products_differ(model))

    def complaint(self, outputs: Sequence[Any], multiplies_bytes_fast: bool) -> str:
        """What is wrong with outputs; "" if nothing is.

        Parameters
        ----------
        outputs : sequence of numpy.ndarray
            All outputs of a contestant.
        multiplies_bytes_fast : bool
            Whether it is one of those that `onnx_runtime.why_products_differ` is about.
        """
        if len(outputs) != len(self._outputs):
            return f"gives {len(outputs)} outputs instead of {len(self._outputs)}"
        for theirs, right in zip(outputs, self._outputs, strict=True):
            apart = distance(np.asarray(theirs), np.asarray(right))
            if not apart.within(self._tolerance):
                why = self._why if multiplies_bytes_fast else ""
                return f"differs {describe(apart, why)}"
        return ""
