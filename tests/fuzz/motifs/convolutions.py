"""Convolutions of one, two and three dimensions: dense, grouped, depthwise, transposed."""

from __future__ import annotations

from math import prod
from typing import Any

from ..drawing import Draw, Value
from .parts import batch, epilogue, size, weight

CHANNELS = (1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 24, 32, 33, 48)


def convolution(d: Draw) -> None:
    """Draws one to three convolutions with epilogues, some with residual additions."""
    rank = d.pick((1, 2, 2, 2, 2, 2, 3))
    most = {1: 30, 2: 11, 3: 5}[rank]
    value = d.input(
        d.normal(batch(d, 2), d.pick(CHANNELS), *(d.integer(3, most) for _ in range(rank)))
    )
    for _ in range(d.pick((1, 1, 2, 3))):
        form = d.pick((*[dense] * 3, *[winograd] * 2, depthwise, grouped, pointwise, transposed))
        last = value
        value = d.attempt(lambda form=form, value=value: form(d, value), value)
        if d.chance(0.3):
            value = d.attempt(lambda value=value: batch_norm(d, value), value)
        if value.shape == last.shape and d.chance(0.4):
            value = d.attempt(lambda value=value, last=last: d.node("Add", value, last), value)
        value = epilogue(d, value, 4)


def dense(d: Draw, x: Value) -> Value:
    """A convolution with one group."""
    return convolved(d, x, d.pick(CHANNELS), 1)


def winograd(d: Draw, x: Value) -> Value:
    """A convolution with a window of 3 x 3 and stride 1."""
    channels = d.pick((16, 24, 32, 48))
    w = weight(d, channels, x.shape[1], *(3,) * (len(x.shape) - 2), terms=9 * x.shape[1])
    pads = [d.integer(0, 1)] * (2 * (len(x.shape) - 2))
    return d.node("Conv", x, w, *_bias(d, channels), pads=pads)


def depthwise(d: Draw, x: Value) -> Value:
    """Convolves every channel on its own, into one or two channels."""
    return convolved(d, x, x.shape[1] * d.pick((1, 1, 1, 2)), x.shape[1])


def grouped(d: Draw, x: Value) -> Value:
    """A convolution with several groups of channels."""
    groups = d.pick([each for each in (2, 3, 4, 8) if x.shape[1] % each == 0] or [1])
    return convolved(d, x, groups * d.integer(1, 9), groups)


def pointwise(d: Draw, x: Value) -> Value:
    """A convolution with a window of one pixel."""
    channels = size(d, 65)
    w = weight(d, channels, x.shape[1], *(1,) * (len(x.shape) - 2), terms=x.shape[1])
    strides = [d.pick((1, 1, 1, 2))] * (len(x.shape) - 2)
    return d.node("Conv", x, w, *_bias(d, channels), strides=strides)


def convolved(d: Draw, x: Value, channels: int, groups: int) -> Value:
    """A convolution with random windows, strides, dilations and pads."""
    rank = len(x.shape) - 2
    window = [d.pick((1, 2, 3, 3, 3, 5)) for _ in range(rank)]
    inner = x.shape[1] // groups
    w = weight(d, channels, inner, *window, terms=inner * prod(window))
    return d.node("Conv", x, w, *_bias(d, channels), group=groups, **_moves(d, rank, window))


def _moves(d: Draw, rank: int, window: list[int]) -> dict[str, Any]:
    """Attributes of a convolution, each of which may be missing."""
    attributes: dict[str, Any] = {}
    if d.chance(0.5):
        attributes["strides"] = [d.pick((1, 1, 2, 3)) for _ in range(rank)]
    if d.chance(0.25):
        attributes["dilations"] = [d.pick((1, 2)) for _ in range(rank)]
    if d.chance(0.5):
        attributes["pads"] = [d.integer(0, extent - 1) for extent in window * 2]
    elif d.chance(0.3) and "dilations" not in attributes:
        attributes["auto_pad"] = d.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    if d.chance(0.5):
        attributes["kernel_shape"] = window
    return attributes


def _bias(d: Draw, channels: int) -> list[Value]:
    return [d.constant(d.normal(channels))] if d.chance(0.6) else []


def transposed(d: Draw, x: Value) -> Value:
    """A transposed convolution."""
    rank = len(x.shape) - 2
    groups = d.pick([each for each in (1, 1, 1, 2, 4) if x.shape[1] % each == 0])
    outer = d.integer(1, 9)
    window = [d.integer(1, 4) for _ in range(rank)]
    w = weight(d, x.shape[1], outer, *window, terms=x.shape[1] * prod(window))
    attributes: dict[str, Any] = {"group": groups, "kernel_shape": window}
    if d.chance(0.6):
        attributes["strides"] = [d.pick((1, 2, 2, 3)) for _ in range(rank)]
        if d.chance(0.3):
            attributes["output_padding"] = [min(1, step - 1) for step in attributes["strides"]]
    if d.chance(0.4):
        attributes["pads"] = [d.integer(0, max(0, extent // 2)) for extent in window * 2]
    if d.chance(0.15):
        attributes["dilations"] = [d.pick((1, 2)) for _ in range(rank)]
    return d.node("ConvTranspose", x, w, *_bias(d, outer * groups), **attributes)


def batch_norm(d: Draw, x: Value) -> Value:
    """Batch normalisation with realistic statistics."""
    channels = x.shape[1]
    scale, bias, mean = (d.constant(d.normal(channels)) for _ in range(3))
    variance = d.constant((d.numbers.random(channels) + 0.1).astype("f4"))
    return d.node("BatchNormalization", x, scale, bias, mean, variance, epsilon=1e-3)
