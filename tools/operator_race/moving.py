"""Operators that move elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from .case import Case, Cases, Input, Known, Make, axes, booleans, floats, image, integers, rows


def _table(size: int) -> np.ndarray:
    return floats((50, 1000, 30000)[size], (16, 128, 512)[size])


def _taken(size: int) -> np.ndarray:
    return integers((8, 128, 1024)[size], high=50)


def _grid(size: int) -> np.ndarray:
    """Indices of whole rows of an array with three axes."""
    return integers((10, 200, 2000)[size], 2, high=10)


def _scatter_elements(reduction: str) -> Make:
    def make(size: int) -> Case:
        count, width = rows(size)
        indices = integers(count // 2, width, high=count)
        inputs = [floats(count, width), indices, floats(count // 2, width)]
        return Case("ScatterElements", inputs, {"axis": 0, "reduction": reduction})

    return make


def _scatter_rows(reduction: str) -> Make:
    """Scatters rows, as graph networks add up messages at their nodes."""

    def make(size: int) -> Case:
        nodes, width = (20, 32) if not size else (200 * size, 64 * size)
        edges = 4 * nodes
        inputs = [floats(nodes, width), integers(edges, 1, high=nodes), floats(edges, width)]
        return Case("ScatterND", inputs, {"reduction": reduction})

    return make


def _pad(mode: str) -> Make:
    def make(size: int) -> Case:
        return Case("Pad", [floats(*image(size)), axes(0, 0, 2, 3, 0, 0, 2, 3)], {"mode": mode})

    return make


def _of_image(operator: str, *more: Input, **attributes: Any) -> Make:
    return lambda size: Case(operator, [floats(*image(size)), *more], attributes)


def _slice(size: int, axis: int, step: int) -> Case:
    length = image(size)[axis]
    start, end = (length, -length - 1) if step < 0 else (1, length - 1)
    inputs: list[Input] = [floats(*image(size)), axes(start), axes(end), axes(axis), axes(step)]
    return Case("Slice", inputs)


def _split(size: int, axis: int) -> Case:
    return Case("Split", [floats(*rows(size))], {"axis": axis, "num_outputs": 4}, outputs=4)


def _concat(size: int, axis: int) -> Case:
    return Case("Concat", [floats(*rows(size)) for _ in range(3)], {"axis": axis})


MOVING: Cases = {
    "Transpose": lambda size: Case("Transpose", [floats(*rows(size))]),
    "Transpose, to channels last": _of_image("Transpose", perm=[0, 2, 3, 1]),
    "Transpose, from channels last": _of_image("Transpose", perm=[0, 3, 1, 2]),
    "Transpose, heads": lambda size: Case(
        "Transpose", [floats(1, (8, 128, 512)[size], 12, 64)], {"perm": [0, 2, 1, 3]}
    ),
    "Gather, rows": lambda size: Case("Gather", [Known(_table(size)), _taken(size)]),
    "Gather, columns": lambda size: Case(
        "Gather", [floats(*rows(size)), integers(30, high=60)], {"axis": 1}
    ),
    "GatherElements": lambda size: Case(
        "GatherElements", [floats(*rows(size)), integers(*rows(size), high=60)], {"axis": 1}
    ),
    "GatherElements, axis 0": lambda size: Case(
        "GatherElements", [floats(*rows(size)), integers(*rows(size), high=16)], {"axis": 0}
    ),
    "GatherND": lambda size: Case("GatherND", [floats(10, 10, (16, 64, 256)[size]), _grid(size)]),
    "GatherND, elements": lambda size: Case(
        "GatherND", [floats(*rows(size)), integers((50, 2000, 50000)[size], 2, high=16)]
    ),
    **{
        f"ScatterElements, {name}": _scatter_elements(name)
        for name in ("none", "add", "mul", "max", "min")
    },
    **{f"ScatterND, {name}": _scatter_rows(name) for name in ("none", "add", "max")},
    "TensorScatter": lambda size: Case(
        "TensorScatter",
        [floats(2, 4, (16, 256, 2048)[size], 64), floats(2, 4, 1, 64), integers(2, high=8)],
        {"axis": -2},
    ),
    "Expand": lambda size: Case("Expand", [floats(1, rows(size)[1]), axes(rows(size)[0], 1)]),
    "Expand, last axis": lambda size: Case(
        "Expand", [floats(rows(size)[0], 1), axes(1, rows(size)[1])]
    ),
    "Tile": lambda size: Case("Tile", [floats(*rows(size)), axes(2, 2)]),
    "Concat": lambda size: _concat(size, 1),
    "Concat, axis 0": lambda size: _concat(size, 0),
    "Split": lambda size: _split(size, 1),
    "Split, axis 0": lambda size: _split(size, 0),
    "Slice, rows": lambda size: _slice(size, 2, 1),
    "Slice, columns": lambda size: _slice(size, 3, 1),
    "Slice, every second": lambda size: _slice(size, 3, 2),
    "Slice, backwards": lambda size: _slice(size, 2, -1),
    **{f"Pad, {mode}": _pad(mode) for mode in ("constant", "reflect", "edge", "wrap")},
    "DepthToSpace": _of_image("DepthToSpace", blocksize=2),
    "SpaceToDepth": _of_image("SpaceToDepth", blocksize=2),
    "CenterCropPad": lambda size: Case(
        "CenterCropPad", [floats(*image(size)), axes(10, 20)], {"axes": [2, 3]}
    ),
    "Flatten": _of_image("Flatten"),
    "Reshape": _of_image("Reshape", axes(1, -1)),
    "Squeeze": _of_image("Squeeze", axes(0)),
    "Unsqueeze": _of_image("Unsqueeze", axes(0)),
    "Shape": _of_image("Shape"),
    "Size": _of_image("Size"),
    "Trilu": lambda size: Case("Trilu", [floats(*rows(size))]),
    "EyeLike": lambda size: Case("EyeLike", [floats(*rows(size))]),
    "OneHot": lambda size: Case(
        "OneHot",
        [
            integers(rows(size)[0], high=64),
            axes(rows(size)[1]),
            Known(np.array([0, 1], np.float32)),
        ],
    ),
    "Range": lambda size: Case(
        "Range", [np.array(first, np.int64) for first in (0, (100, 10000, 1000000)[size], 1)]
    ),
    "ConstantOfShape": lambda size: Case(
        "ConstantOfShape",
        [np.array(rows(size), np.int64)],
        {"value": helper.make_tensor("value", TensorProto.FLOAT, [1], [2.0])},
    ),
    "Compress": lambda size: Case(
        "Compress", [floats(*rows(size)), booleans(rows(size)[0])], {"axis": 0}
    ),
    "ReverseSequence": lambda size: Case(
        "ReverseSequence",
        [floats(rows(size)[0], 4, rows(size)[1]), integers(4, low=1, high=rows(size)[0])],
        {"time_axis": 0, "batch_axis": 1},
    ),
    "Col2Im": lambda size: Case(
        "Col2Im",
        [floats(1, image(size)[1] * 9, image(size)[2] ** 2), axes(*image(size)[2:]), axes(3, 3)],
        {"pads": [1, 1, 1, 1]},
    ),
}
