"""Compiles one model for every combination of input shapes that arrives.

A model with open dimensions is compiled when inputs of a new shape arrive, as users of ONNX Runtime
expect of such a model; what was compiled is kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from microkernels.errors import FeedError

from .logs import logger
from .tensors import OpenTensorInfo

Session = TypeVar("Session")
Shape = tuple[int, ...]
MOST_VARIANTS = 8


class ShapeVariants(Generic[Session]):
    """The sessions of one model by the shapes of its inputs; the oldest is dropped.

    Parameters
    ----------
    inputs : tuple of OpenTensorInfo
        As declared.
    compile_for : callable
        Shapes by input name -> a session for just these.
    """

    def __init__(
        self,
        inputs: tuple[OpenTensorInfo, ...],
        compile_for: Callable[[dict[str, Shape]], Session],
    ) -> None:
        self._inputs = inputs
        self._compile_for = compile_for
        self._sessions: OrderedDict[tuple[Shape, ...], Session] = OrderedDict()
        self._lock = threading.Lock()

    def session_for(self, feeds: Mapping[str, Any]) -> Session:
        """The session for inputs of these shapes, compiled if there is none yet.

        Raises
        ------
        FeedError
            If an input is missing or has a shape that the model excludes.
        """
        shapes = {info.name: self._shape(info, feeds) for info in self._inputs}
        key = tuple(shapes.values())
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                logger.info("compiling for %s", shapes)
                session = self._sessions[key] = self._compile_for(shapes)
                if len(self._sessions) > MOST_VARIANTS:
                    self._sessions.popitem(last=False)
            else:
                self._sessions.move_to_end(key)
            return session

    def _shape(self, info: OpenTensorInfo, feeds: Mapping[str, Any]) -> Shape:
        if not isinstance(feeds, Mapping) or info.name not in feeds:
            names = ", ".join(repr(item.name) for item in self._inputs)
            raise FeedError(f"no value for input {info.name!r}; the model's inputs are {names}")
        value = feeds[info.name]
        shape = value.shape if isinstance(value, np.ndarray) else np.shape(value)
        if not info.fits(shape):
            raise FeedError(f"input {info.name!r}: expected {info}, got shape {shape}")
        return shape
