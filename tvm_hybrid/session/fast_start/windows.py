"""Convolutions and pools in NumPy.

They loop over the taps of a kernel: the elements that all windows have at one tap are a strided
view of the padded image. Sums of float16 and bfloat16 are computed in float32, those of integers
exactly in float64. Each function takes the inputs of an ONNX operator, and its attributes by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

BLOCK_BYTES = 1 << 22  # bytes that one matrix product reads
Places = tuple[Any, ...]
"""An index of an array."""


class Windows(NamedTuple):
    """The windows of a convolution or pool, with a number for each spatial axis.

    Attributes
    ----------
    kernel, strides, dilations : tuple of int
        The operator's attributes.
    before, after : tuple of int
        Elements of padding.
    counts : tuple of int
        Number of windows.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], kernel: Sequence[int], **form: Any) -> Windows:
        """Makes the windows over images of these sizes; `form` holds ONNX's attributes, where None
        or missing means the default.
        """
        rank, auto_pad, ceil_mode = len(sizes), form.get("auto_pad"), form.get("ceil_mode")
        strides, dilations = (form.get(name) or [1] * rank for name in ("strides", "dilations"))
        pads = form.get("pads") if auto_pad in (None, "NOTSET") else None
        pads = pads or [0] * (2 * rank)
        before, after, counts = list(pads[:rank]), list(pads[rank:]), []
        for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
            extent = (kernel[axis] - 1) * dilations[axis] + 1
            if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
                missing = max((-(-size // stride) - 1) * stride + extent - size, 0)
                before[axis] = missing // 2 if auto_pad == "SAME_UPPER" else -(-missing // 2)
                after[axis] = missing - before[axis]
            room = size + before[axis] + after[axis] - extent
            count = (-(-room // stride) if ceil_mode else room // stride) + 1
            if ceil_mode and (count - 1) * stride >= size + before[axis]:
                count -= 1  # the last window would lie entirely in the padding
            counts.append(count)
        fields = (kernel, strides, dilations, before, after, counts)
        return cls(*(tuple(map(int, field)) for field in fields))

    def views(self, images: np.ndarray, fill: Any = 0) -> list[np.ndarray]:
        """For each tap, the elements that the windows have there: [..., *counts].

        `images` is [..., *sizes]; `fill` is the value of the padding.
        """
        rank = len(self.kernel)
        reach = [(n - 1) * s + 1 for n, s in zip(self.counts, self.strides, strict=True)]
        pads = [(0, 0)] * (images.ndim - rank)
        for axis, size in enumerate(images.shape[-rank:]):
            # The last window may reach beyond the padding.
            extent = reach[axis] + (self.kernel[axis] - 1) * self.dilations[axis]
            beyond = extent - size - self.before[axis]
            pads.append((self.before[axis], max(self.after[axis], beyond)))
        padded = np.pad(images, pads, constant_values=fill) if np.any(pads) else images
        found = []
        for tap in np.ndindex(*self.kernel):
            axes = zip(tap, self.dilations, reach, self.strides, strict=True)
            places: Places = (..., *(slice(t * d, t * d + r, s) for t, d, r, s in axes))
            found.append(padded[places])
        return found


def wide_type(dtype: np.dtype[Any]) -> Any:
    """Type for sums of products."""
    return np.float64 if dtype.kind in "iu" or dtype == np.float64 else np.float32


def per_channel(values: np.ndarray, rank: int, axis: int = 1) -> np.ndarray:
    """Reshapes a scalar or a value per channel to broadcast with an array of this rank."""
    return values.reshape([-1 if each == axis else 1 for each in range(rank)])


def convolved(
    x: np.ndarray, w: np.ndarray, *, group: Any, kernel_shape: Any, **form: Any
) -> np.ndarray:
    """Convolves x [N, C, *sizes] with w [M, C / group, *kernel], in the type of sums."""
    windows = Windows.of(x.shape[2:], w.shape[2:], **form)
    wide, groups, outer = wide_type(x.dtype), group or 1, w.shape[0] // (group or 1)
    inner = x.shape[1] // groups
    views = windows.views(x.astype(wide, copy=False))
    weights = w.astype(wide, copy=False).reshape(groups, outer, inner, -1)
    first, *others = windows.counts
    result = np.zeros((x.shape[0], groups, outer, first, math.prod(others)), wide)
    if inner == 1:
        for tap, view in enumerate(views):
            factors = weights[..., tap].reshape(groups, outer, 1, 1)
            result += factors * view.reshape(x.shape[0], groups, 1, *result.shape[-2:])
    else:
        matrix = weights.swapaxes(2, 3).reshape(groups, outer, -1)
        row = len(views) * x[:, :, 0].size * result.itemsize  # bytes of windows for one image row
        step = max(1, BLOCK_BYTES // max(row, 1))
        for begin in range(0, first, step):
            parts = [view[:, :, begin : begin + step] for view in views]
            split = [each.reshape(x.shape[0], groups, inner, -1) for each in parts]
            product = matrix @ np.concatenate(split, axis=2)
            result[:, :, :, begin : begin + step] = product.reshape(
                *result.shape[:3], -1, result.shape[-1]
            )
    return result.reshape(x.shape[0], w.shape[0], *windows.counts)


def conv(x: Any, w: Any, b: Any = None, **form: Any) -> np.ndarray:
    """Conv."""
    result = convolved(x, w, **form)
    if b is not None:
        result += per_channel(b.astype(result.dtype), x.ndim)
    return result.astype(x.dtype, copy=False)


def conv_transpose(
    x: Any, w: Any, b: Any = None, *, auto_pad: Any, output_shape: Any, **form: Any
) -> np.ndarray:
    """ConvTranspose: adds the product of every tap where its windows are."""
    sizes, kernel, rank, groups = x.shape[2:], w.shape[2:], x.ndim - 2, form["group"] or 1
    strides, dilations = (form[name] or [1] * rank for name in ("strides", "dilations"))
    pads = list(form["pads"] or [0] * (2 * rank))
    before, after = pads[:rank], pads[rank:]
    whole = [
        (size - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        for axis, size in enumerate(sizes)
    ]
    extras = form["output_padding"] or [0] * rank
    whole = [each + extra for each, extra in zip(whole, extras, strict=True)]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER") and not output_shape:
        output_shape = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    for axis, wanted in enumerate(list(output_shape or [])[-rank:]):
        total = whole[axis] - wanted
        whole[axis] = max(whole[axis], wanted)
        small = max(total, 0) // 2
        before[axis] = small if auto_pad == "SAME_UPPER" else max(total, 0) - small
        after[axis] = max(total, 0) - before[axis]
    wide, outer = wide_type(x.dtype), w.shape[1]
    inner = x.astype(wide, copy=False).reshape(x.shape[0], groups, -1, math.prod(sizes))
    weights = w.astype(wide, copy=False).reshape(groups, -1, outer, *kernel)
    result = np.zeros((x.shape[0], groups * outer, *whole), wide)
    for tap in np.ndindex(*kernel):
        factors: Places = (..., *tap)
        part = np.swapaxes(weights[factors], 1, 2) @ inner
        axes = zip(tap, dilations, sizes, strides, strict=True)
        target: Places = (..., *(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in axes))
        result[target] += part.reshape(x.shape[0], -1, *sizes)
    edges = zip(before, whole, after, strict=True)
    inside: Places = (..., *(slice(begin, size - end) for begin, size, end in edges))
    result = result[inside]
    if b is not None:
        result = result + per_channel(b.astype(wide), x.ndim)
    return result.astype(x.dtype, copy=False)


def max_pool(x: Any, *, kernel_shape: Any, storage_order: Any = 0, **form: Any) -> np.ndarray:
    """MaxPool, without the indices of the maxima."""
    windows = Windows.of(x.shape[2:], kernel_shape, **form)
    lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    result = np.full((*x.shape[:2], *windows.counts), lowest, x.dtype)
    for view in windows.views(x, lowest):
        np.maximum(result, view, out=result)
    return result


def average_pool(
    x: Any, *, kernel_shape: Any, count_include_pad: Any = 0, **form: Any
) -> np.ndarray:
    """AveragePool."""
    windows = Windows.of(x.shape[2:], kernel_shape, **form)
    pads = list(zip(windows.before, windows.after, strict=True))
    counted = np.pad(np.ones(x.shape[2:]), pads, constant_values=int(bool(count_include_pad)))
    padded = windows._replace(before=(0,) * len(pads), after=(0,) * len(pads))
    total = sum(windows.views(x.astype(wide_type(x.dtype), copy=False)))
    return np.asarray(total / sum(padded.views(counted)), x.dtype)
