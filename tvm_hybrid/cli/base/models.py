"""Turns the commands' arguments into an executable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from microkernels.base.errors import ModelError

from .console import error_console, say, working
from .options import FILE

if TYPE_CHECKING:
    import numpy as np

    from ...bench.feeds import ProductSums
    from ...executable.executable import Executable
    from ...options import CompileOptions
    from ...runtime.tensors import DynamicTensorInfo
    from ...session.inference_session import InferenceSession


def executable_of(model: Path, options: CompileOptions) -> Executable:
    """Compiles a model, or loads an exported library.

    Raises
    ------
    click.UsageError
        If options of compilation are given for a library.
    TvmHybridError
        See `tvm_hybrid.compile` and `tvm_hybrid.load`.
    """
    from ... import compile as compile_model
    from ... import load
    from ...library.artifact import is_library
    from ...options import given

    if is_library(model):
        if given(options) - {"threads", "weights", "spin"}:
            raise click.UsageError(
                f"{model} is compiled already; options of compilation do not apply to it"
            )
        return load(model, threads=options.threads, weights=options.weights, spin=options.spin)
    with stages_shown(f"compiling {model.name}", lines=False):
        return compile_model(model, options)


def session_of(model: Path, options: CompileOptions, given: Mapping[str, Any]) -> InferenceSession:
    """Makes a session of a model or library; checks threads before it compiles.

    Parameters
    ----------
    given : mapping
        Given inputs. Those that must be known at compilation become values of the program.

    Raises
    ------
    click.UsageError
    TvmHybridError
        See `executable_of`.
    """
    from ...errors import InputValueError
    from ...runtime.threads import resolve_setting
    from ...session.inference_session import InferenceSession

    resolve_setting(options.threads, options.num_threads, here=True)
    while True:
        values = options.values or {}
        try:
            return InferenceSession(executable_of(model, options))
        except InputValueError as error:
            found = {name: given[name] for name in error.inputs if name in given.keys() - values}
            if not found:
                raise
            options = replace(options, values={**values, **found})


def sized(model: Path, options: CompileOptions, given: Mapping[str, Any]) -> CompileOptions:
    """Makes the dynamic sizes of an ONNX model static.

    Sizes come from given arrays, else they are 1, with a message. With `keep_dynamic` they stay
    dynamic.

    Parameters
    ----------
    given : mapping
        Input name -> array.
    """
    from ...library.artifact import is_library
    from ...runtime.tensors import evaluate, is_relation, names_in

    if options.keep_dynamic or is_library(model):
        return options
    try:
        inputs, names = dynamic_inputs(model, options)
    except ModelError:
        return options  # compiling reports the error, after it has checked the options
    inputs = [info for info in inputs if info.shape is not None or info.name in given]
    for info in (info for info in inputs if info.name in given):
        names |= dict(zip(map(str, info.shape or ()), given[info.name].shape, strict=False))
    unsaid: dict[str, None] = {}
    shapes: dict[str, Any] = {}
    for info in inputs:
        sizes = []
        for place, size in enumerate(info.shape or ()):
            if size is None:  # without a name
                unsaid[f"dimension {place} of {info.name}"] = None
                size = 1
            elif isinstance(size, str) and size not in names:
                new = names_in(size) - names.keys()
                unsaid |= dict.fromkeys(sorted(new))
                names |= dict.fromkeys(new, 1)
                size = evaluate(size, names) if is_relation(size) else 1
            sizes.append(names.get(size, size) if isinstance(size, str) else size)
        shapes[info.name] = given[info.name].shape if info.name in given else tuple(sizes)
    if unsaid:
        text = f"sizes that are not given are 1: {', '.join(unsaid)}; set them by --dim NAME=SIZE"
        say(text, to=error_console())
    return replace(options, shapes={**(options.shapes or {}), **shapes} or None)


def dynamic_inputs(
    model: Path, options: CompileOptions
) -> tuple[list[DynamicTensorInfo], dict[str, int]]:
    """Returns the inputs that the options leave dynamic, and the named sizes that these set."""
    from ...frontend.onnx.reader.load_graph import declared_interface, load_graph
    from ...frontend.onnx.reader.read_model import read_all_but_large

    proto, left = read_all_but_large(model)
    with left:
        dims = (dim for item in proto.graph.input for dim in item.type.tensor_type.shape.dim)
        if all(dim.HasField("dim_value") for dim in dims):
            return [], {}
        graph = load_graph(proto, left)
        declared = declared_interface(proto, graph).inputs
        inputs = declared_interface(proto, graph, options.shapes).inputs
    names = {
        text: size
        for before, after in zip(declared, inputs, strict=True)
        for text, size in zip(before.shape or (), after.shape or (), strict=False)
        if isinstance(text, str) and isinstance(size, int)
    }
    values = options.values or {}
    return [info for info in inputs if info.is_dynamic and info.name not in values], names


def sums_of(model: Any, program: Executable, feeds: Mapping[str, np.ndarray]) -> ProductSums:
    """Computes tolerances for a program's results; for `model`, see `import_onnx`."""
    from ...bench.feeds import ProductSums
    from ...frontend import import_onnx
    from ...runtime.feeds import arrays_of

    shapes = {info.name: feeds[info.name].shape for info in program.inputs}
    return ProductSums(import_onnx(model, shapes, arrays_of(program.values)).mod)


source_option = click.option(
    "--onnx",
    "source",
    metavar="FILE.onnx",
    type=FILE,
    help="The model that a library was made of, to compare it with.",
)


@dataclass(frozen=True)
class Inputs:
    """The values of `--input`, `--inputs` and `--seed`.

    Attributes
    ----------
    arrays : tuple of str
        `NAME=FILE.npy`, each for one input.
    archive : Path or None
        An .npz file with arrays for several inputs.
    seed : int
        Seed of random values for the other inputs.
    """

    arrays: tuple[str, ...]
    archive: Path | None
    seed: int = 0

    def __bool__(self) -> bool:
        return bool(self.arrays or self.archive)

    @cached_property
    def given(self) -> dict[str, np.ndarray]:
        """Input name -> given array."""
        from ...bench.feeds import load_feeds

        return load_feeds(self.arrays, self.archive)

    def feeds_of(self, executable: Executable) -> tuple[dict[str, np.ndarray], list[str]]:
        """Returns arrays for all inputs, and the names of random ones, with a message."""
        from ...bench.feeds import feeds_of

        feeds, drawn = feeds_of(executable, self.given, self.seed)
        if drawn:
            text = f"random values for input {', '.join(drawn)}; set them by --input NAME=FILE.npy"
            say(text, to=error_console())
        return feeds, drawn


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--input`, `--inputs` and `--seed`; the command gets `inputs`."""

    @click.option("--seed", default=0, help="Seed of random inputs.")
    @wraps(command)
    def with_seed(*, inputs: Inputs, seed: int, **others: Any) -> Any:
        return command(inputs=replace(inputs, seed=seed), **others)

    return array_options(with_seed)


def array_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--input` and `--inputs`, which also set a model's sizes; the command gets `inputs`."""

    @click.option(
        "--input",
        "arrays",
        metavar="NAME=FILE.npy",
        multiple=True,
        help="Array for one input, which also sets its size. Other inputs are random.",
    )
    @click.option(
        "--inputs",
        "archive",
        metavar="FILE.npz",
        type=FILE,
        help="Arrays for several inputs, by name.",
    )
    @wraps(command)
    def with_inputs(*, arrays: Any, archive: Any, **others: Any) -> Any:
        return command(inputs=Inputs(arrays, archive), **others)

    return with_inputs


@contextmanager
def stages_shown(message: str, lines: bool = True) -> Iterator[Callable[[str], None]]:
    """Shows compiler stages on a terminal; with `lines`, leaves a line with each stage's time.

    Yields a function that begins another stage by name.
    """
    console = error_console()
    if not console.is_terminal:
        with working(message):
            yield lambda title: None
        return

    from relay_passes.ir.stages import Stage, listening

    began = time.perf_counter()
    open_stage = ""

    def close() -> None:
        nonlocal began
        now = time.perf_counter()
        if open_stage and lines:
            console.print(f"{now - began:7.2f} s  {open_stage}", highlight=False, markup=False)
        began = now

    def begin(title: str) -> None:
        nonlocal open_stage
        close()
        open_stage = title
        status.update(f"{escape(message)}: {escape(title)}")

    def show(stage: Stage) -> None:
        size = f" ({stage.size})" if stage.size else ""
        title = f"{stage.number}/{stage.count} {stage.title}{size}"
        if stage.done:
            parts = f"{stage.done} of {stage.parts} done"
            status.update(f"{escape(message)}: {escape(title)}, {parts}")
        else:
            begin(title)

    with console.status(escape(message)) as status, listening(show):
        begin("reading the model")
        yield begin
        close()
