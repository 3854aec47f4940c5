"""Methods of ONNX Runtime's session that are the same whatever a session runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..node_arg import NodeArg
from .model_surface import ModelMetadata
from .ort_value import OrtValue, plain
from .process_settings import CPU, checked_providers

if TYPE_CHECKING:
    from .session_face import SessionFace


class SessionMethods:
    """What `InferenceSession` has from ONNX Runtime beside running and binding."""

    _face: SessionFace

    if TYPE_CHECKING:

        def run(
            self,
            output_names: Sequence[str] | None,
            input_feed: Mapping[str, Any],
            run_options: Any = None,
        ) -> list[np.ndarray]: ...

    @property
    def _model_path(self) -> str | None:
        """The model's file, if it was given by path; optimum reads this of ONNX Runtime's class."""
        return self._face.path

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[OrtValue]:
        """As `run`, on values of `OrtValue`.

        Parameters
        ----------
        output_names : sequence of str or None
            As for `run`.
        input_dict_ort_values : mapping from str to OrtValue
            A value for every input.
        run_options : RunOptions or None
            As for `run`.

        Returns
        -------
        list of OrtValue
            The outputs.
        """
        feeds = {name: plain(value) for name, value in input_dict_ort_values.items()}
        return [OrtValue(each) for each in self.run(output_names, feeds, run_options)]

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself; of a library, and of a model that is not ONNX, nothing."""
        return self._face.metadata

    def get_session_options(self) -> Any:
        """The options that the session was made with, or new ones."""
        return self._face.given

    def get_providers(self) -> list[str]:
        """What the session runs on: `["CPUExecutionProvider"]`."""
        return [CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of that provider: none."""
        return {CPU: {}}

    def set_providers(
        self,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
    ) -> None:
        """Warns of providers that there are not; the session stays as it is.

        Parameters
        ----------
        providers, provider_options : sequence, optional
            As for the session.
        """
        checked_providers(providers, provider_options)

    def enable_fallback(self) -> None:
        """Does nothing: there is no other provider to fall back to."""

    def disable_fallback(self) -> None:
        """Does nothing: there is no other provider to fall back to."""

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The initializers that runs may replace: none, they are packed into the program."""
        return []

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, by `time.monotonic_ns`; 0 if it is not enabled."""
        return 0 if self._face.profiler is None else self._face.profiler.start_ns

    def end_profiling(self) -> str:
        """Ends profiling, and writes every kernel of every run as a trace.

        chrome://tracing and ui.perfetto.dev show the file: an event of the category "Node" for each
        kernel, "Session" for each run, "Runtime" for what else was called. A session that is gone
        has written its file as well.

        Returns
        -------
        str
            The file's path; "" if profiling was not enabled, or has ended.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        return "" if self._face.profiler is None else self._face.profiler.end()
