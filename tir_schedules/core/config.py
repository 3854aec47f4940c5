"""Config: the numbers that make a template concrete; a frozen struct, JSON both ways."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from microkernels.errors import ConfigError

C = TypeVar("C", bound="Config")


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
