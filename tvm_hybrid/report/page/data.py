"""What the page shows. It is embedded as JSON, and is what `tvm-hybrid report --json` prints."""

from __future__ import annotations

import msgspec

from .head import Head, Limits
from .picture_data import Picture
from .region_card import RegionCard, Work


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel with all its calls; `regions` are their numbers."""

    function: str
    kernel: str
    op: str
    taken: bool
    regions: list[int]
    work: Work


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
    """A tuning record that was used; see `tvm_hybrid.library.record_use.RecordUse`."""

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
