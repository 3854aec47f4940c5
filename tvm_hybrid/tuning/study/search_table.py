"""What a study of searches found: tables for the terminal and a page of documentation, JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from ...report.markdown import markdown_table
from .search_study import TRANSFER, RegionStudy, SearchStudy


def search_tables(study: SearchStudy) -> Iterator[Table]:
    """Recordings with the trials that strategies needed; bars."""
    table = Table(title=_title(study), title_justify="left")
    table.add_column("region", no_wrap=True)
    for column in _columns(study):
        table.add_column(column, justify="right", overflow="fold")
    for row in study.rows:
        table.add_row(Text(row.name), *_cells(study, row))
    table.add_section()
    table.add_row("geometric mean", *_mean_cells(study))
    yield table
    bars = Table("bar", "found", "holds")
    for bar in study.bars():
        bars.add_row(bar.text, f"{bar.value:.2f}", _yes(bar.holds))
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
    machines = "; ".join(dict.fromkeys(row.measured_on for row in study.rows))
    columns = ["region", *_columns(study)]
    lines = [
        "# Trials that searches need",
        "",
        "Written by `tvm-hybrid simulate --markdown FILE`: search strategies replay spaces that "
        "were measured once as a",
        "whole (`tvm_hybrid/tuning/recordings`), each configuration in turns with the default one.",
        f"Measured on {machines}.",
        "",
        f"- Trials: until a configuration was proposed that has {study.share:.0%} of the optimum's "
        f"speed; median of {study.seeds} seeds, the",
        f"  scores being told after {study.batch} proposals at most. No configuration is known "
        "beforehand, not even the default.",
        "- size: configurations of the space; near: the share of them that would do.",
        "- default: its time over the optimum's, measured in turns. The optimum is the fastest of "
        "many measurements, so",
        "  a little of it is luck.",
        "- exact: the median of drawing at random without replacement, from its distribution; the "
        "simulated one is an",
        "  estimate of it.",
    ]
    if TRANSFER in study.contestants:
        lines.append("- transfer: the model, having learned from all other recordings before.")
    rows = [[row.name, *_cells(study, row)] for row in study.rows]
    lines += markdown_table(columns, [*rows, ["geometric mean", *_mean_cells(study)]])
    bars = [[bar.text, f"{bar.value:.2f}", _yes(bar.holds)] for bar in study.bars()]
    lines += markdown_table(["bar", "found", "holds"], bars)
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


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _title(study: SearchStudy) -> str:
    return (
        f"trials until {study.share:.0%} of the optimum's speed, median of {study.seeds} seeds, "
        f"batches of at most {study.batch}"
    )


def _columns(study: SearchStudy) -> list[str]:
    return [
        "size",
        "near",
        "default",
        "exact",
        *study.contestants,
        *(f"{one} / {other}" for one, other in study.pairs()),
    ]


def _cells(study: SearchStudy, row: RegionStudy) -> list[str]:
    return [
        str(row.configurations),
        f"{row.near / row.configurations:.1%}",
        f"{row.default_ratio:.3f}",
        str(row.random_exact),
        *(f"{row.median(name):g}" for name in study.contestants),
        *(f"{row.quotient(one, other):.2f}" for one, other in study.pairs()),
    ]


def _mean_cells(study: SearchStudy) -> list[str]:
    gap = [""] * len(study.contestants)
    means = [f"{study.mean_quotient(one, other):.2f}" for one, other in study.pairs()]
    return ["", "", f"{study.mean_default():.3f}", "", *gap, *means]
