"""Every error that tvm_hybrid raises on purpose; `tvm_hybrid.errors` is the public name.

Each message says what was wrong, where, and what to do about it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

BY_ZERO = "a size is divided by another one that is 0"
OUT_OF_RANGE = "an index is out of range"
"""A reason why a program refuses sizes."""


@dataclass(frozen=True)
class Argument:
    """A keyword argument inside of a message, such as `num_threads` or `shapes['x'][1]`.

    It is a separate part of the message, so that the command line can show its option instead.

    Attributes
    ----------
    name : str
        The argument.
    item : str
        The item that is meant, if the argument is a mapping.
    position : int or None
        The element of the item that is meant.
    is_size : bool
        Whether `item` is a dimension, and not an input.
    value : Any
        A value of the argument, to show after its name; None if only the name is shown.
    """

    name: str
    item: str = ""
    position: int | None = None
    is_size: bool = False
    value: Any = None

    def __str__(self) -> str:
        text = self.name if self.value is None else f"{self.name}={self.value!r}"
        text += f"[{self.item!r}]" if self.item else ""
        return text if self.position is None else f"{text}[{self.position}]"


_last = threading.local()  # the last error of a thread that is about an argument


class TvmHybridError(Exception):
    """Base class: catch this to catch everything the plugin raises on purpose.

    Parameters
    ----------
    *parts : str, Argument
        The message, in parts.
    argument : str
        The keyword argument that is wrong. Default: the first Argument of the message.

    Attributes
    ----------
    argument : str
        The keyword argument that is wrong, such as "fast_math"; "" if no argument is.
    """

    def __init__(self, *parts: object, argument: str = "") -> None:
        super().__init__(*parts)
        # Hides an error that was being handled, but shows a user the cause given by `from`.
        self.__suppress_context__ = True
        named = (part.name for part in parts if isinstance(part, Argument))
        self.argument = argument or next(named, "")
        if self.argument:
            _last.error = self

    def __str__(self) -> str:
        return "".join(map(str, self.args))


def as_raised(error: TvmHybridError) -> TvmHybridError:
    """Returns the original error, as TVM passes on a new one with the text alone."""
    last: TvmHybridError | None = getattr(_last, "error", None)
    _last.error = None
    return last if last is not None and str(last) == str(error) else error


class UnsupportedTvmError(TvmHybridError, ImportError):
    """The installed apache-tvm / apache-tvm-ffi pair is known not to work."""


class TargetError(TvmHybridError, ValueError):
    """A target is malformed, or not one that this plugin generates code for."""


class IsaError(TvmHybridError, RuntimeError):
    """Code asks for an instruction set that the CPU, or the cap in force, does not have."""


class ConfigError(TvmHybridError, ValueError):
    """A template configuration is not legal for its region."""


class RecordError(TvmHybridError, ValueError):
    """A record file cannot be read or written."""


class ModelError(TvmHybridError, ValueError):
    """A model cannot be read or is not a valid model."""


class UnsupportedOperatorError(ModelError):
    """A model uses an operator, or a form of one, that cannot be imported."""


class ShapeError(ModelError):
    """A dimension has no value, or a value that contradicts the model."""


class InputValueError(ModelError):
    """An input's value must be known when a model is compiled, or a given value does not fit.

    Parameters
    ----------
    *parts : str, Argument
        What is wrong.
    inputs : tuple of str
        The inputs whose values must be known; empty if a given value does not fit.
    """

    def __init__(self, *parts: object, inputs: tuple[str, ...] = ()) -> None:
        super().__init__(*parts, argument="values")
        self.inputs = inputs


class FeedError(TvmHybridError, ValueError):
    """The inputs or output names given to a session do not fit the model."""


class OptionError(TvmHybridError, ValueError, RuntimeError):
    """A session option, accepted for ONNX Runtime's sake, asks for what is not supported."""


class UnknownOptionError(OptionError, TypeError):
    """There is no keyword argument of this name."""


class CompileError(TvmHybridError, RuntimeError):
    """A model or region could not be compiled; the message names the region."""


class ArtifactError(TvmHybridError, RuntimeError):
    """An exported library is missing, damaged, or not one of ours."""


class OutputError(TvmHybridError, OSError):
    """A file cannot be written: no such folder, no permission, a full disk."""


class QuantizeError(TvmHybridError, RuntimeError):
    """A model cannot be quantised: something is missing, or there is nothing to quantise."""


class ServerError(TvmHybridError, ConnectionError):
    """A tracker or server of remote procedure calls is missing, unsuitable or lost."""


class QueueFullError(TvmHybridError, RuntimeError):
    """The queue of requests that wait for a session's streams is full."""


class SessionClosedError(TvmHybridError, RuntimeError):
    """A session is closed: it takes no more requests, or has dropped one that waited."""


class VerifyError(TvmHybridError, RuntimeError):
    """Two runtimes disagree by more than the stated tolerance."""
