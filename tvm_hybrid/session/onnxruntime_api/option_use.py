"""What of a session's options has a meaning here, what has none, and what is refused."""

from __future__ import annotations

from typing import Any

from microkernels.base.errors import OptionError
from microkernels.base.logs import logger

from .session_options import SessionOptions

_USED = (
    "enable_profiling",
    "entries",
    "intra_op_num_threads",
    "log_severity_level",
    "optimized_model_filepath",
    "profile_file_prefix",
    "sizes_by_denotation",
    "sizes_by_name",
)
_NAMES = tuple(name for name in SessionOptions.__slots__ if name not in _USED)
_ANY = "..."
# Of ONNX Runtime's keys those that change results or files: key, value, why not.
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
    """Options as our class has them.

    Parameters
    ----------
    options : SessionOptions or None
        Or an object of ONNX Runtime's own class: a script may have swapped the session only. Its
        overrides of dimensions cannot be read.

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
    for name in SessionOptions.__slots__:
        if hasattr(options, name):
            value = getattr(options, name)
            setattr(own, name, int(value) if hasattr(value, "name") else value)  # enumerations
    for key, _, _ in _REFUSED:
        try:
            own.entries[key] = options.get_session_config_entry(key)
        except RuntimeError:  # it has none
            continue
    return own


def check_options(options: SessionOptions) -> None:
    """Refuses what would change results; a debug line says what has no meaning here.

    Raises
    ------
    OptionError
        Naming the option, and what to do.
    """
    for key, value, why in _REFUSED:
        if key in options.entries and value in (_ANY, options.entries[key]):
            raise OptionError(f"option {key}={options.entries[key]} is not for here: {why}")
    defaults = SessionOptions()
    unused = [
        f"{name}={getattr(options, name)!r}"
        for name in _NAMES
        if getattr(options, name) != getattr(defaults, name)
    ]
    unused += [f"{key}={value}" for key, value in options.entries.items()]
    if unused:
        logger.debug("options without a meaning here: %s", ", ".join(unused))
