"""What the page shows of one call of a kernel: its tensors, its time and why it is built so."""

from __future__ import annotations

from typing import Any

import msgspec


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that a region reads or writes.

    Attributes
    ----------
    name : str
        Its variable; "" of a weight.
    text : str
        Type and sizes, such as "float32[1x128]".
    kind : str
        "input", "weight" or "value".
    nbytes : int
        Bytes in memory; 0 if a size is open.
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
        Microseconds in one run: the median of several; None if nothing was run.
    share : float or None
        Part of the time of all kernels, 0 to 1.
    flops : int
        Operations; 0 if they are not counted.
    nbytes : int
        Bytes of the tensors that are read and written; 0 if a size is open.
    gflops, gbytes : float or None
        1e9 operations and bytes a second.
    of_peak : float or None
        Operations a second over the machine's peak for the operands' type.
    least_us : float or None
        Microseconds that the roofline allows: the longer of computing at the peak and of moving the
        bytes from memory. Tensors that lie in caches take less.
    bound : str
        What is longer: "compute" or "memory"; "" if that is not known.
    dtype : str
        The type whose peak counts.
    """

    us: float | None = None
    share: float | None = None
    flops: int = 0
    nbytes: int = 0
    gflops: float | None = None
    gbytes: float | None = None
    of_peak: float | None = None
    least_us: float | None = None
    bound: str = ""
    dtype: str = "float32"


class RegionCard(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a kernel: what is in it, why, and how long it takes.

    Attributes
    ----------
    number : int
        Its place in `PageData.regions`.
    node, op, function, kernel, config, source, on_vectors, at_run_time, workload
        As of `relay_passes.ir.decisions.Decision`.
    taken : bool
        Whether a template of ours builds it.
    parts : list of list of str
        Its operators: those of each anchor with what is fused with it.
    origins : list of str
        The nodes of an ONNX model that it comes from, each with its operator.
    reasons : list of str
        Why, one sentence each.
    record : str
        The tuning record that it was built with; "" if none.
    reads, writes : list of Tensor
        Its tensors.
    work : Work
        Its time.
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
    work: Work
