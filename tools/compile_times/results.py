"""The measurements of models, and tables of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from relay_passes.pipeline import Phase
from tvm_hybrid.report.timing import markdown_table

from .corpus import OTHER_BATCH, OTHER_HEAD, RELATIVES
from .start import FIRST_RUN, FRONT_END, KEEPING, MACHINE_CODE, MODULES, REST
from .starts import Start

COLD, FAST, AGAIN, COUNTING = "cold", "fast start", "again", "counting"
ONNXRUNTIME, OPENVINO = "ONNX Runtime", "OpenVINO"
STARTS = (COLD, FAST, AGAIN, *RELATIVES, COUNTING, ONNXRUNTIME, OPENVINO)
COUNTS = {
    "kernels": "kernels",
    "lines": "lines of LLVM IR",
    "evaluations": "cost evaluations",
    "visits": "pass visits",
    "passes": "TVM's passes",
}
SLACK = 10
"""Per cent that counts may rise above their measured values."""

STAGES = (FRONT_END, *(phase.value for phase in Phase), MACHINE_CODE, KEEPING, REST, FIRST_RUN)
PARTS = ("configurations", "templates", "TVM's passes", "LLVM IR", "LLVM's emission")


@dataclass
class Row:
    """A model's starts, by name."""

    name: str
    starts: dict[str, Start] = field(default_factory=dict)

    def count(self, kind: str) -> int | None:
        """One of the counts, from the counting start or else from the cold one."""
        for name in (COUNTING, COLD):
            found = self.starts.get(name)
            if found is not None and kind in found.counts and not found.fault:
                return found.counts[kind]
        return None

    @classmethod
    def of(cls, name: str, starts: dict[str, dict[str, Any]]) -> Row:
        """Reads the starts that `as_json` wrote."""
        return cls(name, {each: Start(**fields) for each, fields in starts.items()})

    def as_json(self) -> dict[str, Any]:
        """The starts as dictionaries of their fields."""
        return {name: asdict(found) for name, found in self.starts.items()}


Cell = Callable[[Row], str]
Table = tuple[list[str], list[list[str]]]


def summary(rows: Sequence[Row]) -> Table:
    """A table of each kind of start's median and greatest seconds, over models that answered."""
    kinds = {
        COLD: "first start",
        FAST: 'first start with `start="fast"`, wall time',
        AGAIN: "second start",
        ONNXRUNTIME: ONNXRUNTIME,
        OPENVINO: OPENVINO,
    }
    lines = []
    for name, title in kinds.items():
        found = [row.starts[name] for row in rows if name in row.starts]
        spent = [each.seconds() for each in found if not each.fault]
        if spent:
            numbers = [each.wall if name == FAST else each.cpu for each in spent]
            lines.append([title, f"{statistics.median(numbers):.2g}", f"{max(numbers):.2g}"])
    return ["", "median", "most"], lines


def overview(rows: Iterable[Row]) -> Table:
    """A table of every start's seconds until the first answer, and of counts."""
    columns: dict[str, Cell] = {
        "model": lambda row: row.name,
        "CPU s": lambda row: seconds(row, COLD),
        "wall s": lambda row: seconds(row, COLD, wall=True),
        "fast start, wall s": lambda row: seconds(row, FAST, wall=True, digits=2),
        "again": lambda row: seconds(row, AGAIN, digits=2),
        OTHER_HEAD: lambda row: seconds(row, OTHER_HEAD),
        OTHER_BATCH: lambda row: seconds(row, OTHER_BATCH),
        "ONNX Runtime": lambda row: seconds(row, ONNXRUNTIME, digits=2),
        "OpenVINO": lambda row: seconds(row, OPENVINO, digits=2),
        "MB": peak,
        "programs": programs,
        **{title: _counted(kind) for kind, title in COUNTS.items()},
    }
    return _table(columns, rows)


def stages(rows: Iterable[Row]) -> Table:
    """A table of the cold start's CPU seconds by stage (phases by number), and by part."""
    numbers = {phase.value: f"{at}" for at, phase in enumerate(Phase, 1)}
    columns: dict[str, Cell] = {"model": lambda row: row.name}
    for title in STAGES:
        columns[numbers.get(title, title)] = _stage(title)
    for title in PARTS:
        columns[f"of it {title}"] = _part(title)
    return _table(columns, rows)


def budgets(rows: Iterable[Row]) -> list[str]:
    """Lines of the file of budgets: each model's counts, with slack."""
    made = f"# Made by `python -m tools.compile_times --budgets`: counts and {SLACK}% of slack."
    lines = [made, " ".join(["model", *COUNTS])]
    for row in rows:
        counts = [row.count(kind) for kind in COUNTS]
        if None not in counts:
            most = (count + -(-count * SLACK // 100) for count in counts if count is not None)
            lines.append(" ".join([row.name, *map(str, most)]))
    return lines


def read_budgets(text: str) -> dict[str, dict[str, int]]:
    """The most that each count of a model may be, from the file of budgets."""
    head, *lines = (line.split() for line in text.splitlines() if line and line[0] != "#")
    return {name: dict(zip(head[1:], map(int, numbers), strict=True)) for name, *numbers in lines}


def notes(rows: Iterable[Row]) -> list[str]:
    """Reasons for missing figures."""
    return [
        f"{row.name}, {name}: {found.fault}"
        for row in rows
        for name, found in row.starts.items()
        if found.fault
    ]


def modules(rows: Iterable[Row], name: str) -> float:
    """The median CPU seconds that Python takes to import an engine; 0 if none was started."""
    found = [row.starts[name].stages for row in rows if name in row.starts]
    return statistics.median([each[MODULES][0] for each in found if MODULES in each] or [0.0])


def seconds(row: Row, name: str, wall: bool = False, digits: int = 1) -> str:
    """Seconds until the first answer as text, without Python's import of modules."""
    found = row.starts.get(name)
    if found is None:
        return ""
    if found.fault:
        return "-"
    spent = found.seconds()
    return f"{spent.wall if wall else spent.cpu:.{digits}f}"


def peak(row: Row) -> str:
    """The peak memory of the cold start."""
    found = row.starts.get(COLD)
    return f"{found.peak_mb:.0f}" if found is not None and not found.fault else ""


def programs(row: Row) -> str:
    """Whether one program serves all sizes, or each size has a program."""
    found = row.starts.get(COLD) or row.starts.get(COUNTING)
    if found is None or found.fault:
        return ""
    return "one" if found.one_program else "each"


def _counted(kind: str) -> Cell:
    def cell(row: Row) -> str:
        count = row.count(kind)
        return "" if count is None else str(count)

    return cell


def _stage(title: str) -> Cell:
    def cell(row: Row) -> str:
        found = row.starts.get(COLD)
        return f"{found.stages[title][0]:.2f}" if found and title in found.stages else ""

    return cell


def _part(title: str) -> Cell:
    def cell(row: Row) -> str:
        found = row.starts.get(COLD)
        return f"{found.parts[title]:.2f}" if found and title in found.parts else ""

    return cell


def _table(columns: dict[str, Cell], rows: Iterable[Row]) -> Table:
    return list(columns), [[cell(row) for cell in columns.values()] for row in rows]


def page(rows: Sequence[Row], found: Mapping[str, object]) -> str:
    """The page of the documentation, with both tables and the reasons for missing figures."""
    return (
        Path(__file__)
        .with_name("page.md")
        .read_text()
        .format(
            **{name: found[name] for name in ("command", "cpu", "threads", "limit")},
            openvino=found["OpenVINO"],
            modules=modules(rows, COLD),
            again=modules(rows, AGAIN),
            theirs=modules(rows, ONNXRUNTIME),
            models=len(rows),
            summary="\n".join(markdown_table(*summary(rows))[1:]),
            overview="\n".join(markdown_table(*overview(rows))[1:]),
            notes="\n".join(f"- {note}" for note in notes(rows)),
            phases=", ".join(f"{at} {phase.value}" for at, phase in enumerate(Phase, 1)),
            stages="\n".join(markdown_table(*stages(rows))[1:]),
        )
    )
