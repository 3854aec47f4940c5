"""Functions of ONNX Runtime that set something for the whole process, or tell of it."""

from __future__ import annotations

import logging

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
