"""Tables of what quantisation did to a model: accuracy, time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from .quantize_model import QuantizeReport


def accuracy_table(report: QuantizeReport) -> Table:
    """How far every output is from that of the float32 model in ONNX Runtime."""
    table = Table(title="difference from float32 in ONNX Runtime", title_justify="left")
    table.add_column("output", overflow="fold")
    table.add_column("by", overflow="fold")
    classifies = any(row.top1 is not None for row in report.accuracy)
    for column in ("rms", "largest", "cosine", *(["top-1"] if classifies else [])):
        table.add_column(column, justify="right", overflow="fold")
    before = ""
    for row in report.accuracy:
        top1 = "-" if row.top1 is None else f"{row.top1:.1%}"
        table.add_row(
            Text("" if row.name == before else row.name),
            row.by,
            f"{row.error:.1e}",
            f"{row.largest:.1e}",
            f"{row.cosine:.5f}",
            *([top1] if classifies else []),
        )
        before = row.name
    return table


def time_table(report: QuantizeReport) -> Table:
    """Times of a run; ratios are others' least time over ours of the quantised model."""
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
    """What there is to say besides."""
    shrunk = f"{_size(report.float_bytes)} -> {_size(report.bytes)}"
    yield f"{report.output}: {report.settings}; {shrunk}"
    samples = f"{report.samples} samples" if report.samples else "random inputs, no samples"
    yield (
        f"{samples}; kernels of products here: {report.narrow_kernels} narrow, "
        f"{report.other_kernels} of floats"
    )
    yield from (f"note: {note}" for note in report.notes)
    if report.complaint:
        yield f"our result of the quantised model differs from ONNX Runtime's {report.complaint}"
    else:
        yield "our result of the quantised model is that of ONNX Runtime"


def _size(count: int) -> str:
    """A number of bytes."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
