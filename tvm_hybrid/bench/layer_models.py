"""Convolutions of published networks, each as a separate ONNX model.

    float32:  y = Relu(Conv(x, w, b))
    int8:     y = QuantizeLinear(Relu(Conv(DequantizeLinear(x), DequantizeLinear(w), ...)))

Inputs and outputs are NCHW, float32 or uint8. Quantised weights are int8 with a scale for each
output channel. Values are random with a fixed seed, scaled so that results stay in range.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.table import Table
from rich.text import Text

from relay_passes.lower_module import collect_regions
from relay_passes.pipeline_options import PipelineOptions
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from ..frontend.model_input import import_model
from ..report.timing import markdown_table
from .peers.peers import OURS

FLOAT32, INT8 = "float32", "int8"
DTYPES = (FLOAT32, INT8)
INPUT_SCALE, WEIGHT_SCALE = 0.02, 0.01

Array = np.ndarray | np.generic
Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


class Layer(msgspec.Struct, frozen=True):
    """A convolution with bias and ReLU, padded by half its kernel; images and kernels are square.

    Attributes
    ----------
    name : str
        Name in the publication.
    size : int
        Height and width of the image.
    channels, filters : int
        Input and output channels.
    kernel, stride : int
        Size of the kernel, and its stride.
    zero_point : int
        Zero point of the quantised input; 0 after a ReLU.
    """

    name: str
    size: int
    channels: int
    filters: int
    kernel: int
    stride: int
    zero_point: int = 0

    @property
    def result_size(self) -> int:
        """Height and width of the result."""
        return (self.size + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    @property
    def flops(self) -> int:
        """Two operations for every multiply-add, including those in the padding."""
        return 2 * self.filters * self.result_size**2 * self.channels * self.kernel**2

    def __str__(self) -> str:
        image = f"{self.size}x{self.size}x{self.channels}"
        step = f" /{self.stride}" if self.stride > 1 else ""
        return f"{image} -> {self.filters}, {self.kernel}x{self.kernel}{step}"


# arXiv 1805.08166, table 1; only C1 reads an image with negative values.
RESNET18 = (
    Layer("C1", 224, 3, 64, 7, 2, zero_point=128),
    Layer("C2", 56, 64, 64, 3, 1),
    Layer("C3", 56, 64, 64, 1, 1),
    Layer("C4", 56, 64, 128, 3, 2),
    Layer("C5", 56, 64, 128, 1, 2),
    Layer("C6", 28, 128, 128, 3, 1),
    Layer("C7", 28, 128, 256, 3, 2),
    Layer("C8", 28, 128, 256, 1, 2),
    Layer("C9", 14, 256, 256, 3, 1),
    Layer("C10", 14, 256, 512, 3, 2),
    Layer("C11", 14, 256, 512, 1, 2),
    Layer("C12", 7, 512, 512, 3, 1),
)
NETWORKS = {"resnet18": RESNET18}


def layer_model(layer: Layer, dtype: str) -> onnx.ModelProto:
    """Makes the model of a layer in one of `DTYPES`, with input "x" and output "y"."""
    graph = OnnxGraph()
    rng = np.random.default_rng(0)
    shape = (layer.filters, layer.channels, layer.kernel, layer.kernel)
    length = layer.channels * layer.kernel**2
    if dtype == FLOAT32:
        element, value = TensorProto.FLOAT, "x"
        spread = np.float32(np.sqrt(2 / length))
        weight = graph.constant(rng.standard_normal(shape, np.float32) * spread)
        bias = graph.constant(rng.standard_normal(layer.filters, np.float32))
    else:
        element = TensorProto.UINT8
        scales = (WEIGHT_SCALE * rng.uniform(0.5, 1.5, layer.filters)).astype(np.float32)
        value = graph.dequantize("x", np.float32(INPUT_SCALE), np.uint8(layer.zero_point))
        weight = graph.constant(rng.integers(-127, 128, shape, np.int8))
        bias = graph.constant(rng.integers(-9999, 10000, layer.filters, np.int32))
        weight = graph.dequantize(weight, scales, np.zeros(layer.filters, np.int8))
        zeros = np.zeros(layer.filters, np.int32)
        bias = graph.dequantize(bias, scales * np.float32(INPUT_SCALE), zeros)
    window: dict[str, Any] = {"kernel_shape": [layer.kernel] * 2, "strides": [layer.stride] * 2}
    window["pads"] = [layer.kernel // 2] * 4
    value = graph.node("Conv", value, weight, bias, **window)
    if dtype == FLOAT32:
        graph.node("Relu", value, output="y")
    else:
        value = graph.node("Relu", value)
        # Results have a standard deviation of about 2 sqrt(K); three of these become 255.
        scale = graph.constant(np.float32(6 / 255 * np.sqrt(length)))
        graph.node("QuantizeLinear", value, scale, graph.constant(np.uint8(0)), output="y")
    given = (1, layer.channels, layer.size, layer.size)
    result = (1, layer.filters, layer.result_size, layer.result_size)
    return graph.model(layer.name, element, {"x": given}, result)


def layer_input(layer: Layer, dtype: str) -> np.ndarray:
    """Makes an input: standard normal floats, or uniform bytes."""
    rng = np.random.default_rng(1)
    shape = (1, layer.channels, layer.size, layer.size)
    if dtype == FLOAT32:
        return rng.standard_normal(shape, np.float32)
    return rng.integers(0, 256, shape, np.uint8)


class OnnxGraph:
    """Collects nodes and constants of an ONNX graph."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def constant(self, value: Array) -> str:
        """Adds a constant; returns its name."""
        name = f"constant{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Adds a node; returns the name of its result."""
        output = output or f"value{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def dequantize(self, value: str, scale: Array, zero: Array, axis: int = 0) -> str:
        """Adds a DequantizeLinear along an axis; returns the name of its result."""
        operands = value, self.constant(scale), self.constant(zero)
        if np.ndim(scale):
            return self.node("DequantizeLinear", *operands, axis=axis)
        return self.node("DequantizeLinear", *operands)

    def model(self, name: str, element: int, given: Shapes, result: Shape) -> onnx.ModelProto:
        """Makes and checks the model; inputs and the output "y" have type `element`."""
        make = helper.make_tensor_value_info
        inputs = [make(each, element, shape) for each, shape in given.items()]
        output = make("y", element, result)
        graph = helper.make_graph(self._nodes, name, inputs, [output], self._constants)
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model


class LayerTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one layer in one type.

    Attributes
    ----------
    layer : Layer
        The convolution.
    dtype : str
        One of `layer_models.DTYPES`.
    threads : int
        Threads of every contestant.
    kernel : str
        Our kernels.
    whole_us, kernel_us : dict
        Contestant -> smallest time of a run of the model, and of its kernel, in microseconds.
    share : float
        Operations of the layer over our kernel's time and the peak of all threads. Kernels that
        skip padding, and Winograd's algorithm, multiply less and may exceed 1.
    notes : list of str
        Which contestants are missing and why, and which have wrong results.
    wrong : bool
        Whether our results are wrong.
    """

    layer: Layer
    dtype: str
    threads: int
    kernel: str
    whole_us: dict[str, float]
    kernel_us: dict[str, float]
    share: float
    notes: list[str] = []
    wrong: bool = False


class LayerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The times of all layers of a network.

    Attributes
    ----------
    network, cpu : str
        The network, and the CPU of the measurements.
    versions : dict
        Contestant -> version, in the order of columns.
    peaks : dict
        Type -> 1e9 operations a second of one thread.
    rows : list of LayerTimes
        By number of threads, then type, then layer.
    left_out : dict
        Contestant that is not installed -> why.
    """

    network: str
    cpu: str
    versions: dict[str, str]
    peaks: dict[str, float]
    rows: list[LayerTimes]
    left_out: dict[str, str]


def best_ratio(times: Mapping[str, float]) -> float | None:
    """The best peer's time over ours; None if there is no peer."""
    others = [time for name, time in times.items() if name != OURS]
    return min(others) / times[OURS] if others else None


def mean_ratio(ratios: Iterable[float | None]) -> float | None:
    """Geometric mean of the known ratios; None if none is known."""
    known = [ratio for ratio in ratios if ratio is not None]
    return statistics.geometric_mean(known) if known else None


_ABOUT_RESNET18 = (
    "# ResNet-18's convolutions\n\nSpeed of the twelve different convolutions of ResNet-18 with "
    "bias and ReLU, batch 1. C1 to C12 are\nthe names in arXiv 1805.08166, table 1."
)


def layer_tables(report: LayerReport) -> Iterator[Table]:
    """Makes a table for every number of threads and type."""
    left_out = [f"{name} is left out: {why}" for name, why in report.left_out.items()]
    for (threads, dtype), rows in _parts(report):
        table = Table(title_justify="left", caption_justify="left")
        table.title = f"{report.network}, {dtype}, threads: {threads}, {report.cpu}"
        table.caption = "\n".join([*left_out, *_notes(rows)]) or None
        table.add_column("layer", no_wrap=True)
        for column in _columns(report):
            table.add_column(column, justify="right")
        *layers, mean = _rows(report, rows)
        for layer, *cells in layers:
            table.add_row(Text(layer), *cells)
        table.add_section()
        table.add_row(*mean)
        yield table


def markdown_page(report: LayerReport) -> str:
    """Writes the page: the method, then a table for every number of threads and type."""
    peers = {name: text for name, text in report.versions.items() if name != OURS}
    others = " and ".join(f"{name} {text}" for name, text in peers.items())
    absent = "".join(f" {name} was not available." for name in report.left_out)
    peaks = ", ".join(f"{peak:.0f} GOP/s of {dtype}" for dtype, peak in report.peaks.items())
    named = report.network == "resnet18"
    text = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    about = _ABOUT_RESNET18 if named else f"# Convolutions of {report.network}"
    fields = {"about": about, "peaks": peaks, "others": others or "nobody", "absent": absent}
    lines = text.format(network=report.network, cpu=report.cpu, **fields).splitlines()
    for (threads, dtype), rows in _parts(report):
        columns = ["layer", *_columns(report), "our kernel"]
        kernels = [*(row.kernel for row in rows), ""]
        cells = [[*row, kernel] for row, kernel in zip(_rows(report, rows), kernels, strict=True)]
        lines += ["", f"## {dtype}, {threads} thread{'s' if threads > 1 else ''}"]
        lines += markdown_table(columns, cells)
        notes = _notes(rows)
        if notes:
            lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def _parts(report: LayerReport) -> Iterator[tuple[tuple[int, str], list[LayerTimes]]]:
    for key, rows in groupby(report.rows, key=lambda row: (row.threads, row.dtype)):
        yield key, list(rows)


def _columns(report: LayerReport) -> list[str]:
    names = list(report.versions)
    kernels = [f"kernel us: {names[0]}", "of peak", *names[1:], "ratio"]
    return [*kernels, f"model us: {names[0]}", *names[1:], "ratio"]


def _rows(report: LayerReport, rows: Sequence[LayerTimes]) -> Iterator[list[str]]:
    """Cells of every layer, then the geometric means."""
    ratios = []
    for row in rows:
        kernel = [_time(row.kernel_us.get(name)) for name in report.versions]
        model = [_time(row.whole_us.get(name)) for name in report.versions]
        ratios.append((best_ratio(row.kernel_us), best_ratio(row.whole_us)))
        of_kernel, of_model = map(_ratio, ratios[-1])
        share = f"{row.share:.0%}"
        name = f"{row.layer.name}: {row.layer}"
        yield [name, kernel[0], share, *kernel[1:], of_kernel, *model, of_model]
    gap = [""] * (len(report.versions) - 1)
    of_kernel, of_model = (_ratio(mean_ratio(each)) for each in zip(*ratios, strict=True))
    yield ["geometric mean", "", "", *gap, of_kernel, "", *gap, of_model]


def _notes(rows: Sequence[LayerTimes]) -> list[str]:
    return [f"{row.layer.name}, {note}" for row in rows for note in row.notes]


def _time(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    return f"{microseconds:.1f}" if microseconds < 1000 else f"{microseconds:.0f}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


# The regions that tuning is judged by: products, attentions, chains and convolutions.
#
# Shapes are published ones: projections of BERT-base (arXiv 1810.04805) and of smaller encoders,
# an MLP and an attention of arXiv 2301.01333 table 1, and the layers C1 to C12 of arXiv 1805.08166
# table 1.


MATMULS = {"small": (32, 384, 384), "large": (256, 768, 1024)}
"""Rows, inputs and outputs of products with bias."""

MLP = (128, 13, 512, 256, 128)
ATTENTION = (1, 128, 768, 8)
"""Batch, positions, width, heads."""

QUANTIZED_LAYERS = ("C1", "C6", "C8")
"""Layers of ResNet-18: an image, a 3x3 and a pointwise convolution."""


def public_names() -> list[str]:
    """Names of the regions."""
    return [name for name, _, _ in _models()]


def public_regions(options: PipelineOptions, names: Sequence[str] = ()) -> dict[str, Region]:
    """Forms the named regions as the compiler does for a target; without names, all regions.

    `options` has the target and the number of threads; the precision follows from the name.
    """
    found = {}
    for name, precision, model in _models():
        if names and name not in names:
            continue
        mod = import_model(model(), None).mod
        regions = collect_regions(mod, dataclasses.replace(options, precision=precision))
        found[name] = max(regions, key=lambda region: template_for(region.op).flops(region))
    return found


def _models() -> Iterator[tuple[str, str, Callable[[], onnx.ModelProto]]]:
    """Yields (name of the region, precision, function that makes its model)."""
    for size, (m, k, n) in MATMULS.items():
        for dtype in ("f32", "bf16", "int8"):
            precision = "bf16" if dtype == "bf16" else "auto"
            yield f"matmul_{dtype}_{size}", precision, partial(_mlp, (m, k, n), dtype == "int8")
    for dtype in ("f32", "int8"):
        yield f"mlp_{dtype}", "auto", partial(_mlp, MLP, dtype == "int8")
    yield "attention_f32", "auto", _attention
    yield "attention_bf16", "bf16", _attention
    for layer in RESNET18:
        yield f"resnet18_{layer.name.lower()}_f32", "auto", partial(layer_model, layer, FLOAT32)
    for layer in RESNET18:
        if layer.name in QUANTIZED_LAYERS:
            yield f"resnet18_{layer.name.lower()}_int8", "auto", partial(layer_model, layer, INT8)


def _mlp(sizes: tuple[int, ...], quantized: bool) -> onnx.ModelProto:
    """Makes a chain of products with bias and ReLU; int8 ones quantise their results."""
    graph, rng = OnnxGraph(), np.random.default_rng(0)
    rows, *widths = sizes
    value = "x"
    for inner, outer in itertools.pairwise(widths):
        scale = np.float32((2 / inner) ** 0.5)
        if quantized:
            numbers = graph.constant(rng.integers(-127, 128, (inner, outer), np.int8))
            scales = np.full(outer, 0.01, np.float32)
            weight = graph.dequantize(numbers, scales, np.zeros(outer, np.int8), axis=1)
            value = graph.dequantize(value, np.float32(0.02), np.uint8(0))
        else:
            weight = graph.constant(rng.standard_normal((inner, outer), np.float32) * scale)
        bias = graph.constant(rng.standard_normal(outer, np.float32))
        value = graph.node("Add", graph.node("MatMul", value, weight), bias)
        value = graph.node("Relu", value)
        if quantized:
            steps = graph.constant(np.float32(0.05 * inner**0.5)), graph.constant(np.uint8(0))
            value = graph.node("QuantizeLinear", value, *steps)
    graph.node("Identity", value, output="y")
    element = TensorProto.UINT8 if quantized else TensorProto.FLOAT
    return graph.model("mlp", element, {"x": (rows, widths[0])}, (rows, widths[-1]))


def _attention() -> onnx.ModelProto:
    """Makes softmax(q k / sqrt(d) + mask) v by heads; tensors are [batch, positions, width]."""
    graph = OnnxGraph()
    batch, positions, width, heads = ATTENTION
    parts = graph.constant(np.array([batch, positions, heads, width // heads]))

    def heads_of(name: str, order: list[int]) -> str:
        return graph.node("Transpose", graph.node("Reshape", name, parts), perm=order)

    scores = graph.node("MatMul", heads_of("q", [0, 2, 1, 3]), heads_of("k", [0, 2, 3, 1]))
    scores = graph.node("Div", scores, graph.constant(np.float32((width // heads) ** 0.5)))
    weights = graph.node("Softmax", graph.node("Add", scores, "mask"), axis=-1)
    result = graph.node("MatMul", weights, heads_of("v", [0, 2, 1, 3]))
    result = graph.node("Transpose", result, perm=[0, 2, 1, 3])
    shape = (batch, positions, width)
    graph.node("Reshape", result, graph.constant(np.array(shape)), output="y")
    given = {**dict.fromkeys("qkv", shape), "mask": (batch, 1, 1, positions)}
    return graph.model("attention", TensorProto.FLOAT, given, shape)
