"""What the page shows. It is embedded as JSON, and is what `tvm-hybrid report --json` prints."""

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
        As of `relay_passes.decisions.Decision`.
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


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel with all its calls; `regions` are their numbers."""

    function: str
    kernel: str
    op: str
    taken: bool
    regions: list[int]
    work: Work


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


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes.

    Attributes
    ----------
    model_file : int or None
        Of the file, if the model comes from one.
    weights : int
        Of all constants, as kernels read them: packed, and of the types that they compute with.
    planned : int or None
        Of the storage for values between kernels, all blocks together; None if it is not known.
    peak : int or None
        The most of it that is in use at a time.
    blocks : int
        Number of blocks.
    values : int
        Of these values, if each had memory of its own.
    inputs, outputs : int
        Of the model's own.
    """

    model_file: int | None
    weights: int
    planned: int | None
    peak: int | None
    blocks: int
    values: int
    inputs: int
    outputs: int


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about no kernel of its own."""

    node: str
    op: str
    taken: bool
    reason: str


class RecordLine(msgspec.Struct, frozen=True, kw_only=True):
    """A tuning record that was used; see `tvm_hybrid.record_use.RecordUse`."""

    place: str
    how: str
    shipped: bool
    workload: str
    measured: str


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What would make the model faster: `share` of the time is concerned, None if unknown."""

    title: str
    text: str
    command: str
    share: float | None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The roof, measured on this machine: see `tvm_hybrid.report.roof.Roof`."""

    threads: int
    peaks: dict[str, float]
    bandwidth: float


class Head(msgspec.Struct, frozen=True, kw_only=True):
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
    precision: str
    fusion: str
    fast_math: str
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


class PageData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything."""

    head: Head
    regions: list[RegionCard]
    kernels: list[KernelRow]
    picture: Picture | None
    limits: Limits | None
    memory: Memory
    reorders: list[int]
    left: list[int]
    notes: list[Note]
    records: list[RecordLine]
    advice: list[Advice]
