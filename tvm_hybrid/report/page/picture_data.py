"""The graph with its places: boxes, and the lines between them."""

from __future__ import annotations

import msgspec


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
