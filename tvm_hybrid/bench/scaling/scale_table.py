"""The table of a model's predicted times by threads."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from .scale import LABEL, RegionTime, ScaleReport, ScaleRun


def scale_table(report: ScaleReport, rows: int = 0) -> Table:
    """Times of the model and of its regions, by threads.

    Parameters
    ----------
    report : ScaleReport
        What to show. Regions that have the same kernels on all numbers of threads share a row.
    rows : int
        How many regions to show at most, the longest first; 0: all.
    """
    title = f"{report.model} on {report.machine}: {LABEL}"
    table = Table(title=title, title_justify="left", caption=LABEL)
    table.add_column("region", overflow="fold")
    for run in report.runs:
        table.add_column(f"{run.threads}\nus", justify="right", no_wrap=True)
    table.add_column("efficiency", justify="right")
    table.add_column(f"limit, {report.runs[-1].threads} threads", overflow="fold")
    total = [f"{run.predicted_us:.0f}" for run in report.runs]
    table.add_row("model", *total, f"{report.runs[-1].efficiency:.0%}", "", end_section=True)
    efficiencies = [f"{run.efficiency:.0%}" for run in report.runs]
    table.add_row("efficiency", *efficiencies, "", "", end_section=True)
    groups = _groups(report)
    for group in groups[: rows or len(groups)]:
        last = group[0][-1]
        times = [sum(regions[i].predicted_us for regions in group) for i in range(len(report.runs))]
        efficiency = times[0] / (times[-1] * report.runs[-1].threads)
        table.add_row(
            _name(last, len(group)),
            *(f"{time:.1f}" for time in times),
            f"{efficiency:.0%}",
            Text(_limit(last)),
        )
    for region, count in _others(report, groups):
        gaps = [""] * (len(report.runs) - 1)
        time = f"{region.predicted_us * count:.1f}"
        table.add_row(_name(region, count), *gaps, time, "", Text(_limit(region)))
    return table


def _name(region: RegionTime, count: int) -> Text:
    name = f"{region.op or region.function}, {region.kernel or 'generic'}"
    return Text(f"{count} x {name}" if count > 1 else name)


def _limit(region: RegionTime) -> str:
    """What limits a region, with its share of the time."""
    share = region.parts.get(region.limit, 0.0) / region.predicted_us
    return f"{region.limit} ({share:.0%}), {region.busy_threads} busy"


def _groups(report: ScaleReport) -> list[list[list[RegionTime]]]:
    """Regions by kernels, each on every number of threads.

    Left out are those that consist of other operators on some number of threads.
    """
    by_node = [{region.node: region for region in run.regions} for run in report.runs]
    groups: dict[tuple[str, ...], list[list[RegionTime]]] = {}
    for node, first in by_node[0].items():
        regions = [each[node] for each in by_node if node in each]
        if len(regions) == len(by_node) and all(region.op == first.op for region in regions):
            groups.setdefault(tuple(region.function for region in regions), []).append(regions)
    return sorted(groups.values(), key=lambda group: -sum(r[-1].predicted_us for r in group))


def _others(
    report: ScaleReport, groups: list[list[list[RegionTime]]]
) -> list[tuple[RegionTime, int]]:
    """The regions of the last run that are in no group, with how often they are called."""
    shown = {regions[-1].node for group in groups for regions in group}
    found: dict[str, tuple[RegionTime, int]] = {}
    for region in report.runs[-1].regions:
        if region.node not in shown:
            _, count = found.get(region.function, (region, 0))
            found[region.function] = region, count + 1
    return sorted(found.values(), key=lambda item: -item[0].predicted_us * item[1])


def measured_table(run: ScaleRun, rows: int = 0) -> Table:
    """Predicted and measured times of a run and of its kernels, the longest first.

    Parameters
    ----------
    run : ScaleRun
        One that was measured.
    rows : int
        How many kernels to show at most; 0: all.
    """
    table = Table(title=f"{run.threads} threads: predicted and measured", title_justify="left")
    table.add_column("kernel", overflow="fold")
    for column in ("calls", "predicted us", "measured us", "ratio"):
        table.add_column(column, justify="right")
    measured = run.measured_us or 0.0
    table.add_row("model", "", *_compared(run.predicted_us, measured), end_section=True)
    predicted: dict[str, list[float]] = {}
    for region in run.regions:
        predicted.setdefault(region.function, []).append(region.predicted_us)
    names = sorted(predicted, key=lambda name: -run.measured.get(name, 0.0))
    for name in names[: rows or len(names)]:
        times = predicted[name]
        compared = _compared(sum(times), run.measured.get(name, 0.0))
        table.add_row(Text(name), str(len(times)), *compared)
    return table


def _compared(predicted: float, measured: float) -> tuple[str, str, str]:
    ratio = f"{predicted / measured:.2f}" if measured else ""
    return f"{predicted:.1f}", f"{measured:.1f}", ratio
