"""Every way to run a program, with every way to set its number of threads, uses one pool."""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.runtime.thread_pool.counting import (
    ENVIRONMENTS,
    Found,
    check_found,
    counted,
    run_with,
)
from tests.tvm_hybrid.runtime.thread_pool.wide_model import WEIGHT, X
from tvm_hybrid.runtime.threads import resolve_setting

pytestmark = pytest.mark.turns

Program = tuple[int, Callable[[], object]]  # number of threads of a run, and the run


def _two() -> tvm_hybrid.SessionOptions:
    options = tvm_hybrid.SessionOptions()
    options.intra_op_num_threads = 2
    return options


SAID: dict[str, Callable[[], dict[str, Any]]] = {
    "num_threads": lambda: {"num_threads": 2},
    "intra_op_num_threads": lambda: {"sess_options": _two()},
    "nothing": dict,
    "all": lambda: {"threads": "all"},
}
KERNELS = {"one": 1, "several": 2}  # a single kernel is called without TVM's virtual machine
PLACELESS = ("stream", "asynchronous")  # streams have no place


def model(kernels: int, sized: bool = False) -> onnx.ModelProto:
    """`kernels` times relu(x @ WEIGHT); a `sized` model is compiled when a shape arrives."""
    g = OnnxBuilder()
    x = g.input("x", X.shape)
    if sized:
        x = g.node("Reshape", x, g.input("shape", (2,), np.int64))
    for _ in range(kernels):
        x = g.node("Relu", g.node("MatMul", x, g.constant(WEIGHT)))
    g.output(x, X.shape)
    return g.model()


class Ways:
    """Ways to a program of a model; each can be a process's first.

    Parameters
    ----------
    kernels : str
        Number of kernels; a key of KERNELS.
    said : callable
        Returns the arguments that set the number of threads.
    folder : Path
        Folder of the program cache.
    """

    def __init__(self, kernels: str, said: Callable[[], dict[str, Any]], folder: Path) -> None:
        self.kernels = KERNELS[kernels]
        self.model, self.said, self.folder = model(self.kernels), said, folder
        # Sums of two layers are below 3 * 256 * (9 * 256), which float32 holds exactly.
        self.expected = X
        for _ in range(self.kernels):
            self.expected = np.maximum(self.expected @ WEIGHT, 0)
        os.environ["TVM_HYBRID_CACHE_DIR"] = str(folder)

    def session(self, **options: Any) -> tvm_hybrid.InferenceSession:
        return tvm_hybrid.InferenceSession(self.model, **options, **self.said())

    def check(self, y: Any) -> None:
        np.testing.assert_array_equal(y, self.expected)

    def runs(self, session: tvm_hybrid.InferenceSession) -> Program:
        """Runs a session."""
        return session.executable.num_threads, lambda: self.check(session.run(None, {"x": X})[0])

    def runs_tensors(self, executable: tvm_hybrid.Executable) -> Program:
        """Runs an executable."""
        return executable.num_threads, lambda: self.check(executable.run(X)[0].numpy())

    @property
    def library(self) -> Path:
        """The library that `stored` put into the cache."""
        [path] = self.folder.glob("programs/*.so")
        return path

    def stored(self) -> Program:
        """Compiles and stores the program, which the ways below load."""
        assert not self.folder.exists()
        return self.runs(self.session())

    def cached(self) -> Program:
        return self.runs(self.session())

    def bound(self) -> Program:
        session = self.session()
        output = session.get_outputs()[0].name

        def run() -> None:
            binding = session.io_binding()
            binding.bind_cpu_input("x", X)
            binding.bind_output(output)
            session.run_with_iobinding(binding)
            self.check(binding.copy_outputs_to_cpu()[0])

        return session.executable.num_threads, run

    def profiled(self) -> Program:
        executable = self.session().executable
        return executable.num_threads, lambda: executable.profile(repeat=1)

    def stream(self) -> Program:
        return self.runs(self.session(streams=1))

    def asynchronous(self) -> Program:
        session = self.session(streams=1)
        count = session.executable.num_threads
        return count, lambda: self.check(session.submit(None, {"x": X}).result()[0])

    def library_in_a_session(self) -> Program:
        return self.runs(tvm_hybrid.InferenceSession(self.library))

    def loaded(self) -> Program:
        return self.runs_tensors(tvm_hybrid.load(self.library))

    def compiled(self) -> Program:
        return self.runs(self.session(cache=False))

    def exported(self) -> Program:
        """Exports a program and runs it in this process."""
        executable = tvm_hybrid.compile(self.model, **self.said())
        executable.export(self.folder / "exported.so")
        return self.runs_tensors(executable)

    def sized(self) -> Program:
        """A session that compiles for its first caller and then stores the program."""
        session = tvm_hybrid.InferenceSession(model(self.kernels, sized=True), **self.said())
        feeds = {"x": X, "shape": np.array(X.shape)}
        count = resolve_setting(self.said().get("threads"), self.said().get("num_threads")).count
        return count, lambda: self.check(session.run(None, feeds)[0])


ONCE_STORED = ("cached", "library_in_a_session", "loaded", "bound", "profiled", *PLACELESS)
OF_EACH = [f"one {way}" for way in ("stored", *ONCE_STORED, "compiled")]
# Each of these compiles once more; by then only the number of threads matters, not how it was set.
OF_NOTHING = [
    *("one exported", "one sized"),
    *(f"several {way}" for way in ("stored", *ONCE_STORED, "compiled", "exported")),
]
CASES = [
    (environment, said, way)
    for environment in ENVIRONMENTS
    for said in SAID
    for way in (*OF_EACH, *(OF_NOTHING if said == "nothing" else ()))
    if said != "all" or way.split()[1] not in PLACELESS
]


def report() -> None:
    """Prints the counts after several threads called each program."""
    environment, folder = sys.argv[1:]
    found: list[Found] = []
    with counted() as counts:
        for case, said, way in CASES:
            if case != environment:
                continue
            kernels, name = way.split()
            ways = Ways(kernels, SAID[said], Path(folder, said, kernels))
            counts.forget()
            found.append(counts.of_callers(*getattr(ways, name)()))
    print(json.dumps(found))


@pytest.fixture(scope="module")
def found_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[Any, Found]]:
    """The output of `report` by environment and case; one process for each environment."""

    @functools.cache
    def found(environment: str) -> dict[Any, Found]:
        code = f"from {__name__} import report; report()"
        lists = run_with(environment, code, environment, tmp_path_factory.mktemp("cache"))
        cases = [case for case in CASES if case[0] == environment]
        return dict(zip(cases, itertools.starmap(Found, lists), strict=True))

    return found


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_callers_share_one_pool(
    case: tuple[str, str, str], found_in: Callable[[str], dict[Any, Found]]
) -> None:
    check_found(found_in(case[0])[case])
