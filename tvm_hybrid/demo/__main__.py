"""Recognises files of this repository, reads a page, and measures the models.

Exit codes: 0 success, 1 a result, a label or a text is wrong, 2 something is missing, 130
interrupted.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click
from rich.text import Text

from microkernels.base.errors import TvmHybridError, VerifyError

from ..bench.bench_tables import bench_table
from ..cli.base.console import error_console, interruptible
from . import file_types, models


def demonstrate(threads: int, seconds: float) -> None:
    """Runs the whole demonstration.

    Raises
    ------
    VerifyError
        If a result, a label or a text is wrong.
    TvmHybridError
        If something is missing.
    """
    try:
        from . import ocr
    except ImportError as error:
        raise MissingPackageError(
            f"{error.name} is not installed; pip install onnxruntime pillow scipy brings it"
        ) from error
    steps = models.Steps(error_console(), total=file_types.STEPS + models.STEPS + ocr.STEPS)
    with steps.bar, tempfile.TemporaryDirectory(prefix="tvm_hybrid-demo-") as scratch:
        reports = file_types.demonstrate_file_types(threads, seconds, steps)
        reports += ocr.demonstrate_ocr(threads, seconds, steps)
        reports += models.demonstrate_perceptrons(Path(scratch), threads, seconds, steps)
    steps.show(bench_table(reports, f"time of one run, threads: {threads}"))


class MissingPackageError(TvmHybridError, RuntimeError):
    """The demonstration needs a package that is not installed."""


@click.command()
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--seconds",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Measuring time of each contestant on each model.",
)
def main(threads: int, seconds: float) -> None:
    """Recognises file types and reads text with pretrained models, then measures them."""
    try:
        with interruptible():
            demonstrate(threads, seconds)
    except KeyboardInterrupt:
        error_console().print("[bold red]Error:[/] interrupted")
        sys.exit(130)
    except TvmHybridError as error:
        line = Text.assemble(("Error: ", "bold red"), " ".join(str(error).split()))
        error_console().print(line, soft_wrap=True)
        sys.exit(1 if isinstance(error, VerifyError) else 2)


if __name__ == "__main__":
    main()
