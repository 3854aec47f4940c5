"""The section about default configurations: how much faster a neighbour of each one is.

A neighbour differs in one field. Each is built, checked against the region's reference and timed in
turns with the default, as `tvm-hybrid tune` does. The best one is measured again, longer, before it
counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx

from relay_passes.lower_module import count_regions
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tools.compile_times.graph import Graph
from tvm_hybrid.bench.layer_models import FLOAT32, INT8, Layer, layer_model
from tvm_hybrid.frontend.model_input import import_model
from tvm_hybrid.options import CompileOptions, passes_options, target_of
from tvm_hybrid.tuning.measuring.local_measurer import LocalMeasurer
from tvm_hybrid.tuning.measuring.measure import Candidates, Effort, Measurement
from tvm_hybrid.tuning.measuring.sampling import is_faster
from tvm_hybrid.tuning.tune_regions import FINAL_EFFORT

from .section import Case, Job
from .store import BEHIND, GAIN, Row
from .workloads import Workload

EFFORT = Effort(samples=15, seconds=0.1, accuracy=0.01)
NEIGHBOURS = 12
_WIDE = Layer("3x3", 28, 128, 128, 3, 1)
_POINTWISE = Layer("1x1", 56, 256, 64, 1, 1)


def _depthwise() -> onnx.ModelProto:
    graph = Graph()
    x = graph.input("x", (1, 144, 56, 56))
    weight = graph.random(144, 1, 3, 3, spread=0.3)
    graph.output(graph.node("Conv", x, weight, group=144, pads=[1] * 4, kernel_shape=[3, 3]), "y")
    return graph.model().proto


def _rows() -> onnx.ModelProto:
    graph = Graph()
    graph.output(graph.layer_norm(graph.input("x", (128, 768)), 768), "y")
    return graph.model().proto


def _workload(kind: str, dtype: str, sizes: tuple[int, ...]) -> Callable[[], onnx.ModelProto]:
    return lambda: Workload(kind, dtype, sizes, "").model().proto


REGIONS: dict[str, Callable[[], onnx.ModelProto]] = {
    "product, f32, 128x768x768": _workload("matmul", "f32", (128, 768, 768)),
    "product, f32, 1x1024x1024": _workload("matmul", "f32", (1, 1024, 1024)),
    "product, int8, 128x768x3072": _workload("matmul", "int8", (128, 768, 3072)),
    "product, bf16, 128x768x768": _workload("matmul", "bf16", (128, 768, 768)),
    "perceptron, f32, 128x13x512x256x128": _workload("mlp", "f32", (128, 13, 512, 256, 128)),
    "attention, f32, 1x128x768x8": _workload("mha", "f32", (1, 128, 768, 8)),
    "attention, int8, 1x128x768x8": _workload("mha", "int8", (1, 128, 768, 8)),
    "convolution 3x3, f32, 28x28x128": functools.partial(layer_model, _WIDE, FLOAT32),
    "convolution 1x1, f32, 56x56x256": functools.partial(layer_model, _POINTWISE, FLOAT32),
    "convolution 3x3, int8, 28x28x128": functools.partial(layer_model, _WIDE, INT8),
    "depthwise convolution, f32, 56x56x144": _depthwise,
    "layer normalisation, f32, 128x768": _rows,
}


def defaults(job: Job) -> list[Case]:
    """Cases: twelve regions, and the neighbours of their defaults."""
    options = CompileOptions(num_threads=job.threads, records=[])
    passes = passes_options(options, target_of(options), job.threads)

    def region(make: Callable[[], onnx.ModelProto]) -> Region:
        counted = count_regions(import_model(make(), None).mod, passes)
        return max(counted, key=lambda one: template_for(one[0].op).flops(one[0]))[0]

    def neighbours(name: str, make: Callable[[], onnx.ModelProto]) -> Iterator[Row]:
        one = region(make)
        template = template_for(one.op)
        default = template.default_config(one, passes.machine)
        near = nearest(default, list(template.space(one, passes.machine)))
        with LocalMeasurer(passes.machine, str(passes.target)) as measurer:

            def measured(configs: list[Config], effort: Effort) -> dict[Config, Measurement]:
                wanted = Candidates(one, template, configs, default, effort)
                return {config: found for config, found in measurer.measure(wanted)}

            found = measured(near, EFFORT)
            gains = {config: 1 / each.ratio for config, each in found.items() if each.ratio}
            best = max(gains, key=lambda config: gains[config], default=default)
            gain = gains.get(best, 1.0)
            if gain > BEHIND:
                again = measured([best], FINAL_EFFORT)[best]
                faster = again.ratio and is_faster(again.times_us, again.baseline_times_us)
                gain = 1 / again.ratio if faster and again.ratio else 1.0
        values = {GAIN: round(max(gain, 1.0), 3), "neighbours": float(len(gains))}
        notes = {GAIN: changed(default, best)} if gain > BEHIND else {}
        yield Row(case=name, threads=job.threads, unit="x", values=values, notes=notes)

    return [Case(name, functools.partial(neighbours, name, make)) for name, make in REGIONS.items()]


def nearest(default: Config, space: list[Config]) -> list[Config]:
    """Configurations that differ from the default in one field, spread over the fields."""
    mine = default.to_dict()
    by_field: dict[str, list[Config]] = {}
    for config in space:
        theirs = config.to_dict()
        differing = [name for name in mine if theirs.get(name) != mine[name]]
        if len(differing) == 1:
            by_field.setdefault(differing[0], []).append(config)
    for name, configs in by_field.items():
        configs.sort(key=lambda config: _distance(config.to_dict()[name], mine[name]))
    turns = [
        configs[at]
        for at in range(max(map(len, by_field.values()), default=0))
        for configs in by_field.values()
        if at < len(configs)
    ]
    return turns[:NEIGHBOURS]


def _distance(one: Any, other: Any) -> float:
    """How far apart two values of a field are; for numbers, by their quotient."""
    if all(isinstance(each, int) and each > 0 for each in (one, other)):
        return abs(float(np.log2(one / other)))
    return 1.0


def changed(default: Config, config: Config) -> str:
    """The fields in which a configuration differs from the default."""
    mine, theirs = default.to_dict(), config.to_dict()
    return ", ".join(
        f"{name} {theirs.get(name)} instead of {mine[name]}"
        for name in mine
        if theirs.get(name) != mine[name]
    )
