"""The table of language models: a seeded Llama in every engine, in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME, OURS
from tvm_hybrid.report.timing import ContestantError, markdown_table

from .llama import Sizes
from .onnx_files import BF16, write
from .peers import KINDS, Given, Peer
from .reader import READER, Reader, weight_bytes
from .sessions import OnnxRuntime, Ours

TURNS = 3
CHECKED = 32  # tokens of the prompt whose scores are compared
PAUSE = 0.05  # seconds, because ONNX Runtime's threads spin for a while
COLUMNS = {
    "d32": ("steps", 32),
    "d1000": ("steps", 1000),
    "p32": ("prompts", 32),
    "p128": ("prompts", 128),
    "p512": ("prompts", 512),
}
"""Name -> method and count; dN: a token after N, pN: a prompt of N."""
NOTES = """\
Times are the least ones of other engines over ours; above 1, we are faster. dN is a token after \
N tokens, pN a prompt of N. All engines get equal seeded weights, and compute only the last \
token's scores. 4 bits: blocks of 32 with equal codes and scales of float16. We and ONNX Runtime \
get one ONNX file (GroupQueryAttention; MatMulNBits with accuracy_level 4; int8: \
DynamicQuantizeMatMul, a scale for each row), and caches of float32 in arrays with room. llama.cpp \
gets GGUF (Q4_0, Q8_0) and has caches of float16. OpenVINO gets its own operators with states (i4, \
i8 with scales of float16), floats in f32, and chooses caches of uint8. CTranslate2 has no 4 \
bits, and converts to bf16 only with torch; its steps are times between its callbacks. bf16: we \
get the file of f32 and the precision bf16, OpenVINO the hint bf16, llama.cpp a file of bf16; ONNX \
Runtime has no bf16 on CPUs. "reading the weights" is a program that only reads as many bytes; its \
ratio is the fraction of the memory's bandwidth that we use."""


@dataclass
class Measured:
    """A column of the table, for one model and kind of weights on some threads."""

    model: str
    kind: str
    column: str
    threads: int
    least: dict[str, float] = field(default_factory=dict)  # contestant -> least seconds
    median: dict[str, float] = field(default_factory=dict)  # contestant -> median seconds
    # Contestant -> why it has no time, or how far its scores are from ours.
    notes: dict[str, str] = field(default_factory=dict)

    def ratio(self, name: str) -> str:
        """Another engine's time over ours, of least times and of medians."""
        both = (times[name] / times[OURS] for times in (self.least, self.median))
        return "{:.2f} ({:.2f})".format(*both)


def measured(
    model: tuple[str, Sizes],
    kind: str,
    threads: int,
    pythons: Mapping[str, str],
    turns: int = TURNS,
) -> Iterator[Measured]:
    """All columns of a model, given by name and sizes.

    Parameters
    ----------
    kind : str
        Kind of its weights.
    threads : int
        Number of threads of every contestant.
    pythons : mapping
        Engine -> a Python that has it.
    turns : int
        Turns of each contestant.
    """
    given = Given(model[1], kind, threads)
    with ExitStack() as stack:
        contestants, notes = entered(given, pythons, stack)
        scores = in_turns(contestants, "scores", CHECKED, 1, notes)
        ours = np.array(scores.pop(OURS))
        for name, each in scores.items():
            error = np.sqrt(np.mean((each - ours) ** 2)) / np.std(ours)
            notes[name] = f"scores differ from ours by {error:.3g} of their deviation"
        for column, (what, count) in COLUMNS.items():
            times = in_turns(contestants, what, count, turns, notes)
            row = Measured(model[0], kind, column, threads, notes=notes)
            row.least = {name: min(found) for name, found in times.items()}
            row.median = {name: float(np.median(found)) for name, found in times.items()}
            yield row


def entered(
    given: Given, pythons: Mapping[str, str], stack: ExitStack
) -> tuple[dict[str, Any], dict[str, str]]:
    """Contestants that can run the model, ours first; and why others cannot."""
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="tvm_hybrid-decoder-")))
    path = write(folder / "model.onnx", given.sizes, given.kind)
    found: dict[str, Any] = {}
    notes: dict[str, str] = {}
    found[OURS] = Ours(path, given)
    if given.kind != BF16:
        found[ONNX_RUNTIME] = OnnxRuntime(path, given)
    try:
        size = weight_bytes(given.sizes, given.kind)
        found[READER] = Reader(folder, size, given.threads)
    except ContestantError as error:
        notes[READER] = str(error)
    for name, python in pythons.items():
        if given.kind not in KINDS[name]:
            continue
        try:
            found[name] = peer = Peer(name, python, given)
        except ContestantError as error:
            notes[name] = str(error)
        else:
            stack.callback(peer.close)
    return found, notes


def in_turns(
    contestants: dict[str, Any], what: str, count: int, turns: int, notes: dict[str, str]
) -> dict[str, list[float]]:
    """Results of the method `what` of all contestants, one after the other in every turn.

    A contestant that fails is removed and gets a note; one without the method is left out.
    """
    found: dict[str, list[float]] = {
        name: [] for name, each in contestants.items() if hasattr(each, what)
    }
    for _ in range(turns):
        for name in list(found):
            time.sleep(PAUSE)
            try:
                found[name] += list(getattr(contestants[name], what)(count))
            except ContestantError as error:
                notes[name] = str(error)
                del contestants[name], found[name]
    return found


def markdown(rows: list[Measured]) -> list[str]:
    """A table for each model, kind and number of threads; ratios of medians are in brackets."""
    lines = []
    for key in dict.fromkeys((row.model, row.kind, row.threads) for row in rows):
        mine = [row for row in rows if (row.model, row.kind, row.threads) == key]
        others = [name for name in mine[0].least if name != OURS]
        model, kind, threads = key
        cells = []
        for row in mine:
            ratios = (row.ratio(name) if name in row.least else "" for name in others)
            cells.append([row.column, f"{1e3 * row.least[OURS]:.2f} ms", *ratios])
        said = [f"{name} ({KINDS[name][kind]})" if name in KINDS else name for name in others]
        head = [f"{model}, {kind}, {threads} thread{'s' * (threads > 1)}", "ours", *said]
        lines += markdown_table(head, cells)
        lines += ["", *(f"- {name}: {why}" for name, why in mine[0].notes.items())]
    return lines
