"""The demonstration's second part: the multi-layer perceptrons of a paper, f32 and quantised."""

from __future__ import annotations

from pathlib import Path

import onnx

from ..bench.bench import BenchReport
from ..bench.feeds import complete_feeds
from .mlp import SIZES, mlp_model
from .models import DemoModel
from .quantized import quantize
from .steps import Steps

BATCH = 128
STEPS = 4 * len(SIZES)


def demonstrate_perceptrons(
    folder: Path, threads: int, seconds: float, steps: Steps
) -> list[BenchReport]:
    """MLP_1 and MLP_2, in float32 and quantised: compiled, verified, measured.

    Raises
    ------
    VerifyError
        If a result is wrong.
    """
    reports = []
    for name in SIZES:
        steps.begin(f"compiling {name}, batch {BATCH}")
        path = folder / f"{name}.onnx"
        onnx.save(mlp_model(name, BATCH), path)
        model = DemoModel.compile(path, {}, threads)
        feeds, _ = complete_feeds(model.session.executable.inputs, {})
        reports.append(model.examine(feeds, seconds, steps))
        steps.begin(f"quantising and compiling {name}, int8")
        quantized = folder / f"{name} int8.onnx"
        quantize(path, quantized, [feeds])
        model = DemoModel.compile(quantized, {}, threads)
        reports.append(model.examine(feeds, seconds, steps))
    return reports
