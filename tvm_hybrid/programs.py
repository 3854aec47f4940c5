"""Compiles one model for every combination of input shapes and parameters that arrives.

A model with open dimensions, or with parameters such as axes among its inputs, is compiled when
inputs arrive, as users of ONNX Runtime expect of such a model; what was compiled is kept. Threads
wait for each other only where they want the same combination.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from microkernels.errors import FeedError, InputValueError

from .feeds import to_array
from .input_values import InputValue, arrays_of
from .logs import logger
from .onnxruntime_api.ort_value import plain
from .tensors import OpenTensorInfo, TensorInfo

if TYPE_CHECKING:
    from .executable import Executable
    from .session import InferenceSession

Shape = tuple[int, ...]
CompileFor = Callable[[dict[str, Shape], dict[str, np.ndarray]], "InferenceSession"]
Key = tuple[tuple[Shape, ...], tuple[InputValue, ...]]
MOST_PROGRAMS = 8
MOST_REMEMBERED = 1000  # of the programs that were dropped


@dataclass(frozen=True)
class Program:
    """One of the programs that a session keeps.

    Attributes
    ----------
    shapes : dict
        Input name -> the shape that it was made for; open sizes are texts.
    values : dict
        Input name -> the value that it was made for, of inputs that are parameters.
    executable : Executable
        The program.
    """

    shapes: dict[str, tuple[int | str, ...]]
    values: dict[str, np.ndarray]
    executable: Executable = field(repr=False)

    @classmethod
    def of(cls, executable: Executable) -> Program:
        """The program and what it was made for."""
        values = executable.values
        shapes: dict[str, tuple[int | str, ...]]
        shapes = {info.name: info.shape for info in executable.inputs}
        shapes |= {value.name: value.shape for value in values}
        return cls(shapes, arrays_of(values), executable)


class Programs:
    """The sessions of one model by shapes and parameters; the one that waited longest is dropped.

    Parameters
    ----------
    inputs : tuple of OpenTensorInfo
        As declared.
    parameters : tuple of str
        Inputs whose values are known to be needed. More may be found by compiling.
    compile_for : callable
        Shapes and values by input name -> a session for just these.
    """

    def __init__(
        self,
        inputs: tuple[OpenTensorInfo, ...],
        parameters: tuple[str, ...],
        compile_for: CompileFor,
    ) -> None:
        self._inputs = inputs
        self._parameters = parameters
        self._compile_for = compile_for
        self._sessions: OrderedDict[Key, InferenceSession] = OrderedDict()
        self._dropped: set[Key] = set()
        self._warned = False
        self._lock = threading.Lock()  # of what is above; nothing is compiled under it
        self._compiling: dict[Key, threading.Event] = {}

    def kept(self) -> tuple[Program, ...]:
        """The programs, the one that was used last at the end."""
        with self._lock:
            return tuple(Program.of(session.executable) for session in self._sessions.values())

    def session_for(self, feeds: Mapping[str, Any]) -> InferenceSession:
        """The session for these inputs, compiled if there is none yet.

        Raises
        ------
        FeedError
            If an input is missing or does not fit the model.
        ModelError, CompileError
            If the model cannot be compiled for such inputs.
        """
        shapes = {info.name: self._shape(info, feeds) for info in self._inputs}
        while True:
            key = self._key(shapes, feeds)
            with self._lock:
                session = self._sessions.get(key)
                if session is not None:
                    self._sessions.move_to_end(key)
                    return session
                other = self._compiling.get(key)
                if other is None:
                    done = self._compiling[key] = threading.Event()
            if other is not None:
                other.wait()  # the other thread may have failed; then this one tries
                continue
            try:
                session = self._make(key, shapes)
            finally:
                with self._lock:
                    del self._compiling[key]
                done.set()
            if session is not None:
                return session

    def _make(self, key: Key, shapes: dict[str, Shape]) -> InferenceSession | None:
        """A new session; None if the values of more inputs are part of the key."""
        values = arrays_of(key[1])
        text = f"shapes {shapes}" + "".join(f", {value}" for value in key[1])
        self._warn_if_dropped(key, text)
        logger.info("making a program for %s", text)
        try:
            session = self._compile_for(shapes, values)
        except InputValueError as error:
            new = tuple(name for name in error.inputs if name not in values)
            if not new:
                raise
            logger.debug("the values of input %s are needed", ", ".join(map(repr, new)))
            with self._lock:
                self._parameters += tuple(name for name in new if name not in self._parameters)
            return None
        with self._lock:
            self._sessions[key] = session
            if len(self._sessions) > MOST_PROGRAMS:
                oldest, _ = self._sessions.popitem(last=False)
                if len(self._dropped) < MOST_REMEMBERED:
                    self._dropped.add(oldest)
        return session

    def _warn_if_dropped(self, key: Key, text: str) -> None:
        with self._lock:
            warn = key in self._dropped and not self._warned
            self._warned = self._warned or warn
        if warn:
            logger.warning(
                "the program for %s was dropped and is made again: a session keeps %d programs "
                "and this model is run with more combinations of shapes and parameters; use fewer, "
                "for example by padding inputs, or make several sessions",
                text,
                MOST_PROGRAMS,
            )

    def _key(self, shapes: dict[str, Shape], feeds: Mapping[str, Any]) -> Key:
        """What a program is made for; of the inputs' values only those of parameters are read."""
        infos = (info for info in self._inputs if info.name in self._parameters)
        values = (_value(info, shapes[info.name], feeds[info.name]) for info in infos)
        return tuple(shapes.values()), tuple(values)

    def _shape(self, info: OpenTensorInfo, feeds: Mapping[str, Any]) -> Shape:
        if not isinstance(feeds, Mapping) or info.name not in feeds:
            names = ", ".join(repr(item.name) for item in self._inputs)
            raise FeedError(f"no value for input {info.name!r}; the model's inputs are {names}")
        value = feeds[info.name]
        shape = value.shape if isinstance(value, np.ndarray) else np.shape(plain(value))
        if not info.fits(shape):
            raise FeedError(f"input {info.name!r}: expected {info}, got shape {shape}")
        return shape


def _value(info: OpenTensorInfo, shape: Shape, value: Any) -> InputValue:
    assert info.dtype is not None  # of inputs it is known
    return InputValue.of(info.name, to_array(value, TensorInfo(info.name, shape, info.dtype)))
