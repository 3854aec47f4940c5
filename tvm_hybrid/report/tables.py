"""rich tables of what was measured and verified; decisions show themselves (`explanation`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from relay_passes.decisions import Decision

from .bench import BenchReport
from .verify import VerifyReport


def kernel_table(decisions: Sequence[Decision], title: str = "") -> Table:
    """Which regions got which kernel; nodes that were left are counted by schedule."""
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


def bench_table(reports: Sequence[BenchReport], title: str = "") -> Table:
    """Latencies, speeds and ratios of one or more models."""
    table = Table(title=title or None, title_justify="left")
    table.add_column("model")
    table.add_column("by")
    for column in ("median us", "p90 us", "min us", "GFLOP/s", "ratio to ours"):
        table.add_column(column, justify="right")
    table.add_column("note", overflow="fold")
    for report in reports:
        model = report.model
        for row in report.rows:
            timing = row.timing
            table.add_row(
                Text(model),
                Text(row.name),
                f"{timing.median_us:.1f}" if timing else "-",
                f"{timing.p90_us:.1f}" if timing else "-",
                f"{timing.min_us:.1f}" if timing else "-",
                f"{row.gflops:.1f}" if row.gflops is not None else "-",
                f"{row.ratio:.2f}" if row.ratio is not None else "-",
                Text(row.note, "red" if not row.agrees else ""),
            )
            model = ""
        table.add_section()
    return table


def verify_table(report: VerifyReport, title: str = "") -> Table:
    """Per output: our distance from the reference, and ONNX Runtime's own."""
    table = Table(title=title or None, title_justify="left")
    table.add_column("output")
    for column in (
        "max abs",
        "max rel",
        "max rel per element",
        "1 - cosine",
        "tolerance",
        "ORT optimised, max rel",
    ):
        table.add_column(column, justify="right")
    table.add_column("result")
    for output in report.outputs:
        ours = output.ours
        table.add_row(
            Text(output.name),
            f"{ours.max_abs:.2e}",
            f"{ours.max_rel:.2e}",
            f"{ours.max_rel_element:.2e}",
            f"{1 - ours.cosine:.1e}",
            f"{report.tolerance:.2e}",
            f"{output.optimised.max_rel:.2e}",
            Text("pass", "green") if output.passed else Text("FAIL", "bold red"),
        )
    return table
