"""rich tables of benchmarks: contestants are rows, or columns on a narrow terminal."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import msgspec
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from relay_passes.ir.decisions import Decision

from ..report.kernel_speed import KernelReport
from ..report.timing import Timing
from .bench import BenchReport, BenchRow, ThroughputReport, ThroughputRow
from .verify import VerifyReport

NARROW, NARROW_WITH_NOTES = 100, 125
"""Terminal columns that a table of rows needs, without and with notes."""

_TIMES = ("p50 us", "p95 us", "p99 us", "min us")
_Cells = list[tuple[str, str]]  # name and text of each number
_Block = tuple[str, Sequence[tuple[str, _Cells, "BenchRow | ThroughputRow"]]]


class BenchTable:
    """A table with contestants as rows if the terminal is wide enough, else as columns.

    Parameters
    ----------
    blocks : sequence of (str, sequence of (str, cells, row))
        Groups of contestants, each with a label: their names, numbers and rows.
    title, caption : str
        Text above and below; "" for none.
    first : str
        Heading of the labels.
    """

    def __init__(
        self, blocks: Sequence[_Block], title: str = "", caption: str = "", first: str = "model"
    ) -> None:
        self._blocks, self._title, self._caption, self._first = blocks, title, caption, first
        members = [each for _, block in blocks for each in block]
        self._numbers = [what for what, _ in members[0][1]] if members else []
        self._noted = [(name, row) for name, _, row in members if row.note]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = NARROW_WITH_NOTES if self._noted else NARROW
        yield self._rows() if options.max_width >= needed else self._columns()

    def _rows(self) -> Table:
        """Makes a row for each contestant."""
        table = self._empty([])
        table.add_column(self._first, overflow="fold")
        table.add_column("by", no_wrap=True)
        for what in self._numbers:
            table.add_column(what, justify="right", no_wrap=True)
        if self._noted:
            table.add_column("note", overflow="fold", min_width=20)
        for label, members in self._blocks:
            for name, cells, row in members:
                note = [_note(row)] if self._noted else []
                table.add_row(Text(label), Text(name), *(text for _, text in cells), *note)
                label = ""
            table.add_section()
        return table

    def _columns(self) -> Table:
        """Makes a column for each contestant, with notes below."""
        notes = [Text.assemble(f"{name}: ", _note(row)) for name, row in self._noted]
        table = self._empty(notes)
        table.show_header = False
        table.add_column(overflow="fold")
        for _ in range(max((len(members) for _, members in self._blocks), default=0)):
            table.add_column(justify="right", overflow="fold")
        for label, members in self._blocks:
            table.add_row(Text(label, "bold"), *(Text(name, "bold") for name, _, _ in members))
            for place, what in enumerate(self._numbers):
                table.add_row(what, *(cells[place][1] for _, cells, _ in members))
            table.add_section()
        return table

    def _empty(self, notes: Sequence[Text]) -> Table:
        lines = [Text(self._caption)] * bool(self._caption) + list(notes)
        table = Table(title_justify="left", caption_justify="left")
        table.title = Text(self._title) if self._title else None
        table.caption = Text("\n").join(lines) if lines else None
        return table


def bench_table(reports: Sequence[BenchReport], title: str = "") -> BenchTable:
    """Latencies, speeds and ratios (peer's time over ours) of one or more models."""
    counted = any(row.kernels for report in reports for row in report.rows)

    def cells(row: BenchRow) -> _Cells:
        kernels = [("kernels", str(len(row.kernels)) if row.kernels else "-")] if counted else []
        gflops = f"{row.gflops:.1f}" if row.gflops is not None else "-"
        speeds = [("requests/s", _rate(row.requests_per_second)), ("GFLOP/s", gflops)]
        return [*kernels, *_times(row.timing), *speeds, ("ratio", _ratio(row.ratio))]

    blocks = [
        (report.model, [(row.name, cells(row), row) for row in report.rows]) for report in reports
    ]
    return BenchTable(blocks, title)


def throughput_table(report: ThroughputReport, title: str = "") -> BenchTable:
    """Requests a second, times of requests and ratios (our rate over theirs), by streams."""
    blocks: dict[str, list[tuple[str, _Cells, BenchRow | ThroughputRow]]] = {}
    for row in report.rows:
        each = f"{row.streams} x {row.threads}T, callers: {row.callers}"
        rate, ratio = _rate(row.requests_per_second), _ratio(row.ratio)
        cells = [("requests/s", rate), *_times(row.timing), ("ratio", ratio)]
        blocks.setdefault(each, []).append((row.name, cells, row))
    best = ""
    if report.tried:
        tried = ", ".join(f"{count}: {_rate(rate)}" for count, rate in report.tried.items())
        chosen = report.rows[0].streams
        best = f"chosen: {chosen} {'stream' if chosen == 1 else 'streams'}; requests/s: {tried}"
    if report.best_ratio is not None:
        best += "\n" * bool(best)
        best += f"most requests/s of ours over the most of any peer: {report.best_ratio:.2f}"
    return BenchTable(list(blocks.items()), title, best, "streams")


def _note(row: BenchRow | ThroughputRow) -> Text:
    return Text(row.note, "" if row.agrees else "red")


def _times(timing: Timing | None) -> _Cells:
    if timing is None:
        return [(what, "-") for what in _TIMES]
    times = timing.median_us, timing.p95_us, timing.p99_us, timing.min_us
    texts = [f"{us:.1f}" if us < 10_000 else f"{us:.0f}" for us in times]
    return list(zip(_TIMES, texts, strict=True))


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _ratio(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else "-"


def kernel_table(decisions: Sequence[Decision], title: str = "") -> Table:
    """Kernels of the regions, with counts; nodes left to TVM are counted by schedule."""
    counts = Counter(
        (decision.op if decision.taken else "(left)", decision.kernel) for decision in decisions
    )
    table = Table(title=title or None, title_justify="left")
    table.add_column("region", overflow="fold")
    table.add_column("kernel", overflow="fold")
    table.add_column("count", justify="right")
    for (region, kernel), count in sorted(counts.items(), key=lambda item: item[0][0] == "(left)"):
        table.add_row(Text(region), Text(kernel), str(count))
    return table


def verify_table(report: VerifyReport, title: str = "") -> Table:
    """For each output: our distance from the reference, and that of optimised ONNX Runtime."""
    caption = "max rel: of the output's largest value; ORT opt.: that of ONNX Runtime optimised"
    notes = [f"{output.name}: {output.note}" for output in report.outputs if output.note]
    table = Table(title=title or None, title_justify="left", caption_justify="left")
    table.caption = Text("\n".join([caption, *notes]))
    table.add_column("output", overflow="fold")
    for column in ("max abs", "max rel", "1 - cosine", "allowed", "ORT opt.", "result"):
        table.add_column(column, justify="right", no_wrap=True)
    for output in report.outputs:
        ours = output.ours
        values = (ours.max_abs, ours.max_rel, 1 - ours.cosine, output.allowed)
        theirs = f"{output.optimised.max_rel:.1e}" if output.optimised else "-"
        result = Text("pass", "green") if output.passed else Text("FAIL", "bold red")
        table.add_row(Text(output.name), *(f"{each:.1e}" for each in values), theirs, result)
    return table


def kernel_speed_table(report: KernelReport) -> Table:
    """Speed of every microkernel, and its share of the peak for its types."""
    table = Table(title=report.cpu, title_justify="left")
    for column in ("types", "microkernel"):
        table.add_column(column, no_wrap=True)
    for column in ("GOP/s", "of peak"):
        table.add_column(column, justify="right", no_wrap=True)
    for types, peak in report.peaks.items():
        table.add_row(Text(types), "peak", f"{peak:.1f}", "100%")
        for kernel in report.kernels:
            if kernel.types == types:
                table.add_row("", Text(kernel.name), f"{kernel.gops:.1f}", f"{kernel.share:.0%}")
        table.add_section()
    if report.left_out:
        table.caption = Text(f"Not on this CPU: {', '.join(report.left_out)}", justify="left")
    return table


def bench_csv(report: BenchReport | ThroughputReport) -> str:
    """Writes the rows of a report as CSV, with a header; times are in microseconds.

    Unknown values are empty.
    """
    lines = []
    for row in report.rows:
        fields = {"model": report.model, "threads": report.threads, **msgspec.structs.asdict(row)}
        timing = fields.pop("timing")
        fields |= asdict(timing) if timing is not None else {}
        if "kernels" in fields:
            fields["kernels"] = len(fields["kernels"]) or None
        lines.append(fields)
    columns = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
