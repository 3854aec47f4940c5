"""Judges the contestants of a benchmark: whose results are right, and by how much others differ."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from microkernels.base.errors import TvmHybridError

from ...frontend.read_model import read_model
from ..peers.onnx_runtime import literal_session, outputs_of, why_products_differ
from .compare import Tolerance, distance
from .differences import difference

logger = logging.getLogger("tvm_hybrid")


class Verdict(msgspec.Struct, frozen=True):
    """What a judge says of a contestant's results.

    Attributes
    ----------
    complaint : str
        What is wrong with them; "" if nothing is.
    max_rel : float
        The largest difference of all outputs, as `Distance.max_rel`.
    """

    complaint: str
    max_rel: float


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
    names : sequence of str
        What the outputs are called, if that is known.
    """

    def __init__(
        self,
        outputs: Sequence[Any],
        tolerance: Tolerance,
        why: str = "",
        names: Sequence[str] = (),
    ) -> None:
        self._outputs, self._tolerance, self._why = outputs, tolerance, why
        self._names = names or [""] * len(outputs)

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
        names = [output.name for output in model.graph.output]
        return Judge(outputs, tolerance, why_products_differ(model), names)

    def verdict(
        self, outputs: Sequence[Any], multiplies_bytes_fast: bool, precision: str = "auto"
    ) -> Verdict:
        """What is to be said of outputs; of several that are wrong, of the one furthest off.

        Parameters
        ----------
        outputs : sequence of numpy.ndarray
            All outputs of a contestant.
        multiplies_bytes_fast : bool
            Whether it is one of those that `onnx_runtime.why_products_differ` is about.
        precision : str
            What it computes float products in, if that is not what the model says.
        """
        if len(outputs) != len(self._outputs):
            few = f"gives {len(outputs)} outputs instead of {len(self._outputs)}"
            return Verdict(few, float("inf"))
        reasons = [self._why] if self._why and multiplies_bytes_fast else []
        reasons += ["its products are of bfloat16"] if precision == "bf16" else []
        furthest, complaint, complained = 0.0, "", -1.0
        for name, theirs, right in zip(self._names, outputs, self._outputs, strict=True):
            result, wanted = np.asarray(theirs), np.asarray(right)
            apart = distance(result, wanted)
            furthest = max(furthest, apart.max_rel)
            if not apart.within(self._tolerance) and apart.max_rel > complained:
                complained = apart.max_rel
                text = difference(name, result, wanted, apart, self._tolerance, reasons)
                complaint = f"differs {text}"
        return Verdict(complaint, furthest)
