"""What was measured of a network's layers, and means over them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

import msgspec

from ..peers.peers import OURS
from .layer_models import Layer


class LayerTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one layer in one type.

    Attributes
    ----------
    layer : Layer
        The convolution.
    dtype : str
        One of `layer_models.DTYPES`.
    threads : int
        Threads of every contestant.
    kernel : str
        What we run.
    whole_us, kernel_us : dict
        Least time of a run of the model, and of its kernel, in microseconds, by contestant.
    share : float
        Operations of the layer over our kernel's time and the peak of all threads. What skips
        padding, and Winograd's algorithm, multiply less and may exceed 1.
    notes : list of str
        Who is missing and why, who computes something else.
    wrong : bool
        Whether we do.
    """

    layer: Layer
    dtype: str
    threads: int
    kernel: str
    whole_us: dict[str, float]
    kernel_us: dict[str, float]
    share: float
    notes: list[str] = []
    wrong: bool = False


class LayerReport(msgspec.Struct, frozen=True, kw_only=True):
    """All layers of a network.

    Attributes
    ----------
    network, cpu : str
        What was measured where.
    versions : dict
        Versions of the contestants, in the order of their columns.
    peaks : dict
        1e9 operations a second of one thread, by type.
    rows : list of LayerTimes
        By number of threads, then type, then layer.
    left_out : dict
        Why, by contestant that is not installed.
    """

    network: str
    cpu: str
    versions: dict[str, str]
    peaks: dict[str, float]
    rows: list[LayerTimes]
    left_out: dict[str, str]


def best_ratio(times: Mapping[str, float]) -> float | None:
    """The best peer's time over ours; None if there is no peer."""
    others = [time for name, time in times.items() if name != OURS]
    return min(others) / times[OURS] if others else None


def mean_ratio(ratios: Iterable[float | None]) -> float | None:
    """The geometric mean of those that are known; None if none is."""
    known = [ratio for ratio in ratios if ratio is not None]
    return statistics.geometric_mean(known) if known else None
