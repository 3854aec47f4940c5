"""IOBinding: arrays that a session reads and writes in every run.

    binding = session.io_binding()
    binding.bind_input("x", x)
    binding.bind_output("y", y)
    session.run_with_iobinding(binding)          y has the result

A kernel writes directly into a bound array if it is contiguous; else the result is copied there.
Keys and values of a decoder may be rows of a larger array. If past and present are bound to arrays
with a common beginning, only new rows are written:

    cache = np.empty((batch, heads, 2048, columns), np.float32)
    binding.bind_input("past_key", cache[:, :, :n])
    binding.bind_output("present_key", cache[:, :, : n + 1])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from microkernels.base.errors import FeedError

from ..runtime.feeds import check_output
from .onnxruntime_api.ort_value import OrtValue, array_at, plain, require_cpu

if TYPE_CHECKING:
    from .inference_session import InferenceSession


class IOBinding:
    """Arrays of one session's inputs and outputs; made by `InferenceSession.io_binding`.

    Only one thread may use it at a time.

    Parameters
    ----------
    session : InferenceSession
        The session.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._names = [each.name for each in session.get_outputs()]
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._results: list[np.ndarray] = []
        self._given: dict[str, Any] = {}  # arrays and values of bound outputs

    def bind_input(
        self,
        name: str,
        value: Any = None,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
        *,
        device_type: str | None = None,
    ) -> None:
        """Binds an input to an array; each run reads the array's current content.

        Parameters
        ----------
        name : str
            The input.
        value : array_like or str
            See `InferenceSession.run`. A contiguous array, or the first rows of each head of a
            cache, is read without a copy. Or ONNX Runtime's device, "cpu", with the arguments
            below.
        device_id, element_type, shape, buffer_ptr : int, dtype-like, sequence of int, int
            With a device: the memory to read. The caller keeps it alive.
        device_type : str, optional
            The device by its name in ONNX Runtime.

        Raises
        ------
        FeedError
            If there is neither an array nor memory.
        OptionError
            If there is no such device.
        """
        if type(value) is np.ndarray and device_type is None:  # fast path for steps of a decoder
            self._inputs[name] = value
            return
        device, value = _device_of(value, device_type)
        if device is not None:
            require_cpu(device, device_id)
            value = array_at(buffer_ptr, shape, element_type)
        elif value is None:
            raise FeedError(f"input {name!r} has to be bound to an array")
        self._inputs[name] = plain(value)

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """`bind_input` under another name of ONNX Runtime.

        Parameters
        ----------
        name : str
            The input.
        arr_on_cpu : array_like
            See `bind_input`.
        """
        self.bind_input(name, arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Binds an input to an `OrtValue`.

        Parameters
        ----------
        name : str
            The input.
        ortvalue : OrtValue
            The value to read.
        """
        self.bind_input(name, ortvalue)

    def bind_output(
        self,
        name: str,
        value: np.ndarray | str | None = None,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
        *,
        device_type: str | None = None,
    ) -> None:
        """Binds an output to an array; without one, every run makes a new array.

        Parameters
        ----------
        name : str
            The output.
        value : numpy.ndarray or str, optional
            An array with exactly the shape and type of the output in the run. Or ONNX Runtime's
            device, "cpu", optionally with the arguments below.
        device_id, element_type, shape, buffer_ptr : int, dtype-like, sequence of int, int
            With a device: the memory to write to, if any. The caller keeps it alive.
        device_type : str, optional
            The device by its name in ONNX Runtime.

        Raises
        ------
        FeedError
            If there is no such output, or the value is not a writable array.
        OptionError
            If there is no such device.
        """
        check_output(name, self._names)
        device, array = _device_of(value, device_type)
        if device is not None:
            require_cpu(device, device_id)
            array = None if buffer_ptr is None else array_at(buffer_ptr, shape, element_type)
        if array is not None and not (isinstance(array, np.ndarray) and array.flags.writeable):
            raise FeedError(f"output {name!r} has to be bound to an array that can be written to")
        self._outputs[name] = array
        self._given.pop(name, None)
        if array is not None and device is None:
            self._given[name] = array

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an output to an `OrtValue`.

        Parameters
        ----------
        name : str
            The output.
        ortvalue : OrtValue
            The value to write to.
        """
        self.bind_output(name, plain(ortvalue))
        self._given[name] = ortvalue

    def synchronize_inputs(self) -> None:
        """Does nothing: inputs are in the CPU's memory already."""

    def synchronize_outputs(self) -> None:
        """Does nothing: a run is complete when it returns."""

    def clear_binding_inputs(self) -> None:
        """Forgets all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forgets all outputs, and the results of the last run."""
        self._outputs.clear()
        self._given.clear()
        self._results = []

    def run(self) -> None:
        """Calls `InferenceSession.run_with_iobinding`."""
        self._session.run_with_iobinding(self)

    @property
    def bound_inputs(self) -> Mapping[str, Any]:
        """Input name -> bound array."""
        return self._inputs

    @property
    def bound_outputs(self) -> Mapping[str, np.ndarray | None]:
        """Output name -> bound array; None for a new array in every run."""
        return self._outputs

    def keep(self, results: list[np.ndarray]) -> None:
        """Stores the results of a run, in the order in which outputs were bound; for sessions.

        Parameters
        ----------
        results : list of numpy.ndarray
            One for each bound output.
        """
        self._results = results

    def get_outputs(self) -> list[Any]:
        """Returns the outputs of the last run, in the order in which they were bound.

        Returns
        -------
        list of numpy.ndarray and OrtValue
            The bound arrays and values themselves; a new value for each other output.
        """
        pairs = zip(self._outputs, self._results, strict=False)  # newer bindings have no result yet
        return [
            self._given[name] if name in self._given else OrtValue(result) for name, result in pairs
        ]

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Copies the outputs of the last run."""
        return [result.copy() for result in self._results]


def _device_of(value: Any, device_type: str | None) -> tuple[str | None, Any]:
    """Splits an argument into a device, if it names one, and a value, if it is one."""
    if device_type is None and isinstance(value, str):
        return value, None
    return device_type, value
