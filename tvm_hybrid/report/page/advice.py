"""What would make a model faster, where that is known; nothing is promised that is not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from microkernels.isa import host_isa, isa_named
from microkernels.machines.description import describe
from microkernels.machines.machine import without_slow_dots

from ...library.manifest import Manifest
from ...runtime.threads import physical_cores
from .data import Advice, PageData
from .picture import RegionCard

LEAST_SHARE = 0.01
# A tenth of the time of a run, outside of kernels, is worth a word.
LEAST_OUTSIDE = 0.1


def advice_for(data: PageData, manifest: Manifest) -> list[Advice]:
    """All advice for a program; what concerns more of its time first, tuning last."""
    ways = (_bf16, _left, _reorders, _open_sizes, _threads, _isa, _fusion, _outside)
    found = [advice for way in ways for advice in way(data, manifest)]
    found.sort(key=lambda advice: -(advice.share if advice.share is not None else 1.0))
    return [*found, *_records(data, manifest)]  # which gain least


def _share(data: PageData, which: Callable[[RegionCard], bool]) -> float | None:
    """The part of all kernels' time that some regions take; None if nothing was measured."""
    if data.head.kernels_us is None:
        return None
    return sum(each.work.share or 0.0 for each in data.regions if which(each))


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


def _left(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    left = [data.regions[number] for number in data.left if number not in data.reorders]
    share = _share(data, lambda each: not each.taken and each.number not in data.reorders)
    if left and share is not None and share >= LEAST_SHARE:
        yield Advice(
            title="Operators without a template",
            text=f"{len(left)} calls are left to the generic schedule, which is vectorised and "
            f"parallel, but not tuned. The slowest: {left[0].op}. No option changes that; "
            "the list tells the reasons.",
            command="",
            share=share,
        )


def _reorders(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    share = _share(data, lambda each: each.number in data.reorders)
    if data.reorders and _matters(share):
        yield Advice(
            title="Reorders between layouts",
            text=f"{len(data.reorders)} tensors are stored anew in another layout. A search finds "
            "out whether other layouts need fewer of them.",
            command="tvm-hybrid tune MODEL --layouts joint --records r.jsonl",
            share=share,
        )


def _open_sizes(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    names = [each.name for each in manifest.inputs if each.static_shape is None]
    if names:
        yield Advice(
            title="Sizes are open",
            text=f"Inputs {', '.join(names)} have sizes that are known at run time only: kernels "
            "choose their tiles then. Code for just one size is often faster.",
            command="--shape NAME=1x128 or --dim NAME=128",
            share=None,
        )


def _threads(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    cores = physical_cores()
    if not data.head.unmeasured and manifest.threads < cores:
        yield Advice(
            title="Cores that are not used",
            text=f"The program is made for {manifest.threads} of the {cores} cores that this "
            "process may use. `tvm-hybrid scale MODEL` predicts what more would bring.",
            command=f"--threads {cores}",
            share=None,
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
            share=None,
        )


def _fusion(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    if manifest.fusion != "coarse":
        yield Advice(
            title="Fusion is limited",
            text=f"The program was made with fusion {manifest.fusion}, which is there to compare "
            "with.",
            command="--fusion coarse",
            share=None,
        )


def _outside(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    total, outside = data.head.total_us, data.head.outside_us
    if total and outside is not None and outside > LEAST_OUTSIDE * total:
        yield Advice(
            title="Time between kernels",
            text=f"Up to {outside:.1f} us of a run are spent between {len(data.regions)} calls. "
            "A larger batch shares them among more samples.",
            command="",
            share=outside / total,
        )


def _records(data: PageData, manifest: Manifest) -> Iterable[Advice]:
    share = _share(data, lambda each: each.taken and each.source == "default")
    count = sum(each.taken and each.source == "default" for each in data.regions)
    if count and _matters(share):
        yield Advice(
            title="No tuning records",
            text=f"{count} regions have configurations that a formula chose. It is mostly "
            "within a few percent of the best; tuning finds out, and never makes it slower.",
            command="tvm-hybrid tune MODEL --records r.jsonl",
            share=share,
        )
