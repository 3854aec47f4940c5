"""What was measured of a network's layers, and means over them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec
from rich.table import Table
from rich.text import Text

from ...report.markdown import markdown_table
from ..peers.peers import OURS
from .layer_models import Layer


class LayerTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one layer in one type.

    Attributes
    ----------
    layer : Layer
        The convolution.
    dtype : str
        One of `layer_models.DTYPES`.
    threads : int
        Threads of every contestant.
    kernel : str
        What we run.
    whole_us, kernel_us : dict
        Least time of a run of the model, and of its kernel, in microseconds, by contestant.
    share : float
        Operations of the layer over our kernel's time and the peak of all threads. What skips
        padding, and Winograd's algorithm, multiply less and may exceed 1.
    notes : list of str
        Who is missing and why, who computes something else.
    wrong : bool
        Whether we do.
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
    """All layers of a network.

    Attributes
    ----------
    network, cpu : str
        What was measured where.
    versions : dict
        Versions of the contestants, in the order of their columns.
    peaks : dict
        1e9 operations a second of one thread, by type.
    rows : list of LayerTimes
        By number of threads, then type, then layer.
    left_out : dict
        Why, by contestant that is not installed.
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
    """The geometric mean of those that are known; None if none is."""
    known = [ratio for ratio in ratios if ratio is not None]
    return statistics.geometric_mean(known) if known else None


_ABOUT = {
    "resnet18": (
        "# ResNet-18's convolutions\n\n"
        "The twelve different convolutions of ResNet-18 as arXiv 1805.08166, table 1, numbers "
        "them, with bias and\nReLU, batch 1."
    )
}


def layer_tables(report: LayerReport) -> Iterator[Table]:
    """A table for every number of threads and type."""
    for (threads, dtype), rows in _parts(report):
        table = Table(
            title=f"{report.network}, {dtype}, threads: {threads}, {report.cpu}",
            title_justify="left",
            caption="\n".join(_left_out(report) + _notes(rows)) or None,
            caption_justify="left",
        )
        table.add_column("layer", no_wrap=True)
        for column in _columns(report):
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(Text(f"{row.layer.name}: {row.layer}"), *_cells(report, row))
        table.add_section()
        table.add_row("geometric mean", *_mean_cells(report, rows))
        yield table


def markdown_page(report: LayerReport) -> str:
    """The page: what was measured and how, then a table for every number of threads and type."""
    others = " and ".join(f"{name} {text}" for name, text in _peers(report).items())
    absent = "".join(f" {name} was not at hand." for name in report.left_out)
    peaks = ", ".join(f"{peak:.0f} GOP/s of {dtype}" for dtype, peak in report.peaks.items())
    lines = [
        _ABOUT.get(report.network, f"# Convolutions of {report.network}"),
        "",
        f"Measured by `tvm-hybrid bench --layers {report.network} --markdown FILE` on "
        f"{report.cpu}, {peaks} a thread",
        f"(as `tvm-hybrid kernels` measures it), beside {others or 'nobody'}.{absent}",
        "",
        "- kernel us: the convolution alone, as it costs inside of a network; for the others by "
        "their own profiles.",
        "- model us: a run of a model of this one convolution, whose input and output are NCHW, "
        "with the reorders and",
        "  the call that this costs everyone.",
        "- of peak: operations of the direct algorithm; Winograd's, and kernels that skip padding, "
        "may exceed 100%.",
        "- ratio: the best of the others over ours; above 1, ours is faster.",
        "- int8: uint8 in and out, int8 weights with a scale for each channel (QDQ form); results "
        "next to a tie may be",
        "  rounded either way.",
    ]
    for (threads, dtype), rows in _parts(report):
        columns = ["layer", *_columns(report), "ours is"]
        cells = [
            [f"{row.layer.name}: {row.layer}", *_cells(report, row), row.kernel] for row in rows
        ]
        cells.append(["geometric mean", *_mean_cells(report, rows), ""])
        lines += ["", f"## {dtype}, {threads} thread{'s' if threads > 1 else ''}"]
        lines += markdown_table(columns, cells)
        notes = _notes(rows)
        if notes:
            lines += ["", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def _parts(report: LayerReport) -> Iterator[tuple[tuple[int, str], list[LayerTimes]]]:
    for key, rows in groupby(report.rows, key=lambda row: (row.threads, row.dtype)):
        yield key, list(rows)


def _peers(report: LayerReport) -> dict[str, str]:
    return {name: text for name, text in report.versions.items() if name != OURS}


def _columns(report: LayerReport) -> list[str]:
    names = list(report.versions)
    kernels = [f"kernel us: {names[0]}", "of peak", *names[1:], "ratio"]
    return [*kernels, f"model us: {names[0]}", *names[1:], "ratio"]


def _cells(report: LayerReport, row: LayerTimes) -> list[str]:
    kernel, model = (
        [_time(times.get(name)) for name in report.versions]
        for times in (row.kernel_us, row.whole_us)
    )
    return [
        kernel[0],
        f"{row.share:.0%}",
        *kernel[1:],
        _ratio(best_ratio(row.kernel_us)),
        *model,
        _ratio(best_ratio(row.whole_us)),
    ]


def _mean_cells(report: LayerReport, rows: Sequence[LayerTimes]) -> list[str]:
    gap = [""] * len(_peers(report))

    def mean(times: Callable[[LayerTimes], dict[str, float]]) -> str:
        return _ratio(mean_ratio(best_ratio(times(row)) for row in rows))

    return [
        *("", "", *gap, mean(lambda row: row.kernel_us)),
        *("", *gap, mean(lambda row: row.whole_us)),
    ]


def _left_out(report: LayerReport) -> list[str]:
    return [f"{name} is left out: {why}" for name, why in report.left_out.items()]


def _notes(rows: Sequence[LayerTimes]) -> list[str]:
    return [f"{row.layer.name}, {note}" for row in rows for note in row.notes]


def _time(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    return f"{microseconds:.1f}" if microseconds < 1000 else f"{microseconds:.0f}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
