"""What the head of the page says: what was compiled and measured, and how long it takes."""

from __future__ import annotations

import msgspec

from ...library.manifest import ChosenOptions


class Head(ChosenOptions, frozen=True, kw_only=True):
    """What was compiled and measured, for what, and how long it takes.

    Attributes
    ----------
    total_us : float or None
        Median microseconds of a whole run, without the instrument; None if nothing was run.
    least_total_us : float or None
        Those of the fastest run: much less if something else disturbed the others.
    kernels_us : float or None
        The sum of all kernels; each has about half a microsecond of the instrument in it.
    outside_us : float or None
        Microseconds of a run between kernels, at most.
    least_us : float or None
        Microseconds of all products at the machine's peak.
    of_peak : float or None
        `least_us` over `total_us`.
    repeat : int
        Number of runs.
    unmeasured : str
        Why nothing was run; "" if it was.
    """

    model: str
    cpu: str
    processor: str
    isa: str
    threads: int
    date: str
    versions: dict[str, str]
    inputs: list[str]
    outputs: list[str]
    taken: int
    nodes: int
    total_us: float | None
    least_total_us: float | None
    kernels_us: float | None
    outside_us: float | None
    least_us: float | None
    of_peak: float | None
    repeat: int
    unmeasured: str


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The roof, measured on this machine: see `tvm_hybrid.report.roof.Roof`."""

    threads: int
    peaks: dict[str, float]
    bandwidth: float
