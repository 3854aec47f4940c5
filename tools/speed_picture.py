"""Draws docs/speed.svg, the README's picture: models of the newest survey, on one thread.

    python -m tools.speed_picture

Without a survey of models, it shows the table under the heading `HEADING` of docs/performance.md:
time, and the ratios of ONNX Runtime and OpenVINO. A test fails if the picture does not fit its
source.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.survey.store import Survey, newest
from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME, OPENVINO, OURS

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, PICTURE = DOCS / "performance.md", DOCS / "speed.svg"
HEADING = "Emerald Rapids, AMX hidden"
_RATIO = re.compile(r"([\d.]+)x")
_MARK = "tvm_hybrid table "


@dataclass(frozen=True)
class Row:
    """A model, with the times of other libraries over ours on one thread."""

    model: str
    onnx_runtime: float
    openvino: float


def shown_survey(surveys: Iterable[Survey]) -> Survey | None:
    """The first survey with something to draw."""
    return next(filter(survey_rows, surveys), None)


def survey_rows(survey: Survey) -> list[Row]:
    """The models that all libraries ran on one thread."""
    found = survey.sections.get("models")
    return [
        Row(row.case, *(row.values[name] / row.values[OURS] for name in (ONNX_RUNTIME, OPENVINO)))
        for row in (found.rows if found else ())
        if row.threads == 1 and {OURS, ONNX_RUNTIME, OPENVINO} <= row.values.keys()
    ]


def shown_rows() -> list[Row]:
    """The rows of the picture, from the newest survey or from the table."""
    survey = shown_survey(newest())
    return table_rows(PAGE.read_text()) if survey is None else survey_rows(survey)


def table_rows(page: str) -> list[Row]:
    """The models of the table, in its order; ValueError if the page has no such table."""
    _, found, section = page.partition(f"## {HEADING}\n")
    rows = []
    for line in section.partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        ratios = [_RATIO.fullmatch(cell) for cell in cells[2:4]]
        if len(cells) == 7 and len(ratios) == 2 and all(ratios):
            first, second = (float(ratio[1]) for ratio in ratios if ratio)
            rows.append(Row(cells[0], first, second))
        elif rows:
            break
    if not found or not rows:
        raise ValueError(f"{PAGE.name} has no table of models under {HEADING!r}")
    return rows


def fingerprint(rows: list[Row]) -> str:
    """A text in the picture that identifies the rows it was drawn from."""
    return _MARK + hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


def draw(rows: list[Row], path: Path) -> None:
    """Draws a bar for each other library and model, and a line where both are equally fast."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tvm_hybrid"
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 0.27 * len(rows) + 1.1))
    places = range(len(rows))
    both = (
        ("ONNX Runtime", [row.onnx_runtime for row in rows], -0.2, "#4c78a8"),
        ("OpenVINO", [row.openvino for row in rows], 0.2, "#f58518"),
    )
    for name, values, shift, color in both:
        axis.barh([place + shift for place in places], values, 0.38, label=name, color=color)
    axis.axvline(1, color="#555555", linewidth=1)
    axis.set_yticks(list(places), [row.model for row in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlabel("time of the other over ours (1: equally fast)", fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    # Above the bars: readers meet the colours first.
    axis.set_title("One thread, the same precision", fontsize=9, loc="left")
    axis.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
    figure.patch.set_facecolor("white")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Description": fingerprint(rows)})


if __name__ == "__main__":
    draw(shown_rows(), PICTURE)
