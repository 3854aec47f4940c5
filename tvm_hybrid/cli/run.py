"""`tvm-hybrid run MODEL`: runs a model or an exported library on arrays from files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .base.console import print_json, say
from .base.models import input_options, note_random, session_of
from .base.options import FILE, compile_options, json_option, model_argument

if TYPE_CHECKING:
    from ..options import CompileOptions


@click.command("run")
@model_argument
@input_options
@click.option(
    "--output",
    metavar="FILE.npz",
    type=FILE,
    help="Where to write the outputs, by name.",
)
@compile_options()
@json_option
def command(
    model: Path,
    arrays: tuple[str, ...],
    archive: Path | None,
    output: Path | None,
    seed: int,
    options: CompileOptions,
    as_json: bool,
) -> int:
    """Runs MODEL, an ONNX file or a library that `compile` wrote."""
    from microkernels.base.files import replacing, require_writable

    from ..bench.feeds import feeds_of, load_feeds, save_arrays

    if output is not None:
        require_writable(output)
    given = load_feeds(arrays, archive)
    session = session_of(model, options, given)
    feeds, drawn = feeds_of(session.executable, given, seed)
    results = session.run(None, feeds)
    outputs = {
        info.name: result for info, result in zip(session.get_outputs(), results, strict=True)
    }
    note_random(drawn)
    if output is not None:
        with replacing(output, what="the outputs to") as draft:
            save_arrays(draft, outputs)
    if as_json:
        print_json(
            {
                "random_inputs": drawn,
                "outputs": {
                    name: {
                        "shape": list(array.shape),
                        "dtype": str(array.dtype),
                        "values": array.tolist() if array.size <= 1000 else None,
                    }
                    for name, array in outputs.items()
                },
            }
        )
        return 0
    for name, array in outputs.items():
        shape = ", ".join(map(str, array.shape))
        say(f"{name}: {array.dtype}[{shape}]", array)
    return 0
