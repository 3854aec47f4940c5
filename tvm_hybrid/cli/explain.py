"""`tvm-hybrid explain MODEL`: every node, whether it was taken, its kernel and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .base.console import output_console
from .base.models import executable_of
from .base.options import compile_options, json_option, model_argument

if TYPE_CHECKING:
    from ..options import CompileOptions


@click.command("explain")
@model_argument
@compile_options()
@json_option
def command(model: Path, options: CompileOptions, as_json: bool) -> int:
    """Shows what became of every node of MODEL, an ONNX file or a library that `compile` wrote."""
    explanation = executable_of(model, options).explain()
    console = output_console()
    if as_json:
        console.file.write(explanation.to_json() + "\n")
    else:
        explanation.print(console)
    return 0
