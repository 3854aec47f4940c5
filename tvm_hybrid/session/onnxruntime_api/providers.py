"""Execution providers: there is one, the CPU's."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from microkernels.base.errors import OptionError

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
