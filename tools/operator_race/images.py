"""Operators of images and signals: windows, pixels, boxes, frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case, Cases, Known, Make, axes, floats, image, integers


def _pool(operator: str, **attributes: Any) -> Make:
    return lambda size: Case(operator, [floats(*image(size))], attributes)


_THREE = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
_LONG = {"kernel_shape": [5], "strides": [2]}


def _resize(mode: str, factor: float, **attributes: Any) -> Make:
    scales = Known(np.array([1, 1, factor, factor], np.float32))
    return lambda size: Case(
        "Resize", [floats(*image(size)), None, scales], {"mode": mode, **attributes}
    )


def _conv(size: int, out: int, kernel: int, group: int = 1, **attributes: Any) -> Case:
    channels = image(size)[1]
    weight = Known(floats(out or channels, channels // group, kernel, kernel))
    pads = [kernel // 2] * 4
    return Case(
        "Conv", [floats(*image(size)), weight], {"pads": pads, "group": group, **attributes}
    )


def _conv_transpose(kernel: int, stride: int, depthwise: bool = False) -> Make:
    def make(size: int) -> Case:
        channels = image(size)[1]
        weight = Known(floats(channels, 1 if depthwise else channels // 2, kernel, kernel))
        attributes = {"strides": [stride, stride], "group": channels if depthwise else 1}
        return Case("ConvTranspose", [floats(*image(size)), weight], attributes)

    return make


def _signal(size: int) -> int:
    return (256, 1024, 4096)[size]


def _boxes(size: int) -> np.ndarray:
    count = (20, 300, 3000)[size]
    corners = floats(1, count, 2, low=0, high=500)
    return np.concatenate([corners, corners + floats(1, count, 2, low=10, high=60)], 2)


def _suppression(size: int) -> Case:
    boxes = _boxes(size)
    limits = axes(50), Known(np.array([0.5], np.float32)), Known(np.array([0.3], np.float32))
    return Case("NonMaxSuppression", [boxes, floats(1, 4, boxes.shape[1], low=0), *limits])


def _regions(size: int) -> np.ndarray:
    count = (4, 32, 128)[size]
    corners = floats(count, 2, low=0, high=image(size)[2] / 2)
    return np.concatenate([corners, corners + image(size)[2] / 3], 1).astype(np.float32)


def _roi_align(size: int) -> Case:
    regions = _regions(size)
    inputs = [floats(*image(size)), regions, np.zeros(len(regions), np.int64)]
    return Case("RoiAlign", inputs, {"output_height": 7, "output_width": 7, "sampling_ratio": 2})


def _max_roi_pool(size: int) -> Case:
    regions = _regions(size)
    first = np.zeros((len(regions), 1), np.float32)
    inputs = [floats(*image(size)), np.concatenate([first, regions], 1)]
    return Case("MaxRoiPool", inputs, {"pooled_shape": [7, 7]})


def _grid_sample(mode: str) -> Make:
    def make(size: int) -> Case:
        shape = image(size)
        return Case("GridSample", [floats(*shape), floats(1, *shape[2:], 2)], {"mode": mode})

    return make


def _unpool(size: int) -> Case:
    shape = image(size)
    places = np.arange(np.prod(shape)).reshape(shape) * 4
    return Case("MaxUnpool", [floats(*shape), places], {"kernel_shape": [2, 2], "strides": [2, 2]})


def _deform(size: int) -> Case:
    _, channels, height, width = image(size)
    weight = Known(floats(channels, channels, 3, 3))
    offsets = floats(1, 18, height, width)
    return Case("DeformConv", [floats(*image(size)), weight, offsets], {"pads": [1, 1, 1, 1]})


def _window(operator: str) -> Make:
    return lambda size: Case(operator, [np.array(_signal(size), np.int64)])


IMAGES: Cases = {
    "Conv, 1x1": lambda size: _conv(size, 2 * image(size)[1], 1),
    "Conv, 3x3": lambda size: _conv(size, image(size)[1], 3),
    "Conv, 3x3 strided": lambda size: _conv(size, image(size)[1], 3, strides=[2, 2]),
    "Conv, depthwise": lambda size: _conv(size, 0, 3, group=image(size)[1]),
    "Conv, grouped": lambda size: _conv(size, 0, 3, group=4),
    "Conv, one axis": lambda size: Case(
        "Conv", [floats(1, 32, _signal(size)), Known(floats(32, 32, 5))], {"pads": [2, 2]}
    ),
    "ConvTranspose, 2x2": _conv_transpose(2, 2),
    "ConvTranspose, 4x4": _conv_transpose(4, 2),
    "ConvTranspose, 3x3": _conv_transpose(3, 1),
    "ConvTranspose, depthwise": _conv_transpose(4, 2, depthwise=True),
    "DeformConv": _deform,
    "MaxPool": _pool("MaxPool", **_THREE),
    "MaxPool, 2x2": _pool("MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
    "MaxPool, places": lambda size: Case("MaxPool", [floats(*image(size))], _THREE, outputs=2),
    "MaxPool, one axis": lambda size: Case("MaxPool", [floats(1, 32, _signal(size))], _LONG),
    "AveragePool": _pool("AveragePool", **_THREE),
    "AveragePool, large": _pool("AveragePool", kernel_shape=[7, 7]),
    "LpPool": _pool("LpPool", **_THREE),
    "MaxUnpool": _unpool,
    "GlobalAveragePool": _pool("GlobalAveragePool"),
    "GlobalMaxPool": _pool("GlobalMaxPool"),
    "GlobalLpPool": _pool("GlobalLpPool"),
    "Resize, nearest": _resize("nearest", 2.0, coordinate_transformation_mode="asymmetric",
                               nearest_mode="floor"),
    "Resize, linear": _resize("linear", 2.0),
    "Resize, linear aligned": _resize("linear", 2.0,
                                      coordinate_transformation_mode="align_corners"),
    "Resize, linear smaller": _resize("linear", 0.5),
    "Resize, linear odd": _resize("linear", 1.5),
    "Resize, cubic": _resize("cubic", 2.0),
    "Resize, antialiased": _resize("linear", 0.5, antialias=1),
    "GridSample, linear": _grid_sample("linear"),
    "GridSample, nearest": _grid_sample("nearest"),
    "GridSample, cubic": _grid_sample("cubic"),
    "AffineGrid": lambda size: Case("AffineGrid", [floats(1, 2, 3), axes(*image(size))]),
    "RoiAlign": _roi_align,
    "MaxRoiPool": _max_roi_pool,
    "NonMaxSuppression": _suppression,
    "DFT": lambda size: Case(
        "DFT", [floats(4, _signal(size), 1), None, Known(np.int64(1))], {"onesided": 1}
    ),
    "DFT, complex": lambda size: Case(
        "DFT", [floats(4, _signal(size), 2), None, Known(np.int64(1))]
    ),
    "DFT, odd": lambda size: Case(
        "DFT", [floats(4, _signal(size) - 1, 1), None, Known(np.int64(1))], {"onesided": 1}
    ),
    "STFT": lambda size: Case(
        "STFT",
        [floats(1, 8 * _signal(size), 1), Known(np.int64(160)), Known(floats(400, low=0))],
    ),
    "HannWindow": _window("HannWindow"),
    "HammingWindow": _window("HammingWindow"),
    "BlackmanWindow": _window("BlackmanWindow"),
    "MelWeightMatrix": lambda size: Case(
        "MelWeightMatrix",
        [np.array(n, np.int64) for n in (40, _signal(size), 16000)]
        + [np.array(n, np.float32) for n in (0, 8000)],
    ),
    "TfIdfVectorizer": lambda size: Case(
        "TfIdfVectorizer",
        [integers((20, 200, 2000)[size], high=9, dtype=np.int32)],
        {
            "mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0,
            "ngram_counts": [0, 4], "ngram_indexes": [0, 1, 2, 3, 4, 5, 6],
            "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
        },
    ),
}  # fmt: skip
