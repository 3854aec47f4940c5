"""`quantize`: quantises a float32 model, checks the quantised model and measures it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import onnx
from rich.table import Table
from rich.text import Text

from microkernels.base.errors import QuantizeError
from microkernels.base.files import replacing, require_other_file, require_writable
from microkernels.isa import target_isa

from ..bench.compare import Tolerance
from ..frontend.onnx.reader.read_model import read_model
from ..report.timing import Timing
from ..targets.resolve import TargetLike, resolve_target
from .onnx_quantizer import Settings, require_quantizer, settings_for, write_quantized
from .samples import Pair, inputs_of, load_samples, made_up, require_one_shape

COMPARED = 16
"""At most this many samples are compared."""


class QuantizeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `quantize`.

    Attributes
    ----------
    output : str
        The file that was written.
    mode, settings : str
        How it was quantised.
    float_bytes, bytes : int
        Size of both files, weights included.
    samples : int
        Number of samples read; 0 if the inputs were random.
    notes : list of str
        Settings that the quantiser could not follow.
    narrow_kernels, other_kernels : int
        Kernels of products in our program: on 8-bit integers or narrow weights, and on floats.
    accuracy : list of OutputAccuracy
        Differences from the float32 model in ONNX Runtime.
    complaint : str
        How our results of the quantised model differ from ONNX Runtime's; "" if they differ by no
        more than the tolerance.
    tolerance : Tolerance
        The largest difference that is allowed.
    timings : dict of str to Timing
        Times of a run on `threads` threads; empty if nothing was measured.
    threads : int
        Threads of the timed runs.
    """

    output: str
    mode: str
    settings: str
    float_bytes: int
    bytes: int
    samples: int
    notes: list[str]
    narrow_kernels: int
    other_kernels: int
    accuracy: list[OutputAccuracy]
    complaint: str
    tolerance: Tolerance
    timings: dict[str, Timing]
    threads: int

    @property
    def passed(self) -> bool:
        """Whether our results of the quantised model agree with ONNX Runtime's."""
        return not self.complaint


def quantize(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    output: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | Mapping[str, Any] | Iterable[Mapping[str, Any]] | None = None,
    mode: str = "static",
    bits: int = 4,
    block: int = 32,
    weight_range: str = "auto",
    calibration: str = "minmax",
    operators: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    samples: int = 128,
    target: TargetLike = None,
    num_threads: int | None = None,
    seconds: float = 0.05,
    seed: int = 0,
    progress: Callable[[str], object] | None = None,
) -> QuantizeReport:
    """Quantises a float32 model by ONNX Runtime's quantiser, checks and measures the result.

    Parameters
    ----------
    model : path-like, bytes or onnx.ModelProto
        The model.
    output : path-like
        The ONNX file to write; an interrupted call leaves no partial file.
    data : path-like, mapping or iterable of mapping, optional
        Samples for ranges of activations and for the comparison: a folder of .npz, .npy or
        input_0.pb files, one .npz file, the arrays of one sample, or one mapping of arrays for
        each sample. Without data, the modes "dynamic" and "weights" use one random sample.
    mode : {"static", "dynamic", "weights"}
        "static": ranges of activations come from `data`. "dynamic": they are found at every run.
        "weights": only weights are quantised, as MatMulNBits.
    bits : {4, 8}
        Bits of a weight in mode "weights".
    block : int
        How many weights share a scale in mode "weights".
    weight_range : {"auto", "full", "reduced"}
        Whether weights have 8 or 7 bits in the other modes. "auto" takes 7 bits for a CPU without
        VNNI, where they make products faster.
    calibration : {"minmax", "entropy", "percentile"}
        How a range follows from the samples.
    operators : sequence of str, optional
        Types of nodes to quantise. None: products and convolutions; in a model with convolutions
        also the operators between them.
    exclude : sequence of str
        Names of nodes that stay float32.
    samples : int
        How many samples are read at most.
    target : str, mapping, tvm.target.Target or None
        The CPU that runs the model; it decides `weight_range`. Checks and timings run on this CPU.
    num_threads : int or None
        See `CompileOptions`.
    seconds : float
        Length of each of the ten turns in which a model is timed; 0: nothing is measured.
    seed : int
        Seed of the random inputs.
    progress : callable, optional
        Called with a line of text at every step.

    Returns
    -------
    QuantizeReport
        Settings, accuracy, times.

    Raises
    ------
    QuantizeError
        If onnxruntime or a package that it needs is missing, there is nothing to quantise, static
        mode gets no data, or the quantiser fails.
    FeedError
        If data cannot be read or do not fit the model.
    ModelError
        If the model cannot be read.
    OutputError
        If the file cannot be written, or is the file of the model itself.
    """
    tell = progress or (lambda message: None)
    if isinstance(model, str | os.PathLike):
        require_other_file(output, model)
    require_writable(output)
    proto = read_model(model)
    isa = target_isa(resolve_target(target))
    kinds, kept = tuple(operators or ()), tuple(exclude)
    asked = Settings(mode, kinds, kept, calibration=calibration, bits=bits, block=block)
    settings = settings_for(proto, isa, asked, weight_range)
    require_quantizer(mode)
    inputs = inputs_of(proto)
    if data is not None:
        tell("reading samples")
        found = load_samples(data, inputs, samples)
    elif mode == "static":
        raise QuantizeError(
            "static quantisation needs data, samples from which the ranges of activations follow: "
            "a folder or an .npz; mode dynamic and mode weights need none"
        )
    else:
        found = [made_up(inputs, seed)]
    if mode == "static" and calibration != "minmax":
        require_one_shape(found, calibration)
    with replacing(output, what="the model to") as draft:
        tell(f"quantising, {len(found)} samples" if data is not None else "quantising")
        notes = write_quantized(proto, draft, found, settings)
        tell("compiling both models")
        pair = Pair(proto, draft, found[:COMPARED], num_threads)
        tell("comparing")
        names = [item.name for item in proto.graph.output]
        compared = accuracies(names, found[:COMPARED], pair.reference, pair.runs())
        complaint, tolerance = pair.complaint()
        if seconds:
            tell("measuring")
        timings = pair.timings(seconds) if seconds else {}
        size = draft.stat().st_size
    narrow, others = pair.kernels()
    return QuantizeReport(
        output=str(output),
        mode=mode,
        settings=str(settings),
        float_bytes=proto.ByteSize(),
        bytes=size,
        samples=0 if data is None else len(found),
        notes=notes,
        narrow_kernels=narrow,
        other_kernels=others,
        accuracy=compared,
        complaint=complaint,
        tolerance=tolerance,
        timings=timings,
        threads=pair.threads,
    )


# How far a quantised model is from the float32 model that it was made of.
#
# The reference is ONNX Runtime on the float32 model. The error of an output is the root mean square
# of the differences, relative to the root mean square of the reference, over all samples.


Run = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]]


class OutputAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy of one output of one model.

    Attributes
    ----------
    name : str
        The output.
    by : str
        The runtime and the model, such as "onnxruntime quantised".
    error : float
        Root mean square of the differences over that of the reference.
    largest : float
        The largest difference over the reference's largest value.
    cosine : float
        Cosine of the angle between the output and the reference as vectors.
    top1 : float or None
        Share of rows whose largest value is at the reference's position; None if the output does
        not look like scores of classes.
    """

    name: str
    by: str
    error: float
    largest: float
    cosine: float
    top1: float | None = None


def accuracies(
    names: Sequence[str],
    samples: Sequence[Mapping[str, np.ndarray]],
    reference: Run,
    contestants: Mapping[str, Run],
) -> list[OutputAccuracy]:
    """The accuracy of every output, for every contestant.

    Parameters
    ----------
    names : sequence of str
        The outputs.
    samples : sequence of mapping
        Inputs.
    reference : callable
        Takes inputs, returns the right outputs.
    contestants : mapping
        The callables to compare with the reference, by name.

    Returns
    -------
    list of OutputAccuracy
        One for each floating-point output and contestant, output by output.
    """
    sums = {(name, by): _Sums() for name in names for by in contestants}
    for sample in samples:
        wanted = reference(sample)
        for by, run in contestants.items():
            for name, found, right in zip(names, run(sample), wanted, strict=True):
                sums[name, by].add(name, np.asarray(found), np.asarray(right))
    return [each.accuracy(name, by) for (name, by), each in sums.items() if each.count]


class _Sums:
    """Running sums of one output's errors over all samples."""

    def __init__(self) -> None:
        self.count = self.rows = self.same = 0
        self.squares = self.found = self.right = self.dot = self.largest = self.scale = 0.0

    def add(self, name: str, found: np.ndarray, right: np.ndarray) -> None:
        """Adds the results of one sample."""
        if right.dtype.kind != "f" or not right.size:
            return
        self.count += 1
        if found.shape != right.shape:
            self.squares = self.largest = math.inf
            return
        a, b = found.astype(np.float64), right.astype(np.float64)
        self.squares += float(np.square(a - b).sum())
        self.found += float(np.square(a).sum())
        self.right += float(np.square(b).sum())
        self.dot += float((a * b).sum())
        self.largest = max(self.largest, float(np.abs(a - b).max()))
        self.scale = max(self.scale, float(np.abs(b).max()))
        # Rows that look like scores of classes: of a matrix, or of an output named logits.
        if right.ndim > 1 and right.shape[-1] > 1 and (right.ndim == 2 or "logits" in name):
            self.rows += b[..., 0].size
            self.same += int((a.argmax(-1) == b.argmax(-1)).sum())

    def accuracy(self, name: str, by: str) -> OutputAccuracy:
        """The accuracy over all samples added so far."""
        return OutputAccuracy(
            name=name,
            by=by,
            error=math.sqrt(_ratio(self.squares, self.right)),
            largest=_ratio(self.largest, self.scale),
            cosine=min(1.0, _ratio(self.dot, math.sqrt(self.found * self.right), 1.0)),
            top1=self.same / self.rows if self.rows else None,
        )


def _ratio(part: float, whole: float, of_nothing: float = math.inf) -> float:
    if whole == 0.0:
        return of_nothing if part or of_nothing == 1.0 else 0.0
    return part / whole


# Tables of accuracy and time.


def accuracy_table(report: QuantizeReport) -> Table:
    """A table of every output's distance from the float32 model in ONNX Runtime."""
    table = Table(title="difference from float32 in ONNX Runtime", title_justify="left")
    table.add_column("output", overflow="fold")
    table.add_column("by", overflow="fold")
    classifies = any(row.top1 is not None for row in report.accuracy)
    for column in ("rms", "largest", "cosine", *(["top-1"] if classifies else [])):
        table.add_column(column, justify="right", overflow="fold")
    before = ""
    for row in report.accuracy:
        numbers = [f"{row.error:.1e}", f"{row.largest:.1e}", f"{row.cosine:.5f}"]
        if classifies:
            numbers.append("-" if row.top1 is None else f"{row.top1:.1%}")
        table.add_row(Text("" if row.name == before else row.name), row.by, *numbers)
        before = row.name
    return table


def time_table(report: QuantizeReport) -> Table:
    """A table of run times; a ratio is a model's least time over our quantised model's."""
    table = Table(title=f"threads: {report.threads}", title_justify="left")
    table.add_column("by", overflow="fold")
    for column in ("median us", "min us", "ratio"):
        table.add_column(column, justify="right", overflow="fold")
    ours = report.timings["tvm_hybrid quantised"].min_us
    for name, timing in report.timings.items():
        table.add_row(
            name, f"{timing.median_us:.1f}", f"{timing.min_us:.1f}", f"{timing.min_us / ours:.2f}"
        )
    return table


def lines(report: QuantizeReport) -> Iterator[str]:
    """The lines of the report that are not in a table."""
    shrunk = f"{_size(report.float_bytes)} -> {_size(report.bytes)}"
    yield f"{report.output}: {report.settings}; {shrunk}"
    samples = f"{report.samples} samples" if report.samples else "random inputs, no samples"
    narrow, floats = report.narrow_kernels, report.other_kernels
    yield f"{samples}; kernels of products here: {narrow} narrow, {floats} of floats"
    yield from (f"note: {note}" for note in report.notes)
    if report.complaint:
        yield f"our result of the quantised model differs from ONNX Runtime's {report.complaint}"
    else:
        yield "our result of the quantised model is that of ONNX Runtime"


def _size(count: int) -> str:
    """A number of bytes as text."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
