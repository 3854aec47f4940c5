"""IOBinding: arrays that a session reads and writes from run to run.

    binding = session.io_binding()
    binding.bind_input("x", x)
    binding.bind_output("y", y)
    session.run_with_iobinding(binding)          y has the result

A kernel writes straight into a bound array if it is contiguous; else the result is copied there.
Keys and values of a decoder may be rows of a larger array. Bound to past and present, of which one
is the beginning of the other, only new rows are written:

    cache = np.empty((batch, heads, 2048, columns), np.float32)
    binding.bind_input("past_key", cache[:, :, :n])
    binding.bind_output("present_key", cache[:, :, : n + 1])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from microkernels.errors import FeedError

if TYPE_CHECKING:
    from .session import InferenceSession


class IOBinding:
    """The arrays of one session's inputs and outputs; made by `InferenceSession.io_binding`.

    One thread uses it at a time.

    Parameters
    ----------
    session : InferenceSession
        Whose inputs and outputs they are.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._names = {each.name for each in session.get_outputs()}
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._results: list[np.ndarray] = []

    def bind_input(self, name: str, value: Any) -> None:
        """Has the model read an input from an array, whatever that holds when it runs.

        Parameters
        ----------
        name : str
            The input.
        value : array_like
            As for `InferenceSession.run`. An array that is contiguous, or the first rows of each
            head of a cache, is read where it is.
        """
        self._inputs[name] = value

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """As `bind_input`, under the name that ONNX Runtime has for it."""
        self.bind_input(name, arr_on_cpu)

    def bind_output(self, name: str, value: np.ndarray | None = None) -> None:
        """Has the model write an output into an array; without one, into a new one in every run.

        Parameters
        ----------
        name : str
            The output.
        value : numpy.ndarray, optional
            Of just the shape and type that the output has when it runs.

        Raises
        ------
        FeedError
            If there is no such output, or the value is not an array that can be written to.
        """
        if name not in self._names:
            known = ", ".join(map(repr, sorted(self._names)))
            raise FeedError(f"the model has no output {name!r}; its outputs are {known}")
        if isinstance(value, str) and value == "cpu":  # ONNX Runtime's device
            value = None
        if value is not None and not (isinstance(value, np.ndarray) and value.flags.writeable):
            raise FeedError(f"output {name!r} has to be bound to an array that can be written to")
        self._outputs[name] = value

    def clear_binding_inputs(self) -> None:
        """Forgets all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forgets all outputs, and what the last run gave."""
        self._outputs.clear()
        self._results = []

    def run(self) -> None:
        """As `InferenceSession.run_with_iobinding`."""
        self._session.run_with_iobinding(self)

    @property
    def bound_inputs(self) -> Mapping[str, Any]:
        """What is bound, by name."""
        return self._inputs

    @property
    def bound_outputs(self) -> Mapping[str, np.ndarray | None]:
        """What is bound, by name; None for a new array in every run."""
        return self._outputs

    def keep(self, results: list[np.ndarray]) -> None:
        """Takes what a run gave, in the order in which outputs were bound."""
        self._results = results

    def get_outputs(self) -> list[np.ndarray]:
        """What the last run gave for the outputs, in the order in which they were bound."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Copies of what the last run gave."""
        return [result.copy() for result in self._results]
