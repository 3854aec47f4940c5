"""Other engines as contestants, each in its own process."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np

from tvm_hybrid.bench.peers.peers import OPENVINO
from tvm_hybrid.report.timing import ContestantError
from tvm_hybrid.tuning.measuring.child_process import ChildProcess

from .environments import CTRANSLATE2, LLAMA_CPP
from .llama import Sizes

KINDS = {
    LLAMA_CPP: {"f32": "f32", "bf16": "bf16", "4 bits": "Q4_0", "int8": "Q8_0"},
    OPENVINO: {"f32": "f32", "bf16": "bf16", "4 bits": "i4 in blocks of 32", "int8": "i8 a row"},
    CTRANSLATE2: {"f32": "f32", "int8": "i8 a row"},
}
"""The weights that each engine gets, for each kind."""
_START, _ANSWER = 300.0, 120.0


@dataclass
class Given:
    """The model that contestants run, the kind of its weights, and the number of threads."""

    sizes: Sizes
    kind: str
    threads: int


class Peer:
    """An engine in its own process, which is stopped during the turns of others.

    Raises
    ------
    ContestantError
        If the engine cannot run the model.
    """

    def __init__(self, name: str, python: str, given: Given) -> None:
        self._name = name
        self._folder = tempfile.TemporaryDirectory(prefix="tvm_hybrid-peer-")
        job = {
            "engine": name,
            "sizes": asdict(given.sizes),
            "kind": given.kind,
            "threads": given.threads,
            "folder": self._folder.name,
        }
        module = [python, "-m", "tools.decoding.worker", msgspec.json.encode(job).decode()]
        self._child = ChildProcess(module, environment(given.threads))
        try:
            self._child.spawn()
            self._answer("ready", _START)
            self._signal(signal.SIGSTOP)
        except OSError as error:
            self.close()
            raise ContestantError(f"{name}: cannot start {python}: {error}") from error
        except BaseException:
            self.close()
            raise

    def scores(self, count: int) -> np.ndarray:
        """Scores after a prompt, by `Engine.scores`."""
        return np.array(self._asked("scores", count), np.float32)

    def steps(self, past: int) -> list[float]:
        """Seconds of steps, by `Engine.steps`."""
        return self._asked("steps", past)

    def prompts(self, count: int) -> list[float]:
        """Seconds of prompts, by `Engine.prompts`."""
        return self._asked("prompts", count)

    def _asked(self, what: str, count: int) -> list[float]:
        """The result of the engine's method; the process only runs during this call."""
        self._signal(signal.SIGCONT)
        self._child.send([what, count])
        found: list[float] = self._answer("found", _ANSWER)
        self._signal(signal.SIGSTOP)
        return found

    def _signal(self, number: int) -> None:
        if self._child.pid is not None:
            os.kill(self._child.pid, number)

    def _answer(self, field: str, seconds: float) -> Any:
        return answer_of(self._child, self._name, seconds)[field]

    def close(self) -> None:
        """Ends the process."""
        self._child.close()
        self._folder.cleanup()


def answer_of(child: ChildProcess, name: str, seconds: float) -> dict[str, Any]:
    """The next line of a peer's process, as fields.

    Raises
    ------
    ContestantError
        If there is no line within `seconds`, the process has ended, or the line is an error.
    """
    try:
        line = child.answer(seconds)
    except TimeoutError:
        raise ContestantError(f"{name}: no answer within {seconds:.0f} s") from None
    if line is None:
        raise ContestantError(f"{name}: the process {child.ended()[1]}")
    fields = msgspec.json.decode(line, type=dict[str, Any])
    if "error" in fields:
        raise ContestantError(f"{name}: {fields['error']}")
    return fields


def environment(threads: int) -> Mapping[str, str]:
    """Environment variables of an engine's process: the path of this project, and its threads."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return {"PYTHONPATH": root, "OMP_NUM_THREADS": str(threads)}
