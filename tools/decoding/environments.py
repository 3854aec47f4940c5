"""Environments of other engines, and the CPUs that contestants run on."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from microkernels.base.files import cache_dir
from tvm_hybrid.bench.peers.peers import OPENVINO
from tvm_hybrid.runtime.topology import cores_of, host_topology

LLAMA_CPP, CTRANSLATE2 = "llama.cpp", "CTranslate2"
_NUMPY = "numpy>=2"
PACKAGES = {
    LLAMA_CPP: ("llama-cpp-python==0.3.36", "gguf==0.19.0", _NUMPY),
    OPENVINO: ("openvino==2026.4.1", _NUMPY, "ml_dtypes>=0.4"),
    CTRANSLATE2: ("ctranslate2==4.8.5", "setuptools", _NUMPY),
}
"""Packages in each engine's environment; llama-cpp-python is compiled there, for this CPU."""
FOLDER = "survey-peers"
_VERSION = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"


def engines(
    names: Sequence[str], folder: Path | None = None
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Pythons and versions of engines, and why some are missing.

    They are installed into `folder`, by default one in the cache folder.
    """
    folder = folder or cache_dir() / FOLDER
    found, versions, missing = dict[str, str](), dict[str, str](), dict[str, str]()
    for name in names:
        package = PACKAGES[name][0].partition("==")[0]
        try:
            found[name] = python = environment_with(folder, PACKAGES[name])
            versions[name] = version_in(python, package)
        except (OSError, subprocess.SubprocessError) as error:
            missing[name] = reason_of(error)
            found.pop(name, None)
    return found, versions, missing


def environment_with(folder: Path, packages: Sequence[str]) -> str:
    """The Python of an environment with these packages."""
    mark = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    root = folder / mark
    python, done = root / "bin" / "python", root / "installed"
    if not done.exists():
        output_of([sys.executable, "-m", "venv", "--clear", str(root)])
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        output_of([str(python), *pip, *packages])
        done.touch()
    return str(python)


def output_of(command: Sequence[str]) -> str:
    """The standard output of a program."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def reason_of(error: OSError | subprocess.SubprocessError) -> str:
    """Why a library is missing, in one line."""
    if not isinstance(error, subprocess.CalledProcessError):
        return str(error)
    lines = [line for line in str(error.stderr).splitlines() if "rror" in line]
    return (lines or [str(error)])[-1][:300]


def version_in(python: str, package: str) -> str:
    """The version of a package in an environment."""
    return output_of([python, "-c", _VERSION, package])


def cpus_for(threads: int) -> list[int]:
    """The CPUs of the last `threads` cores, because the first ones serve most interrupts."""
    usable = host_topology().usable
    cores = usable[: cores_of(usable)]
    return sorted(cpu.number for cpu in (cores if threads <= len(cores) else usable)[-threads:])
