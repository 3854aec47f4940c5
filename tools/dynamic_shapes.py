"""Measures a program of dynamic sizes beside programs of static sizes, and other runtimes.

    taskset -c 1 python -m tools.dynamic_shapes minilm.onnx --sizes 1x1,1x128,8x32 --threads 1

Sizes are those of the dynamic dimensions, in the order in which the inputs name them. In every turn
all programs run one after the other; the result is the least time of all calls. Inputs are random:
floats, and zeros and ones (only ones if the name contains "mask"). With `--openvino`, a Python that
has OpenVINO runs the dynamic model, with floats in the given precision (float32 by default).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import click
import numpy as np

import tvm_hybrid
from tvm_hybrid.bench.peers.contestants import OpenVino
from tvm_hybrid.bench.peers.onnx_runtime import optimised_session
from tvm_hybrid.report.timing import time_calls
from tvm_hybrid.session.onnxruntime_api.model_surface import NodeArg

TURNS = 7
FEW_TURNS = 3  # for slow calls
MORE = 6  # factor for turns that need no pauses: one thread, without OpenVINO
LONG = 0.3  # seconds of a slow call
SECONDS = 0.05  # of the runs in one turn
PAUSE = 0.3  # until the threads of the session before have stopped spinning


@click.command()
@click.argument("model", type=click.Path(exists=True))
@click.option("--sizes", required=True, help="Sizes of the dynamic dimensions, such as 1x7,3x128.")
@click.option("--threads", default=1, show_default=True, help="Threads of a run.")
@click.option("--precision", default="auto", show_default=True, help="Precision of products.")
@click.option(
    "--openvino", metavar="PYTHON", help="A Python with OpenVINO, which is then measured, too."
)
def main(model: str, sizes: str, threads: int, precision: str, openvino: str | None) -> None:
    """Compares a program of dynamic sizes of MODEL with programs of static sizes.

    Prints milliseconds for each size, and geometric means of the ratios.
    """
    options: dict[str, Any] = {"num_threads": threads, "precision": precision, "cache": False}
    tvm_hybrid.InferenceSession(model, **options)  # imports what only the first compilation needs
    start = time.process_time()
    dynamic = tvm_hybrid.InferenceSession(model, **options)
    names = dynamic_names(dynamic)
    one_program = len(dynamic.programs) == 1
    click.echo(f"dynamic: {time.process_time() - start:.1f} CPU s, one program: {one_program}")
    peer = optimised_session(model, threads)
    openvino_floats = "bf16" if precision == "bf16" else "f32"
    others = ["static", "ORT", *(["OpenVINO"] if openvino else [])]
    heads = "".join(f"{name:>9}" for name in ("dynamic", *others))
    quotients = "".join(f"{name:>15}" for name in (f"{name}/dynamic" for name in others))
    click.echo(f"size    {heads}{quotients}  static CPU s")
    ratios: list[list[float]] = []
    for size in sizes.split(","):
        values = dict(zip(names, map(int, size.split("x")), strict=True))
        feeds = inputs_of(dynamic, values)
        shapes = {name: feed.shape for name, feed in feeds.items()}
        start = time.process_time()
        static = tvm_hybrid.InferenceSession(model, shapes=shapes, **options)
        compiled = time.process_time() - start
        with ExitStack() as running:
            runs = [timed(session.run, feeds) for session in (dynamic, static, peer)]
            if openvino:
                worker = OpenVino(Path(model), feeds, threads, openvino, precision=openvino_floats)
                running.enter_context(closing(worker))
                runs.append(worker.run_for)
            ours, *theirs = least_times(runs, threads > 1 or openvino is not None)
        ratios.append([each / ours for each in theirs])
        times = "".join(f"{1e3 * each:9.3f}" for each in (ours, *theirs))
        click.echo(f"{size:8}{times}{''.join(f'{r:15.3f}' for r in ratios[-1])}{compiled:14.1f}")
    means = [statistics.geometric_mean(column) for column in zip(*ratios, strict=True)]
    texts = (f"{mean:.3f} of {name}" for mean, name in zip(means, others, strict=True))
    click.echo(f"geometric means: {', '.join(texts)}")


def dynamic_names(session: tvm_hybrid.InferenceSession) -> list[str]:
    """The names of a session's dynamic dimensions, without repetitions, in order."""
    found: dict[str, None] = {}
    for info in session.get_inputs():
        found |= {size: None for size in dimensions(info) if isinstance(size, str)}
    return list(found)


def dimensions(info: NodeArg) -> list[int | str]:
    """Sizes and names of dimensions; one without a name is named after its input and axis."""
    return [
        f"{info.name}_{at}" if each is None else each for at, each in enumerate(info.shape or ())
    ]


def inputs_of(
    session: tvm_hybrid.InferenceSession, values: dict[str, int]
) -> dict[str, np.ndarray]:
    """Random inputs in which the dynamic dimensions have the sizes `values`."""
    rng = np.random.default_rng(0)
    found = {}
    for info in session.get_inputs():
        shape = [int(values.get(str(size), size)) for size in dimensions(info)]
        dtype = np.dtype(str(info.dtype))
        whole = np.ones(shape) if "mask" in info.name else rng.integers(0, 2, shape)
        array = rng.standard_normal(shape) if dtype.kind == "f" else whole
        found[info.name] = array.astype(dtype)
    return found


def timed(run: Callable[..., Any], feeds: dict[str, np.ndarray]) -> Callable[[float], list[float]]:
    """A function that runs a session for some seconds, at least once, and returns the run times."""

    return lambda seconds: time_calls(lambda: run(None, feeds), seconds)


def least_times(runs: Sequence[Callable[[float], list[float]]], pauses: bool) -> list[float]:
    """The least seconds of a run of each contestant, measured in turns, with pauses or without."""
    least = [math.inf] * len(runs)
    times_more = 1 if pauses else MORE
    for turn in range(times_more * TURNS):
        if turn == times_more * FEW_TURNS and max(least) > LONG:
            break
        for number, run_for in enumerate(runs):
            time.sleep(PAUSE if pauses else 0)
            if least[number] < LONG or turn == 0:
                run_for(0)  # the first call of a turn is slower
            times = run_for(SECONDS)
            least[number] = min(least[number], *times)
    return least


if __name__ == "__main__":
    main()
