"""Compares the programs of one model."""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from relay_passes.ir.decisions import Decision
from tvm_hybrid.executable.executable import Executable
from tvm_hybrid.report.timing import time_calls

from .through import as_array
from .torch_models import TorchModel

TURNS, SECONDS = 10, 1.0  # seconds for each door, at least, in all turns
Kernels = Counter[str]


def kernels(decisions: Iterable[Decision]) -> Kernels:
    """How often each kernel runs, with its operator, name and configuration."""
    return Counter(map(_essence, (each for each in decisions if each.kernel)))


def _essence(decision: Decision) -> str:
    """A kernel in words, without names of values and numbers that make equal names unique."""
    config = ", ".join(f"{key}={value}" for key, value in sorted(decision.config.items()))
    if decision.taken:
        return f"{decision.op}: {decision.kernel} ({config})"
    name = re.sub(r"(?<=[a-z])[0-9]+(?=_|$)", "", decision.op)
    # The order of operators in a generic kernel's name depends on the order in which they were
    # written, so they are sorted by name.
    return f"{' '.join(sorted(name.split('_')))}: {decision.kernel}"


def differences(found: Kernels, wanted: Kernels) -> list[str]:
    """The kernels that only one side has, with their sign and number."""
    more, less = found - wanted, wanted - found
    lines = [f"+{count} {kernel}" for kernel, count in more.items()]
    return lines + [f"-{count} {kernel}" for kernel, count in less.items()]


def reference(model: TorchModel) -> list[np.ndarray]:
    """The results of eager mode, with weights and inputs converted to float64."""
    module = copy.deepcopy(model.module).double()
    inputs = [each.double() if each.is_floating_point() else each for each in model.inputs]
    with torch.no_grad():
        results = module(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    return [as_array(each) for each in results]


def ran(executable: Executable, model: TorchModel) -> list[np.ndarray]:
    """The results of a program for the model's inputs."""
    return [each.numpy() for each in executable.run(*map(as_array, model.inputs))]


def error(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """The largest difference over the largest magnitude, of all results."""
    pairs = zip(found, wanted, strict=True)
    return max(
        float(np.abs(one.astype(np.float64) - other).max() / np.abs(other).max())
        for one, other in pairs
    )


def least_times(executables: Mapping[str, Executable], model: TorchModel) -> dict[str, float]:
    """The least seconds of a call of each program, measured in turns."""
    inputs: list[Any] = [as_array(each) for each in model.inputs]
    calls = {door: partial(each.run, *inputs) for door, each in executables.items()}
    least = {door: math.inf for door in calls}
    for _ in range(TURNS):
        for door, call in calls.items():
            least[door] = min(least[door], *time_calls(call, SECONDS / TURNS))
    return least
