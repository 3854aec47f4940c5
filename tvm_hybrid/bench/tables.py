"""rich tables of what was measured and verified; decisions show themselves (`explanation`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from relay_passes.ir.decisions import Decision

from ..report.kernel_speed import KernelReport
from .accuracy.verify import VerifyReport


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


def verify_table(report: VerifyReport, title: str = "") -> Table:
    """Per output: our distance from the reference, and ONNX Runtime's own."""
    caption = "max rel: of the output's largest value; ORT opt.: that of ONNX Runtime optimised"
    notes = [f"{output.name}: {output.note}" for output in report.outputs if output.note]
    table = Table(
        title=title or None,
        title_justify="left",
        caption=Text("\n".join([caption, *notes])),
        caption_justify="left",
    )
    table.add_column("output", overflow="fold")
    for column in ("max abs", "max rel", "1 - cosine", "allowed", "ORT opt.", "result"):
        table.add_column(column, justify="right", no_wrap=True)
    for output in report.outputs:
        ours = output.ours
        table.add_row(
            Text(output.name),
            f"{ours.max_abs:.1e}",
            f"{ours.max_rel:.1e}",
            f"{1 - ours.cosine:.1e}",
            f"{output.allowed:.1e}",
            f"{output.optimised.max_rel:.1e}" if output.optimised else "-",
            Text("pass", "green") if output.passed else Text("FAIL", "bold red"),
        )
    return table


def kernel_speed_table(report: KernelReport) -> Table:
    """Every microkernel's speed, and its share of the peak of its types."""
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
