"""The library's logger; `TVM_HYBRID_LOG=debug|info|warning|error` shows it on standard error."""

from __future__ import annotations

import logging
import os

LOG_VARIABLE = "TVM_HYBRID_LOG"
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

logger = logging.getLogger("tvm_hybrid")


def configure_from_environment() -> None:
    """Sets the logger up: silent unless the application handles it or the variable is set."""
    wanted = os.environ.get(LOG_VARIABLE, "").lower()
    if not wanted:
        logger.addHandler(logging.NullHandler())
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(LEVELS.get(wanted, logging.INFO))
    if wanted not in LEVELS:
        logger.warning("%s=%s is not one of %s", LOG_VARIABLE, wanted, ", ".join(LEVELS))
