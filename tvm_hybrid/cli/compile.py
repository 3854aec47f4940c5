"""`tvm-hybrid compile MODEL -o m.so`: compiles a model into a library that TVM's runtime runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from microkernels.base.errors import ArtifactError
from microkernels.base.files import require_writable

from .base.console import print_json, say
from .base.models import stages_shown
from .base.options import FILE, compile_options, json_option, model_argument

if TYPE_CHECKING:
    from ..options import CompileOptions


@click.command("compile")
@model_argument
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE.so",
    type=FILE,
    help="The library to write.",
)
@compile_options()
@json_option
def command(model: Path, output: Path, options: CompileOptions, as_json: bool) -> int:
    """Compiles MODEL into a library for `tvm-hybrid run`, `tvm_hybrid.load` or TVM's runtime."""
    from ..library.artifact import is_library

    if is_library(model):
        raise click.UsageError(f"{model} is compiled already")
    require_writable(output, ArtifactError)
    start = time.perf_counter()
    from .. import compile as compile_model

    with stages_shown(f"compiling {model.name}") as begin:
        executable = compile_model(model, options)
        begin("writing the library")
        path = executable.export(output)
    seconds = time.perf_counter() - start
    manifest = executable.manifest
    fallback = manifest.fallback
    if as_json:
        print_json(
            {
                "library": str(path),
                "bytes": path.stat().st_size,
                "seconds": seconds,
                "cpu": manifest.cpu,
                "isa": manifest.isa,
                "threads": manifest.threads,
                "precision": manifest.precision,
                "fusion": manifest.fusion,
                "fast_math": manifest.fast_math,
                "taken": manifest.coverage.taken,
                "nodes": manifest.coverage.nodes,
                "fallback": fallback and {"cpu": fallback.cpu, "isa": fallback.isa},
            }
        )
        return 0
    second = [] if fallback is None else [f"fallback: {fallback.cpu} ({fallback.isa})"]
    say(
        f"{path}: {path.stat().st_size / 1e6:.1f} MB in {seconds:.1f} s",
        f"for {manifest.cpu} ({manifest.isa}), threads: {manifest.threads}, "
        f"precision: {manifest.precision}, fusion: {manifest.fusion}, "
        f"fast_math: {manifest.fast_math}",
        *second,
        executable.explain().summary(),
    )
    return 0
