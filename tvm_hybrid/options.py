"""CompileOptions: how a model is compiled, made once where the model comes in, and carried on.

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
from relay_passes.pipeline_options import CodeOptions, PipelineOptions

from .executable.machine_code import fallback_target
from .runtime.places import PoolSetting
from .runtime.threads import ThreadsLike, resolve_setting
from .targets.resolve import MachineLike, TargetLike, resolve_target, threads_of

if TYPE_CHECKING:
    from .records.record_lookup import RecordLookup

PathLike = str | os.PathLike[str]
Records = PathLike | Sequence[PathLike] | None


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
    keep_open: bool


@dataclass(frozen=True, kw_only=True)
class CompileOptions(CodeOptions):
    """How a model is compiled.

    `compile`, `InferenceSession` and `tune` take it as `options`, and its fields as keywords.

    Parameters
    ----------
    target : str, mapping, tvm.target.Target or None
        The CPU; None for this one. See `tvm_hybrid.targets.resolve.resolve_target`.
    machine : path-like, optional
        A file that describes the target's CPU for the estimates that choose kernels, in place of
        the description that comes along; such as `tvm-hybrid calibrate` writes. It says nothing of
        the fallback.
    shapes : mapping, optional
        Input name -> shape, or symbolic dimension -> size.
    values : mapping, optional
        Input name of an ONNX model -> its value, an array or a list. The program is made for these
        values and does not take these inputs; `run` accepts them by name and checks them. Values
        must be given for parameters of operators, such as axes and shapes, that are inputs.
    precision : {"auto", "f32", "bf16"}
        Type of the operands of matrix products. "auto": as the model says. "f32": also those of a
        bfloat16 model, whose inputs, outputs and weights keep their type. "bf16": the operands of
        f32 products are rounded to bfloat16, their sums and everything else stay f32; what is
        quantised to integers stays so. Any CPU can run it, but only one with fast instructions
        for it faster: with AMX, or such as Zen 4.
    fusion : {"coarse", "fine", "none"}
        What may become one kernel. "coarse": several products too, as in attention and perceptrons;
        "fine": an operator of ours with the elementwise ones around it; "none": that operator
        alone. The lower levels are there to compare with.
    fast_math : {"off", "default", "on"}
        Where 3x3 and one-dimensional convolutions of f32 may use Winograd's algorithm, whose
        results round otherwise. "default": where the largest error to expect is within 5e-5 of the
        results' root mean square; "on": wherever it is faster; "off": nowhere.
    records : path-like or sequence of path-like, optional
        Tuning records to apply, in this order: these files', or for None those that
        `TVM_HYBRID_RECORDS` names; then those that this package brings for the CPU. A region that
        none of them knows gets the configuration of a region like it, if that promises a gain
        (`tvm_hybrid.records.nearest_record`). An empty list, or TVM_HYBRID_RECORDS=none: no
        records. `Manifest.records` says which were used.
    num_threads : int or None
        Threads of one run; None for the `num-cores` of a target that states them, then
        `TVM_NUM_THREADS`, or else all cores. 1 builds serial kernels. Without a target at most four
        for each CPU that this process may use; where a target is named, more may be built for, and
        only running or loading it here is refused.
    threads : int, str, sequence of int or None
        Where threads run here: "socket:0" or "node:0", by the numbers of Linux; CPUs as "0-3,8" or
        as numbers; "all". One thread runs on each core of the place, or `num_threads` of them, and
        each worker is bound to its CPU; the calling thread does a share as well and is never bound.
        None, or a number, which is another way to give `num_threads`: nothing is bound. It is of
        this process: an exported library has the number of threads, and `load` takes the place.
    weights : {"first-touch", "interleave", "replicate"} or None
        On which memory nodes weights lie here. "first-touch": where the thread ran that compiled
        them. "interleave": they go in turns to the nodes of `threads`. "replicate": the same, in
        one socket; a session bound to another one has weights of its own. None: "replicate" for
        threads of one socket, else "first-touch". Does nothing where there is one node.
    spin : {"run", "always", "never"} or None
        For how long threads wait awake here. "run": for moments inside a run; between runs they
        sleep. "always": workers stay awake as long as the executable lives, each on a CPU, for the
        shortest time of the next run. "never": they sleep at once. None: what TVM_HYBRID_SPIN says,
        else "run". It is of this process, as `threads`.
    strict : bool or "open"
        Whether an operator that should have a template but gets none is an error. "open": in a
        program with open sizes alone.
    dump_ir : path-like, optional
        Folder that receives the IR after every pass; that of the fallback goes to a folder in it.
    fallback : str, mapping or tvm.target.Target, optional
        A second, lower CPU to compile for as well: a target, or the name of an instruction set
        such as "avx512_vnni", which stands for `target` without what is above it. It runs where the
        code for `target` cannot: the CPU lacks a feature, or Linux denies AMX tiles. Executable and
        exported library hold both programs, with packed weights for each; constants that both read
        alike are exported once.
    keep_open : bool
        Dimensions of inputs that `shapes` gives no sizes stay open, and one program runs all sizes.
        An ONNX model's keep their names, or are named by input and axis; `shapes` of all makes code
        for just these. Otherwise a dimension without a size is an error.
    check_indices : bool
        Of an ONNX model: whether an index out of range, of Gather, GatherElements, GatherND and the
        scattering operators, is an error when the program runs. It names the node and the range;
        `InferenceSession` raises a FeedError. Without it such an index is clipped: the nearest
        element is taken. The check reads all indices once more; without it nothing is checked.
    cache : bool
        Whether kernels that were compiled before are taken from a folder of the user's cache, and
        new ones are kept there. The environment variable TVM_HYBRID_CACHE=0 turns it off for all.

    Raises
    ------
    CompileError
        If `precision`, `fusion`, `fast_math` or `strict` has no such value.
    ShapeError, InputValueError
        If `shapes` or `values` is no mapping. Other options are
        checked where a model is compiled; `argument` of every error is the option's name.
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
    keep_open: bool = False
    check_indices: bool = False
    cache: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.strict, bool) and self.strict != "open":
            raise CompileError(
                Argument("strict"), f" is True, False or 'open', not {self.strict!r}"
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
    """What somebody chooses who is given some options, and keywords that go before them.

    Parameters
    ----------
    options : CompileOptions or None
    keywords : mapping
    known : type
        The TypedDict of the options that make sense there.

    Raises
    ------
    OptionError
        If `options` are none, or say something that makes no sense there.
    UnknownOptionError
        If there is no such keyword.
    CompileError
        As `CompileOptions`.
    """
    names = known.__annotations__
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
    """The options that are not as by default."""
    found = ((each.name, getattr(options, each.name), each.default) for each in fields(options))
    return {
        name
        for name, value, default in found
        if value is not default and (default is None or value != default)
    }


def check_options(options: CompileOptions) -> None:
    """Refuses options that make no sense on this machine, before there is a model.

    Raises
    ------
    TargetError, RecordError, OutputError
        As `tvm_hybrid.compile`.
    """
    target_of(options)
    setting_of(options, here=False)
    records_of(options)
    dump_folder(options)


def target_of(options: CompileOptions) -> Target:
    """The target, described by the file that `machine` names.

    Raises
    ------
    TargetError
        If there is no such target, or the file is no description.
    """
    with _blaming(options, "target"):
        target = resolve_target(options.target)
    with _blaming(options, "machine"):
        return target if options.machine is None else resolve_target(target, options.machine)


def fallback_of(options: CompileOptions, target: Target) -> Target | None:
    """The target of the second program; None if there is none.

    Raises
    ------
    TargetError
        If there is no such target, or it is not below the first.
    """
    with _blaming(options, "fallback"):
        return None if options.fallback is None else fallback_target(target, options.fallback)


def setting_of(options: CompileOptions, here: bool) -> PoolSetting:
    """How many threads a run has, and where; `here` if the code runs on this machine.

    Raises
    ------
    TargetError
        If there are no such threads, or no such `spin`.
    """
    with _blaming(options, "target"):
        number = threads_of(options.target, options.num_threads, options.threads)
    return resolve_setting(options.threads, number, here, spin=options.spin)


def records_of(options: CompileOptions) -> RecordLookup | None:
    """The records; None if there are to be none.

    Raises
    ------
    RecordError
        If a file cannot be read.
    """
    from .records.record_lookup import lookup_of

    with _blaming(options, "records"):
        return lookup_of(options.records)


def dump_folder(options: CompileOptions) -> Path | None:
    """The folder for the IR, which is made; None if there is to be none.

    Raises
    ------
    OutputError
        If it cannot be written to.
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
    """The options of the passes for a target and a number of threads, with records of a lookup."""
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
    """Makes errors that name no argument name this one, if it was given."""
    try:
        yield
    except TvmHybridError as error:
        if argument in given(options):
            error.argument = error.argument or argument
        raise
