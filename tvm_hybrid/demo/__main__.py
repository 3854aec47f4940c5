"""Recognises files of this repository, then measures; see the package's text.

Exit codes: 0 all went well, 1 a result or a label is wrong, 2 something is missing.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click
import numpy as np
import onnx
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from microkernels.errors import TvmHybridError, VerifyError

from ..report.bench import BenchReport
from ..report.console import error_console, output_console
from ..report.feeds import complete_feeds
from ..report.tables import bench_table, kernel_table, verify_table
from .classifier import Classifier, ClassifierConfig, load_text_labels
from .magika_files import fetch_magika
from .mlp import SIZES, mlp_model
from .models import DemoModel
from .quantized import quantize
from .samples import REPOSITORY, sample_paths

BATCH = 128


class Steps:
    """Shows what is being done: a bar on a terminal, one line a step anywhere else."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self.bar = Progress(
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            redirect_stdout=False,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task("", total=total)
        self._label = ""

    def begin(self, label: str) -> None:
        """A step begins; the one before it is over."""
        self.bar.update(self._task, advance=1 if self._label else 0, description=label)
        self._label = label
        self._line(label)

    def detail(self, text: str) -> None:
        """What the step is doing just now."""
        self.bar.update(self._task, description=f"{self._label}: {text}")
        self._line(f"  {text}")

    def show(self, result: RenderableType) -> None:
        """Prints a result on standard output; above the bar if both are on one terminal."""
        output = output_console()
        (self._console if output.is_terminal and self._console.is_terminal else output).print(
            result
        )

    def _line(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def demonstrate(threads: int, seconds: float) -> None:
    """The whole demonstration.

    Raises
    ------
    VerifyError
        If a result or a label is wrong.
    TvmHybridError
        If something is missing.
    """
    steps = Steps(error_console(), total=4 + 4 * len(SIZES))
    with steps.bar, tempfile.TemporaryDirectory(prefix="tvm_hybrid-demo-") as scratch:
        steps.begin("fetching magika, a pretrained file-type classifier")
        files = fetch_magika()
        config = ClassifierConfig.load(files.config)
        steps.begin("compiling it")
        shape = (1, config.beg_size + config.end_size)
        magika = DemoModel.compile(files.model, {"bytes": shape}, threads)
        classifier = Classifier(magika.session, config, load_text_labels(files.types))
        steps.begin("recognising files of this repository")
        steps.show(recognise(classifier))
        source = (REPOSITORY / "tvm_hybrid" / "demo" / "classifier.py").read_bytes()
        features = classifier.features(source)
        assert features is not None, "a module's source is longer than a few bytes"
        feeds = {"bytes": features}
        checked = magika.verify(feeds)
        steps.show(verify_table(checked, "magika against ONNX Runtime without optimisation"))
        steps.show(kernel_table(magika.session.explain(), "kernels of magika"))
        steps.begin("measuring magika")
        reports = [magika.bench(feeds, seconds, steps.detail)]
        reports += _perceptrons(Path(scratch), threads, seconds, steps)
    steps.show(bench_table(reports, f"time of one run, threads: {threads}"))


def recognise(classifier: Classifier) -> Table:
    """The table of recognised files.

    Raises
    ------
    VerifyError
        If a label is not what the file is.
    """
    table = Table(title="what magika says", title_justify="left")
    for column in ("file", "label", "score"):
        table.add_column(column)
    wrong = []
    for path, label in sample_paths().items():
        name = str(path.relative_to(REPOSITORY))
        verdict = classifier.classify(path.read_bytes())
        right = verdict.label == label
        table.add_row(
            Text(name),
            Text(verdict.label, "green" if right else "bold red"),
            f"{verdict.score:.4f}",
        )
        if not right:
            wrong.append(f"{name} is {label}, not {verdict.label}")
    if wrong:
        raise VerifyError("; ".join(wrong))
    return table


def _perceptrons(folder: Path, threads: int, seconds: float, steps: Steps) -> list[BenchReport]:
    """MLP_1 and MLP_2 of the paper, in float32 and quantised: compiled, verified, measured."""
    reports = []
    for name in SIZES:
        steps.begin(f"compiling {name}, batch {BATCH}")
        path = folder / f"{name}.onnx"
        onnx.save(mlp_model(name, BATCH), path)
        model = DemoModel.compile(path, {}, threads)
        feeds, _ = complete_feeds(model.session.executable.inputs, {})
        reports.append(_measured(model, feeds, seconds, steps))
        steps.begin(f"quantising and compiling {name}, int8")
        quantized = folder / f"{name} int8.onnx"
        quantize(path, quantized, [feeds])
        model = DemoModel.compile(quantized, {}, threads)
        reports.append(_measured(model, feeds, seconds, steps))
    return reports


def _measured(
    model: DemoModel, feeds: Mapping[str, np.ndarray], seconds: float, steps: Steps
) -> BenchReport:
    """A compiled model is verified, shown and measured."""
    name = model.path.stem
    checked = model.verify(feeds)
    steps.show(verify_table(checked, f"{name} against ONNX Runtime without optimisation"))
    steps.show(kernel_table(model.session.explain(), f"kernels of {name}"))
    steps.begin(f"measuring {name}")
    return model.bench(feeds, seconds, steps.detail)


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
    """Recognises file types with a pretrained model, then measures against the others."""
    try:
        demonstrate(threads, seconds)
    except TvmHybridError as error:
        line = Text.assemble(("Error: ", "bold red"), " ".join(str(error).split()))
        error_console().print(line, soft_wrap=True)
        sys.exit(1 if isinstance(error, VerifyError) else 2)


if __name__ == "__main__":
    main()
