"""The picture of a program's graph: boxes for regions, inputs and outputs, with their places."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from relay_passes.ir.decisions import REORDER

from ...explain.program_graph import INPUT, WEIGHT, ProgramGraph, Value
from .layered import layered

WIDTH, TITLE, LINE, PADDING = 208.0, 20.0, 15.0, 10.0
MOST_LINES, MOST_LETTERS, MOST_IN_TITLE = 5, 29, 18


def tensor_of(value: Value) -> Tensor:
    """Converts a value to the page's form."""
    return Tensor(name=value.name, text=text_of(value), kind=value.kind, nbytes=value.nbytes)


def text_of(value: Value) -> str:
    """Formats type and sizes."""
    return f"{value.dtype}[{'x'.join(map(str, value.shape)) or 'scalar'}]"


def picture_of(graph: ProgramGraph, regions: Sequence[RegionCard]) -> Picture:
    """Makes boxes and edges with their places; weights have no boxes."""
    contents: list[tuple[str, list[str], str, int]] = []
    maker: dict[int, int] = {}
    for number in graph.inputs:
        value = graph.values[number]
        if value.kind == INPUT and any(number in call.reads for call in graph.calls):
            maker[number] = len(contents)
            contents.append((_cut(value.name), [_cut(text_of(value))], "input", -1))
    pairs: dict[tuple[int, int], str] = {}
    for call, region in zip(graph.calls, regions, strict=True):
        box = len(contents)
        kind = "region" if region.taken else "left"
        title = title_of(region.op) if region.taken or region.op == REORDER else "generic"
        # One line for each anchor with the operators that are fused with it.
        lines = [_cut(" + ".join(part)) for part in region.parts if part != [title]]
        if len(lines) > MOST_LINES:
            lines = [*lines[: MOST_LINES - 1], f"and {len(lines) - MOST_LINES + 1} more"]
        lines += [_cut(written.text) for written in region.writes[:1]]
        contents.append((_cut(title, MOST_IN_TITLE), lines, kind, region.number))
        for number in call.reads:
            if graph.values[number].kind != WEIGHT and number in maker:
                pairs.setdefault((maker[number], box), text_of(graph.values[number]))
        maker.update(dict.fromkeys(call.writes, box))
    for position, number in enumerate(graph.outputs):
        if number in maker:
            value = graph.values[number]
            pairs[maker[number], len(contents)] = text_of(value)
            contents.append((f"output {position}", [_cut(text_of(value))], "output", -1))
    sizes = [(WIDTH, TITLE + LINE * len(lines) + PADDING) for _, lines, _, _ in contents]
    layout = layered(sizes, list(pairs))
    return Picture(
        width=layout.width,
        height=layout.height,
        boxes=[
            Box(*content, round(x, 1), round(y, 1), *size)
            for content, (x, y), size in zip(contents, layout.places, sizes, strict=True)
        ],
        edges=[
            Edge(*ends, text, [(round(x, 1), round(y, 1)) for x, y in line])
            for (ends, text), line in zip(pairs.items(), layout.lines, strict=True)
        ],
    )


def _cut(text: str, most: int = MOST_LETTERS) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


class Box(msgspec.Struct, frozen=True):
    """A rectangle of the picture; `region` is the region's number, -1 for inputs and outputs."""

    title: str
    lines: list[str]
    kind: str
    region: int
    x: float
    y: float
    width: float
    height: float


class Edge(msgspec.Struct, frozen=True):
    """A tensor that goes from one box to another; `points` are those of the line."""

    source: int
    target: int
    text: str
    points: list[tuple[float, float]]


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """The boxes and edges of a graph, with their places."""

    width: float
    height: float
    boxes: list[Box]
    edges: list[Edge]


_MERGED = re.compile(r"\w+ \((.*)\)")
_SENTENCE = re.compile(r"; (?![^()]*\))")


def parts_of(op: str) -> list[list[str]]:
    """Splits a region's operators by anchor, in order."""
    merged = _MERGED.fullmatch(op)
    return [_split(each, " + ") for each in _split(merged[1] if merged else op, ", ")]


def title_of(op: str) -> str:
    """A region's title: its template, or its first operator."""
    return re.split(r"[ (]", op, maxsplit=1)[0]


def reasons_of(reason: str) -> list[str]:
    """Splits a reason into sentences."""
    return [each for each in _SENTENCE.split(reason) if each]


def _split(text: str, separator: str) -> list[str]:
    """Splits a text, but not inside of parentheses."""
    found, depth, start, position = [], 0, 0, 0
    while position < len(text):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0 and text.startswith(separator, position):
            found.append(text[start:position])
            start = position = position + len(separator)
        else:
            position += 1
    return [*found, text[start:]]


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that a region reads or writes.

    Attributes
    ----------
    name : str
        Name of its variable; "" for a weight.
    text : str
        Type and sizes, such as "float32[1x128]".
    kind : str
        "input", "weight" or "value".
    nbytes : int
        Bytes in memory; 0 if a size is dynamic.
    """

    name: str
    text: str
    kind: str
    nbytes: int


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Time and work of a region, or of all calls of a kernel.

    Attributes
    ----------
    us : float or None
        Microseconds in one run: the median of several; None if not measured.
    share : float or None
        Share of the time of all kernels, 0 to 1.
    flops : int
        Operations; 0 if they are not counted.
    nbytes : int
        Bytes that are moved, as in `Moved`; 0 if a size is dynamic.
    gflops, gbytes : float or None
        1e9 operations and bytes a second.
    of_peak : float or None
        Operations a second over the machine's peak for the operands' type.
    least_us : float or None
        Microseconds that the roofline allows: the longer of computing at the peak and moving the
        bytes from where they lie.
    moving_us : float
        Microseconds of moving the bytes.
    place : str
        Where most of the bytes lie: "L2", "L3" or "memory"; "" if the limits are unknown.
    bound : str
        The longer one: "compute", or `place`; "" if unknown.
    dtype : str
        Type whose peak counts.
    """

    us: float | None = None
    share: float | None = None
    flops: int = 0
    nbytes: int = 0
    gflops: float | None = None
    gbytes: float | None = None
    of_peak: float | None = None
    least_us: float | None = None
    moving_us: float = 0.0
    place: str = ""
    bound: str = ""
    dtype: str = "float32"


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a call moves; all are 0 if a size is dynamic.

    Attributes
    ----------
    weights : int
        Weights, each once.
    again : int
        Weights that a recurrent layer reads again, in each step after the first.
    read, written : int
        Other tensors that it reads and writes, each once.
    """

    weights: int = 0
    again: int = 0
    read: int = 0
    written: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.again + self.read + self.written


class RegionCard(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a kernel: its content, the reasons, and its time.

    Attributes
    ----------
    number : int
        Index in `PageData.regions`.
    node, op, function, kernel, config, source, on_vectors, at_run_time, workload
        See `relay_passes.ir.decisions.Decision`.
    taken : bool
        Whether one of our templates builds it.
    parts : list of list of str
        Its operators: each anchor with the operators that are fused with it.
    origins : list of str
        The ONNX nodes that it comes from, each with its operator.
    reasons : list of str
        The reasons of the decision, one sentence each.
    record : str
        The tuning record that it was built with; "" if none.
    reads, writes : list of Tensor
        Its tensors.
    moved : Moved
        Bytes that it moves.
    work : Work
        Its time and work.
    """

    number: int
    node: str
    op: str
    function: str
    kernel: str
    taken: bool
    parts: list[list[str]]
    origins: list[str]
    config: dict[str, Any]
    source: str
    record: str
    reasons: list[str]
    on_vectors: str
    at_run_time: str
    workload: str
    reads: list[Tensor]
    writes: list[Tensor]
    moved: Moved
    work: Work
