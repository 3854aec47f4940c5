"""`tvm-hybrid verify MODEL`: compares the compiled model with ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .base.console import output_console, print_json, say, working
from .base.models import input_options, note_random, session_of
from .base.options import compile_options, json_option, model_argument

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import onnx

    from ..bench.compare import Tolerance
    from ..bench.verify import VerifyReport
    from ..options import CompileOptions


@click.command("verify")
@model_argument
@input_options
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="Largest error relative to an output's largest value. Default: derived from the model.",
)
@compile_options()
@json_option
def command(
    model: Path,
    arrays: tuple[str, ...],
    archive: Path | None,
    seed: int,
    tolerance: float | None,
    options: CompileOptions,
    as_json: bool,
) -> int:
    """Compares MODEL's outputs with ONNX Runtime's; exit code 1 if they differ.

    The reference is ONNX Runtime without graph optimisation. A difference is traced to the first
    node and region that shows it.
    """
    from ..bench.compare import Tolerance
    from ..bench.feeds import ProductSums, feeds_of, load_feeds
    from ..bench.verify import verify
    from ..frontend import import_onnx
    from ..frontend.onnx.reader.read_model import read_model
    from ..runtime.feeds import arrays_of

    given = load_feeds(arrays, archive)
    proto = read_model(model)
    session = session_of(model, options, given)
    feeds, drawn = feeds_of(session.executable, given, seed)
    options = replace(options, values=arrays_of(session.executable.values))
    if tolerance is None:
        shapes = {info.name: feeds[info.name].shape for info in session.executable.inputs}
        sums = ProductSums(import_onnx(proto, shapes, options.values).mod)
        allowed = sums.tolerance(session.executable.manifest.precision)
    else:
        allowed = Tolerance.given(tolerance)
    report = verify(proto, session.run(None, feeds), feeds, allowed)
    if not report.passed:
        report = _with_first_difference(report, proto, feeds, options, allowed)
    _show(report, drawn, as_json)
    return 0 if report.passed else 1


def _with_first_difference(
    report: VerifyReport,
    proto: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    options: CompileOptions,
    tolerance: Tolerance,
) -> VerifyReport:
    import msgspec

    from .. import compile as compile_model
    from ..bench.verify import locate
    from ..session.inference_session import InferenceSession

    def evaluate(prefix: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
        executable = compile_model(prefix, options)
        return InferenceSession(executable, progress=False).run(None, feeds), executable.explain()

    with working("looking for the first region that differs"):
        first = locate(proto, feeds, tolerance, evaluate)
    return msgspec.structs.replace(report, first_difference=first)


def _show(report: VerifyReport, drawn: list[str], as_json: bool) -> None:
    import msgspec

    from ..bench.bench_tables import verify_table

    note_random(drawn)
    if as_json:
        print_json({"passed": report.passed, **msgspec.to_builtins(report)})
        return
    output_console().print(verify_table(report))
    if report.first_difference is not None:
        say(report.first_difference)
