"""The page's data, its HTML file, and advice on making a model faster.

The data is embedded as JSON; `tvm-hybrid report --json` prints it. Advice promises nothing that is
not measured.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Callable, Iterable
from importlib.resources import files

import msgspec

from microkernels.base.files import write_whole
from microkernels.isa import host_isa, isa_named
from microkernels.machines.description import describe
from microkernels.machines.machine import without_slow_dots

from ...library.manifest import ChosenOptions, Manifest
from ...runtime.threads import physical_cores
from ..kernel_speed import Roof
from .picture import Picture, RegionCard, Work


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel with all its calls; `regions` are the calls' numbers."""

    function: str
    kernel: str
    op: str
    taken: bool
    regions: list[int]
    work: Work


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory use in bytes.

    Attributes
    ----------
    model_file : int or None
        Size of the file, if the model comes from one.
    weights : int
        All constants as kernels read them: packed, in the types that they compute with.
    planned : int or None
        Storage for values between kernels, all blocks together; None if unknown.
    peak : int or None
        Largest part of it that is in use at a time.
    blocks : int
        Number of blocks.
    values : int
        Size of these values, if each had separate memory.
    inputs, outputs : int
        Size of the model's inputs and outputs.
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
    """A decision without a kernel."""

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
    """How to make the model faster; `share` is the affected share of the time, None if unknown."""

    title: str
    text: str
    command: str = ""
    share: float | None = None


class PageData(msgspec.Struct, frozen=True, kw_only=True):
    """All data of the page."""

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
    """The program and its target, and how long a run takes.

    Attributes
    ----------
    total_us : float or None
        Median microseconds of a whole run, without the instrument; None if not measured.
    least_total_us : float or None
        Microseconds of the fastest run: much less if something else disturbed the others.
    kernels_us : float or None
        Sum of all kernels; each includes about half a microsecond of the instrument.
    outside_us : float or None
        Most microseconds of a run between kernels.
    least_us : float or None
        Microseconds of all products at the machine's peak.
    of_peak : float or None
        `least_us` over `total_us`.
    repeat : int
        Number of runs.
    unmeasured : str
        Why nothing was run; "" if it was.
    others_us : dict
        Library, ours included -> microseconds of a run, measured in turns; empty if not measured.
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
    others_us: dict[str, float] = msgspec.field(default_factory=dict)


# Order of execution: they are joined into one script.
SCRIPTS = ("elements", "panel", "graph", "table", "roofline", "sections", "page")


def write_page(data: PageData, path: str | os.PathLike[str]) -> None:
    """Writes the page, completely or not at all.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    write_whole(path, page_of(data), "the report")


def page_of(data: PageData) -> str:
    """Makes the page's text. It loads nothing, and runs only its own script."""
    joined = "\n".join(_file(f"{name}.js") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{joined}\n}})();\n'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    contents = {
        "title": html.escape(data.head.model),
        "style": _file("style.css"),
        "scripts": script,
        "data": embedded(data),
        "hash": f"'sha256-{digest}'",
    }
    # Substitute in one pass, because inserted text may itself look like a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: contents[place[1]], _file("page.html"))


def embedded(data: PageData) -> str:
    """Encodes the data as JSON that contains no markup."""
    text = msgspec.json.encode(data, enc_hook=str).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (files(__package__) / "static" / name).read_text("utf-8")


LEAST_SHARE = 0.01
# Share of a run's time outside of kernels above which advice is given.
LEAST_OUTSIDE = 0.1


def advice_for(data: PageData, manifest: Manifest) -> list[Advice]:
    """Collects all advice for a program, by share of its time; tuning comes last."""
    ways = (_bf16, _int8, _left, _reorders, _dynamic_sizes, _threads, _isa, _fusion, _outside)
    found = [advice for way in ways for advice in way(data, manifest)]
    found.sort(key=lambda advice: -(advice.share if advice.share is not None else 1.0))
    return [*found, *_records(data, manifest)]  # records gain least


def _share(data: PageData, which: Callable[[RegionCard], bool]) -> float | None:
    """Share of all kernels' time that some regions take; None if nothing was measured."""
    if data.head.kernels_us is None:
        return None
    return sum(each.work.share or 0.0 for each in data.regions if which(each))


def _counted(number: int, noun: str) -> str:
    """A number with its noun: "1 call", "2 calls"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _matters(share: float | None) -> bool:
    return share is None or share >= LEAST_SHARE


def _bf16(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    isa = without_slow_dots(isa_named(manifest.isa), describe(manifest.cpu))
    share = _share(data, lambda each: "_f32_" in each.kernel)
    has = any("_f32_" in each.kernel for each in data.regions)
    if manifest.precision != "bf16" and isa.multiplies_bf16 and has and _matters(share):
        yield Advice(
            title="Products in bfloat16",
            text="The CPU has fast products of bfloat16, and these are of float32. Operands are "
            "rounded to 8 bits of mantissa, sums stay float32. Check the results with "
            "`tvm-hybrid verify`.",
            command="--precision bf16",
            share=share,
        )


def _int8(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    wide = ("_f32_", "bf16_bf16")
    share = _share(data, lambda each: any(types in each.kernel for types in wide))
    has = any(types in each.kernel for each in data.regions for types in wide)
    narrow = any("u8s8" in each.kernel for each in data.regions)  # already quantised
    if has and not narrow and _matters(share) and isa_named(manifest.isa).multiplies_bytes:
        yield Advice(
            title="Products of 8 bits",
            text="The CPU multiplies integers of 8 bits four times as fast as float32. `quantize` "
            "makes such a model of an ONNX file; samples of real inputs keep it precise, and "
            "`tvm-hybrid verify` compares.",
            command="tvm-hybrid quantize MODEL -o int8.onnx --data SAMPLES",
            share=share,
        )


def _left(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    left = [data.regions[number] for number in data.left if number not in data.reorders]
    share = _share(data, lambda each: not each.taken and each.number not in data.reorders)
    if left and share is not None and share >= LEAST_SHARE:
        yield Advice(
            title="Operators without a template",
            text=f"The generic schedule builds {_counted(len(left), 'call')}. Its code is "
            f"vectorised and parallel, but not tuned. The slowest is {left[0].op}. No option "
            "changes that; the list below tells the reasons.",
            share=share,
        )


def _reorders(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    share = _share(data, lambda each: each.number in data.reorders)
    if data.reorders and _matters(share):
        yield Advice(
            title="Reorders between layouts",
            text="Copying tensors into another layout takes "
            f"{_counted(len(data.reorders), 'kernel')}. A search finds out whether other layouts "
            "need fewer copies.",
            command="tvm-hybrid tune MODEL --layouts joint --records r.jsonl",
            share=share,
        )


def _dynamic_sizes(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    names = [each.name for each in manifest.inputs if each.static_shape is None]
    if names:
        yield Advice(
            title="Sizes are dynamic",
            text=f"Inputs {', '.join(names)} have sizes that are known at run time only: kernels "
            "choose their tiles then. Code for one static size is often faster.",
            command="--shape NAME=1x128 or --dim NAME=128",
        )


def _threads(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    cores = physical_cores()
    if not data.head.unmeasured and manifest.threads < cores:
        yield Advice(
            title="Cores that are not used",
            text=f"The program is made for {manifest.threads} of the {cores} cores that this "
            "process may use. `tvm-hybrid scale MODEL` predicts what more would bring.",
            command=f"--threads {cores}",
        )


def _isa(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    here, used = host_isa(), isa_named(manifest.isa)
    if (
        not data.head.unmeasured
        and without_slow_dots(here, describe(manifest.cpu)).level > used.level
    ):
        yield Advice(
            title="A lower instruction set than this CPU has",
            text=f"The code is made for {used.name}; this CPU has {here.name}. A target or "
            "TVM_HYBRID_ISA says so.",
            command="leave out --target, unset TVM_HYBRID_ISA",
        )


def _fusion(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    if manifest.fusion != "coarse":
        yield Advice(
            title="Fusion is limited",
            text=f"The program was made with fusion {manifest.fusion}, which is there to compare "
            "with.",
            command="--fusion coarse",
        )


def _outside(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    total, outside = data.head.total_us, data.head.outside_us
    if total and outside is not None and outside > LEAST_OUTSIDE * total:
        yield Advice(
            title="Time between kernels",
            text=f"Up to {outside:.1f} us of a run are spent outside of its "
            f"{_counted(len(data.regions), 'kernel call')}. A larger batch shares them among more "
            "samples.",
            share=outside / total,
        )


def _records(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    share = _share(data, lambda each: each.taken and each.source == "default")
    count = sum(each.taken and each.source == "default" for each in data.regions)
    if count and _matters(share):
        yield Advice(
            title="No tuning records",
            text=f"A formula chose the configuration of {_counted(count, 'region')}. Its choice is "
            "mostly within a few percent of the best. Tuning measures that, and keeps the "
            "formula's choice where nothing is faster.",
            command="tvm-hybrid tune MODEL --records r.jsonl",
            share=share,
        )
