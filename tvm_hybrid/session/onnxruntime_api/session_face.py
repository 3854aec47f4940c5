"""SessionFace: what a session keeps of the arguments that are ONNX Runtime's."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microkernels.base.errors import ArtifactError
from microkernels.base.files import require_writable
from microkernels.base.logs import logger

from ...executable.executable import Executable
from ...executable.load import load
from ...options import CompileOptions, given
from ...runtime.threads import MOST_PER_CPU
from ...runtime.topology import ALLOWED_CPUS
from ..progress import Progress, ProgressLike
from .model_surface import ModelSurface
from .profiler import Profiler, WatchedExecutable
from .run_options import check_options, own_options
from .session_options import checked_providers

if TYPE_CHECKING:
    from ..inference_session import InferenceSession

ERROR = 3  # of ONNX Runtime's log severities


OF_LIBRARIES = frozenset({"num_threads", "threads", "weights", "spin", "cache"})
"""Options of a session that say how a program runs, not how it is compiled."""


def loaded(library: Path, options: CompileOptions) -> Executable:
    """A library as a session runs it, for whose program options come too late.

    Raises
    ------
    TvmHybridError
        As `load`; if one of the options says how a program is compiled.
    """
    if others := sorted(given(options) - OF_LIBRARIES):
        raise ArtifactError(
            f"{library} is compiled already: {', '.join(others)} cannot be given; compile "
            "the model anew",
            argument=others[0],
        )
    return load(library, threads=options.threads, weights=options.weights, spin=options.spin)


class SessionFace:
    """What a session keeps of the arguments that are ONNX Runtime's.

    Parameters
    ----------
    model : Any
        As for `InferenceSession`.
    options : SessionOptions or None
        The session's options.
    providers, provider_options : sequence or None
        As ONNX Runtime takes them.
    progress : callable, bool or None
        As for `InferenceSession`.

    Attributes
    ----------
    given : SessionOptions
        The caller's own object, or a new one.
    path : str or None
        The model's file, if it was given by path.
    metadata : ModelMetadata
        What the model says of itself.
    progress : Progress
        What tells how far compiling is.
    profiler : Profiler or None
        What notes the runs, if the options say so.

    Raises
    ------
    OptionError
        If an option would change results, or it or `progress` has a wrong form.
    OutputError, ArtifactError
        If a file that the options name cannot be written.
    """

    def __init__(
        self,
        model: Any,
        options: Any,
        providers: Any,
        provider_options: Any,
        progress: ProgressLike = None,
    ) -> None:
        self._options = own_options(options)
        self.given = self._options if options is None else options
        check_options(self._options)
        checked_providers(providers, provider_options)
        self.path = os.fspath(model) if isinstance(model, str | os.PathLike) else None
        self._surface = ModelSurface.of(model)
        self.metadata = self._surface.metadata
        name = Path(self.path).name if self.path else self.metadata.graph_name
        severity = self._options.log_severity_level
        shows_warnings = severity < ERROR if severity >= 0 else logger.isEnabledFor(logging.WARNING)
        self.progress = Progress(progress, name or "the model", quiet=not shows_warnings)
        if self._options.optimized_model_filepath:
            require_writable(self._options.optimized_model_filepath)
        enabled = self._options.enable_profiling
        self.profiler = Profiler(self._options.profile_file_prefix) if enabled else None

    def shapes(self, given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The session's shapes and, where they say nothing, the overrides of the options."""
        options = self._options
        wanted = {**options.sizes_by_denotation, **options.sizes_by_name}
        if not wanted:
            return given
        sizes = self._surface.sizes(options.sizes_by_name, options.sizes_by_denotation)
        logger.debug("overrides of dimensions %s: sizes %s of the model", wanted, sizes)
        return {**sizes, **(given or {})} or None

    def num_threads(self, given: int | None, threads: Any) -> int | None:
        """The session's number of threads or, where it says nothing, that of the options."""
        wanted = self._options.intra_op_num_threads
        if given is not None or threads is not None or wanted < 1:
            return given
        most = MOST_PER_CPU * len(ALLOWED_CPUS)
        if wanted > most:
            logger.warning(
                "intra_op_num_threads=%d is more than the %d threads that make sense here; "
                "the session has %d, one for each CPU",
                wanted,
                most,
                len(ALLOWED_CPUS),
            )
            return len(ALLOWED_CPUS)
        return wanted

    def watched(self, executable: Executable) -> Any:
        """What runs: the executable, or one like it whose runs are noted."""
        return executable if self.profiler is None else WatchedExecutable(executable, self.profiler)

    def finish(self, session: InferenceSession) -> None:
        """Does what options ask of a session that is made: exports it, ends its profile with it.

        Raises
        ------
        ShapeError
            If it is to be exported, and compiles only when inputs arrive.
        ArtifactError
            If the library cannot be written.
        """
        if self._options.optimized_model_filepath:
            session.executable.export(os.fspath(self._options.optimized_model_filepath))
        if self.profiler is not None:
            weakref.finalize(session, self.profiler.end)
