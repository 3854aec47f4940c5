"""Generates text with a decoder that onnxruntime-genai exported.

    pip install tvm_hybrid tokenizers
    python examples/generate.py FOLDER "Once upon a time"
    python examples/generate.py FOLDER "Once upon a time" --temperature 0    # the likeliest tokens
    python examples/generate.py FOLDER - --temperature 0.8 --top-p 0.95 --seed 1 < prompt.txt

FOLDER contains genai_config.json, the ONNX file that it names, and tokenizer.json. The prompt is
used unchanged: chat templates are up to the caller. By default, tokens are chosen as
genai_config.json says. Text is printed as its tokens are chosen; the rates of the prompt and of the
generated tokens are printed at the end, to standard error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

import tvm_hybrid


@dataclass(frozen=True)
class Config:
    """The parts of genai_config.json that describe a decoder.

    Attributes
    ----------
    model : Path
        The ONNX file.
    layers, context : int
        Number of layers, and most tokens.
    inputs, outputs : dict
        Meaning of an input or output -> its name; names of caches contain %d for the layer.
    ends : tuple of int
        Tokens that end a text.
    search : dict
        How tokens are chosen by default.
    """

    model: Path
    layers: int
    context: int
    inputs: dict[str, str]
    outputs: dict[str, str]
    ends: tuple[int, ...]
    search: dict[str, Any]

    @staticmethod
    def read(folder: Path) -> Config:
        """Reads the configuration of a folder."""
        whole = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))
        model, ends = whole["model"], whole["model"]["eos_token_id"]
        decoder = model["decoder"]
        return Config(
            folder / decoder["filename"],
            decoder["num_hidden_layers"],
            model["context_length"],
            decoder["inputs"],
            decoder["outputs"],
            tuple(ends) if isinstance(ends, list) else (ends,),
            whole.get("search", {}),
        )


class Decoder:
    """A decoder, with the keys and values of the tokens that it has read.

    Caches are arrays with room for all tokens. Each run is bound to their first rows, so that it
    writes only the rows of new tokens and copies nothing.

    Parameters
    ----------
    config : Config
        The model.
    threads : int or None
        Number of threads; None for one on each core.
    """

    def __init__(self, config: Config, threads: int | None = None) -> None:
        self.session = tvm_hybrid.InferenceSession(str(config.model), num_threads=threads)
        self.names, self.logits_name = config.inputs, config.outputs["logits"]
        self.infos = {info.name: info for info in self.session.get_inputs()}
        pairs = [
            (config.inputs[f"past_{part}_names"], config.outputs[f"present_{part}_names"])
            for part in ("key", "value")
        ]
        self.caches = [
            (past % layer, present % layer)
            for layer in range(config.layers)
            for past, present in pairs
        ]
        self.rows: dict[str, np.ndarray] = {}
        self.length = 0

    def begin(self, room: int) -> None:
        """Forgets all tokens, and makes room for `room` tokens."""
        self.length = 0
        for name, _ in self.caches:
            _, heads, _, size = self.infos[name].shape
            self.rows[name] = np.zeros((1, heads, room, size), self.infos[name].dtype)

    def read(self, tokens: Sequence[int]) -> np.ndarray:
        """Reads further tokens; returns the scores of all tokens that may follow the last one."""
        before, end = self.length, self.length + len(tokens)
        feeds = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, end)),
            "position_ids": np.arange(before, end)[None],
        }
        binding = self.session.io_binding()
        binding.bind_output(self.logits_name)
        for meaning, value in feeds.items():
            name = self.names.get(meaning)
            if name in self.infos:  # GroupQueryAttention computes positions itself
                binding.bind_input(name, value.astype(self.infos[name].dtype))
        for past, present in self.caches:
            binding.bind_input(past, self.rows[past][:, :, :before])
            binding.bind_output(present, self.rows[past][:, :, :end])
        self.session.run_with_iobinding(binding)
        self.length = end
        return binding.get_outputs()[0][0, -1].astype(np.float32)


@dataclass
class Sampler:
    """Chooses tokens by their scores.

    Attributes
    ----------
    temperature : float
        Scores are divided by it; 0: the token with the highest score is chosen.
    top_k : int
        Number of tokens to choose from, those with the highest scores; 0 for all.
    top_p : float
        Chooses from the likeliest tokens whose probabilities add up to at least this.
    penalty : float
        Positive scores of earlier tokens are divided by it, negative ones multiplied.
    rng : numpy.random.Generator
        The source of randomness.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    penalty: float = 1.0
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def choose(self, scores: np.ndarray, before: Sequence[int]) -> int:
        """Chooses a token to follow the tokens `before`."""
        if self.penalty != 1.0:
            seen = np.unique(np.array(before))
            old = scores[seen]
            scores[seen] = np.where(old > 0, old / self.penalty, old * self.penalty)
        if not self.temperature:
            return int(scores.argmax())
        places = np.argsort(-scores, kind="stable")[: self.top_k or None]
        likely = np.exp((scores[places] - scores[places[0]]) / self.temperature)
        likely /= likely.sum()
        count = np.searchsorted(np.cumsum(likely), self.top_p) + 1
        return int(self.rng.choice(places[:count], p=likely[:count] / likely[:count].sum()))


class Generator:
    """Generates text that continues a prompt.

    Parameters
    ----------
    folder : Path
        Folder with genai_config.json and tokenizer.json.
    threads : int or None
        See `Decoder`.

    Attributes
    ----------
    rates : dict
        Number of tokens and seconds of the prompt and of the steps, in the last `stream`.
    """

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        self.config = Config.read(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.decoder = Decoder(self.config, threads)
        self.rates: dict[str, tuple[int, float]] = {}

    def sampler(self, **given: Any) -> Sampler:
        """Makes a sampler of the caller's values, else of the configuration's.

        Tokens are random if the configuration says so, or the caller gives any value. A `seed`
        makes them reproducible.
        """
        given = {name: value for name, value in given.items() if value is not None}
        said = {**self.config.search, **given}
        drawn = given or said.get("do_sample", False)
        return Sampler(
            said.get("temperature", 1.0) if drawn else 0.0,
            said.get("top_k", 0),
            said.get("top_p", 1.0),
            said.get("repetition_penalty", 1.0),
            np.random.default_rng(said.get("seed")),
        )

    def stream(self, prompt: str, tokens: int, sampler: Sampler) -> Iterator[str]:
        """Yields pieces of text, each of whole characters.

        Parameters
        ----------
        prompt : str
            The text to continue.
        tokens : int
            Most new tokens.
        sampler : Sampler
            Chooses the tokens.
        """
        ids = list(self.tokenizer.encode(prompt).ids)
        if not ids:
            raise ValueError("the prompt has no tokens")
        room = min(len(ids) + tokens, self.config.context)
        if room <= len(ids):
            raise ValueError(f"the prompt has {len(ids)} tokens: no room in {room}")
        self.decoder.begin(room)
        text, new = DecodeStream(ids=ids, skip_special_tokens=True), ids
        self.rates = {"prompt": (0, 0.0), "steps": (0, 0.0)}
        while len(ids) < room:
            start = time.perf_counter()
            scores = self.decoder.read(new)
            new = [sampler.choose(scores, ids)]
            part = "steps" if self.rates["prompt"][0] else "prompt"
            count, seconds = self.rates[part]
            read = 1 if part == "steps" else len(ids)
            self.rates[part] = count + read, seconds + time.perf_counter() - start
            if new[0] in self.config.ends:
                return
            ids = ids + new
            piece = text.step(self.tokenizer, new[0])
            if piece:
                yield piece


@click.command(help=__doc__.partition("\n")[0])
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.argument("prompt")
@click.option("--tokens", default=128, show_default=True, help="Most tokens.")
@click.option("--temperature", type=float, help="0: always the likeliest token.")
@click.option("--top-k", type=int, help="Choose from this many of the likeliest tokens; 0: all.")
@click.option("--top-p", type=float, help="Choose from the likeliest tokens of this probability.")
@click.option("--repetition-penalty", type=float, help="Above 1: fewer repetitions.")
@click.option("--seed", type=int, help="Makes random choices reproducible.")
@click.option("--threads", type=int, help="Default: one on each core.")
def main(folder: Path, prompt: str, tokens: int, threads: int | None, **sampling: Any) -> None:
    """Prints the generated text, then the rates."""
    generator = Generator(folder, threads)
    text = sys.stdin.read() if prompt == "-" else prompt
    try:
        for piece in generator.stream(text, tokens, generator.sampler(**sampling)):
            click.echo(piece, nl=False)
            sys.stdout.flush()
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    click.echo()
    for what, (count, seconds) in generator.rates.items():
        if count:
            rate = f"{count / seconds:.1f} tokens/s"
            click.echo(f"{what}: {count} tokens in {seconds:.3f} s, {rate}", err=True)


if __name__ == "__main__":
    main()
