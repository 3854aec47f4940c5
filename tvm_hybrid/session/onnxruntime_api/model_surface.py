"""The parts of a session for scripts of ONNX Runtime: ModelSurface, SessionMethods, SessionFace.

ModelSurface holds an ONNX model's metadata and facts about its inputs; it skips nodes and weights.
"""

from __future__ import annotations

import io
import logging
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple

from microkernels.base.errors import ArtifactError, FeedError
from microkernels.base.files import require_writable
from microkernels.base.logs import logger

from ...executable.executable import Executable
from ...executable.load import load
from ...frontend.onnx.reader.model_bytes import is_onnx
from ...frontend.onnx.reader.wire_format import WireError, fields, read_varint
from ...options import CompileOptions, given
from ...runtime.stream_threads import AsyncRuns
from ...runtime.tensors import Described
from ...runtime.threads import MOST_PER_CPU
from ...runtime.topology import ALLOWED_CPUS
from ..progress import Progress, ProgressLike
from .ort_value import OrtValue, plain
from .profiler import Profiler, WatchedExecutable
from .random_seed import RandomKeys
from .run_options import check_options, own_options
from .session_options import CPU, checked_providers


@dataclass(eq=False)
class ModelMetadata:
    """A model's metadata, under the names of ONNX Runtime.

    Parameters
    ----------
    producer_name, graph_name, domain, description, graph_description : str
        Texts of the model; empty for a library, and for a model that is not ONNX.
    version : int
        Version of the model.
    custom_metadata_map : mapping from str to str
        Further properties.

    Attributes
    ----------
    producer_name, graph_name, domain, description, graph_description : str
    version : int
    custom_metadata_map : dict of str to str
    """

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        self.custom_metadata_map = dict(self.custom_metadata_map or {})


class NodeArg:
    """An input or output, as ONNX Runtime describes it.

    Parameters
    ----------
    info : TensorInfo, OutputInfo or DynamicTensorInfo
        Our description.

    Attributes
    ----------
    name : str
        Name in the model.
    shape : list or None
        Sizes; a name or None for a dynamic dimension. None if the rank is unknown until inputs are
        known.
    type : str or None
        Such as "tensor(float)"; None if unknown until inputs are known.
    dtype : str or None
        NumPy's or ml_dtypes' name of the element type; None if unknown until inputs are known.
    """

    def __init__(self, info: Described) -> None:
        self.name = info.name
        self.shape = None if info.shape is None else list(info.shape)
        self.type = info.type
        self.dtype = info.dtype

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


# Field numbers of onnx.proto; a session of a cached program does not import onnx.
_PRODUCER, _DOMAIN, _VERSION, _DESCRIPTION, _GRAPH, _PROPERTIES = _OF_MODEL = 2, 4, 5, 6, 7, 14
_GRAPH_NAME, _GRAPH_DESCRIPTION, _INPUTS, _OUTPUTS = _OF_GRAPH = 2, 10, 11, 12
_KEY, _VALUE = _OF_PROPERTY = 1, 2
_TYPE, _TENSOR, _SHAPE, _DIMENSIONS = _TO_DIMENSIONS = 2, 1, 2, 1
_NAME, _DENOTATION = _OF_DIMENSION = 2, 3
_SEQUENCES = 4, 9  # types of values: a sequence, an optional value

Place = tuple[int, int]
"""Begin and end of a field's value in a file."""


class ModelSurface(NamedTuple):
    """Facts about a model.

    Attributes
    ----------
    metadata : ModelMetadata
        The model's metadata.
    dimensions : tuple of (str, str)
        Name and denotation of every named dimension of the inputs.
    has_sequences : bool
        Whether an input or output is a sequence, or optional.
    """

    metadata: ModelMetadata
    dimensions: tuple[tuple[str, str], ...]
    has_sequences: bool = False

    @staticmethod
    def of(model: Any) -> ModelSurface:
        """Reads a path, bytes or a ModelProto; anything else, or a damaged model, has no facts.

        Compiling reports what is wrong with a model.
        """
        try:
            return _surface(model) if is_onnx(model) else _NOTHING
        except (OSError, ValueError, WireError):
            return _NOTHING

    def sizes(self, by_name: Mapping[str, int], by_denotation: Mapping[str, int]) -> dict[str, int]:
        """Selects the sizes of the model's dimensions, by name."""
        sizes = {name: by_denotation[d] for name, d in self.dimensions if d in by_denotation}
        return sizes | {name: by_name[name] for name, _ in self.dimensions if name in by_name}


_NOTHING = ModelSurface(ModelMetadata(), ())


def _surface(model: Any) -> ModelSurface:
    if isinstance(model, str | os.PathLike):
        with Path(model).open("rb") as file:
            return _in_file(file, os.fstat(file.fileno()).st_size)
    if isinstance(model, bytes | bytearray | memoryview):
        data = bytes(model)
        return _in_file(io.BytesIO(data), len(data))
    metadata = ModelMetadata(
        producer_name=model.producer_name,
        graph_name=model.graph.name,
        domain=model.domain,
        description=model.doc_string,
        graph_description=model.graph.doc_string,
        version=model.model_version,
        custom_metadata_map={each.key: each.value for each in model.metadata_props},
    )
    dimensions = tuple(
        (dimension.dim_param, dimension.denotation)
        for value in model.graph.input
        for dimension in value.type.tensor_type.shape.dim
        if dimension.dim_param
    )
    kinds = {x.type.WhichOneof("value") for x in (*model.graph.input, *model.graph.output)}
    return ModelSurface(metadata, dimensions, bool(kinds & {"sequence_type", "optional_type"}))


def _in_file(file: BufferedIOBase, size: int) -> ModelSurface:
    """Reads the facts of a serialised model, without parsing all of it."""
    model = _picked(file, [(0, size)], _OF_MODEL)
    graph = _picked(file, model[_GRAPH], _OF_GRAPH)
    entries = [_picked(file, [place], _OF_PROPERTY) for place in model[_PROPERTIES]]
    metadata = ModelMetadata(
        producer_name=_text(file, model[_PRODUCER]),
        graph_name=_text(file, graph[_GRAPH_NAME]),
        domain=_text(file, model[_DOMAIN]),
        description=_text(file, model[_DESCRIPTION]),
        graph_description=_text(file, graph[_GRAPH_DESCRIPTION]),
        version=_number(file, model[_VERSION]),
        custom_metadata_map={_text(file, e[_KEY]): _text(file, e[_VALUE]) for e in entries},
    )
    found = graph[_INPUTS]
    for number in _TO_DIMENSIONS:
        found = [inner for place in found for inner in _picked(file, [place], (number,))[number]]
    named = [_picked(file, [place], _OF_DIMENSION) for place in found]
    dimensions = [(_text(file, d[_NAME]), _text(file, d[_DENOTATION])) for d in named]
    values = (_picked(file, [place], (_TYPE,))[_TYPE] for place in graph[_INPUTS] + graph[_OUTPUTS])
    has_sequences = any(any(_picked(file, types, _SEQUENCES).values()) for types in values)
    known = tuple(each for each in dimensions if each[0])
    return ModelSurface(metadata, known, has_sequences)


def _picked(
    file: BufferedIOBase, messages: Sequence[Place], numbers: Sequence[int]
) -> dict[int, list[Place]]:
    """Finds the values of some fields; several messages count as one, as in Protobuf."""
    found: dict[int, list[Place]] = {number: [] for number in numbers}
    for start, end in messages:
        for field in fields(file, start, end):
            if field.number in found:
                found[field.number].append((field.start, field.end))
    return found


def _text(file: BufferedIOBase, places: Sequence[Place]) -> str:
    """Reads the last of several texts; "" if there is none."""
    if not places:
        return ""
    start, end = places[-1]
    file.seek(start)
    return file.read(end - start).decode()


def _number(file: BufferedIOBase, places: Sequence[Place]) -> int:
    """Reads the last of several signed numbers; 0 if there is none."""
    if not places:
        return 0
    file.seek(places[-1][0])
    value = read_varint(file)
    return value - (1 << 64) if value >> 63 else value


class SessionMethods(AsyncRuns):
    """Methods of ONNX Runtime's InferenceSession besides running and binding."""

    _face: SessionFace

    def _finish(self) -> None:
        self._face.finish(self)
        super()._finish()

    @property
    def _model_path(self) -> str | None:
        """The model's file, if it was given by path; the package optimum reads this attribute."""
        return self._face.path

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[OrtValue]:
        """`run` with values of `OrtValue`.

        Parameters
        ----------
        output_names : sequence of str or None
            See `run`.
        input_dict_ort_values : mapping from str to OrtValue
            A value for every input.
        run_options : RunOptions or None
            See `run`.

        Returns
        -------
        list of OrtValue
            The outputs.

        Raises
        ------
        FeedError
            See `run`; also if an input or output of the model is a sequence, or optional.
        """
        if self._face.has_sequences:
            raise FeedError("no OrtValue holds a sequence or an optional value; call run")
        feeds = {name: plain(value) for name, value in input_dict_ort_values.items()}
        return [OrtValue(each) for each in self.run(output_names, feeds, run_options)]

    def get_modelmeta(self) -> ModelMetadata:
        """The model's metadata; empty for a library, and for a model that is not ONNX."""
        return self._face.metadata

    def get_session_options(self) -> Any:
        """The options that the session was made with, or new ones."""
        return self._face.given

    def get_providers(self) -> list[str]:
        """The session's only provider: `["CPUExecutionProvider"]`."""
        return [CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of that provider, which are empty."""
        return {CPU: {}}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Any] | None = None
    ) -> None:
        """Warns of providers that do not exist; the session does not change.

        Parameters
        ----------
        providers, provider_options : sequence, optional
            As for the session.
        """
        checked_providers(providers, provider_options)

    def enable_fallback(self) -> None:
        """Does nothing: there is no other provider."""

    def disable_fallback(self) -> None:
        """Does nothing: there is no other provider."""

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The initializers that runs may replace: none, as they are packed into the program."""
        return []

    def get_profiling_start_time_ns(self) -> int:
        """Start of profiling, by `time.monotonic_ns`; 0 if it is not enabled."""
        return 0 if self._face.profiler is None else self._face.profiler.start_ns

    def end_profiling(self) -> str:
        """Ends profiling, and writes every kernel of every run as a trace.

        chrome://tracing and ui.perfetto.dev show the file: an event of the category "Node" for each
        kernel, "Session" for each run, "Runtime" for other functions. The file is also written when
        the session is deleted.

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


ERROR = 3  # one of ONNX Runtime's log severities


OF_LIBRARIES = frozenset({"num_threads", "threads", "weights", "spin", "cache"})
"""Options of a session that say how a program runs, not how it is compiled."""


def loaded(library: Path, options: CompileOptions) -> Executable:
    """Loads a library for a session; options of compilation come too late for it.

    Raises
    ------
    TvmHybridError
        See `load`; also if an option says how a program is compiled.
    """
    if others := sorted(given(options) - OF_LIBRARIES):
        raise ArtifactError(
            f"{library} is compiled already: {', '.join(others)} cannot be given; compile "
            "the model anew",
            argument=others[0],
        )
    return load(library, threads=options.threads, weights=options.weights, spin=options.spin)


class SessionFace:
    """A session's arguments from ONNX Runtime's interface.

    Parameters
    ----------
    model : Any
        See `InferenceSession`.
    options : SessionOptions or None
        The session's options.
    providers, provider_options : sequence or None
        See ONNX Runtime.
    progress : callable, bool or None
        See `InferenceSession`.

    Attributes
    ----------
    given : SessionOptions
        The caller's own object, or a new one.
    path : str or None
        The model's file, if it was given by path.
    metadata : ModelMetadata
        The model's metadata.
    has_sequences : bool
        Whether an input or output of the model is a sequence, or optional.
    progress : Progress
        Reports the progress of compiling.
    profiler : Profiler or None
        Records the runs, if the options say so.
    random_keys : RandomKeys or None
        Keys of random operators, if `set_seed` was called.

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
        self.has_sequences = self._surface.has_sequences
        name = Path(self.path).name if self.path else self.metadata.graph_name
        severity = self._options.log_severity_level
        shows_warnings = severity < ERROR if severity >= 0 else logger.isEnabledFor(logging.WARNING)
        self.progress = Progress(progress, name or "the model", quiet=not shows_warnings)
        if self._options.optimized_model_filepath:
            require_writable(self._options.optimized_model_filepath)
        enabled = self._options.enable_profiling
        self.profiler = Profiler(self._options.profile_file_prefix) if enabled else None
        self.random_keys = RandomKeys.given()

    def shapes(self, given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The session's shapes, completed by the options' overrides."""
        options = self._options
        wanted = {**options.sizes_by_denotation, **options.sizes_by_name}
        if not wanted:
            return given
        sizes = self._surface.sizes(options.sizes_by_name, options.sizes_by_denotation)
        logger.debug("overrides of dimensions %s: sizes %s of the model", wanted, sizes)
        return {**sizes, **(given or {})} or None

    def num_threads(self, given: int | None, threads: Any) -> int | None:
        """The session's number of threads, or else that of the options."""
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
        """Wraps an executable whose runs must be recorded, or draw numbers by `set_seed`."""
        keys, replace_key = self.random_keys, None
        if keys is not None:
            replace_key = keys.instrument(executable.manifest.decisions)
        if self.profiler is None and replace_key is None:
            return executable
        return WatchedExecutable(executable, self.profiler, replace_key)

    def finish(self, session: Any) -> None:
        """Completes a new session as options say: exports it, and ends its profile with it.

        Raises
        ------
        ShapeError
            If it must be exported, but compiles only when inputs arrive.
        ArtifactError
            If the library cannot be written.
        """
        if self._options.optimized_model_filepath:
            session.executable.export(os.fspath(self._options.optimized_model_filepath))
        if self.profiler is not None:
            weakref.finalize(session, self.profiler.end)
