"""Steps and prompts of a given decoder, in our session and in ONNX Runtime.

The model has inputs for token ids [batch, n], perhaps positions [batch, n] and a mask with "mask"
in its name [batch, past + n], and caches [batch, heads, past, size]. It returns logits, then the
caches in the order of its inputs. Steps follow each other, as in generation: the token with the
largest logit is the next one, and the returned caches are the next past. "bound" is a session whose
caches are bound to arrays with room for all steps. Prompts have an empty past. Engines take turns,
with pauses, so that spinning threads of one engine do not disturb another.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np

import tvm_hybrid
from tvm_hybrid.bench.peers.onnx_runtime import optimised_session
from tvm_hybrid.session.onnxruntime_api.model_surface import NodeArg

TURNS = 5
STEPS, WARM = 20, 3  # steps of a turn; the WARM first ones are not counted
PAUSE = 0.3  # seconds
Feeds = dict[str, np.ndarray]
Run = Callable[[None, Feeds], Any]
Measure = Callable[[], list[float]]


def compare(model: str, how: tuple[int, str], pasts: list[int], prompts: list[int]) -> None:
    """Prints least and median milliseconds of a step and of a prompt, and both ratios.

    `how` is the number of threads, and the precision as in `CompileOptions`; `pasts` are keys
    before a step, `prompts` tokens of a prompt.
    """
    threads, precision = how
    ours = tvm_hybrid.InferenceSession(model, num_threads=threads, precision=precision)
    theirs = optimised_session(model, threads)
    click.echo(f"one program: {len(ours.programs) == 1}")
    click.echo(f"{'':14}" + "".join(f"{each:>17}" for each in ("ours", "bound", "ONNX Runtime")))
    decoder = Decoder(ours.get_inputs())
    for past in pasts:
        usual = functools.partial(decoder.steps, past, ours.run)
        bound = functools.partial(decoder.bound_steps, past, ours)
        peer = functools.partial(decoder.steps, past, theirs.run)
        report(f"past {past}", usual, bound, peer)
    for prompt in prompts:
        feeds = decoder.feeds(prompt, 0)
        usual, peer = (functools.partial(prefills, feeds, each.run) for each in (ours, theirs))
        report(f"prompt {prompt}", usual, None, peer)


def report(name: str, *measures: Measure | None) -> None:
    """Prints milliseconds of every engine, and the last engine's times over those of the others."""
    found: list[list[float]] = [[] for _ in measures]
    for _ in range(TURNS):
        for seconds, measure in zip(found, measures, strict=True):
            if measure is not None:
                time.sleep(PAUSE)
                seconds += measure()
    times = [(min(each) * 1e3, statistics.median(each) * 1e3) if each else None for each in found]
    peer = times[-1]
    assert peer is not None
    texts, ratios = [], []
    for each in times:
        texts.append(f"{each[0]:8.3f} /{each[1]:7.3f}" if each else "")
        if each is not None and each is not peer:
            ratios.append(", ".join(f"{b / a:.2f}" for a, b in zip(each, peer, strict=True)))
    line = "".join(f"{text:>17}" for text in texts)
    click.echo(f"{name:14}{line}   {'; '.join(ratios)}")


def prefills(feeds: Feeds, run: Run) -> list[float]:
    """Seconds of a few prompts, without the first one."""
    return [timed(run, feeds)[0] for _ in range(WARM)][1:]


def timed(run: Run, feeds: Feeds) -> tuple[float, list[np.ndarray]]:
    """Seconds of a run, and its results."""
    start = time.perf_counter()
    results = run(None, feeds)
    return time.perf_counter() - start, list(results)


class Decoder:
    """Makes the inputs of a decoder, for one sequence, and times its steps."""

    def __init__(self, inputs: list[NodeArg]) -> None:
        self.inputs = inputs
        self.caches = [info for info in inputs if len(info.shape or ()) == 4]

    def feeds(self, tokens: int, past: int) -> Feeds:
        """Inputs with random tokens and a random past."""
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
        """The value of an input that is no cache, for some tokens."""
        dtype, count = np.dtype(str(info.dtype)), ids.shape[1]
        if "mask" in info.name:
            return np.ones((1, past + count), dtype)
        if "position" in info.name:
            return np.arange(past, past + count, dtype=dtype)[None]
        return ids.astype(dtype)

    def steps(self, past: int, run: Run) -> list[float]:
        """Seconds of consecutive steps, without the first few."""
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

    def bound_steps(self, past: int, session: tvm_hybrid.InferenceSession) -> list[float]:
        """Seconds of consecutive steps in arrays with room for all; binding is part of a step."""
        steps, feeds = STEPS + WARM, self.feeds(1, past)
        logits, *present = (info.name for info in session.get_outputs())
        caches = {}
        for info in self.caches:
            before = feeds.pop(info.name)
            shape = (*before.shape[:2], past + steps, before.shape[3])
            caches[info.name] = np.zeros(shape, before.dtype)
            caches[info.name][:, :, :past] = before
        binding, times = session.io_binding(), []
        binding.bind_output(logits)
        for step in range(1, steps + 1):
            start = time.perf_counter()
            for name, value in feeds.items():
                binding.bind_input(name, value)
            for (name, cache), result in zip(caches.items(), present, strict=True):
                binding.bind_input(name, cache[:, :, : past + step - 1])
                binding.bind_output(result, cache[:, :, : past + step])
            session.run_with_iobinding(binding)
            times.append(time.perf_counter() - start)
            token = np.argmax(binding.get_outputs()[0][:, -1:], -1)
            feeds = {
                info.name: self.row(info, token, past + step)
                for info in self.inputs
                if info not in self.caches
            }
        return times[WARM:]
