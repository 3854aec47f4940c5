"""Measures one model: every start in a fresh process."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from .corpus import has_relative
from .feeds import feeds_of
from .graph import Model
from .results import AGAIN, COLD, COUNTING, FAST, ONNXRUNTIME, OPENVINO
from .starts import Files, Start, start, written


@dataclass(frozen=True)
class Settings:
    """How starts are measured.

    Attributes
    ----------
    starts : collection of str
        Which ones.
    threads : int
        Of every engine.
    limit : float
        CPU seconds of a start.
    openvino : str
        A Python that has it.
    target : str or None
        For which CPU is compiled when counting; None for this one.
    """

    starts: Collection[str]
    threads: int = 1
    limit: float = 60
    openvino: str = sys.executable
    target: str | None = None


def measured(name: str, settings: Settings) -> Iterator[tuple[str, Start]]:
    """Every start of a model of the corpus, as it ends."""
    with TemporaryDirectory(prefix="compile_times-") as folder:
        files = written(name, Path(folder) / "model")
        relatives = {
            each: functools.partial(written, name, Path(folder) / each, each)
            for each in settings.starts
            if has_relative(name, each)
        }
        yield from _measured(files, relatives, Path(folder) / "cache", settings)


def measured_file(
    path: Path, sizes: dict[str, int], settings: Settings
) -> Iterator[tuple[str, Start]]:
    """Every start of a model in a file, which has no relatives."""
    with TemporaryDirectory(prefix="compile_times-") as folder:
        feeds = Path(folder) / "feeds.npz"
        model = Model(onnx.load(path, load_external_data=False), sizes)
        np.savez(feeds, **feeds_of(model))  # type: ignore[arg-type]
        files = Files(path.resolve(), feeds)
        yield from _measured(files, {}, Path(folder) / "cache", settings)


def _measured(
    files: Files, relatives: Mapping[str, Callable[[], Files]], cache: Path, settings: Settings
) -> Iterator[tuple[str, Start]]:
    threads, limit, wanted = settings.threads, settings.limit, settings.starts
    ends = True
    if relatives or {COLD, AGAIN} & set(wanted):
        cache.mkdir()
        cold = start("tvm_hybrid", files, threads, limit, cache)
        ends = not cold.fault
        yield COLD, cold
    if FAST in wanted:
        yield FAST, start("early", files, threads, limit)
    if AGAIN in wanted and ends:
        yield AGAIN, start("loading", files, threads, limit, cache)
    for name, second in relatives.items() if ends else ():
        yield name, start("tvm_hybrid", second(), threads, limit, cache)
    if COUNTING in wanted and ends:
        # Counting makes Python's part take up to three times as long.
        yield COUNTING, start("counting", files, threads, 3 * limit, target=settings.target)
    if ONNXRUNTIME in wanted:
        yield ONNXRUNTIME, start("onnxruntime", files, threads, limit)
    if OPENVINO in wanted:
        yield OPENVINO, start("openvino", files, threads, limit, python=settings.openvino)
