"""CompileOptions: how a model is compiled; made once at the entry, then passed on.

In: keyword arguments of `compile`, `InferenceSession`, `tune` and of TVM's routes, options of the
command line and of `torch.compile`. Out: a target, threads, records and the passes' options.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from tvm.target import Target

from microkernels.base.errors import (
    Argument,
    CompileError,
    InputValueError,
    OptionError,
    ShapeError,
    TvmHybridError,
    UnknownOptionError,
)
from microkernels.base.old_names import old_arguments, old_property, warn_renamed, with_new_names
from relay_passes.pipeline_options import CodeOptions, PipelineOptions

from .executable.machine_code import fallback_target
from .runtime.places import PoolSetting
from .runtime.threads import ThreadsLike, resolve_setting
from .targets.resolve import MachineLike, TargetLike, resolve_target, threads_of

if TYPE_CHECKING:
    from .records.record_lookup import RecordLookup

PathLike = str | os.PathLike[str]
Records = PathLike | Sequence[PathLike] | None

RENAMED = {"keep_open": "keep_dynamic"}  # keywords that work for one release


class CodeKeywords(TypedDict, total=False):
    """Options of code for any target; `CompileOptions` explains them."""

    machine: MachineLike
    precision: str
    fusion: str
    fast_math: str
    num_threads: int | None


class RouteKeywords(CodeKeywords, total=False):
    """Keywords of `partition_for_tvm_hybrid` and of the pipeline; see `CompileOptions`."""

    records: Records
    strict: bool | str
    dump_ir: PathLike | None


class ModelKeywords(CodeKeywords, total=False):
    """Options of a model that is compiled or tuned; see `CompileOptions`."""

    target: TargetLike
    shapes: Mapping[str, Any] | None
    values: Mapping[str, Any] | None
    threads: ThreadsLike


class SessionKeywords(ModelKeywords, total=False):
    """Keywords of `InferenceSession`; see `CompileOptions`."""

    records: Records
    weights: str | None
    spin: str | None
    fallback: TargetLike
    check_indices: bool
    cache: bool


class TuneKeywords(ModelKeywords, total=False):
    """Keywords of `tune`; see `CompileOptions`."""

    strict: bool
    dump_ir: PathLike | None


class CompileKeywords(SessionKeywords, total=False):
    """Keywords of `tvm_hybrid.compile`: all fields of `CompileOptions`, which explains them."""

    strict: bool | str
    dump_ir: PathLike | None
    keep_dynamic: bool


@old_arguments(**RENAMED)
@dataclass(frozen=True, kw_only=True)
class CompileOptions(CodeOptions):
    """How a model is compiled.

    `compile`, `InferenceSession` and `tune` take it as `options`, and its fields as keywords.

    Parameters
    ----------
    target : str, mapping, tvm.target.Target or None
        The CPU; None for this one. See `tvm_hybrid.targets.resolve.resolve_target`.
    machine : path-like, optional
        A file that describes the target's CPU for the estimates that choose kernels, as
        `tvm-hybrid calibrate` writes; it replaces the shipped description. It does not describe the
        fallback's CPU.
    shapes : mapping, optional
        Input name -> shape, or symbolic dimension -> size.
    values : mapping, optional
        Input name of an ONNX model -> its value, an array or a list. The program is compiled for
        these values and does not take these inputs; `run` accepts them by name and checks them.
        Values must be given for inputs that are parameters of operators, such as axes and shapes.
    precision : {"auto", "f32", "bf16"}
        Type of the operands of matrix products. "auto": as the model says. "f32": also for a
        bfloat16 model, whose inputs, outputs and weights keep their type. "bf16": operands of f32
        products are rounded to bfloat16, while their sums and everything else stay f32, and
        quantised tensors stay integers. Every CPU can run it, but it is faster only with fast
        instructions for bfloat16: with AMX, or on CPUs like Zen 4.
    fusion : {"coarse", "fine", "none"}
        What may become one kernel. "coarse": also several products, as in attention and
        perceptrons; "fine": one of our operators with the elementwise operators around it; "none":
        one operator. The lower levels are for comparisons.
    fast_math : {"off", "default", "on"}
        When 3x3 and one-dimensional convolutions of f32 may use Winograd's algorithm, whose
        rounding differs. "default": if the largest expected error is within 5e-5 of the results'
        root mean square; "on": if it is faster; "off": never.
    records : path-like or sequence of path-like, optional
        Tuning records to apply, in this order: these files, or for None those that
        `TVM_HYBRID_RECORDS` names; then those that this package ships for the CPU. A region without
        a record gets the configuration of a similar region, if that promises a gain
        (`tvm_hybrid.records.nearest_record`). An empty list, or TVM_HYBRID_RECORDS=none: no
        records. `Manifest.records` lists the used ones.
    num_threads : int or None
        Threads of one run; None: the `num-cores` of a target that has them, then
        `TVM_NUM_THREADS`, else all cores. 1 builds serial kernels. Without a target, at most four
        for each CPU that this process may use. A named target allows more, but then loading and
        running here is refused.
    threads : int, str, sequence of int or None
        Where threads run here: "socket:0" or "node:0", numbered as in Linux; CPUs as "0-3,8" or as
        numbers; "all". One thread runs on each core of the place, or `num_threads` of them, and
        each worker is bound to its CPU; the calling thread works, too, and is never bound. None, or
        a number, which is another way to give `num_threads`: nothing is bound. The place belongs to
        this process: an exported library only has the number of threads, and `load` takes a place.
    weights : {"first-touch", "interleave", "replicate"} or None
        Memory nodes of weights here. "first-touch": the node of the thread that compiles them.
        "interleave": the nodes of `threads` in turns. "replicate": interleaves within one socket; a
        session bound to another socket has its own weights. None: "replicate" for threads of one
        socket, else "first-touch". No effect on a machine with one node.
    spin : {"run", "always", "never"} or None
        How long threads wait awake here. "run": for moments inside a run; between runs they sleep.
        "always": workers stay awake while the executable lives, each on a CPU, for the shortest
        time of the next run. "never": they sleep at once. None: the value of TVM_HYBRID_SPIN, else
        "run". Like `threads`, it belongs to this process.
    strict : bool or "dynamic"
        Whether an operator that should have a template but gets none is an error. "dynamic": only
        in a program with dynamic sizes.
    dump_ir : path-like, optional
        Folder for the IR after every pass; the fallback's IR goes to a subfolder.
    fallback : str, mapping or tvm.target.Target, optional
        A second, lower CPU to compile for as well: a target, or the name of an instruction set
        such as "avx512_vnni", which means `target` without the instructions above it. Its code runs
        if the code for `target` cannot: the CPU lacks a feature, or Linux denies AMX tiles.
        Executable and exported library hold both programs, each with packed weights; constants that
        are equal in both are exported once.
    keep_dynamic : bool
        Dimensions of inputs without sizes in `shapes` stay dynamic, and one program runs all sizes.
        Those of an ONNX model keep their names, or are named by input and axis. If `shapes` has all
        sizes, code is for these only. Without `keep_dynamic`, a dimension without a size is an
        error.
    check_indices : bool
        For an ONNX model: whether an index out of range, of Gather, GatherElements, GatherND and
        the scattering operators, is an error of the run, which names the node and the range;
        `InferenceSession` raises a FeedError. Otherwise the index is clipped, so that the nearest
        element is taken. The check reads all indices once more.
    cache : bool
        Whether kernels that were compiled before are taken from the user's cache folder, and new
        ones are kept there. The environment variable TVM_HYBRID_CACHE=0 disables all caches.

    Raises
    ------
    CompileError
        If `precision`, `fusion`, `fast_math` or `strict` has no such value.
    ShapeError, InputValueError
        If `shapes` or `values` is not a mapping. Other options are checked when a model is
        compiled; `argument` of every error is the option's name.
    """

    target: TargetLike = None
    machine: MachineLike = None
    shapes: Mapping[str, Any] | None = None
    values: Mapping[str, Any] | None = None
    records: Records = None
    num_threads: int | None = None
    threads: ThreadsLike = None
    weights: str | None = None
    spin: str | None = None
    strict: bool | str = False
    dump_ir: PathLike | None = None
    fallback: TargetLike = None
    keep_dynamic: bool = False
    check_indices: bool = False
    cache: bool = True

    keep_open = old_property("keep_open", "keep_dynamic")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strict == "open":
            warn_renamed('strict="open"', 'strict="dynamic"')
            object.__setattr__(self, "strict", "dynamic")
        if not isinstance(self.strict, bool) and self.strict != "dynamic":
            raise CompileError(
                Argument("strict"), f" is True, False or 'dynamic', not {self.strict!r}"
            )
        self._require_mapping("shapes", ShapeError, "{'x': (1, 128)}")
        self._require_mapping("values", InputValueError, "{'axes': [0, 1]}")

    def _require_mapping(self, name: str, kind: type[TvmHybridError], example: str) -> None:
        value = getattr(self, name)
        if value is not None and not isinstance(value, Mapping):
            text = f" must be a dictionary from names, such as {example}, not {value!r:.80}"
            raise kind(Argument(name), text)


def chosen_options(
    options: CompileOptions | None, keywords: Mapping[str, Any], known: type
) -> CompileOptions:
    """Combines options with keywords, which override them.

    Parameters
    ----------
    options : CompileOptions or None
    keywords : mapping
    known : type
        The TypedDict of the options that the caller supports.

    Raises
    ------
    OptionError
        If `options` has a wrong type, or sets an option that the caller does not support.
    UnknownOptionError
        If there is no such keyword.
    CompileError
        See `CompileOptions`.
    """
    names = known.__annotations__
    keywords = with_new_names(keywords, {k: v for k, v in RENAMED.items() if v in names})
    for name in keywords:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise UnknownOptionError(
                f"unexpected keyword argument {name!r}; {advice}", argument=name
            )
    if options is None:
        return CompileOptions(**keywords)
    if not isinstance(options, CompileOptions):
        raise OptionError(
            f"options are CompileOptions, not a {type(options).__name__}", argument="options"
        )
    for name in sorted(given(options) - names.keys()):
        raise OptionError(Argument(name), " makes no sense here: leave it out")
    return replace(options, **keywords) if keywords else options


def given(options: CompileOptions) -> set[str]:
    """The names of options that differ from their defaults."""
    found = ((each.name, getattr(options, each.name), each.default) for each in fields(options))
    return {
        name
        for name, value, default in found
        if value is not default and (default is None or value != default)
    }


def check_options(options: CompileOptions) -> None:
    """Refuses options that are invalid on this machine, before there is a model.

    Raises
    ------
    TargetError, RecordError, OutputError
        See `tvm_hybrid.compile`.
    """
    target_of(options)
    setting_of(options, here=False)
    records_of(options)
    dump_folder(options)


def target_of(options: CompileOptions) -> Target:
    """Resolves the target, with the description that `machine` names.

    Raises
    ------
    TargetError
        If there is no such target, or the file is not a description.
    """
    with _blaming(options, "target"):
        target = resolve_target(options.target)
    with _blaming(options, "machine"):
        return target if options.machine is None else resolve_target(target, options.machine)


def fallback_of(options: CompileOptions, target: Target) -> Target | None:
    """Resolves the target of the second program; None without a fallback.

    Raises
    ------
    TargetError
        If there is no such target, or it is not below the first.
    """
    with _blaming(options, "fallback"):
        return None if options.fallback is None else fallback_target(target, options.fallback)


def setting_of(options: CompileOptions, here: bool) -> PoolSetting:
    """Resolves how many threads a run has, and where; `here` if the code runs on this machine.

    Raises
    ------
    TargetError
        If threads or `spin` are invalid.
    """
    with _blaming(options, "target"):
        number = threads_of(options.target, options.num_threads, options.threads)
    return resolve_setting(options.threads, number, here, spin=options.spin)


def records_of(options: CompileOptions) -> RecordLookup | None:
    """Makes the lookup of records; None if records are disabled.

    Raises
    ------
    RecordError
        If a file cannot be read.
    """
    from .records.record_lookup import lookup_of

    with _blaming(options, "records"):
        return lookup_of(options.records)


def dump_folder(options: CompileOptions) -> Path | None:
    """Creates the folder for the IR; None if there is to be none.

    Raises
    ------
    OutputError
        If the folder is not writable.
    """
    if options.dump_ir is None:
        return None
    from relay_passes.lower_module import require_folder

    with _blaming(options, "dump_ir"):
        require_folder(Path(options.dump_ir))
    return Path(options.dump_ir)


def passes_options(
    options: CompileOptions, target: Target, threads: int, lookup: RecordLookup | None = None
) -> PipelineOptions:
    """Makes the passes' options for a target and a number of threads, with records of a lookup."""
    from .records.record_lookup import with_records

    passes = PipelineOptions(
        target,
        threads,
        strict=options.strict is True,
        dump_ir=None if options.dump_ir is None else Path(options.dump_ir),
        **options.code(),
    )
    return with_records(passes, lookup)


@contextmanager
def _blaming(options: CompileOptions, argument: str) -> Iterator[None]:
    """Adds this argument to errors without one, if it was given."""
    try:
        yield
    except TvmHybridError as error:
        if argument in given(options):
            error.argument = error.argument or argument
        raise
