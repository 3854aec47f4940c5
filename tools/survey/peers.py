"""Other libraries to compare with: their environments, and oneDNN's primitives as a contestant.

ONNX Runtime is in the project's own environment. OpenVINO, oneDNN and engines of language models
come from the package index, each into a separate environment in the cache folder;
`onednn_peer.cc` is compiled there. A library that cannot be installed is missing, with the reason.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from microkernels.base.files import cache_dir
from tools.decoding.peers import CTRANSLATE2, LLAMA_CPP, PACKAGES, answer_of
from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME, OPENVINO, PYTHON_VARIABLE
from tvm_hybrid.tuning.measuring.child_process import ChildProcess

from .store import ONEDNN

SOURCE = Path(__file__).with_name("onednn_peer.cc")
# oneDNN 3.2 is the newest one in the index with headers.
ONEDNN_PACKAGES = ("onednn-cpu-gomp==2023.2.0", "onednn-devel-cpu-gomp==2023.2.0")
OURS_AND_MORE = ("tvm_hybrid", "apache-tvm", "onnxruntime", "numpy")
_VERSION = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
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
    folder = folder or cache_dir() / "survey-peers"
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
            missing[name] = _reason(error)
    found, more, without = engines([LLAMA_CPP, CTRANSLATE2], folder)
    return Peers(
        openvino=made.get(OPENVINO, ""),
        onednn=made.get(ONEDNN, ""),
        versions=versions | more,
        missing=missing | without,
        engines=found,
    )


def engines(
    names: Sequence[str], folder: Path | None = None
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Pythons and versions of engines of `tools.decoding.peers`, and why some are missing.

    `folder` is that of `prepare_peers`.
    """
    folder = folder or cache_dir() / "survey-peers"
    found, versions, missing = dict[str, str](), dict[str, str](), dict[str, str]()
    for name in names:
        package = PACKAGES[name][0].partition("==")[0]
        try:
            found[name] = python = _environment(folder, PACKAGES[name])
            versions[name] = _output([python, "-c", _VERSION, package])
        except (OSError, subprocess.SubprocessError) as error:
            missing[name] = _reason(error)
            found.pop(name, None)
    return found, versions, missing


def _openvino(folder: Path) -> tuple[str, str]:
    """A Python that has OpenVINO, and its version."""
    python = os.environ.get(PYTHON_VARIABLE) or _environment(folder, PACKAGES[OPENVINO])
    return python, _output([python, "-c", _VERSION, "openvino"])


def _onednn(folder: Path) -> tuple[str, str]:
    """The program that runs oneDNN's primitives, and its version."""
    root = Path(_environment(folder, ONEDNN_PACKAGES)).parents[1]
    mark = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    program = folder / f"onednn_peer-{mark}"
    if not program.exists():
        library = root / "lib"
        command = ["g++", "-O2", "-std=c++17", str(SOURCE), "-o", str(program)]
        command += [f"-I{root / 'include'}", f"-L{library}", "-ldnnl", f"-Wl,-rpath,{library}"]
        _output(command)
    return str(program), _output([str(program), "version"])


def _environment(folder: Path, packages: Sequence[str]) -> str:
    """The Python of an environment with these packages."""
    mark = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    root = folder / mark
    python, done = root / "bin" / "python", root / "installed"
    if not done.exists():
        _output([sys.executable, "-m", "venv", "--clear", str(root)])
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _output([str(python), *pip, *packages])
        done.touch()
    return str(python)


def _output(command: Sequence[str]) -> str:
    """The standard output of a program."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _reason(error: OSError | subprocess.SubprocessError) -> str:
    """Why a library is missing, in one line."""
    if not isinstance(error, subprocess.CalledProcessError):
        return str(error)
    lines = [line for line in str(error.stderr).splitlines() if "rror" in line]
    return (lines or [str(error)])[-1][:300]


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
