"""Plots a study of searches: best-so-far curves of every recording, and trials side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from ...report.timing import markdown_table
from ..recordings.simulate import Trace
from .search_study import TRANSFER, RegionStudy, SearchStudy
from .tune_plot import COLOURS, new_figure, save_figure

COLUMNS = 5
CELL = (3.1, 2.3)
SUMMARY_HEIGHT = 3.2
LOWEST = 0.75
"""Shares of the optimum below this are cut off."""


def plot_study(study: SearchStudy, path: str | os.PathLike[str]) -> None:
    """Writes the plot; the format follows from the name's ending.

    Lines are medians over the seeds, bands their quartiles.

    Raises
    ------
    ConfigError
        If matplotlib is not installed, or the file cannot be written.
    """
    columns = min(COLUMNS, len(study.rows))
    lines = math.ceil(len(study.rows) / columns)
    width = max(columns * CELL[0], 8)
    figure = new_figure(width, lines * CELL[1] + SUMMARY_HEIGHT)
    curves, summary = figure.subfigures(2, 1, height_ratios=[lines * CELL[1], SUMMARY_HEIGHT])
    axes = list(curves.subplots(lines, columns, squeeze=False, sharey=True).flat)
    for axis, row in zip(axes, study.rows, strict=False):
        _draw_curves(axis, study, row)
    for axis in axes[len(study.rows) :]:
        axis.set_axis_off()
    curves.supylabel("best speed so far, share of the optimum's", fontsize=9)
    curves.supxlabel("trials", fontsize=9)
    _draw_summary(summary.subplots(), study)
    save_figure(figure, path)


def band(traces: list[Trace]) -> np.ndarray:
    """Quartiles of best-so-far curves, each held at its last value: [3, trials], float64."""
    longest = max(len(trace.best) for trace in traces)
    held = [np.pad(trace.best, (0, longest - len(trace.best)), mode="edge") for trace in traces]
    quartiles: np.ndarray = np.quantile(np.array(held), [0.25, 0.5, 0.75], axis=0)
    return quartiles


def _draw_curves(axis: Any, study: SearchStudy, row: RegionStudy) -> None:
    for colour, name in zip(COLOURS, study.contestants, strict=False):
        low, middle, high = band(row.traces[name])
        trials = np.arange(1, len(middle) + 1)
        axis.fill_between(trials, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.plot(trials, middle, color=colour, linewidth=1.3)
    axis.axhline(study.share, color="0.4", linewidth=0.7, linestyle="--")
    axis.axhline(1 / row.default_ratio, color="0.4", linewidth=0.7, linestyle=":")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_ylim(LOWEST, 1.01)
    axis.set_title(f"{row.name} ({row.configurations})", fontsize=8)
    axis.tick_params(labelsize=7)


def _draw_summary(axis: Any, study: SearchStudy) -> None:
    places = np.arange(len(study.rows))
    for number, (colour, name) in enumerate(zip(COLOURS, study.contestants, strict=False)):
        shift = (number - (len(study.contestants) - 1) / 2) * 0.15
        low, middle, high = (
            np.array([np.quantile(row.trials[name], share) for row in study.rows])
            for share in (0.25, 0.5, 0.75)
        )
        axis.errorbar(
            places + shift,
            middle,
            yerr=[middle - low, high - middle],
            fmt="o",
            markersize=4,
            linewidth=1,
            color=colour,
            label=name,
        )
    axis.plot([], [], color="0.4", linestyle="--", linewidth=0.7, label=f"{study.share:.0%}")
    axis.plot([], [], color="0.4", linestyle=":", linewidth=0.7, label="default configuration")
    axis.set_yscale("log", base=2)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_ylabel(f"trials to {study.share:.0%}", fontsize=9)
    axis.set_xticks(places, [row.name for row in study.rows], rotation=30, ha="right", fontsize=7)
    axis.tick_params(axis="y", labelsize=7)
    axis.grid(axis="y", linewidth=0.3)
    axis.set_title("median and quartiles over the seeds", fontsize=8)
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))


def search_tables(study: SearchStudy) -> Iterator[Table]:
    """Recordings with the trials that strategies needed; bars."""
    title = (
        f"trials until {study.share:.0%} of the optimum's speed, median of {study.seeds} seeds, "
        f"batches of at most {study.batch}"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("region", no_wrap=True)
    for column in _columns(study):
        table.add_column(column, justify="right", overflow="fold")
    *rows, mean = _rows(study)
    for name, *cells in rows:
        table.add_row(Text(name), *cells)
    table.add_section()
    table.add_row(*mean)
    yield table
    bars = Table("bar", "found", "holds")
    for bar in _bars(study):
        bars.add_row(*bar)
    yield bars


def search_page(study: SearchStudy, plot: str | None = None) -> str:
    """The page: what was simulated and how, a table of recordings and one of bars.

    Parameters
    ----------
    study : SearchStudy
        What was found.
    plot : str or None
        The plot that `search_plot` drew of it, relative to the page.
    """
    columns = ["region", *_columns(study)]
    about = {name: getattr(study, name) for name in ("share", "seeds", "batch")}
    machines = "; ".join(dict.fromkeys(row.measured_on for row in study.rows))
    text = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    lines = text.format(machines=machines, **about).splitlines()
    if TRANSFER in study.contestants:
        lines.append("- transfer: the model, having learned from all other recordings before.")
    lines += markdown_table(columns, _rows(study))
    lines += markdown_table(["bar", "found", "holds"], _bars(study))
    if plot is not None:
        lines += ["", f"![Best speed so far by trials, median and quartiles]({plot})"]
    return "\n".join(lines) + "\n"


def search_json(study: SearchStudy) -> dict[str, Any]:
    """Everything; of a trace its curve, the best speed so far as a share of the optimum's."""
    return {
        "share": study.share,
        "seeds": study.seeds,
        "batch": study.batch,
        "regions": [
            {
                **{name: value for name, value in vars(row).items() if name != "traces"},
                "median": {name: row.median(name) for name in study.contestants},
                "curves": {
                    name: [trace.best.round(4).tolist() for trace in row.traces[name]]
                    for name in study.contestants
                },
            }
            for row in study.rows
        ],
        "quotients": {f"{a}/{b}": study.mean_quotient(a, b) for a, b in study.pairs()},
        "default_ratio": study.mean_default(),
        "bars": [{"bar": bar.text, "found": bar.value, "holds": bar.holds} for bar in study.bars()],
    }


def _bars(study: SearchStudy) -> list[list[str]]:
    return [[bar.text, f"{bar.value:.2f}", "yes" if bar.holds else "no"] for bar in study.bars()]


def _columns(study: SearchStudy) -> list[str]:
    quotients = (f"{one} / {other}" for one, other in study.pairs())
    return ["size", "near", "default", "exact", *study.contestants, *quotients]


def _rows(study: SearchStudy) -> Iterator[list[str]]:
    """The cells of every recording, then those of their geometric mean."""
    for row in study.rows:
        yield [
            row.name,
            str(row.configurations),
            f"{row.near / row.configurations:.1%}",
            f"{row.default_ratio:.3f}",
            str(row.random_exact),
            *(f"{row.median(name):g}" for name in study.contestants),
            *(f"{row.quotient(one, other):.2f}" for one, other in study.pairs()),
        ]
    gap = [""] * len(study.contestants)
    means = [f"{study.mean_quotient(one, other):.2f}" for one, other in study.pairs()]
    yield ["geometric mean", "", "", f"{study.mean_default():.3f}", "", *gap, *means]
