"""A graph with its feeds and settings, stored in one ONNX model file.

Feeds are stored as initialisers of the inputs, which ONNX defines as the inputs' default values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from .settings import Settings

Array = NDArray[Any]
_SETTINGS, _ORIGIN, _CHECKS = "settings", "origin", "checks"


@dataclass(frozen=True)
class Case:
    """A graph, how it is compiled, and the feeds.

    Attributes
    ----------
    model : onnx.ModelProto
        The graph.
    feeds : dict from str to numpy.ndarray
        Input name -> value.
    settings : Settings
        How the graph is compiled.
    checks : tuple of str
        Names of further checks, from `metamorphic.CHECKS`.
    origin : str
        Kind and seed that the case was drawn from.
    """

    model: onnx.ModelProto
    feeds: dict[str, Array]
    settings: Settings = field(default_factory=Settings)
    checks: tuple[str, ...] = ()
    origin: str = ""

    def to_bytes(self) -> bytes:
        """The file's content."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for name, array in self.feeds.items():
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        helper.set_model_props(
            model,
            {
                _SETTINGS: msgspec.json.encode(self.settings).decode(),
                _CHECKS: " ".join(self.checks),
                _ORIGIN: self.origin,
            },
        )
        return model.SerializeToString(deterministic=True)

    @staticmethod
    def from_bytes(content: bytes) -> Case:
        """Reads what `to_bytes` wrote."""
        model = onnx.ModelProto.FromString(content)
        about = {each.key: each.value for each in model.metadata_props}
        inputs = {each.name for each in model.graph.input}
        feeds = {
            each.name: numpy_helper.to_array(each)
            for each in model.graph.initializer
            if each.name in inputs
        }
        kept = [each for each in model.graph.initializer if each.name not in inputs]
        del model.graph.initializer[:]
        model.graph.initializer.extend(kept)
        del model.metadata_props[:]
        settings = msgspec.json.decode(about[_SETTINGS], type=Settings)
        return Case(model, feeds, settings, tuple(about[_CHECKS].split()), about[_ORIGIN])

    def with_settings(self, settings: Settings) -> Case:
        """The graph and the feeds with other settings."""
        return replace(self, settings=settings)

    def save(self, path: Path) -> None:
        """Writes the file."""
        path.write_bytes(self.to_bytes())
