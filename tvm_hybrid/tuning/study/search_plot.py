"""Plots a study of searches: best-so-far curves of every recording, and trials side by side."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from ..recordings.simulate import Trace
from .plotting import COLOURS, new_figure, save_figure
from .search_study import RegionStudy, SearchStudy

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
