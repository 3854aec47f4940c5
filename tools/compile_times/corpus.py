"""The models whose compile times are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import decoders, encoders, scenes, sequences, sounds, vision
from .graph import Form, Model


@dataclass(frozen=True)
class Entry:
    """A model of the corpus.

    Attributes
    ----------
    build : callable
        Makes it in a form.
    dynamic : bool
        Whether it has a dynamic form.
    static : bool
        Whether it has a static form.
    """

    build: Callable[[Form], Model]
    dynamic: bool = True
    static: bool = True


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
    "resnet50": Entry(vision.resnet50),
    "squeezenet": Entry(vision.squeezenet),
    "shufflenet": Entry(vision.shufflenet),
    "yolo": Entry(vision.yolo),
    "text_detection": Entry(scenes.text_detection),
    "text_recognition": Entry(scenes.text_recognition),
    "salient_f16": Entry(scenes.salient_objects_f16),
    "salient_int8": Entry(scenes.salient_objects_int8),
    "segformer": Entry(scenes.segformer),
    "mobilevit": Entry(scenes.mobilevit),
    "pitch": Entry(sounds.pitch),
    "notes": Entry(sounds.notes),
    "conv_long_rows": Entry(sounds.conv_long_rows, dynamic=False),
    "conv_halving": Entry(sounds.conv_halving, static=False),
    "voice_activity": Entry(sounds.voice_activity),
    "events": Entry(sounds.events),
    "tagger": Entry(sequences.tagger),
    "lstm_59": Entry(sequences.lstm_59),
    "gru_31": Entry(sequences.gru_31),
    "voice_embedder": Entry(sequences.voice_embedder),
    "atoms": Entry(sequences.atoms),
}

SUFFIX = "_dynamic"
NAMES = tuple(
    name + suffix
    for name, entry in ENTRIES.items()
    for suffix, there in (("", entry.static), (SUFFIX, entry.dynamic))
    if there
)


def build(name: str, second: bool = False) -> Model:
    """A model by its name; `second` for the same with another head."""
    base = name.removesuffix(SUFFIX)
    return ENTRIES[base].build(Form(name.endswith(SUFFIX), head=8 if second else 0))
