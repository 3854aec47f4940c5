"""What the page shows. It is embedded as JSON, and is what `tvm-hybrid report --json` prints."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from importlib.resources import files

import msgspec

from microkernels.base.files import write_whole

from ...library.manifest import ChosenOptions
from ..kernel_speed import Roof
from .picture import Picture, RegionCard, Work


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
    """A tuning record that was used; see `tvm_hybrid.library.manifest.RecordUse`."""

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
    limits: Roof | None
    memory: Memory
    reorders: list[int]
    left: list[int]
    notes: list[Note]
    records: list[RecordLine]
    advice: list[Advice]


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


# In the order in which they are run, as one script.
SCRIPTS = (
    "elements.js",
    "panel.js",
    "graph.js",
    "table.js",
    "roofline.js",
    "sections.js",
    "page.js",
)


def write_page(data: PageData, path: str | os.PathLike[str]) -> None:
    """Writes the page at once or not at all.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    write_whole(path, page_of(data), "the report")


def page_of(data: PageData) -> str:
    """The page as text. It loads nothing, and runs no script but its own."""
    joined = "\n".join(_file(name) for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{joined}\n}})();\n'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    contents = {
        "title": html.escape(data.head.model),
        "style": _file("style.css"),
        "scripts": script,
        "data": embedded(data),
        "hash": f"'sha256-{digest}'",
    }
    # In one go: what is put in may itself look like a place.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: contents[place[1]], _file("page.html"))


def embedded(data: PageData) -> str:
    """The data as JSON that no markup in it can end."""
    text = msgspec.json.encode(data, enc_hook=str).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (files(__package__) / "static" / name).read_text("utf-8")
