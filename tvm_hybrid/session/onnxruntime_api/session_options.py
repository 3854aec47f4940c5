"""SessionOptions: ONNX Runtime's options of a session."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NoReturn

from microkernels.base.errors import OptionError
from microkernels.base.logs import logger


class GraphOptimizationLevel(IntEnum):
    """How much ONNX Runtime rewrites a model; accepted but ignored: use `fusion` instead.

    Attributes
    ----------
    ORT_DISABLE_ALL, ORT_ENABLE_BASIC, ORT_ENABLE_EXTENDED, ORT_ENABLE_LAYOUT, ORT_ENABLE_ALL
        See ONNX Runtime.
    """

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether ONNX Runtime runs operators concurrently; accepted but ignored.

    Attributes
    ----------
    ORT_SEQUENTIAL, ORT_PARALLEL
        Here, kernels run one after another, each on all threads.
    """

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """In which order ONNX Runtime runs operators; accepted but ignored.

    Attributes
    ----------
    DEFAULT, PRIORITY_BASED, MEMORY_EFFICIENT
        Here, the order is chosen when a model is compiled.
    """

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass(slots=True, eq=False, repr=False)
class SessionOptions:
    """Options of a session, under the names of ONNX Runtime.

    The session reads them when it is made. Options without a description are accepted and have no
    meaning here; one debug line names those that differ from their defaults.

    Attributes
    ----------
    intra_op_num_threads : int
        `num_threads` of the session, if that is not given; 0: all cores.
    inter_op_num_threads : int
    execution_mode : ExecutionMode
    execution_order : ExecutionOrder
    graph_optimization_level : GraphOptimizationLevel
        Ignored; use `fusion` of the session instead.
    optimized_model_filepath : str
        The session exports its library to this file, which a session accepts in place of the model;
        "": no export.
    enable_profiling : bool
        Whether the time of every kernel of every run is recorded, for `end_profiling` of the
        session. That costs about a microsecond for every function that a run calls.
    profile_file_prefix : str
        Prefix of the profile's file name; the time and ".json" follow.
    log_severity_level : int
        From 3 on, a session does not report the progress of compiling; -1: the level of
        `set_default_logger_severity` decides. It has no other effect.
    log_verbosity_level : int
    logid : str
    enable_cpu_mem_arena, enable_mem_pattern, enable_mem_reuse : bool
    use_deterministic_compute : bool
        No effect: runs of one program always give equal bits.
    use_per_session_threads : bool
    entries, sizes_by_name, sizes_by_denotation : dict
        Entries added by the methods below.
    """

    enable_cpu_mem_arena: bool = field(default=True, init=False)
    enable_mem_pattern: bool = field(default=True, init=False)
    enable_mem_reuse: bool = field(default=True, init=False)
    enable_profiling: bool = field(default=False, init=False)
    entries: dict[str, str] = field(default_factory=dict, init=False)
    execution_mode: ExecutionMode = field(default=ExecutionMode.ORT_SEQUENTIAL, init=False)
    execution_order: ExecutionOrder = field(default=ExecutionOrder.DEFAULT, init=False)
    graph_optimization_level: GraphOptimizationLevel = field(
        default=GraphOptimizationLevel.ORT_ENABLE_ALL, init=False
    )
    inter_op_num_threads: int = field(default=0, init=False)
    intra_op_num_threads: int = field(default=0, init=False)
    log_severity_level: int = field(default=-1, init=False)
    log_verbosity_level: int = field(default=0, init=False)
    logid: str = field(default="", init=False)
    optimized_model_filepath: str | os.PathLike[str] = field(default="", init=False)
    profile_file_prefix: str = field(default="onnxruntime_profile_", init=False)
    sizes_by_denotation: dict[str, int] = field(default_factory=dict, init=False)
    sizes_by_name: dict[str, int] = field(default_factory=dict, init=False)
    use_deterministic_compute: bool = field(default=False, init=False)
    use_per_session_threads: bool = field(default=True, init=False)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Adds or replaces an entry.

        Parameters
        ----------
        key, value : str
            See ONNX Runtime. A session refuses entries that would change results.

        Raises
        ------
        TypeError
            If one of them is not a str.
        """
        add_entry(self.entries, key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Returns the value of an entry.

        Parameters
        ----------
        key : str
            Key of the entry.

        Raises
        ------
        OptionError
            If there is no such entry.
        """
        return entry(self.entries, key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Gives a symbolic dimension its size, like `shapes` of a session.

        Parameters
        ----------
        name : str
            The dimension. It is ignored if the model does not have it.
        size : int
            At least 0.
        """
        self.sizes_by_name[name] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Gives symbolic dimensions of a denotation, such as "DATA_BATCH", their size.

        Parameters
        ----------
        denotation : str
            Denotation of the dimensions in the model; they must have names.
        size : int
            At least 0.
        """
        self.sizes_by_denotation[denotation] = int(size)

    def register_custom_ops_library(self, path: str | os.PathLike[str]) -> NoReturn:
        """Refuses custom operators: code for ONNX Runtime cannot be compiled.

        Parameters
        ----------
        path : path-like
            The library.

        Raises
        ------
        OptionError
            Always.
        """
        raise OptionError(
            f"{os.fspath(path)} has operators for ONNX Runtime, which cannot be compiled here; "
            "write the model with standard operators or functions"
        )

    def add_initializer(self, name: str, ort_value: Any) -> NoReturn:
        """Refuses initializers: weights are part of a compiled program.

        Parameters
        ----------
        name : str
            The initializer.
        ort_value : OrtValue
            Its new value.

        Raises
        ------
        OptionError
            Always.
        """
        raise OptionError(
            f"initializer {name!r} cannot be replaced: weights are packed when a model is "
            "compiled; write them into the model"
        )

    def add_provider(self, name: str, options: dict[str, str]) -> None:
        """Checks a provider like `providers` of a session: warns if it is not the CPU's.

        Parameters
        ----------
        name : str
            The provider.
        options : dict
            Its options.
        """
        checked_providers([(name, options)], None)

    def has_providers(self) -> bool:
        """False: a session always uses its only provider."""
        return False


def add_entry(entries: dict[str, str], key: str, value: str) -> None:
    """Adds or replaces an entry.

    Raises
    ------
    TypeError
        If key or value is not a str, as in ONNX Runtime.
    """
    if not isinstance(key, str) or not isinstance(value, str):
        raise TypeError(f"keys and values of options are texts, not {key!r}: {value!r}")
    entries[key] = value


def entry(entries: dict[str, str], key: str) -> str:
    """Returns the value of an entry.

    Raises
    ------
    OptionError
        If there is no such entry.
    """
    if key not in entries:
        known = ", ".join(sorted(entries)) or "none"
        raise OptionError(f"no value was added for {key!r}; there are {known}")
    return entries[key]


_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def set_default_logger_severity(severity: int) -> None:
    """Sets the level of the logger `tvm_hybrid`.

    Messages appear only if the application handles that logger, or TVM_HYBRID_LOG is set.

    Parameters
    ----------
    severity : int
        0: debug, 1: info, 2: warning, 3: error, 4: critical.

    Raises
    ------
    OptionError
        If it is another number.
    """
    if severity not in range(len(_LEVELS)):
        raise OptionError(f"a severity is 0, 1, 2, 3 or 4, not {severity!r}")
    logger.setLevel(_LEVELS[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Does nothing but write a debug line: the logger has only levels.

    Parameters
    ----------
    verbosity : int
        See ONNX Runtime.
    """
    logger.debug("a verbosity has no meaning here: %s", verbosity)


def enable_telemetry_events() -> None:
    """Does nothing: there is no telemetry."""


def disable_telemetry_events() -> None:
    """Does nothing: there is no telemetry."""


def get_version_string() -> str:
    """The version of this package, not of ONNX Runtime."""
    from ...version_check import __version__

    return __version__


def get_build_info() -> str:
    """The versions of this package and of TVM."""
    import tvm

    return f"tvm_hybrid {get_version_string()}, Apache TVM {tvm.__version__}"


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Does nothing: no libraries of other devices are needed.

    Parameters
    ----------
    cuda, cudnn, msvc : bool
    directory : str, optional
    """
    logger.debug("no libraries are loaded: %s", (cuda, cudnn, msvc, directory))


CPU = "CPUExecutionProvider"
_CALLER = 4  # stack level of the code that makes the session


def get_available_providers() -> list[str]:
    """The only one: `["CPUExecutionProvider"]`."""
    return [CPU]


def get_all_providers() -> list[str]:
    """Returns what `get_available_providers` does."""
    return [CPU]


def get_device() -> str:
    """The device that models run on: "CPU"."""
    return "CPU"


def checked_providers(providers: Any, options: Any) -> None:
    """Checks providers as ONNX Runtime does: warns of those that do not exist.

    Parameters
    ----------
    providers : sequence of str or (str, dict), optional
        Names, with or without options.
    options : sequence of dict, optional
        Options of each, if `providers` are only names.

    Raises
    ------
    OptionError
        If an argument has another form.
    """
    if providers is None:
        return
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise OptionError(f"providers must be a list, not {providers!r}")
    if options is not None and (
        isinstance(options, str | Mapping)
        or not isinstance(options, Sequence)
        or len(options) != len(providers)
        or not all(isinstance(each, Mapping) for each in options)
    ):
        raise OptionError("provider_options must be a list of dictionaries, one for each provider")
    for each in providers:
        name = _name(each, options is not None)
        if name != CPU:
            warnings.warn(
                f"there is no {name!r} here: models run by {CPU!r}, the only provider",
                stacklevel=_CALLER,
            )


def _name(provider: Any, has_options: bool) -> str:
    if isinstance(provider, str):
        return provider
    fits = isinstance(provider, tuple) and len(provider) == 2 and not has_options
    if not (fits and isinstance(provider[0], str) and isinstance(provider[1], Mapping)):
        raise OptionError(
            f"a provider is a name, or a name with a dictionary of options, not {provider!r}"
        )
    return str(provider[0])
