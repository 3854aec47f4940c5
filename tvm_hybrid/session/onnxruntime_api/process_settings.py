"""Functions of ONNX Runtime that set something for the whole process, or tell of it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from microkernels.base.errors import OptionError
from microkernels.base.logs import logger

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def set_default_logger_severity(severity: int) -> None:
    """Sets the level of the logger `tvm_hybrid`.

    Nothing is shown before the application handles that logger, or TVM_HYBRID_LOG is set.

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
    """Does nothing but say so: levels are all that the logger has.

    Parameters
    ----------
    verbosity : int
        As ONNX Runtime takes it.
    """
    logger.debug("a verbosity has no meaning here: %s", verbosity)


def enable_telemetry_events() -> None:
    """Does nothing: there is no telemetry."""


def disable_telemetry_events() -> None:
    """Does nothing: there is no telemetry."""


def get_version_string() -> str:
    """The version of this package, not one of ONNX Runtime's."""
    from ...version_check import __version__

    return __version__


def get_build_info() -> str:
    """The versions of this package and of TVM."""
    import tvm

    return f"tvm_hybrid {get_version_string()}, Apache TVM {tvm.__version__}"


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Does nothing: there are no libraries of other devices to load.

    Parameters
    ----------
    cuda, cudnn, msvc : bool
    directory : str, optional
    """
    logger.debug("no libraries are loaded: %s", (cuda, cudnn, msvc, directory))


CPU = "CPUExecutionProvider"
_CALLER = 4  # of functions above a warning: who makes the session


def get_available_providers() -> list[str]:
    """The only one: `["CPUExecutionProvider"]`."""
    return [CPU]


def get_all_providers() -> list[str]:
    """As `get_available_providers`."""
    return [CPU]


def get_device() -> str:
    """What models run on: "CPU"."""
    return "CPU"


def checked_providers(providers: Any, options: Any) -> None:
    """Looks at what a script says of providers, as ONNX Runtime does: others are warned of.

    Parameters
    ----------
    providers : sequence of str or (str, dict), optional
        Names, with options or without.
    options : sequence of dict, optional
        Options of each, if `providers` are names only.

    Raises
    ------
    OptionError
        If they have another form.
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
