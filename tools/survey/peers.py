"""Other libraries to compare with, and oneDNN's primitives as a contestant.

ONNX Runtime is in the project's own environment. OpenVINO, oneDNN and engines of language models
come from the package index, each into a separate environment in the cache folder;
`onednn_peer.cc` is compiled there. A library that cannot be installed is missing, with the reason.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from microkernels.base.files import cache_dir
from tools.decoding.environments import (
    CTRANSLATE2,
    FOLDER,
    LLAMA_CPP,
    PACKAGES,
    engines,
    environment_with,
    output_of,
    reason_of,
    version_in,
)
from tools.decoding.peers import answer_of
from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME, OPENVINO, PYTHON_VARIABLE
from tvm_hybrid.tuning.measuring.child_process import ChildProcess

from .store import ONEDNN

SOURCE = Path(__file__).with_name("onednn_peer.cc")
# oneDNN 3.2 is the newest one in the index with headers.
ONEDNN_PACKAGES = ("onednn-cpu-gomp==2023.2.0", "onednn-devel-cpu-gomp==2023.2.0")
OURS_AND_MORE = ("tvm_hybrid", "apache-tvm", "onnxruntime", "numpy")
_TIME_LIMIT = 300.0


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """The available libraries."""

    openvino: str  # as in `section.Job`
    onednn: str  # as in `section.Job`
    versions: dict[str, str]  # library -> version
    missing: dict[str, str]  # library -> why it is missing
    engines: dict[str, str] = {}  # as in `section.Job`


def prepare_peers(folder: Path | None = None) -> Peers:
    """Installs and compiles libraries into `folder`, by default one in the cache folder."""
    folder = folder or cache_dir() / FOLDER
    versions, missing = {}, {}
    for package in OURS_AND_MORE:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            if package == "onnxruntime":
                missing[ONNX_RUNTIME] = "onnxruntime is not installed"
    made: dict[str, str] = {}
    makers: dict[str, Callable[[Path], tuple[str, str]]] = {OPENVINO: _openvino, ONEDNN: _onednn}
    for name, make in makers.items():
        try:
            made[name], versions[name] = make(folder)
        except (OSError, subprocess.SubprocessError) as error:
            missing[name] = reason_of(error)
    found, more, without = engines([LLAMA_CPP, CTRANSLATE2], folder)
    return Peers(
        openvino=made.get(OPENVINO, ""),
        onednn=made.get(ONEDNN, ""),
        versions=versions | more,
        missing=missing | without,
        engines=found,
    )


def _openvino(folder: Path) -> tuple[str, str]:
    """A Python that has OpenVINO, and its version."""
    python = os.environ.get(PYTHON_VARIABLE) or environment_with(folder, PACKAGES[OPENVINO])
    return python, version_in(python, "openvino")


def _onednn(folder: Path) -> tuple[str, str]:
    """The program that runs oneDNN's primitives, and its version."""
    root = Path(environment_with(folder, ONEDNN_PACKAGES)).parents[1]
    mark = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    program = folder / f"onednn_peer-{mark}"
    if not program.exists():
        library = root / "lib"
        command = ["g++", "-O2", "-std=c++17", str(SOURCE), "-o", str(program)]
        command += [f"-I{root / 'include'}", f"-L{library}", "-ldnnl", f"-Wl,-rpath,{library}"]
        output_of(command)
    return str(program), output_of([str(program), "version"])


class OneDnn:
    """oneDNN's primitives in a process, as a contestant; see `onednn_peer.cc`.

    Parameters
    ----------
    program : str
        As in `section.Job`.
    arguments : iterable of str
        Kind, type and sizes.
    threads : int
        Threads of a run.

    Raises
    ------
    ContestantError
        If oneDNN cannot run these within the time limit.
    """

    def __init__(self, program: str, arguments: Sequence[str], threads: int) -> None:
        self._child = ChildProcess([program, *arguments], {"OMP_NUM_THREADS": str(threads)})
        self._child.spawn()
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def run_for(self, seconds: float) -> list[float]:
        """Runs for about `seconds`; returns the seconds of every run."""
        self._child.send(seconds)
        return list(self._answer()["times"])

    def _answer(self) -> dict[str, Any]:
        return answer_of(self._child, "oneDNN", _TIME_LIMIT)

    def close(self) -> None:
        """Ends the process."""
        self._child.close()
