"""Measures one program for all sizes beside programs for known ones, and beside ONNX Runtime.

    taskset -c 1 python -m tools.open_shapes minilm.onnx --sizes 1x1,1x128,8x32 --threads 1

Sizes are those of the open dimensions, in the order in which the inputs name them. Every turn runs
all three sessions one after the other; what counts is the least of the turns. Inputs are random:
zeros and ones, only ones for what is called a mask, and floats.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import onnxruntime

import tvm_hybrid

TURNS = 7
SECONDS = 0.05  # of one turn's runs
PAUSE = 0.3  # until the threads of the session before have stopped looking for work


@click.command()
@click.argument("model", type=click.Path(exists=True))
@click.option("--sizes", required=True, help="such as 1x7,3x128")
@click.option("--threads", default=1, show_default=True)
@click.option("--precision", default="auto", show_default=True)
def main(model: str, sizes: str, threads: int, precision: str) -> None:
    """Prints milliseconds for each size, and geometric means of the ratios."""
    options: dict[str, Any] = {"num_threads": threads, "precision": precision}
    tvm_hybrid.InferenceSession(model, **options)  # loads what the first compilation needs
    start = time.process_time()
    opened = tvm_hybrid.InferenceSession(model, **options)
    names = open_names(opened)
    one_program = len(opened.programs) == 1
    click.echo(f"open: {time.process_time() - start:.1f} CPU s, one program: {one_program}")
    peer_options = onnxruntime.SessionOptions()
    peer_options.intra_op_num_threads = threads
    peer = onnxruntime.InferenceSession(model, peer_options, providers=["CPUExecutionProvider"])
    click.echo("size         open   static      ORT   static/open  ORT/open  static CPU s")
    ratios = []
    for size in sizes.split(","):
        values = dict(zip(names, map(int, size.split("x")), strict=True))
        start = time.process_time()
        static = tvm_hybrid.InferenceSession(model, shapes=values, **options)
        compiled = time.process_time() - start
        feeds = inputs_of(opened, values)
        ours, theirs, known = least_times(
            [session.run for session in (opened, peer, static)], feeds
        )
        ratios.append((known / ours, theirs / ours))
        times = "".join(f"{1e3 * each:9.3f}" for each in (ours, known, theirs))
        click.echo(f"{size:8}{times}{known / ours:14.3f}{theirs / ours:10.3f}{compiled:14.1f}")
    static_mean, peer_mean = (geometric_mean(column) for column in zip(*ratios, strict=True))
    click.echo(f"geometric means: {static_mean:.3f} of static, {peer_mean:.3f} of ONNX Runtime")


def open_names(session: tvm_hybrid.InferenceSession) -> list[str]:
    """The open dimensions of a session, each once, in order."""
    found: dict[str, None] = {}
    for info in session.get_inputs():
        found |= {size: None for size in info.shape or () if isinstance(size, str)}
    return list(found)


def inputs_of(
    session: tvm_hybrid.InferenceSession, values: dict[str, int]
) -> dict[str, np.ndarray]:
    """Random inputs where the open dimensions have these sizes."""
    rng = np.random.default_rng(0)
    found = {}
    for info in session.get_inputs():
        shape = [int(values.get(str(size), size or 1)) for size in info.shape or ()]
        dtype = np.dtype(str(info.dtype))
        whole = np.ones(shape) if "mask" in info.name else rng.integers(0, 2, shape)
        array = rng.standard_normal(shape) if dtype.kind == "f" else whole
        found[info.name] = array.astype(dtype)
    return found


def least_times(runs: list[Callable[..., Any]], feeds: dict[str, np.ndarray]) -> tuple[float, ...]:
    """The least seconds of a run of each, in turns."""
    start = time.perf_counter()
    for run in runs:
        run(None, feeds)
    count = max(1, int(SECONDS * len(runs) / (time.perf_counter() - start)))
    least = [math.inf] * len(runs)
    for _ in range(TURNS):
        for number, run in enumerate(runs):
            time.sleep(PAUSE)
            run(None, feeds)
            start = time.perf_counter()
            for _ in range(count):
                run(None, feeds)
            least[number] = min(least[number], (time.perf_counter() - start) / count)
    return tuple(least)


def geometric_mean(ratios: tuple[float, ...]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


if __name__ == "__main__":
    main()
