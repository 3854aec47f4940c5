"""Fetches, compiles, verifies and measures the demonstration's models; makes its perceptrons."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from microkernels.base.errors import QuantizeError, TvmHybridError, VerifyError
from microkernels.base.files import cache_dir, replacing, require_room, why_not_written

from .. import InferenceSession, import_onnx
from ..bench.bench import BenchReport, bench
from ..bench.bench_tables import kernel_table, verify_table
from ..bench.compare import Tolerance
from ..bench.feeds import ProductSums, complete_feeds
from ..bench.layer_models import OnnxGraph
from ..bench.verify import VerifyReport, verify
from ..cli.base.console import output_console
from ..frontend.onnx.reader.read_model import read_model
from ..options import CompileOptions
from ..quantization.onnx_quantizer import quiet, write_static
from ..report.timing import ContestantError

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class DemoModel:
    """A compiled model with everything to check and measure it."""

    path: Path
    shapes: Shapes
    session: InferenceSession
    flops: int
    tolerance: Tolerance

    @staticmethod
    def compile(path: Path, shapes: Shapes, threads: int) -> DemoModel:
        """Compiles an ONNX file."""
        sums = ProductSums(import_onnx(path, shapes=shapes).mod)
        session = InferenceSession(path, shapes=shapes, num_threads=threads, progress=False)
        return DemoModel(path, shapes, session, sums.flops, sums.tolerance())

    def verify(self, feeds: Mapping[str, np.ndarray]) -> VerifyReport:
        """Compares outputs with ONNX Runtime's.

        Raises
        ------
        VerifyError
            If an output differs by more than the tolerance.
        """
        outputs = self.session.run(None, feeds)
        report = verify(read_model(self.path), outputs, feeds, self.tolerance)
        for output in report.outputs:
            if not output.passed:
                raise VerifyError(
                    f"{self.path.name}: output {output.name!r} differs from ONNX Runtime's by "
                    f"{output.ours.max_rel:.1e} of its largest value; {report.tolerance:.1e} are "
                    f"allowed. `tvm-hybrid verify {self.path}` finds the region"
                )
        return report

    def bench(
        self, feeds: Mapping[str, np.ndarray], seconds: float, progress: Callable[[str], object]
    ) -> BenchReport:
        """Measures us, ONNX Runtime and stock TVM, each for `seconds` in all rounds together.

        Raises
        ------
        VerifyError
            If our results are wrong. Other contestants' rows say how they differ.
        """
        report = bench(
            self.session,
            self.path,
            feeds,
            threads=self.session.executable.num_threads,
            flops=self.flops,
            tolerance=self.tolerance,
            options=CompileOptions(shapes=self.shapes),
            rounds=10,
            seconds=seconds / 10,
            progress=progress,
        )
        for row in report.wrong:
            raise VerifyError(f"{self.path.name}: {row.name} {row.note}")
        return report

    def examine(self, feeds: Mapping[str, np.ndarray], seconds: float, steps: Steps) -> BenchReport:
        """Verifies, shows and measures the model; see `verify` and `bench`."""
        name = self.path.stem
        checked = self.verify(feeds)
        steps.show(verify_table(checked, f"{name} against ONNX Runtime without optimisation"))
        steps.show(kernel_table(self.session.explain(), f"kernels of {name}"))
        steps.begin(f"measuring {name}")
        return self.bench(feeds, seconds, steps.detail)


def quantize(source: Path, path: Path, samples: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Quantises a float32 model with onnxruntime, statically: 8 bits, QDQ form.

    Weights become int8 with a scale for each output column, activations uint8 with a scale and a
    zero point computed from samples.

    Parameters
    ----------
    source : Path
        An ONNX model in float32.
    path : Path
        The file to write.
    samples : sequence of mapping
        Inputs that give the ranges of activations.

    Raises
    ------
    ContestantError
        If onnxruntime is not installed.
    QuantizeError
        If it cannot quantise the model.
    """
    try:
        with quiet():
            write_static(source, path, samples)
    except ImportError as error:
        raise ContestantError(
            "onnxruntime is not installed; pip install onnxruntime brings it"
        ) from error
    except Exception as error:
        raise QuantizeError(f"onnxruntime cannot quantise {source.name}: {error}") from error


class Steps:
    """Shows the progress: a bar on a terminal, one line a step anywhere else."""

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
        """Begins a step, and ends the one before."""
        self.bar.update(self._task, advance=1 if self._label else 0, description=label)
        self._label = label
        self._line(label)

    def detail(self, text: str) -> None:
        """Shows a detail of the current step."""
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


# Fetches single files from a package that is published for pip.
#
# The package is downloaded with pip, not installed. Only the requested files are kept, and used
# only if their SHA-256 is the expected one.


class DownloadError(TvmHybridError, RuntimeError):
    """A file of the demonstration cannot be obtained."""


@dataclass(frozen=True)
class Member:
    """A file of a package: its path in the wheel, and its hexadecimal SHA-256."""

    path: str
    sha256: str


def fetch(package: str, members: Mapping[str, Member], folder: Path | None = None) -> list[Path]:
    """Returns files of a package; downloads them if necessary.

    Parameters
    ----------
    package : str
        Name and version, such as "magika==1.0.3".
    members : mapping
        File name to keep it under -> the member.
    folder : Path or None
        Folder to keep them in; None for a folder below `cache_dir()`.

    Returns
    -------
    list of Path
        Paths in the order of `members`.

    Raises
    ------
    DownloadError
        If the package cannot be downloaded or holds other files than expected.
    """
    folder = folder or cache_dir() / package.replace("==", "-")
    wanted = {folder / name: member for name, member in members.items()}
    if all(_is_right(path, member) for path, member in wanted.items()):
        return list(wanted)
    _require_folder(folder)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary"]
    with tempfile.TemporaryDirectory(prefix="tvm_hybrid-") as scratch:
        command += [":all:", "--dest", scratch, package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            reason = lines[-1] if lines else f"pip ended with {done.returncode}"
            raise DownloadError(
                f"cannot download {package}: {reason}; is there a connection to a package index?"
            )
        for path, member in wanted.items():
            _extract(wheels[0], member, path)
    return list(wanted)


def _require_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        require_room(folder)
    except OSError as error:
        raise DownloadError(
            f"{why_not_written(folder, error)}; TVM_HYBRID_CACHE_DIR names another"
        ) from error


def _is_right(path: Path, member: Member) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == member.sha256
    except OSError:
        return False


def _extract(archive: Path, member: Member, path: Path) -> None:
    """Extracts and checks one member of the archive, completely or not at all."""
    try:
        with zipfile.ZipFile(archive) as wheel:
            data = wheel.read(member.path)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadError(f"{archive.name} does not hold {member.path}: {error}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != member.sha256:
        raise DownloadError(
            f"{member.path} of {archive.name} has SHA-256 {found}, not the expected one"
        )
    _require_folder(path.parent)
    with replacing(path, DownloadError) as draft:
        draft.write_bytes(data)


# The demonstration's second part: multi-layer perceptrons of a paper, f32 and quantised.


SIZES = {"MLP_1": (13, 512, 256, 128), "MLP_2": (479, 1024, 1024, 512, 256, 1)}


def mlp_model(name: str, batch: int, seed: int = 0) -> onnx.ModelProto:
    """Makes the perceptrons MLP_1 and MLP_2 of the oneDNN Graph Compiler paper, in float32.

    arXiv 2301.01333, section VII: fully connected layers, ReLU after each. The weights here are
    random with a fixed seed, which does not change the time. Input is "x", output "y".

    Parameters
    ----------
    name : str
        A key of `SIZES`.
    batch : int
        Rows of the input.
    seed : int
        Seed of weights and biases; the weights' variance keeps activations in range.
    """
    sizes = SIZES[name]
    graph, rng, value = OnnxGraph(), np.random.default_rng(seed), "x"
    for layer, (inner, outer) in enumerate(pairwise(sizes), 2):
        matrix = rng.standard_normal((inner, outer), np.float32) * np.float32(np.sqrt(2 / inner))
        bias = 0.1 * rng.standard_normal(outer, np.float32)
        total = graph.node("Gemm", value, graph.constant(matrix), graph.constant(bias))
        value = graph.node("Relu", total, output="y" if layer == len(sizes) else "")
    return graph.model(name, TensorProto.FLOAT, {"x": (batch, sizes[0])}, (batch, sizes[-1]))


BATCH = 128
STEPS = 4 * len(SIZES)


def demonstrate_perceptrons(
    folder: Path, threads: int, seconds: float, steps: Steps
) -> list[BenchReport]:
    """Compiles, verifies and measures MLP_1 and MLP_2, in float32 and quantised.

    Raises
    ------
    VerifyError
        If a result is wrong.
    """
    reports = []
    for name in SIZES:
        steps.begin(f"compiling {name}, batch {BATCH}")
        path = folder / f"{name}.onnx"
        onnx.save(mlp_model(name, BATCH), path)
        model = DemoModel.compile(path, {}, threads)
        feeds, _ = complete_feeds(model.session.executable.inputs, {})
        reports.append(model.examine(feeds, seconds, steps))
        steps.begin(f"quantising and compiling {name}, int8")
        quantized = folder / f"{name} int8.onnx"
        quantize(path, quantized, [feeds])
        model = DemoModel.compile(quantized, {}, threads)
        reports.append(model.examine(feeds, seconds, steps))
    return reports
