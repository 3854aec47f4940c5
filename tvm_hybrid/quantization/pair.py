"""A float32 model and its quantised form, both in our sessions and in ONNX Runtime's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from microkernels.base.errors import InputValueError

from ..bench.accuracy.compare import Tolerance
from ..bench.accuracy.judge import Judge
from ..bench.flops import ProductSums
from ..bench.peers.contestants import SessionContestant
from ..bench.peers.onnx_runtime import optimised_session
from ..frontend import import_onnx
from ..report.timing import Timing, interleave
from ..session.inference_session import InferenceSession
from .samples import Feeds

OURS, THEIRS = "tvm_hybrid", "ONNX Runtime"
FLOAT, QUANTISED = "float32", "quantised"
_NARROW = ("u8s8", "+int", "+uint")  # parts of kernels' names
_PRODUCT = re.compile(r"_\d+x\d+")  # the tile of a microkernel
_ROUNDS = 10


class Pair:
    """Runs, compares and measures both.

    Parameters
    ----------
    model : onnx.ModelProto
        In float32.
    path : Path
        The file of the quantised one.
    samples : sequence of mapping
        Inputs, at least one. Sessions are made for their shapes, or for open ones if they differ.
    num_threads : int or None
        See `CompileOptions`.

    Raises
    ------
    TvmHybridError
        If one of them cannot be compiled, or ONNX Runtime is missing or refuses one.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        path: Path,
        samples: Sequence[Feeds],
        num_threads: int | None,
    ) -> None:
        self._path, self._sample = path, samples[0]
        shapes = [{name: array.shape for name, array in each.items()} for each in samples]
        self._shapes: dict[str, Any] = dict(shapes[0])
        alike = all(each == shapes[0] for each in shapes)
        self._ours = {
            name: InferenceSession(
                each,
                shapes=self._shapes if alike else None,
                num_threads=num_threads,
                cache=False,
                progress=False,
            )
            for name, each in ((FLOAT, model), (QUANTISED, path))
        }
        self._outputs = self._ours[QUANTISED].run(None, self._sample)
        self._ours[FLOAT].run(None, self._sample)
        self.threads = self._ours[QUANTISED].executable.num_threads
        self._theirs = {
            name: optimised_session(each, self.threads)
            for name, each in ((FLOAT, model.SerializeToString()), (QUANTISED, str(path)))
        }

    def reference(self, sample: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """The float32 model's outputs, by ONNX Runtime."""
        outputs: Sequence[np.ndarray] = self._theirs[FLOAT].run(None, dict(sample))
        return outputs

    def runs(self) -> dict[str, Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]]:
        """Whose results are compared with these."""

        def run(session: Any) -> Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]:
            return lambda sample: session.run(None, dict(sample))

        return {
            f"{OURS} {FLOAT}": run(self._ours[FLOAT]),
            f"{OURS} {QUANTISED}": run(self._ours[QUANTISED]),
            f"{THEIRS} {QUANTISED}": run(self._theirs[QUANTISED]),
        }

    def complaint(self) -> tuple[str, Tolerance]:
        """By how much we differ from ONNX Runtime on the quantised model, and the tolerance."""
        tolerance = ProductSums(self._imported()).tolerance()
        judge = Judge.of(self._path, self._sample, tolerance, self._outputs)
        found = judge.verdict(self._outputs, multiplies_bytes_fast=False)
        return found.complaint.removeprefix("differs "), tolerance

    def _imported(self) -> Any:
        try:
            return import_onnx(self._path, self._shapes, None).mod
        except InputValueError as error:
            values = {name: self._sample[name] for name in error.inputs}
            return import_onnx(self._path, self._shapes, values).mod

    def timings(self, seconds: float) -> dict[str, Timing]:
        """Times of a run of each, in turns of so many seconds."""
        contestants = {
            f"{whose} {name}": SessionContestant(sessions[name], self._sample)
            for whose, sessions in ((OURS, self._ours), (THEIRS, self._theirs))
            for name in (FLOAT, QUANTISED)
        }
        times, _ = interleave(contestants, _ROUNDS, seconds)
        return {name: Timing.of(found) for name, found in times.items()}

    def kernels(self) -> tuple[int, int]:
        """Our program's kernels of products: those of narrow operands, and the others."""
        products = [
            decision.kernel
            for decision in self._ours[QUANTISED].explain()
            if _PRODUCT.search(decision.kernel)
        ]
        narrow = sum(any(word in kernel for word in _NARROW) for kernel in products)
        return narrow, len(products) - narrow
