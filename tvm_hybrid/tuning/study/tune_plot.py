"""Plots a tuning run from its records: progress, predictions, and distance to machine limits.

records = [record for record, _ in RecordStore("records.jsonl")]
plot_tuning(records, "tuning.png", roof_of(records))
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from microkernels.base.errors import ConfigError
from microkernels.base.files import replacing
from tir_schedules.core.region import Region
from tir_schedules.core.template import has_template, template_for

from ...records.record import Record
from ...records.record_store import config_key
from ...report.kernel_speed import Roof, measure_roof
from ...targets.resolve import cpu_name, host_target
from ..verification.bounds import element_type

PANEL = (5.2, 4.2)
LONGEST_LABEL = 46
MOST_IN_LEGEND = 24


@dataclass(frozen=True)
class RegionRun:
    """All measurements of one region with one number of threads, in order.

    Attributes
    ----------
    label : str
        The region, shortened.
    region : Region
        The region.
    speeds : numpy.ndarray
        Speed of every trial relative to the default configuration, float64; 0.0 for failures.
    predicted : numpy.ndarray
        Predicted speed of every trial, float64; NaN without a prediction.
    gops : numpy.ndarray
        1e9 operations a second of every trial, float64; 0.0 for failures.
    intensity : float
        Operations per byte of the region's tensors, each tensor counted once.
    """

    label: str
    region: Region
    speeds: np.ndarray
    predicted: np.ndarray
    gops: np.ndarray
    intensity: float


def plot_tuning(
    records: Iterable[Record], path: str | os.PathLike[str], roof: Roof | None = None
) -> None:
    """Writes the plot; the format follows from the name's ending.

    Three panels: the best speed so far of every region by trials; measured against predicted
    speeds, if the records have predictions; and a roofline, operations a second of every
    configuration by operations per byte.

    Parameters
    ----------
    records : iterable of Record
        Records in the order of measurement.
    path : path-like
        The file to write.
    roof : Roof or None
        The machine's limits; see `roof_of`. None: no roof is drawn.

    Raises
    ------
    ConfigError
        If there are no records, matplotlib is not installed or the file cannot be written.
    """
    runs = region_runs(records)
    if not runs:
        raise ConfigError("there are no records to plot")
    figure = new_figure(3 * PANEL[0], PANEL[1] + min(len(runs), MOST_IN_LEGEND) * 0.09)
    progress, predictions, limits = figure.subplots(1, 3)
    _draw_progress(progress, runs)
    _draw_predictions(predictions, runs)
    _draw_limits(limits, runs, roof)
    handles, labels = progress.get_legend_handles_labels()
    few = slice(MOST_IN_LEGEND)
    place = {"loc": "outside lower center", "ncols": 2, "fontsize": 7}
    figure.legend(handles[few], labels[few], **place)
    save_figure(figure, path)


def roof_of(records: Sequence[Record]) -> Roof | None:
    """Measures this machine's limits for the types of the records, with the last record's threads.

    Takes some seconds. Returns None if there are no records, or one is of another machine.
    """
    if not records or any(record.machine != cpu_name(host_target()) for record in records):
        return None
    return measure_roof([operand_type(record.region) for record in records], records[-1].threads)


def region_runs(records: Iterable[Record]) -> list[RegionRun]:
    """Groups records by region and number of threads, in the order of their first record.

    A configuration that was measured again for longer is one trial, with the later measurement.
    """
    groups: dict[tuple[str, int], dict[bytes, Record]] = {}
    for record in records:
        if has_template(record.region.op):
            group = groups.setdefault((record.workload, record.threads), {})
            key = config_key(record.config)
            if record.predicted is None and key in group:
                record = msgspec.structs.replace(record, predicted=group[key].predicted)
            group[key] = record
    counts = [threads for _, threads in groups]
    several = len(set(counts)) > 1
    return [
        _run(list(group.values()), f", threads: {threads}" if several else "")
        for (_, threads), group in groups.items()
    ]


def operand_type(region: Region) -> str:
    """Type of the products' first operand: peaks depend only on this type."""
    types = {tensor.dtype for tensor in region.inputs}
    if types & {"uint8", "int8"}:
        return "uint8"
    return "bfloat16" if "bfloat16" in types else "float32"


def _run(records: Sequence[Record], ending: str) -> RegionRun:
    region = records[0].region
    flops = template_for(region.op).flops(region)
    measured = [record for record in records if record.times_us]
    # Records that were not measured in turns with the default are compared by their own times.
    default_us = next((record.baseline_us for record in measured if record.baseline_us), None)
    default_us = default_us or (measured[0].median_us if measured else 1.0)
    relative = [r.median_us / default_us if r.relative is None else r.relative for r in records]
    tensors = (*region.inputs, *region.operands, region.output)
    cut = f"{region.key[: LONGEST_LABEL - 3]}..."
    return RegionRun(
        label=(region.key if len(region.key) <= LONGEST_LABEL else cut) + ending,
        region=region,
        speeds=np.array([1 / quotient for quotient in relative]),
        predicted=np.array([record.predicted for record in records], np.float64),
        gops=np.array([flops / record.median_us / 1e3 for record in records]),
        intensity=flops / sum(each.size * element_type(each.dtype).itemsize for each in tensors),
    )


def _draw_progress(axis: Any, runs: Sequence[RegionRun]) -> None:
    for number, run in enumerate(runs):
        best = np.maximum.accumulate(run.speeds)
        trials = np.arange(1, len(best) + 1)
        marker = "." if len(best) == 1 else None
        axis.step(trials, best, where="post", marker=marker, label=run.label, **_style(number))
    axis.axhline(1, color="0.4", linewidth=0.7, linestyle=":")
    axis.set_xlabel("trials")
    axis.set_ylabel("best speed so far, times the default's")
    axis.set_ylim(bottom=min(0.9, max(min(float(run.speeds[0]) for run in runs), 0.5)))
    axis.set_title("progress", fontsize=9)


def _draw_predictions(axis: Any, runs: Sequence[RegionRun]) -> None:
    axis.set_title("measured against predicted", fontsize=9)
    axis.set_xlabel("predicted speed, times the default's")
    axis.set_ylabel("measured")
    both = [(run, np.isfinite(run.predicted) & (run.speeds > 0)) for run in runs]
    values = [value for run, known in both for value in (*run.predicted[known], *run.speeds[known])]
    if not values:
        axis.text(0.5, 0.5, "nothing was predicted", ha="center", transform=axis.transAxes)
        return
    for number, (run, known) in enumerate(both):
        colour = _style(number)["color"]
        axis.scatter(run.predicted[known], run.speeds[known], s=9, color=colour)
    ends = min(values), max(values)
    axis.plot(ends, ends, color="0.4", linewidth=0.7)


def _draw_limits(axis: Any, runs: Sequence[RegionRun], roof: Roof | None) -> None:
    axis.set_title("roofline", fontsize=9)
    axis.set_xlabel("operations for each byte of the tensors")
    axis.set_ylabel("1e9 operations a second")
    for scale, side in ((axis.set_xscale, axis.xaxis), (axis.set_yscale, axis.yaxis)):
        scale("log", base=2)
        side.set_major_formatter("{x:g}")
    for number, run in enumerate(runs):
        works = run.gops[run.gops > 0]
        if len(works):
            colour = _style(number)["color"]
            places = np.full(len(works), run.intensity)
            axis.scatter(places, works, s=6, color=colour, alpha=0.4, linewidths=0)
            axis.scatter(run.intensity, works.max(), s=40, facecolors="none", edgecolors=colour)
    if roof is None:
        return
    intensities = [run.intensity for run in runs]
    for dtype, peak in roof.peaks.items():
        ridge = peak / roof.bandwidth
        ends = min(*intensities, ridge) / 2, max(*intensities, ridge) * 2
        reach = np.geomspace(*ends, 100)
        limits = [roof.limit(dtype, intensity) for intensity in reach]
        axis.plot(reach, limits, color="0.3", linewidth=0.9)
        axis.annotate(f"{dtype} {peak:.0f}", (ends[1], peak), ha="right", va="bottom", fontsize=7)
    text = f"threads: {roof.threads}, memory {roof.bandwidth:.1f} GB/s;\n"
    text += "what stays in caches may exceed that slope"
    axis.text(0.02, 0.97, text, transform=axis.transAxes, va="top", fontsize=7)


def _style(number: int) -> dict[str, Any]:
    lines = ("-", "--", "-.", ":")
    repeats, colour = divmod(number, len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": lines[repeats % len(lines)]}


# Also distinct to colour-blind readers (Okabe and Ito's palette).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def new_figure(width: float, height: float) -> Any:
    """Makes an empty matplotlib figure; width and height are in inches.

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "plots need matplotlib, which is not installed; pip install matplotlib brings it"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a figure in the format of the name's ending.

    Raises
    ------
    ConfigError
        If the file cannot be written, or there is no such format.
    """
    try:
        with replacing(path, ConfigError, "the plot") as draft:
            figure.savefig(draft, dpi=110)
    except ValueError as error:  # there is no such format
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"cannot write the plot {path}: {error}") from error
