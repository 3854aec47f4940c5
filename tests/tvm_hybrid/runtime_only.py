"""Runs exported libraries in a process with TVM's runtime and without our packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests import linux_answers

_PROGRAM = """
import sys, numpy as np, tvm
library, x, y, answer, answers = sys.argv[1:]
if answer:
    names = {}
    exec(open(answers).read(), names)
    names["answer_here"](int(answer))
try:
    module = tvm.runtime.load_module(library)
    machine = module["vm_load_executable"]()
    machine["vm_initialization"](1, 0, 2)
    np.save(y, machine["main"](tvm.runtime.tensor(np.load(x))).numpy())
except RuntimeError as error:
    print("RuntimeError:", str(error).strip().splitlines()[-1])
maps = open("/proc/self/maps").read()
print([n for n in ("tvm_hybrid", "microkernels", "relay_passes") if n in sys.modules])
print("libtvm_compiler" in maps)
"""


def run_on_runtime_alone(
    library: Path,
    x: np.ndarray,
    folder: Path,
    answer: int | None = None,
    preload: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a library without access to our packages; writes its result to `y.npy` in `folder`.

    Prints the last line of a RuntimeError, if any, then which of our packages were
    imported, and whether TVM's compiler was loaded. `answer` is Linux's answer to a request for AMX
    tile data, an errno; `preload` is an emulator of AMX.
    """
    np.save(folder / "x.npy", x)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"TVM_USE_RUNTIME_LIB": "1", "TVM_DEVICE_BACKEND_AUTOLOAD": "0"}
    if preload is not None:
        environment |= {"LD_PRELOAD": str(preload), "AMX_EMULATOR": "1"}
    arguments = [library, folder / "x.npy", folder / "y.npy"]
    answers = ["" if answer is None else answer, linux_answers.__file__]
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, *map(str, arguments), *map(str, answers)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env=environment,
        check=False,
    )
