"""Compiles one model for each combination of parameter values and, if necessary, of shapes.

A parameter is an input whose value decides what is computed: axes, a sampling rate, or the flag
`use_cache_branch` of a merged decoder. Each of its values needs a program. A program has dynamic
shapes if all of it is as fast as with static ones; else each combination of shapes has a program,
too. Compiled programs are kept. Threads wait for each other only if they need one program.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from microkernels.base.errors import CompileError, FeedError, InputValueError, ModelError
from microkernels.base.logs import logger

from ..runtime.feeds import InputValue, arrays_of, named_feeds, to_array
from ..runtime.tensors import DynamicTensorInfo
from .model_programs import DynamicSession
from .onnxruntime_api.ort_value import plain

if TYPE_CHECKING:
    from ..executable.executable import Executable
    from .inference_session import InferenceSession

Shape = tuple[int, ...]
Values = tuple[InputValue, ...]
# Shapes by input name, or None for a program of dynamic shapes; values by input name.
CompileFor = Callable[
    [dict[str, Shape] | None, dict[str, np.ndarray]], "InferenceSession | DynamicSession"
]
Key = tuple[tuple[Shape, ...] | None, Values]
MOST_PROGRAMS = 8
MOST_REMEMBERED = 1000  # dropped programs
MOST_RECENT = 64  # feeds whose program is found without looking at every input
MOST_REFUSALS = 2  # consecutive failures of dynamic programs before no more are tried


@dataclass(frozen=True)
class KeptProgram:
    """A program that a session keeps.

    Attributes
    ----------
    shapes : dict
        Input name -> shape of the program; dynamic dimensions are str.
    values : dict
        Name of an input that is a parameter -> its value in the program.
    executable : Executable
        The program.
    """

    shapes: dict[str, tuple[int | str, ...]]
    values: dict[str, np.ndarray]
    executable: Executable = field(repr=False)

    @classmethod
    def of(cls, executable: Executable) -> KeptProgram:
        """Makes the entry of an executable."""
        values = executable.values
        shapes: dict[str, tuple[int | str, ...]]
        shapes = {info.name: info.shape for info in executable.inputs}
        shapes |= {value.name: value.shape for value in values}
        return cls(shapes, arrays_of(values), executable)


class Programs:
    """Programs of one model by the values of its parameters and, if necessary, by shapes.

    The least recently used program is dropped.

    Parameters
    ----------
    inputs : tuple of DynamicTensorInfo
        Declared inputs.
    dynamic : DynamicSession
        Why there is no single program, and the known parameters. Compiling may find more of them.
    compile_for : callable
        Makes a session for shapes and values. Shapes of None ask for dynamic shapes; then it
        returns a DynamicSession if there is no such program.
    """

    def __init__(
        self,
        inputs: tuple[DynamicTensorInfo, ...],
        dynamic: DynamicSession,
        compile_for: CompileFor,
    ) -> None:
        self._inputs = inputs
        self._parameters = dynamic.parameters
        self._compile_for = compile_for
        self._sessions: OrderedDict[Key, InferenceSession] = OrderedDict()
        self.reason = dynamic.reason  # why there are several programs, as far as known
        self._by_shape: dict[Values, str] = {} if dynamic.parameters else {(): dynamic.reason}
        self._refusals = 0
        self._dropped: set[Key] = set()
        self._warned = False
        self._lock = threading.Lock()  # protects all fields; not held during compilation
        self._compiling: dict[Key, threading.Event] = {}
        self._names = [info.name for info in inputs]
        self._recent: dict[Any, tuple[Key, InferenceSession]] = {}
        self._last: InferenceSession | None = None  # the most recently used session

    def kept(self) -> tuple[KeptProgram, ...]:
        """The programs, the most recently used last."""
        with self._lock:
            return tuple(KeptProgram.of(session.executable) for session in self._sessions.values())

    def why_several(self, executable: Executable) -> str:
        """Says for `explain` why there are several programs."""
        names = ", ".join(map(repr, self._parameters))
        texts = [f"one program for each value of {names}"] if names else []
        with self._lock:
            keys = [key for key, made in self._sessions.items() if made.executable is executable]
            for shapes, values in keys:
                if shapes is not None:
                    reason = self._by_shape.get(values, self.reason)
                    texts.append(f"one program for each combination of shapes, because {reason}")
        return "; ".join(texts)

    def make_for_flag(self) -> None:
        """Makes both programs if the only parameter is a single boolean.

        A failure is ignored: a call that needs the program raises the error.
        """
        known = self._parameters
        infos = [info for info in self._inputs if info.name in known]
        if len(infos) != 1 or infos[0].dtype != "bool" or infos[0].shape not in ((), (1,)):
            return
        for flag in (False, True):
            value = InputValue.of(infos[0].name, np.full(infos[0].shape, flag))
            try:
                self._make((None, (value,)), {})
            except (CompileError, ModelError) as error:
                logger.info("no program for %s: %s", value, error)
            if self._parameters != known:
                return

    def session_for(self, feeds: Mapping[str, Any]) -> InferenceSession:
        """Returns the session for these inputs; compiles it if necessary.

        Raises
        ------
        FeedError
            If an input is missing or does not fit the model.
        ModelError, CompileError
            If the model cannot be compiled for these inputs.
        """
        with self._lock:
            known = self._recent.get(self._recent_key(feeds))
            if known is not None:
                return self._used(*known)
        shapes = {info.name: self._shape(info, feeds) for info in self._inputs}
        while True:
            values = self._values(feeds)
            with self._lock:
                key = self._key(shapes, values)
                session = self._sessions.get(key)
                if session is not None:
                    self._remember(feeds, key, session)
                    return self._used(key, session)
                other = self._compiling.get(key)
                if other is None:
                    done = self._compiling[key] = threading.Event()
            if other is not None:
                other.wait()  # if the other thread fails, this one tries next
                continue
            try:
                session = self._make(key, shapes)
            finally:
                with self._lock:
                    del self._compiling[key]
                done.set()
            if session is not None:
                return session

    def missing(self, feeds: Mapping[str, Any]) -> Key | None:
        """Key of the program that `session_for` would have to compile; None if it exists.

        Raises
        ------
        FeedError
            If an input is missing or does not fit the model.
        """
        shapes = {info.name: self._shape(info, feeds) for info in self._inputs}
        values = self._values(feeds)
        with self._lock:
            key = self._key(shapes, values)
            return None if key in self._sessions else key

    def without_parameters(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Drops feeds that are parameters: the session was compiled for their values."""
        return {name: feed for name, feed in feeds.items() if name not in self._parameters}

    def _recent_key(self, feeds: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Fast key of feeds, unique for a program; None if feeds are not plain arrays."""
        # A `Key` has an `InputValue` with the name of a type, which NumPy builds anew each time:
        # for three scalars that took 22 us; this key takes 2 us.
        try:
            arrays = [feeds[name] for name in self._names]
        except (LookupError, TypeError):
            return None
        if len(feeds) != len(arrays) or any(type(array) is not np.ndarray for array in arrays):
            return None
        values = [feeds[name] for name in self._parameters]
        shapes = [array.shape for array in arrays] if self._by_shape else ()
        return (*[(value.dtype, value.shape, value.tobytes()) for value in values], *shapes)

    def _remember(self, feeds: Mapping[str, Any], key: Key, session: InferenceSession) -> None:
        """Lets `_recent` find this program for such feeds, until any program is dropped."""
        recent = self._recent_key(feeds)
        if recent is not None:
            if len(self._recent) >= MOST_RECENT:
                self._recent.clear()
            self._recent[recent] = key, session

    def _used(self, key: Key, session: InferenceSession) -> InferenceSession:
        """Marks a program as the most recently used one."""
        if session is not self._last:
            self._sessions.move_to_end(key)
            self._last = session
        return session

    def _make(self, key: Key, shapes: dict[str, Shape]) -> InferenceSession | None:
        """Makes a session; returns None if the key must change: more values, or shapes."""
        values = arrays_of(key[1])
        which = "dynamic shapes" if key[0] is None else f"shapes {shapes}"
        text = which + "".join(f", {value}" for value in key[1])
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
        logger.info("making a program for %s", text)
        try:
            found = self._compile_for(None if key[0] is None else shapes, values)
        except InputValueError as error:
            if not set(error.inputs) - values.keys():
                raise
            self._need_values(error.inputs, str(error))
            return None
        if isinstance(found, DynamicSession):
            if found.parameters:
                self._need_values(found.parameters, found.reason)
            else:  # shapes become part of the keys for these values
                logger.info("a program for each combination of shapes: %s", found.reason)
                with self._lock:
                    self.reason = self._by_shape[key[1]] = found.reason
                    self._refusals += 1
            return None
        with self._lock:
            if key[0] is None:
                self._refusals = 0
            self._sessions[key] = self._last = found
            if len(self._sessions) > MOST_PROGRAMS:
                oldest, _ = self._sessions.popitem(last=False)
                self._recent.clear()
                if len(self._dropped) < MOST_REMEMBERED:
                    self._dropped.add(oldest)
        return found

    def _key(self, shapes: dict[str, Shape], values: Values) -> Key:
        # By shape if dynamic shapes failed for these values, or too often for other values.
        by_shape = values in self._by_shape or self._refusals >= MOST_REFUSALS
        return (tuple(shapes.values()) if by_shape else None, values)

    def _need_values(self, names: tuple[str, ...], reason: str) -> None:
        """Makes the values of these inputs part of all keys."""
        logger.debug("the values of input %s are needed", ", ".join(map(repr, names)))
        with self._lock:
            self.reason = reason
            self._parameters += tuple(each for each in names if each not in self._parameters)

    def _values(self, feeds: Mapping[str, Any]) -> Values:
        """The values of parameters; other inputs are not read."""
        infos = (info for info in self._inputs if info.name in self._parameters)
        return tuple(InputValue.of(info.name, to_array(feeds[info.name], info)) for info in infos)

    def _shape(self, info: DynamicTensorInfo, feeds: Mapping[str, Any]) -> Shape:
        if not isinstance(feeds, Mapping) or info.name not in feeds:
            named_feeds(feeds, [item.name for item in self._inputs])
        value = feeds[info.name]
        shape = value.shape if isinstance(value, np.ndarray) else np.shape(plain(value))
        if not info.fits(shape):
            raise FeedError(f"input {info.name!r}: expected {info}, got shape {shape}")
        return shape
