"""Options that several commands share, each with one spelling and one meaning."""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from microkernels.base.errors import Argument, ModelError, TvmHybridError
from microkernels.base.files import is_special, require_other_file, require_writable

from ...runtime.thread_pool.native import SPINS
from ...targets.architectures import ARCHITECTURES

if TYPE_CHECKING:
    from ...options import CompileOptions


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
SECONDS = click.FloatRange(min=0, min_open=True)
AT_LEAST_ONE = click.IntRange(min=1)


class OutputFile(click.Path):
    """A file that a command writes; its ending must fit, unless it is a device.

    Parameters
    ----------
    *suffixes : str
        Allowed endings, such as ".so"; none: all are allowed.
    """

    def __init__(self, *suffixes: str) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self.suffixes = suffixes

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Checks the ending of a path."""
        path: Any = super().convert(value, param, ctx)
        if self.suffixes and path.suffix.lower() not in self.suffixes and not is_special(path):
            self.fail(f"{path} does not end in {' or '.join(self.suffixes)}", param, ctx)
        return path


class SharedOption(click.Option):
    """An option of several commands, which help shows after the command's own options."""


shared_option = functools.partial(click.option, cls=SharedOption)


class FileCommand(click.Command):
    """A command with files: its output files must be writable, and must differ from its inputs."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the command's own options, then the shared ones."""
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                (shared if isinstance(param, SharedOption) else own).append(record)
        for title, records in (("Options", own), ("How the model is compiled", shared)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def invoke(self, ctx: click.Context) -> Any:
        """Checks the files before the command starts."""
        for param in self.params:
            path = ctx.params.get(param.name or "")
            if isinstance(param.type, OutputFile) and path is not None:
                require_writable(path)
                others = (value for other, value in ctx.params.items() if other != param.name)
                for given in (file for value in others for file in _files_in(value)):
                    require_other_file(path, given)
        for model in (ctx.params.get("model"), *ctx.params.get("models", ())):
            if isinstance(model, Path) and not model.exists():
                raise ModelError(f"there is no model file {model}; check the path")
        return super().invoke(ctx)


def _files_in(value: Any) -> Iterator[str | Path]:
    """Yields all parts of a parameter's value that may be files: a path, text after `NAME=`."""
    if isinstance(value, tuple | list):
        for each in value:
            yield from _files_in(each)
    elif isinstance(value, Path):
        yield value
    elif isinstance(value, str):
        yield from (value, value.partition("=")[2])


class PrecisionChoice(click.Choice[str]):
    """The precisions of floats; for an integer type, the error names `quantize`."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Checks the choice."""
        if str(value).lstrip("u").startswith("int"):
            self.fail(f"{value!r} is in the model: `tvm-hybrid quantize` makes one", param, ctx)
        return super().convert(value, param, ctx)


_OTHER_NAMES = {"num_threads": "--threads", "shapes": "--shape or --dim", "values": "--value"}


def in_options(error: TvmHybridError) -> str:
    """An error's message, with function arguments replaced by the command's options."""
    message = "".join(
        _option(part) if isinstance(part, Argument) else str(part) for part in error.args
    )
    if not error.argument or any(isinstance(part, Argument) for part in error.args):
        return message
    return f"{_option(Argument(error.argument))}: {message}"


def _option(argument: Argument) -> str:
    """`--threads`, `--dim batch=1`, `--value k=1`, or `dimension 1 of --shape x`."""
    if argument.value is not None and argument.name == "shapes":
        texts = []
        for name, size in argument.value.items():
            is_size = isinstance(size, int)
            told = str(size) if is_size else "x".join(map(str, size)) or "scalar"
            texts.append(f"{'--dim' if is_size else '--shape'} {shlex.quote(f'{name}={told}')}")
        return " ".join(texts)
    if argument.value is not None and argument.name == "values":
        values = (f"{name}={json.dumps(value)}" for name, value in argument.value.items())
        return " ".join(f"--value {shlex.quote(text)}" for text in values)
    option = _OTHER_NAMES.get(argument.name, f"--{argument.name.replace('_', '-')}")
    if argument.value is not None:
        return f"{option} {shlex.quote(str(argument.value))}"
    if not argument.item:
        return option
    if argument.name == "shapes":
        option = "--dim" if argument.is_size else "--shape"
    option = f"{option} {shlex.quote(argument.item)}"
    return option if argument.position is None else f"dimension {argument.position} of {option}"


def target_name(value: str) -> str | dict[str, Any]:
    """Converts a target: a JSON object becomes a dictionary, a name stays."""
    if not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a JSON object: {error}") from None


def target_option(name: str, text: str) -> Decorator:
    """Makes an option for a target; shells complete our short names of CPUs, and LLVM's."""
    names = [*ARCHITECTURES, *ARCHITECTURES.values()]
    return shared_option(
        name,
        type=target_name,
        metavar="TARGET",
        shell_complete=lambda _ctx, _param, begin: [n for n in names if n.startswith(begin)],
        help=text,
    )


def threads_choice(value: str) -> int | str:
    """Converts a number of threads; a place stays text, and is checked later."""
    is_number = value.lstrip("-").isdigit()
    return AT_LEAST_ONE.convert(int(value), None, None) if is_number else value


def named(wanted: str, read: Callable[[str], Any]) -> Callable[[str], tuple[str, Any]]:
    """Makes a converter of `NAME=TEXT`, where the name may contain an equals sign.

    Parameters
    ----------
    wanted : str
        The form and an example, for messages.
    read : callable
        Converts the text; raises ValueError if it is wrong.
    """

    def convert(value: str) -> tuple[str, Any]:
        name, _, text = value.rpartition("=")
        with contextlib.suppress(ValueError):
            if name:
                return name, read(text)
        raise click.BadParameter(f"{value!r} is not {wanted}")

    return convert


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(_size, [] if text in ("", "scalar") else text.split("x")))


def _value(text: str) -> Any:
    found = json.loads(text)
    if not isinstance(found, int | float | list):
        raise ValueError(text)
    return found


def _size(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


named_size = named("NAME=SIZE, such as batch=8", _size)


def counts_of(what: str) -> Callable[[str], tuple[int, ...]]:
    """Makes a converter of a list such as `1,2,4`: numbers from 1 up, without repetitions.

    Parameters
    ----------
    what : str
        Description of the numbers, for messages.
    """

    def convert(value: str) -> tuple[int, ...]:
        words = value.split(",")
        if not all(word.isascii() and word.isdigit() and int(word) for word in words):
            raise click.BadParameter(f"{value!r} is not a list of {what}, such as 1,2,4")
        return tuple(dict.fromkeys(map(int, words)))

    return convert


model_argument = click.argument("model", type=FILE)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")

num_threads_option = shared_option(
    "--threads",
    "num_threads",
    type=AT_LEAST_ONE,
    help="Threads of one run. Default: TVM_NUM_THREADS, else all cores.",
)


def _both(one: Decorator, other: Decorator) -> Decorator:
    return lambda command: one(other(command))


# Field of `CompileOptions` -> its option or options, in the order of the help.
_OPTIONS: dict[str, Decorator] = {
    "shapes": _both(
        shared_option(
            "--shape",
            "named_shapes",
            metavar="NAME=1x128",
            type=named("NAME=SIZExSIZE..., such as x=1x128", _shape),
            multiple=True,
            help="Shape of an input.",
        ),
        shared_option(
            "--dim",
            "sizes",
            metavar="NAME=8",
            type=named_size,
            multiple=True,
            help="Size of a symbolic dimension.",
        ),
    ),
    "values": shared_option(
        "--value",
        "named_values",
        metavar="NAME=[0,1]",
        type=named("NAME=VALUE, such as k=5 or axes=[0,1]", _value),
        multiple=True,
        help="Value of an input that becomes a constant, such as axes, shapes or k.",
    ),
    "target": target_option(
        "--target",
        "CPU to compile for: spr, sapphirerapids, a TVM target as JSON. Default: this CPU.",
    ),
    "machine": shared_option(
        "--machine",
        metavar="FILE",
        type=FILE,
        help="Description of the target's CPU for estimates, as calibrate writes. "
        "Default: for this CPU TVM_HYBRID_MACHINE or the calibrated one; else the shipped "
        "one.",
    ),
    "precision": shared_option(
        "--precision",
        default="auto",
        type=PrecisionChoice(["auto", "f32", "bf16"]),
        help="Type of the operands of matrix products. auto: as the model says.",
    ),
    "fusion": shared_option(
        "--fusion",
        default="coarse",
        type=click.Choice(["coarse", "fine", "none"]),
        help="What may become one kernel. coarse: several products; fine: an operator with its "
        "neighbours; none: one operator.",
    ),
    "fast_math": shared_option(
        "--fast-math",
        default="default",
        type=click.Choice(["off", "default", "on"]),
        help="Winograd convolutions. off: never; default: if the error is at most 5e-5; on: if "
        "faster.",
    ),
    "keep_dynamic": _both(
        shared_option(
            "--keep-dynamic",
            is_flag=True,
            help="Keep dynamic sizes that --shape and --dim do not give, as compile always does: "
            "one program for all of them.",
        ),
        shared_option(
            "--keep-open",
            is_flag=True,
            hidden=True,
            help="Old name of --keep-dynamic, for one release.",
        ),
    ),
    "check_indices": shared_option(
        "--check-indices",
        is_flag=True,
        help="Make an index out of range an error of the run. Otherwise it is clipped.",
    ),
    "num_threads": num_threads_option,
    "threads": shared_option(
        "--threads",
        "where",
        metavar="N|PLACE",
        type=threads_choice,
        help="Threads of one run: a number, or the place whose cores they are bound to, "
        "such as socket:0, node:0, all or CPUs 0-13,28. Default: all cores, not "
        "bound.",
    ),
    "weights": shared_option(
        "--weights",
        type=click.Choice(["first-touch", "interleave", "replicate"]),
        help="Memory nodes of weights: the node of the compiling thread, all nodes of --threads in "
        "turns, or nodes of its socket. Default: replicate for threads of one socket, else "
        "first-touch.",
    ),
    "spin": shared_option(
        "--spin",
        type=click.Choice(SPINS),
        help="How long threads wait awake: inside a run, always, never. Default: "
        "TVM_HYBRID_SPIN, else run.",
    ),
    "fallback": target_option(
        "--fallback",
        "Also compile for this lower CPU, or for the same CPU with a lower instruction set such "
        "as avx512_vnni, to run where AMX is missing or denied.",
    ),
    "records": _both(
        shared_option(
            "--records",
            multiple=True,
            metavar="FILE",
            help="Tuning records to apply, before those that tvm_hybrid ships.",
        ),
        shared_option("--no-records", is_flag=True, help="Apply no tuning records at all."),
    ),
    "strict": shared_option(
        "--strict",
        is_flag=True,
        help="Refuse operators whose template does not accept them, such as float64 products, "
        "convolutions and norms; operators without any template remain.",
    ),
    "dump_ir": shared_option(
        "--dump-ir",
        metavar="DIR",
        type=FOLDER,
        help="Write the IR after every pass into this folder.",
    ),
}
OF_CODE = ("shapes", "values", "target", "machine", "precision", "fusion", "fast_math")
"""Options that decide which code a model becomes, except the number of threads."""
ALL = tuple(name for name in _OPTIONS if name != "num_threads")


def model_command(name: str) -> Decorator:
    """Makes a decorator for a command whose first argument is a model."""
    return lambda function: click.command(name, cls=FileCommand)(model_argument(function))


def compile_options(*names: str, json: bool = True) -> Decorator:
    """Adds options of compilation, and gives the command a `CompileOptions` as `options`.

    Parameters
    ----------
    *names : str
        Fields of `CompileOptions` to offer; none: ALL. "threads" may be a number or a place,
        "num_threads" is a number.
    json : bool
        Whether to add --json as well.
    """
    wanted = names or ALL

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_options(*arguments: Any, **given: Any) -> Any:
            return command(*arguments, options=_taken(wanted, given), **given)

        decorated: Callable[..., Any] = json_option(with_options) if json else with_options
        for name in reversed(_OPTIONS):
            if name in wanted:
                decorated = _OPTIONS[name](decorated)
        return decorated

    return decorate


def _taken(names: Collection[str], given: dict[str, Any]) -> CompileOptions:
    """Takes the options out of a command's arguments."""
    from ...options import CompileOptions

    found: dict[str, Any] = {}
    for name in names:
        if name == "shapes":
            found[name] = {**dict(given.pop("named_shapes")), **dict(given.pop("sizes"))} or None
        elif name == "values":
            found[name] = dict(given.pop("named_values")) or None
        elif name == "threads":
            where = given.pop("where")
            found["num_threads" if isinstance(where, int) else "threads"] = where
        elif name == "records":
            files, without = list(given.pop("records")), given.pop("no_records")
            if files and without:
                raise click.UsageError("--records and --no-records exclude each other")
            found[name] = [] if without else files or None
        elif name == "keep_dynamic":
            found[name], by_old_name = given.pop(name), given.pop("keep_open")
            if by_old_name:
                click.echo("DeprecationWarning: --keep-open is now --keep-dynamic", err=True)
                found[name] = True
        else:
            found[name] = given.pop(name)
    return CompileOptions(**found)
