"""Measures the steps of a decoder with a cache of keys and values beside ONNX Runtime.

    taskset -c 1 python -m tools.decoding decoder.onnx --pasts 8,200,1000 --threads 1

The model has inputs for token ids [batch, n], perhaps positions [batch, n] and a mask with "mask"
in its name [batch, past + n], and caches [batch, heads, past, size]. It returns logits, then the
caches in the order of its inputs. Steps follow each other, as in generation: the token with the
largest logit is the next one, and what is returned is the past. Prompts have an empty past. Engines
take turns, with pauses, so that threads of one that wait for work do not disturb the other.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import onnxruntime

import tvm_hybrid
from tvm_hybrid.node_arg import NodeArg

TURNS = 5
STEPS, WARM = 20, 3  # of a turn; the first ones are not counted
PAUSE = 0.3  # seconds
Feeds = dict[str, np.ndarray]
Run = Callable[[None, Feeds], Any]


@click.command()
@click.argument("model", type=click.Path(exists=True))
@click.option("--pasts", default="8,200,1000", show_default=True, help="Keys before a step.")
@click.option("--prompts", default="8,200", show_default=True, help="Tokens of a prompt.")
@click.option("--threads", default=1, show_default=True)
@click.option("--precision", default="auto", show_default=True)
def main(model: str, pasts: str, prompts: str, threads: int, precision: str) -> None:
    """Prints the least and the median milliseconds of a step and of a prompt, and their ratios."""
    ours = tvm_hybrid.InferenceSession(model, num_threads=threads, precision=precision)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    theirs = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    click.echo(f"one program: {len(ours.programs) == 1}")
    click.echo(f"{'':14}{'ours':>17}{'ONNX Runtime':>17}   ratio of least, of medians")
    decoder = Decoder(ours.get_inputs())
    runs = ours.run, theirs.run
    for past in map(int, filter(None, pasts.split(","))):
        report(f"past {past}", functools.partial(decoder.steps, past), *runs)
    for prompt in map(int, filter(None, prompts.split(","))):
        report(f"prompt {prompt}", functools.partial(prefills, decoder.feeds(prompt, 0)), *runs)


def report(name: str, measure: Callable[[Run], list[float]], *runs: Run) -> None:
    """One line: seconds of every engine."""
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(TURNS):
        for seconds, run in zip(found, runs, strict=True):
            time.sleep(PAUSE)
            seconds += measure(run)
    ours, theirs = ((min(each) * 1e3, statistics.median(each) * 1e3) for each in found)
    texts = (f"{least:8.3f} /{median:7.3f}" for least, median in (ours, theirs))
    ratios = (f"{b / a:.2f}" for a, b in zip(ours, theirs, strict=True))
    click.echo(f"{name:14}{''.join(texts)}   {', '.join(ratios)}")


def prefills(feeds: Feeds, run: Run) -> list[float]:
    """Seconds of a few prompts, the first one left out."""
    return [timed(run, feeds)[0] for _ in range(WARM)][1:]


def timed(run: Run, feeds: Feeds) -> tuple[float, list[np.ndarray]]:
    """Seconds of a run, and its results."""
    start = time.perf_counter()
    results = run(None, feeds)
    return time.perf_counter() - start, list(results)


class Decoder:
    """What a model takes, for one sequence."""

    def __init__(self, inputs: list[NodeArg]) -> None:
        self.inputs = inputs
        self.caches = [info for info in inputs if len(info.shape or ()) == 4]

    def feeds(self, tokens: int, past: int) -> Feeds:
        """Random tokens and a random past."""
        rng = np.random.default_rng(0)
        found = {}
        for info in self.inputs:
            dtype = np.dtype(str(info.dtype))
            if info in self.caches:
                _, heads, _, size = info.shape or [0] * 4
                shape = (1, int(str(heads)), past, int(str(size)))
                found[info.name] = rng.standard_normal(shape).astype(dtype)
            else:
                found[info.name] = self.row(info, rng.integers(0, 99, (1, tokens)), past)
        return found

    def row(self, info: NodeArg, ids: np.ndarray, past: int) -> np.ndarray:
        """What an input that is no cache takes for some tokens."""
        dtype, count = np.dtype(str(info.dtype)), ids.shape[1]
        if "mask" in info.name:
            return np.ones((1, past + count), dtype)
        if "position" in info.name:
            return np.arange(past, past + count, dtype=dtype)[None]
        return ids.astype(dtype)

    def steps(self, past: int, run: Run) -> list[float]:
        """Seconds of steps that follow each other, the first few left out."""
        feeds, times = self.feeds(1, past), []
        for step in range(1, STEPS + WARM + 1):
            seconds, (logits, *caches) = timed(run, feeds)
            times.append(seconds)
            token = np.argmax(logits[:, -1:], -1)
            feeds = {
                info.name: self.row(info, token, past + step)
                for info in self.inputs
                if info not in self.caches
            }
            names = (info.name for info in self.caches)
            feeds.update(zip(names, caches, strict=True))
        return times[WARM:]


if __name__ == "__main__":
    main()
