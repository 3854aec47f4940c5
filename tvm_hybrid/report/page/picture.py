"""The picture of a program's graph: a box for every region, input and output, and their places."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from relay_passes.ir.decisions import REORDER

from ...explain.program_graph import INPUT, WEIGHT, ProgramGraph, Value
from .layered import layered
from .operators import title_of
from .region_card import RegionCard, Tensor

WIDTH, TITLE, LINE, PADDING = 208.0, 20.0, 15.0, 10.0
MOST_LINES, MOST_LETTERS, MOST_IN_TITLE = 5, 29, 18


def tensor_of(value: Value) -> Tensor:
    """A value, as the page shows it."""
    return Tensor(name=value.name, text=text_of(value), kind=value.kind, nbytes=value.nbytes)


def text_of(value: Value) -> str:
    """Type and sizes."""
    return f"{value.dtype}[{'x'.join(map(str, value.shape)) or 'scalar'}]"


def picture_of(graph: ProgramGraph, regions: Sequence[RegionCard]) -> Picture:
    """Boxes and edges with their places; a weight is no box."""
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
        contents.append((_cut(title, MOST_IN_TITLE), _lines(region, title), kind, region.number))
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
            Box(
                title=title,
                lines=lines,
                kind=kind,
                region=region,
                x=round(x, 1),
                y=round(y, 1),
                width=width,
                height=height,
            )
            for (title, lines, kind, region), (x, y), (width, height) in zip(
                contents, layout.places, sizes, strict=True
            )
        ],
        edges=[
            Edge(
                source=source,
                target=target,
                text=text,
                points=[(round(x, 1), round(y, 1)) for x, y in line],
            )
            for ((source, target), text), line in zip(pairs.items(), layout.lines, strict=True)
        ],
    )


def _lines(region: RegionCard, title: str) -> list[str]:
    """The operators of a region, an anchor with what is fused with it in a line."""
    lines = [_cut(" + ".join(part)) for part in region.parts if part != [title]]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"and {len(lines) - MOST_LINES + 1} more"]
    if region.writes:
        lines.append(_cut(region.writes[0].text))
    return lines


def _cut(text: str, most: int = MOST_LETTERS) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A rectangle of the picture: of a region (its number), an input or an output (then -1)."""

    title: str
    lines: list[str]
    kind: str
    region: int
    x: float
    y: float
    width: float
    height: float


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that goes from one box to another; `points` are where the line goes."""

    source: int
    target: int
    text: str
    points: list[tuple[float, float]]


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """The graph with its places."""

    width: float
    height: float
    boxes: list[Box]
    edges: list[Edge]
