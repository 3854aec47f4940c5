"""RunOptions: ONNX Runtime's options of one run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn

from microkernels.base.errors import OptionError
from microkernels.base.logs import logger

from .session_options import SessionOptions, add_entry, entry


@dataclass(slots=True, eq=False, repr=False)
class RunOptions:
    """Options of a run, under the names of ONNX Runtime.

    Options without a description are accepted and have no meaning here.

    Attributes
    ----------
    terminate : bool
        Whether runs with these options end before they begin. A run that has begun does not end.
    only_execute_path_to_fetches : bool
        No effect: all outputs are always computed.
    log_severity_level, log_verbosity_level : int
    logid : str
        The run's tag.
    entries : dict of str to str
        Entries from `add_run_config_entry`.
    """

    entries: dict[str, str] = field(default_factory=dict, init=False)
    log_severity_level: int = field(default=-1, init=False)
    log_verbosity_level: int = field(default=0, init=False)
    logid: str = field(default="", init=False)
    only_execute_path_to_fetches: bool = field(default=False, init=False)
    terminate: bool = field(default=False, init=False)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Adds or replaces an entry; none has a meaning here.

        Parameters
        ----------
        key, value : str
            See ONNX Runtime.

        Raises
        ------
        TypeError
            If one of them is not a str.
        """
        add_entry(self.entries, key, value)

    def get_run_config_entry(self, key: str) -> str:
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

    def add_active_adapter(self, adapter: Any) -> NoReturn:
        """Refuses adapters: they would change the weights of the program.

        Parameters
        ----------
        adapter : object
            An adapter of ONNX Runtime.

        Raises
        ------
        OptionError
            Always.
        """
        raise OptionError("a compiled program takes no adapters; merge them into the model")


_PLAIN = RunOptions()


def check_run_options(options: Any) -> None:
    """Refuses options that a run cannot follow; a debug line names the ignored ones.

    `options` may be an object of ONNX Runtime's class.

    Raises
    ------
    OptionError
        If it is something else, or asks to end the run.
    """
    if not hasattr(options, "terminate") or not hasattr(options, "logid"):
        raise OptionError(
            f"run_options must be RunOptions or None, not {type(options).__name__}: {options!r:.80}"
        )
    if options.terminate:
        raise OptionError("the run is ended before it begins: its options say terminate")
    _log_unused("run options", options, _PLAIN, ("terminate",))


_KEYWORDS = ("disabled_optimizers", "enable_fallback", "read_config_from_model")


def without_unused(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Drops keywords that only ONNX Runtime uses; a debug line names them."""
    unused = [f"{name}={keywords[name]!r}" for name in _KEYWORDS if name in keywords]
    if unused:
        logger.debug("options without a meaning here: %s", ", ".join(unused))
    return {name: value for name, value in keywords.items() if name not in _KEYWORDS}


def _log_unused(what: str, options: Any, defaults: Any, used: Collection[str]) -> None:
    """Names, in a debug line, non-default options that have no meaning here."""
    unused = [
        f"{each.name}={getattr(options, each.name)!r}"
        for each in fields(defaults)
        if each.name not in ("entries", *used)
        and getattr(options, each.name, default := getattr(defaults, each.name)) != default
    ]
    unused += [f"{key}={value}" for key, value in getattr(options, "entries", {}).items()]
    if unused:
        logger.debug("%s without a meaning here: %s", what, ", ".join(unused))


_USED = (
    "enable_profiling",
    "intra_op_num_threads",
    "log_severity_level",
    "optimized_model_filepath",
    "profile_file_prefix",
    "sizes_by_denotation",
    "sizes_by_name",
)
_ANY = "..."
# ONNX Runtime's keys that change results or files: key, value, reason of the refusal.
_REFUSED = (
    ("session.set_denormal_as_zero", "1", "kernels keep denormal numbers"),
    ("session.load_model_format", "ORT", "models of format ORT are not read; give the ONNX model"),
    ("ep.context_enable", "1", "optimized_model_filepath, or export, writes a compiled model"),
    (
        "session.model_external_initializers_file_folder_path",
        _ANY,
        "weights in files are looked for beside the model; give the model by path",
    ),
)


def own_options(options: Any) -> SessionOptions:
    """Converts options to our class.

    `options` may be an object of ONNX Runtime's class, as a script may have replaced only the
    session; its overrides of dimensions cannot be read.

    Raises
    ------
    OptionError
        If it is something else.
    """
    if options is None:
        return SessionOptions()
    if isinstance(options, SessionOptions):
        return options
    if not hasattr(options, "get_session_config_entry"):
        raise OptionError(
            f"sess_options must be SessionOptions or None, not {type(options).__name__}; "
            "shapes and other options of ours are given by name"
        )
    own = SessionOptions()
    for each in fields(own):
        if hasattr(options, each.name):
            value = getattr(options, each.name)
            setattr(own, each.name, int(value) if hasattr(value, "name") else value)  # enum -> int
    for key, _, _ in _REFUSED:
        try:
            own.entries[key] = options.get_session_config_entry(key)
        except RuntimeError:  # no such entry
            continue
    return own


def check_options(options: SessionOptions) -> None:
    """Refuses options that would change results; a debug line names the ignored ones.

    Raises
    ------
    OptionError
        Names the option, and what to do.
    """
    for key, value, why in _REFUSED:
        if key in options.entries and value in (_ANY, options.entries[key]):
            raise OptionError(f"option {key}={options.entries[key]} is not for here: {why}")
    _log_unused("options", options, SessionOptions(), _USED)
