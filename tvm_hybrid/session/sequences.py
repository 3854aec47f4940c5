"""Programs of a model with inputs or outputs that are sequences or optional."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import onnx

from microkernels.base.errors import FeedError
from microkernels.base.logs import logger

from ..frontend.onnx.reader.check_model import check_model
from ..frontend.onnx.reader.interface import (
    Elements,
    Interface,
    element_name,
    presence_name,
    with_tensors,
)
from ..frontend.onnx.reader.read_model import ModelLike, read_model
from ..runtime.feeds import named_feeds, output_places
from ..runtime.stream_threads import Names, Results
from .onnxruntime_api.model_surface import NodeArg
from .onnxruntime_api.ort_value import plain
from .programs import MOST_PROGRAMS, KeptProgram, Programs

if TYPE_CHECKING:
    from ..executable.executable import Executable
    from .inference_session import InferenceSession


class SequencePrograms:
    """Sessions of a model, one for each number of elements in its sequences.

    The least recently used session is dropped.

    Parameters
    ----------
    model : path-like, bytes or onnx.ModelProto
        The model.
    session_of : callable
        Makes a session of a model whose inputs are tensors.

    Raises
    ------
    ModelError
        If the model cannot be read or is not valid.
    """

    reason = "sequences of other numbers of elements are other programs"

    def __init__(
        self, model: ModelLike, session_of: Callable[[onnx.ModelProto], InferenceSession]
    ) -> None:
        self._model = proto = read_model(model)
        check_model(proto)
        weights = {tensor.name for tensor in proto.graph.initializer}
        given = [item for item in proto.graph.input if item.name not in weights]
        self._declared = {item.name: Interface.of(item) for item in given}
        self._made = {item.name: Interface.of(item) for item in proto.graph.output}
        self.inputs = [_node_arg(*each) for each in self._declared.items()]
        self.outputs = [_node_arg(*each) for each in self._made.items()]
        self._session_of = session_of
        self._sessions: OrderedDict[Hashable, InferenceSession] = OrderedDict()
        self._lock = threading.Lock()

    def kept(self) -> tuple[KeptProgram, ...]:
        """All programs of all sessions."""
        with self._lock:
            sessions = list(self._sessions.values())
        return tuple(program for session in sessions for program in session.programs)

    def why_several(self, _executable: Executable) -> str:
        """Says for `explain` why there are several programs."""
        names = ", ".join(name for name, each in self._declared.items() if not each.is_tensor)
        return f"one program for each number of elements of {names}" if names else ""

    def session_for(self, _feeds: Any) -> NoReturn:
        """Refuses `run_with_iobinding`."""
        raise FeedError("sequences and optional values cannot be bound; call run")

    def run(self, names: Names, feeds: Any, run_options: Any) -> tuple[InferenceSession, Results]:
        """Runs the model; returns the session for these feeds, and the outputs.

        Raises
        ------
        FeedError
            If an input is missing or does not fit the model.
        ModelError, CompileError
            If the model cannot be compiled for these inputs.
        """
        names = list(self._made) if names is None else names
        wanted = output_places(names, {name: place for place, name in enumerate(self._made)})
        if isinstance(feeds, Mapping):
            feeds = {**{n: None for n, each in self._declared.items() if each.is_optional}, **feeds}
        feeds = named_feeds(feeds, list(self._declared))
        elements: dict[str, tuple[int, ...] | None] = {}
        flat: dict[str, Any] = {}
        for name, declared in self._declared.items():
            value = feeds[name]
            if declared.is_optional and value is None:
                elements[name] = None
            elif not declared.is_sequence:
                flat[name] = value
            elif isinstance(value, Sequence) and not isinstance(value, str):
                elements[name] = tuple(np.ndim(plain(each)) for each in value)
                flat |= {element_name(name, place): each for place, each in enumerate(value)}
            else:
                kind = type(value).__name__
                raise FeedError(f"input {name!r}: a list of arrays is expected, not {kind}")
        session = self._session(elements)
        several = session._programs
        if isinstance(several, Programs):  # choose by shapes or values
            session, flat = several.session_for(flat), several.without_parameters(flat)
        results = session.run(None, flat, run_options)
        infos = session.executable.outputs
        found = {info.name: result for info, result in zip(infos, results, strict=True)}
        made = [self._grouped(name, declared, found) for name, declared in self._made.items()]
        return session, [made[place] for place in wanted]

    def _grouped(self, name: str, declared: Interface, found: Mapping[str, np.ndarray]) -> Any:
        """Assembles an output of the model from outputs of the program."""
        if not declared.is_sequence or found.get(presence_name(name), True) == np.False_:
            return found.get(name)
        places = itertools.takewhile(
            found.__contains__, (element_name(name, n) for n in itertools.count())
        )
        return [found[each] for each in places]

    def _session(self, elements: Elements) -> InferenceSession:
        key = tuple(elements.items())
        with self._lock:  # other threads wait while a session is made
            if key not in self._sessions:
                logger.info("making a program for sequences of %s", elements)
                self._sessions[key] = self._session_of(with_tensors(self._model, elements))
                if len(self._sessions) > MOST_PROGRAMS:
                    self._sessions.popitem(last=False)
            self._sessions.move_to_end(key)
            return self._sessions[key]


def _node_arg(name: str, declared: Interface) -> NodeArg:
    found = NodeArg(declared.info(name))
    found.type = declared.type
    found.shape = [] if declared.is_sequence else found.shape  # like ONNX Runtime
    return found
