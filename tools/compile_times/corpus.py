"""The models whose compile times are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import click

from . import decoders, encoders, scenes, sounds
from .graph import Form, Model

OTHER_HEAD, OTHER_BATCH = "other head", "other batch"
RELATIVES = {OTHER_HEAD: Form(head=8), OTHER_BATCH: Form(batch=2)}
"""The differences between a model's relatives and the model."""


@dataclass(frozen=True)
class Entry:
    """A model of the corpus."""

    build: Callable[[Form], Model]
    dynamic: bool = True  # whether it has a dynamic form
    static: bool = True  # whether it has a static form
    # Other models of its family; a dynamic model has none with another batch.
    relatives: tuple[str, ...] = (OTHER_HEAD, OTHER_BATCH)


ENTRIES: dict[str, Entry] = {
    "minilm": Entry(encoders.minilm),
    "minilm_qdq": Entry(encoders.minilm_qdq),
    "bert_base": Entry(encoders.bert_base),
    "bert_base_qdq": Entry(encoders.bert_base_qdq),
    "decoder": Entry(decoders.decoder),
    "decoder_4bit": Entry(decoders.decoder_4bit),
    "t5_encoder": Entry(decoders.t5_encoder),
    "t5_decoder": Entry(decoders.t5_decoder),
    "merged_decoder": Entry(decoders.merged_decoder),
    "resnet50": Entry(scenes.resnet50),
    "squeezenet": Entry(scenes.squeezenet),
    "shufflenet": Entry(scenes.shufflenet),
    "yolo": Entry(scenes.yolo),
    "text_detection": Entry(scenes.text_detection),
    "text_recognition": Entry(scenes.text_recognition),
    "salient_f16": Entry(scenes.salient_objects_f16),
    "salient_int8": Entry(scenes.salient_objects_int8),
    "segformer": Entry(scenes.segformer),
    "mobilevit": Entry(scenes.mobilevit),
    "pitch": Entry(sounds.pitch, relatives=(OTHER_HEAD,)),
    "notes": Entry(sounds.notes),
    "conv_long_rows": Entry(sounds.conv_long_rows, dynamic=False, relatives=()),
    "conv_halving": Entry(sounds.conv_halving, static=False, relatives=()),
    "voice_activity": Entry(sounds.voice_activity),
    "events": Entry(sounds.events),
    "tagger": Entry(sounds.tagger),
    "lstm_59": Entry(sounds.lstm_59),
    "gru_31": Entry(sounds.gru_31),
    "voice_embedder": Entry(sounds.voice_embedder),
    "atoms": Entry(sounds.atoms, relatives=(OTHER_HEAD,)),
}

SUFFIX = "_dynamic"
NAMES = tuple(
    name + suffix
    for name, entry in ENTRIES.items()
    for suffix, there in (("", entry.static), (SUFFIX, entry.dynamic))
    if there
)


def build(name: str, relative: str = "") -> Model:
    """A model by its name, or a relative of it."""
    form = replace(RELATIVES.get(relative, Form()), dynamic=name.endswith(SUFFIX))
    return ENTRIES[name.removesuffix(SUFFIX)].build(form)


def has_relative(name: str, relative: str) -> bool:
    """Whether a model has a relative of this name."""
    if relative == OTHER_BATCH and name.endswith(SUFFIX):
        return False
    return relative in ENTRIES[name.removesuffix(SUFFIX)].relatives


def chosen_of(known: Iterable[str]) -> Callable[[object, object, str], list[str]]:
    """A callback for an option that takes names separated by commas; "" selects all."""

    def chosen(_context: object, _option: object, value: str) -> list[str]:
        names = value.split(",") if value else list(known)
        unknown = set(names) - set(known)
        if unknown:
            there = ", ".join(known)
            raise click.BadParameter(f"no {', '.join(sorted(unknown))}; there are {there}")
        return names

    return chosen
