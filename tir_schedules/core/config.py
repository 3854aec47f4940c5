"""Config: the numbers that make a template concrete; a frozen struct, JSON both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import msgspec

from microkernels.base.errors import ConfigError

from .region import Region

C = TypeVar("C", bound="Config")

MOST = 1 << 30  # limit of every number: kernels count in int32


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every template's configuration; fields are plain numbers, strings and tuples."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-able values."""
        return msgspec.to_builtins(self)

    @classmethod
    def from_dict(cls: type[C], fields: dict[str, Any]) -> C:
        """The configuration with these fields.

        Raises
        ------
        ConfigError
            If a field is unknown, missing or of the wrong type.
        """
        try:
            return msgspec.convert(fields, cls, strict=True)
        except msgspec.ValidationError as error:
            raise ConfigError(f"not a {cls.__name__}: {error} in {fields}") from error

    def varied(self: C, name: str, values: Iterable[int]) -> Iterator[C]:
        """The configuration, then copies with other values of one field."""
        yield self
        for value in values:
            if value != getattr(self, name):
                yield msgspec.structs.replace(self, **{name: value})


def check_numbers(
    region: Region, config: Config, most: Mapping[str, int | None], least: int = 1
) -> None:
    """Refuses fields of a configuration below `least` or above their limit; None means MOST.

    Raises
    ------
    ConfigError
        If a field is out of range; the message names it.
    """
    for name, limit in most.items():
        value = getattr(config, name)
        if not least <= value <= (MOST if limit is None else limit):
            upper = "" if limit is None else f" and at most {limit}"
            raise ConfigError(f"{name}={value}: must be at least {least}{upper}, for {region.key}")


def best_first(default: C, others: AbstractSet[C], cycles: Callable[[C], Any]) -> Iterator[C]:
    """The default, then the other configurations, those with the fewest estimated cycles first."""
    yield default
    yield from sorted(others - {default}, key=cycles)
