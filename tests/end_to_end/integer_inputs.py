"""Inputs at which quantised arithmetic is most likely wrong: limits, ties, saturation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = Sequence[int]


def byte_arrays(
    rng: np.random.Generator, dtype: Any, shape: Shape, number: int
) -> list[NDArray[Any]]:
    """8-bit arrays: each limit alone and mixed, one different value, narrow and full ranges."""
    limits = np.iinfo(dtype)

    def draw(low: int, high: int) -> NDArray[Any]:
        return rng.integers(low, high, shape, dtype, endpoint=True)

    def forever() -> Iterator[NDArray[Any]]:
        for extreme in (limits.min, limits.max, 0):
            yield np.full(shape, extreme, dtype)
        mixed = np.full(shape, limits.min, dtype)
        mixed.reshape(-1)[::2] = limits.max
        yield mixed
        yield draw(limits.max - 1, limits.max)
        yield draw(limits.min, limits.min + 1)
        for _ in count():
            yield draw(limits.min, limits.max)
            middle = int(rng.integers(limits.min, limits.max))
            yield draw(max(limits.min, middle - 3), min(limits.max, middle + 3))

    return list(islice(forever(), number))


def real_arrays(
    rng: np.random.Generator, shape: Shape, number: int, scale: float
) -> list[NDArray[np.float32]]:
    """float32 arrays to quantise with a scale: ties of x / scale, their neighbours, far values.

    Infinities occur; NaN does not, because the operators do not define its result.
    """
    step = np.float32(scale)

    def ties() -> NDArray[np.float32]:
        halves = rng.integers(-600, 600, shape).astype(np.float32) / np.float32(2)
        return halves * step

    def beside() -> NDArray[np.float32]:
        direction = np.where(rng.random(shape) < 0.5, -np.inf, np.inf).astype(np.float32)
        return np.nextafter(ties(), direction)

    def normal() -> NDArray[np.float32]:
        return (rng.standard_normal(shape) * 60 * scale).astype(np.float32)

    def outside() -> NDArray[np.float32]:
        huge = np.array([1e30, -1e30, np.inf, -np.inf, 3.4e38, 0.0, -0.0, 1e-40], np.float32)
        return rng.choice(huge, shape)

    makers = cycle((ties, beside, normal, outside))
    return [next(makers)() for _ in range(number)]


def range_arrays(rng: np.random.Generator, shape: Shape, number: int) -> list[NDArray[np.float32]]:
    """float32 arrays for a dynamic range: zeros, constants, one sign, outliers, ties."""

    def normal() -> NDArray[np.float32]:
        spread = 10.0 ** rng.uniform(-6, 6)
        return (rng.standard_normal(shape) * spread).astype(np.float32)

    def outlier() -> NDArray[np.float32]:
        values = normal()
        values.reshape(-1)[rng.integers(values.size)] *= np.float32(1000)
        return values

    def ties() -> NDArray[np.float32]:
        """Multiples of 1/2 in a range of 255, so that the scale is 1."""
        values = rng.integers(-200, 310, shape).astype(np.float32) / np.float32(2)
        if values.size > 1:
            values.reshape(-1)[:2] = -100, 155
        return values

    def forever() -> Iterator[NDArray[np.float32]]:
        yield np.zeros(shape, np.float32)
        yield np.full(shape, -0.0, np.float32)
        for constant in (1.0, -1.0, 1e-20, 3e20):
            yield np.full(shape, constant, np.float32)
        for _ in count():
            yield normal()
            yield np.abs(normal())
            yield -np.abs(normal())
            yield outlier()
            yield ties()

    return list(islice(forever(), number))
