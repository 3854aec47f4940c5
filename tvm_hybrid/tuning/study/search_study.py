"""Compares search strategies on recorded spaces: trials until nearly the optimum.

Every strategy searches every recording once for each seed, by simulation (`recordings.simulate`). A
recording counts with its median over the seeds; quotients of medians are averaged over recordings
by the geometric mean. The bars are goals of the project.
"""

from __future__ import annotations

import itertools
import logging
import math
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from microkernels.base.errors import ConfigError
from microkernels.base.logs import logger

from ...records.record import Record
from ...report.timing import markdown_table
from ..recordings import simulate
from ..search.strategies import STRATEGIES
from .tune_plot import COLOURS, new_figure, save_figure

TRANSFER = "transfer"
"""The contestant that runs strategy "model" with all other recordings as history."""

EXACT = "exact"
"""In place of a contestant: the exact median of random search, from its distribution."""

CONTESTANTS = ("random", "evolutionary", "model", TRANSFER)
MODEL_BAR, TRANSFER_BAR, DEFAULT_BAR = 3.0, 2.0, 1.05


@dataclass(frozen=True)
class RegionStudy:
    """The results for one recording.

    Attributes
    ----------
    name : str
        Name of the recording.
    workload : str
        The region's key.
    measured_on : str
        CPU, instruction set and number of threads of the recording.
    configurations : int
        Size of the space, failures included.
    near : int
        Configurations that reach the wanted share of the optimum's speed.
    default_us, optimum_us : float
        Median microseconds of the default configuration and of the fastest.
    default_ratio : float
        The default's time over the optimum's, measured in turns.
    random_exact : int
        Median trials of random search, from its distribution rather than by simulation.
    trials : dict of str to list of int
        Contestant -> trials that each seed needed.
    traces : dict of str to list of Trace
        Contestant -> its searches, each until it was near the optimum.
    """

    name: str
    workload: str
    measured_on: str
    configurations: int
    near: int
    default_us: float
    optimum_us: float
    default_ratio: float
    random_exact: int
    trials: Mapping[str, list[int]]
    traces: Mapping[str, list[simulate.Trace]] = field(repr=False)

    def median(self, contestant: str) -> float:
        """Median trials over the seeds; for EXACT, over all possible seeds."""
        if contestant == EXACT:
            return self.random_exact
        return statistics.median(self.trials[contestant])

    def quotient(self, contestant: str, other: str) -> float:
        """Median trials of `contestant` over those of `other`: above 1, `other` needs fewer."""
        return self.median(contestant) / self.median(other)


@dataclass(frozen=True)
class Bar:
    """A goal of the project: its text, the value found, and whether it is reached."""

    text: str
    value: float
    holds: bool


@dataclass(frozen=True)
class SearchStudy:
    """The results for all recordings.

    Attributes
    ----------
    share : float
        Share of the optimum's speed that a search has to reach.
    seeds, batch : int
        Searches of each contestant and recording, and trials between two observations.
    contestants : tuple of str
        Names of the contestants.
    rows : tuple of RegionStudy
        One for each recording.
    """

    share: float
    seeds: int
    batch: int
    contestants: tuple[str, ...]
    rows: tuple[RegionStudy, ...]

    def mean_quotient(self, contestant: str, other: str) -> float:
        """Geometric mean of the recordings' quotients."""
        return statistics.geometric_mean([row.quotient(contestant, other) for row in self.rows])

    def mean_default(self) -> float:
        """Geometric mean of the default's times over the optimum's."""
        return statistics.geometric_mean([row.default_ratio for row in self.rows])

    def pairs(self) -> list[tuple[str, str]]:
        """Pairs of contestants whose trials are compared."""
        present = {*self.contestants, EXACT}
        wanted = [("random", "model"), (EXACT, "model"), ("model", TRANSFER), (EXACT, TRANSFER)]
        if "model" not in present:
            wanted = [("random", name) for name in self.contestants if name != "random"]
        return [pair for pair in wanted if set(pair) <= present]

    def bars(self) -> Iterator[Bar]:
        """Checks the project's goals that these contestants can decide."""
        share, present = f"{self.share:.0%} of the optimum", {*self.contestants, EXACT}
        for random, how in (("random", "simulated"), (EXACT, "exact")):
            if {random, "model"} <= present:
                mean = self.mean_quotient(random, "model")
                text = f"random search ({how}) needs {MODEL_BAR:g}x the model's trials for {share}"
                yield Bar(f"{text} (geometric mean)", mean, mean >= MODEL_BAR)
                least = min(row.quotient(random, "model") for row in self.rows)
                text = f"random search ({how}) needs at least the model's trials in every region"
                yield Bar(f"{text} (smallest quotient)", least, least >= 1)
        if {"model", TRANSFER} <= present:
            mean = self.mean_quotient("model", TRANSFER)
            text = f"without transfer the model needs {TRANSFER_BAR:g}x the trials"
            yield Bar(f"{text} (geometric mean)", mean, mean >= TRANSFER_BAR)
        mean = self.mean_default()
        text = f"the default takes at most {DEFAULT_BAR:g}x the optimum's time (geometric mean)"
        yield Bar(text, mean, mean <= DEFAULT_BAR)


def study_searches(
    sources: Sequence[str | os.PathLike[str]],
    contestants: Sequence[str] = CONTESTANTS,
    *,
    seeds: int = 10,
    share: float = 0.98,
    batch: int = 8,
    jobs: int = 1,
    progress: Callable[[str], object] = lambda message: None,
) -> SearchStudy:
    """Lets strategies search recordings.

    Parameters
    ----------
    sources : sequence of str or path-like
        See `recordings.simulate.load_recordings`. A search with transfer learns from all other
        recordings.
    contestants : sequence of str
        Names of strategies, or "transfer".
    seeds : int
        Searches of each contestant and recording.
    share : float
        Share of the optimum's speed that ends a search; more than 0, at most 1.
    batch : int
        Trials between two observations.
    jobs : int
        Processes to spread the recordings over.
    progress : callable
        Called with a line for every recording that is done.

    Raises
    ------
    ConfigError
        If there is no such contestant, or a number is out of range.
    RecordError
        If a recording is missing, or cannot be used.
    """
    known = (*STRATEGIES, TRANSFER)
    for name in contestants:
        if name not in known:
            raise ConfigError(f"no search strategy {name!r}; there are {', '.join(known)}")
    if seeds < 1 or batch < 1 or jobs < 1 or not 0 < share <= 1:
        raise ConfigError(
            "seeds, batch and jobs must be at least 1 and share in (0, 1]: "
            f"{seeds}, {batch}, {jobs}, {share}"
        )
    if not contestants or not sources:
        raise ConfigError("a study needs a recording and a strategy")
    task = _Task(tuple(dict.fromkeys(contestants)), seeds, share, batch)
    recordings = _load(sources)
    rows: dict[int, RegionStudy] = {}

    def done(index: int, row: RegionStudy) -> None:
        rows[index] = row
        progress(f"{len(rows)} of {len(recordings)}: {row.name}")

    if jobs == 1 or len(recordings) == 1:
        for index in range(len(recordings)):
            done(index, task.run(recordings, index))
    else:
        # Spawn: a forked process would inherit locks that threads of TVM or of a display hold.
        context, arguments = multiprocessing.get_context("spawn"), (task, list(sources))
        with ProcessPoolExecutor(min(jobs, len(recordings)), context, _begin, arguments) as pool:
            largest_first = sorted(enumerate(recordings), key=lambda each: -len(each[1].space))
            futures = {pool.submit(_run, index): index for index, _ in largest_first}
            for future in as_completed(futures):
                done(futures[future], future.result())
    ordered = tuple(rows[index] for index in range(len(recordings)))
    return SearchStudy(share, seeds, batch, task.contestants, ordered)


@dataclass(frozen=True)
class _Task:
    contestants: tuple[str, ...]
    seeds: int
    share: float
    batch: int

    def run(self, recordings: Sequence[simulate.Recording], index: int) -> RegionStudy:
        """Runs all searches of one recording."""
        recording = recordings[index]
        # One tuple for all seeds, so that a strategy can cache what it learns from it.
        history = history_for(recordings, index) if TRANSFER in self.contestants else ()
        traces: dict[str, list[simulate.Trace]] = {}
        trials: dict[str, list[int]] = {}
        for name in self.contestants:
            strategy, known = ("model", history) if name == TRANSFER else (name, ())
            fixed: dict[str, Any] = {"batch": self.batch, "history": known, "until": self.share}
            found = [
                simulate.simulate(strategy, recording, seed=i, **fixed) for i in range(self.seeds)
            ]
            reached = [simulate.trials_to_reach(trace, self.share) for trace in found]
            if None in reached:
                raise ConfigError("a strategy gave up before it had proposed the whole space")
            traces[name], trials[name] = found, list(filter(None, reached))
        machine = recording.machine
        optimum = int(np.argmax(recording.scores))
        near = recording.near(self.share)
        return RegionStudy(
            name=recording.name,
            workload=recording.region.key,
            measured_on=f"{machine.name} ({machine.isa.name}), threads: {machine.threads}",
            configurations=len(recording.space),
            near=near,
            default_us=float(recording.times_us[0]),
            optimum_us=float(recording.times_us[optimum]),
            default_ratio=recording.best,
            random_exact=simulate.random_median(len(recording.space), near),
            trials=trials,
            traces=traces,
        )


def history_for(recordings: Sequence[simulate.Recording], index: int) -> tuple[Record, ...]:
    """Collects the records of all other workloads than one recording's."""
    workload = recordings[index].region.key
    others = (each.records for each in recordings if each.region.key != workload)
    return tuple(itertools.chain.from_iterable(others))


def _load(sources: Sequence[str | os.PathLike[str]]) -> list[simulate.Recording]:
    return [recording for source in sources for recording in simulate.load_recordings(source)]


_state: list[tuple[_Task, list[simulate.Recording]]] = []


def _begin(task: _Task, sources: list[str | os.PathLike[str]]) -> None:
    """Prepares a process; its warnings are muted, as the parent already gave them."""
    logger.setLevel(logging.ERROR)
    _state.append((task, _load(sources)))


def _run(index: int) -> RegionStudy:
    task, recordings = _state[0]
    return task.run(recordings, index)


# Plots a study of searches: best-so-far curves of every recording, and trials side by side.


COLUMNS = 5
CELL = (3.1, 2.3)
SUMMARY_HEIGHT = 3.2
LOWEST = 0.75
"""Lowest share of the optimum that is plotted."""


def plot_study(study: SearchStudy, path: str | os.PathLike[str]) -> None:
    """Writes the plot; the format follows from the name's ending.

    Lines are medians over the seeds, bands are quartiles.

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


def band(traces: list[simulate.Trace]) -> np.ndarray:
    """Quartiles [3, trials] of best-so-far curves, each extended by its last value."""
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
        ends = [middle - low, high - middle]
        style: dict[str, Any] = {"fmt": "o", "markersize": 4, "linewidth": 1, "color": colour}
        axis.errorbar(places + shift, middle, yerr=ends, label=name, **style)
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
    """Makes the table of trials for each recording, and the table of bars."""
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
    bars = Table("goal", "found", "reached")
    for bar in _bars(study):
        bars.add_row(*bar)
    yield bars


_ABOUT_PLOT = (
    "The curves show the best speed found after each trial, as a share of the optimum's speed.",
    "Lines are medians and areas are quartiles over the seeds. The lower plot shows how many",
    "trials a search needs. A better strategy has curves that rise earlier, and lower points.",
)


def search_page(study: SearchStudy, plot: str | None = None) -> str:
    """Writes the page: a table of goals, the method, and a table of recordings.

    Parameters
    ----------
    study : SearchStudy
        The results.
    plot : str or None
        Path of the plot that `plot_study` drew, relative to the page.
    """
    columns = ["region", *_columns(study)]
    about = {name: getattr(study, name) for name in ("share", "seeds", "batch")}
    machines = "; ".join(dict.fromkeys(row.measured_on for row in study.rows))
    text = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    goals = "\n".join(markdown_table(["goal", "found", "reached"], _bars(study)))
    lines = text.format(machines=machines, goals=goals, **about).splitlines()
    if TRANSFER in study.contestants:
        lines.append("- transfer: trials of the model, trained beforehand on all other recordings.")
    if study.pairs():
        lines.append(
            "- random / model and so on: quotients of trials; above 1, the second needs fewer."
        )
    lines += markdown_table(columns, _rows(study))
    if plot is not None:
        lines += ["", *_ABOUT_PLOT]
        lines += ["", f"![Best speed found by number of trials, median and quartiles]({plot})"]
    return "\n".join(lines) + "\n"


def search_json(study: SearchStudy) -> dict[str, Any]:
    """Converts a study to JSON; a trace is its curve of best speeds."""
    regions = []
    for row in study.rows:
        fields = {name: value for name, value in vars(row).items() if name != "traces"}
        fields["median"] = {name: row.median(name) for name in study.contestants}
        curves = {
            name: [trace.best.round(4) for trace in found] for name, found in row.traces.items()
        }
        fields["curves"] = {
            name: [each.tolist() for each in found] for name, found in curves.items()
        }
        regions.append(fields)
    return {
        "share": study.share,
        "seeds": study.seeds,
        "batch": study.batch,
        "regions": regions,
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
    """Cells of every recording, then the geometric means."""
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
