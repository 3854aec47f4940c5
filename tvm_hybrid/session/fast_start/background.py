"""Compiles in a background thread, while NumPy answers."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # must register its exit function before ours
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from itertools import starmap
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator

from microkernels.base.errors import CompileError
from microkernels.base.logs import logger
from relay_passes.ir.decisions import Decision

from ...explain.explanation import Explanation
from ...frontend.onnx.reader.load_graph import DynamicModel, load_graph, read_values
from ...runtime.feeds import InputValue, check_sizes, named_feeds, to_array
from ...runtime.tensors import DynamicTensorInfo, TensorInfo, is_relation, numpy_dtype
from ..onnxruntime_api.ort_value import plain
from .numpy_operators import operators

PATIENCE = 8.0
"""Seconds after which a run by NumPy is given up, as it shares the CPUs with the compiler."""


class Compilation:
    """A thread that makes a program; it starts at once.

    Python waits for it at exit, so that the program is kept for the next start even if a script
    ends after its first answer.

    Parameters
    ----------
    make : callable
        Makes the program, and lets the session use it.

    Attributes
    ----------
    thread : threading.Thread
        The thread.
    """

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        self._done = threading.Event()
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="tvm_hybrid start")
        self.thread.start()
        _alive.add(self)

    def _run(self) -> None:
        try:
            self._make()
        except BaseException as error:
            self._error = error
            logger.warning("the program could not be made: %s", error)
        finally:
            self._done.set()

    @property
    def is_done(self) -> bool:
        """Whether there is a program, or an error."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until there is a program; returns False after `timeout` seconds.

        Raises
        ------
        TvmHybridError
            The error of making the program.
        """
        found = self._done.wait(timeout)
        if self._error is not None:
            raise self._error
        return found


def _join_all() -> None:
    for each in list(_alive):
        each.thread.join()


_alive: weakref.WeakSet[Compilation] = weakref.WeakSet()
# Executors refuse work once the main thread has ended, which is before Python joins threads or
# calls functions of `atexit`. Functions registered last are called first, so before theirs.
if register := getattr(threading, "_register_atexit", None):
    register(_join_all)


class NumpyAnswers:
    """Answers a session's runs by NumPy while its program is made.

    Parameters
    ----------
    opened : DynamicModel
        The model.
    values : mapping
        Input name -> known value.

    Raises
    ------
    CompileError
        If NumPy cannot run the model.
    InputValueError
        If a value does not fit its input.
    """

    def __init__(self, opened: DynamicModel, values: Mapping[str, Any]) -> None:
        self._model = NumpyModel(opened)
        self._is_slow = False
        known = read_values(load_graph(opened.proto), values) if values else {}
        self._values = list(starmap(InputValue.of, known.items()))
        self.inputs = [info for info in opened.inputs if info.name not in known]
        self.outputs = opened.outputs

    def arrays_of(self, feeds: Any) -> dict[str, np.ndarray]:
        """Converts feeds to an array for every input.

        Raises
        ------
        FeedError
            If the feeds do not fit the model.
        """
        names = [info.name for info in self.inputs]
        given = named_feeds(feeds, names, self._values)
        arrays = {info.name: to_array(plain(given[info.name]), info) for info in self.inputs}
        shapes = [arrays[info.name].shape for info in self.inputs]
        check_sizes(list(map(_named, self.inputs, shapes)), shapes, {})
        return arrays

    def answer(
        self, arrays: Mapping[str, np.ndarray], compilation: Compilation
    ) -> list[np.ndarray] | None:
        """Computes all outputs; returns None if the caller must wait for the program.

        That is so if the program is ready first, or if NumPy fails or takes too long (logged).
        """
        if self._is_slow:
            return None
        known = {value.name: value.array for value in self._values}
        end = time.monotonic() + PATIENCE
        try:
            return self._model.run(
                {**arrays, **known}, lambda: not compilation.is_done and time.monotonic() < end
            )
        except NotNeededError:
            self._is_slow = not compilation.is_done
            if self._is_slow:
                logger.info("NumPy has no answer after %.0f s: no more is tried", PATIENCE)
            return None
        except Exception as error:  # any error of NumPy, from an operator that refuses these inputs
            logger.info("NumPy cannot answer, the program has to be waited for: %s", error)
            return None

    def explain(self) -> Explanation:
        """Explains that NumPy runs every node until its kernel is compiled."""
        reason = "its kernel is being compiled; NumPy answers until then"
        return Explanation(self._model.decisions(reason), "the program is being compiled")


def _named(info: DynamicTensorInfo, shape: tuple[int, ...]) -> TensorInfo:
    """An input with the names of its dynamic dimensions; unnamed ones get the size that arrived."""
    declared = shape if info.shape is None else info.shape
    sizes = (
        size if isinstance(size, str) and not is_relation(size) else found
        for size, found in zip(declared, shape, strict=True)
    )
    return TensorInfo(info.name, tuple(sizes), str(info.dtype))


KERNEL = "NumPy"


class NotNeededError(Exception):
    """The run was given up because its answer comes from the program."""


class _Evaluator(ReferenceEvaluator):  # type: ignore[misc]  # has no types
    """The evaluator of a graph or a subgraph; it calls `_log` before every node."""

    current = threading.local()

    def _log(self, _level: int, _pattern: str, *_arguments: Any) -> None:
        is_needed = getattr(self.current, "is_needed", None)
        if is_needed is not None and not is_needed():
            raise NotNeededError


class NumpyModel:
    """A model that NumPy runs immediately, without compilation.

    Parameters
    ----------
    opened : DynamicModel
        The model, with its weights.

    Raises
    ------
    CompileError
        If the evaluator does not know an operator; only making the evaluator finds that out.
    """

    def __init__(self, opened: DynamicModel) -> None:
        self._graph = opened.proto.graph
        self._dtypes = [each.dtype for each in opened.outputs]
        versions = {each.domain: each.version for each in opened.proto.opset_import}
        try:
            self._evaluator = _Evaluator(opened.proto, new_ops=operators(versions.get("", 1)))
        except Exception as error:  # its operators raise any kind of error
            first = str(error).strip().partition("\n")[0]
            raise CompileError(f"NumPy cannot run this model: {first}") from error

    def run(
        self, feeds: Mapping[str, np.ndarray], is_needed: Callable[[], bool]
    ) -> list[np.ndarray]:
        """Returns all outputs in order, as new arrays; errors are those of NumPy.

        `is_needed` is called before every operator.

        Raises
        ------
        NotNeededError
            If the answer is not needed any more.
        """
        _Evaluator.current.is_needed = is_needed
        try:
            with np.errstate(all="ignore"):
                found = self._evaluator.run(None, dict(feeds))
        finally:
            _Evaluator.current.is_needed = None
        typed = zip(found, self._dtypes, strict=True)
        return [np.array(each, dtype and numpy_dtype(dtype)) for each, dtype in typed]

    def decisions(self, reason: str) -> list[Decision]:
        """Decisions that NumPy runs every node of the graph, with a reason."""
        common: dict[str, Any] = {"taken": False, "kernel": KERNEL, "reason": reason}
        found = []
        for node in self._graph.node:
            name = node.name or (node.output[0] if node.output else "")
            origins = (f"{name} ({node.op_type})",)
            found.append(Decision(node=name, op=node.op_type, origins=origins, **common))
        return found
