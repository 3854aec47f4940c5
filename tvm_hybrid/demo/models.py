"""Compiles, verifies and measures one model of the demonstration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from microkernels.base.errors import VerifyError

from .. import InferenceSession, import_onnx
from ..bench.accuracy.compare import Tolerance
from ..bench.accuracy.verify import VerifyReport, verify
from ..bench.bench import BenchReport, bench
from ..bench.flops import ProductSums
from ..bench.tables import kernel_table, verify_table
from ..frontend.read_model import read_model
from ..options import CompileOptions
from .steps import Steps

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class DemoModel:
    """A compiled model with what is needed to check and measure it."""

    path: Path
    shapes: Shapes
    session: InferenceSession
    flops: int
    tolerance: Tolerance

    @staticmethod
    def compile(path: Path, shapes: Shapes, threads: int) -> DemoModel:
        """Compiles an ONNX file."""
        sums = ProductSums(import_onnx(path, shapes=shapes).mod)
        session = InferenceSession(path, shapes=shapes, num_threads=threads, progress=False)
        return DemoModel(path, shapes, session, sums.flops, sums.tolerance())

    def verify(self, feeds: Mapping[str, np.ndarray]) -> VerifyReport:
        """Compares with ONNX Runtime.

        Raises
        ------
        VerifyError
            If an output differs by more than the tolerance.
        """
        outputs = self.session.run(None, feeds)
        report = verify(read_model(self.path), outputs, feeds, self.tolerance)
        for output in report.outputs:
            if not output.passed:
                raise VerifyError(
                    f"{self.path.name}: output {output.name!r} differs from ONNX Runtime's by "
                    f"{output.ours.max_rel:.1e} of its largest value; {report.tolerance:.1e} are "
                    f"allowed. `tvm-hybrid verify {self.path}` finds the region"
                )
        return report

    def bench(
        self,
        feeds: Mapping[str, np.ndarray],
        seconds: float,
        progress: Callable[[str], object],
    ) -> BenchReport:
        """Measures us, ONNX Runtime and stock TVM; `seconds` for all rounds of one of them.

        Raises
        ------
        VerifyError
            If our results are wrong. Rows of others say by how much they differ.
        """
        report = bench(
            self.session,
            self.path,
            feeds,
            threads=self.session.executable.num_threads,
            flops=self.flops,
            tolerance=self.tolerance,
            options=CompileOptions(shapes=self.shapes),
            rounds=10,
            seconds=seconds / 10,
            progress=progress,
        )
        for row in report.wrong:
            raise VerifyError(f"{self.path.name}: {row.name} {row.note}")
        return report

    def examine(self, feeds: Mapping[str, np.ndarray], seconds: float, steps: Steps) -> BenchReport:
        """Verifies, shows and measures the model; see `verify` and `bench`."""
        name = self.path.stem
        checked = self.verify(feeds)
        steps.show(verify_table(checked, f"{name} against ONNX Runtime without optimisation"))
        steps.show(kernel_table(self.session.explain(), f"kernels of {name}"))
        steps.begin(f"measuring {name}")
        return self.bench(feeds, seconds, steps.detail)
