"""The examples that end the help of every command."""

from __future__ import annotations

import click

EXAMPLES: dict[str, tuple[str, ...]] = {
    "compile": (
        "tvm-hybrid compile model.onnx -o model.so",
        "tvm-hybrid compile model.onnx -o model.so --dim batch=8 --target spr --threads 16",
        "tvm-hybrid compile model.onnx -o model.so --keep-open --precision bf16",
        "tvm-hybrid compile model.onnx -o model.so --target spr --fallback avx512_vnni",
    ),
    "run": (
        "tvm-hybrid run model.onnx --input x=x.npy --output y.npz",
        "tvm-hybrid run model.so --inputs feeds.npz --json",
        "tvm-hybrid run model.onnx --shape x=1x128 --threads socket:0",
    ),
    "bench": (
        "tvm-hybrid bench model.onnx --threads 1",
        "tvm-hybrid bench model.onnx --peers ort,openvino --dim batch=8",
        "tvm-hybrid bench model.onnx --variants --json",
        "tvm-hybrid bench model.onnx --predict --target spr --precision bf16",
        "tvm-hybrid bench model.onnx --streams 1,2 --duration 10",
        "tvm-hybrid bench --layers resnet18",
    ),
    "verify": (
        "tvm-hybrid verify model.onnx",
        "tvm-hybrid verify model.onnx --inputs feeds.npz --precision bf16",
    ),
    "quantize": (
        "tvm-hybrid quantize model.onnx -o int8.onnx --data samples/",
        "tvm-hybrid quantize model.onnx -o int8.onnx --data samples.npz --calibration entropy",
        "tvm-hybrid quantize model.onnx -o int8.onnx --dynamic",
        "tvm-hybrid quantize model.onnx -o int4.onnx --weights 4",
    ),
    "serve": (
        "tvm-hybrid serve model.onnx --streams 2",
        "tvm-hybrid serve model.onnx --max-batch 16 --max-delay-ms 2 --port 8000",
    ),
    "report": ("tvm-hybrid report model.onnx -o report.html",),
    "explain": (
        "tvm-hybrid explain model.onnx",
        "tvm-hybrid explain model.so --json",
        "tvm-hybrid explain model.onnx --target spr --dump-ir passes/",
    ),
    "check": ("tvm-hybrid check model.so",),
    "scale": (
        "tvm-hybrid scale model.onnx --threads 1,2,4",
        "tvm-hybrid scale model.onnx --target spr --threads 1,8,56 --rows 20",
    ),
    "tune": (
        "tvm-hybrid tune model.onnx --records r.jsonl --threads 1",
        "tvm-hybrid tune model.onnx --time-limit 600 --threads socket:0 --plot progress.png",
        "tvm-hybrid tune model.onnx --tracker host:9190 --key xeon",
    ),
    "layouts": ("tvm-hybrid layouts model.onnx --folder runs --trials 400 --threads 1",),
    "records": ("tvm-hybrid records best r.jsonl",),
    "records list": ("tvm-hybrid records list r.jsonl",),
    "records show": ("tvm-hybrid records show r.jsonl",),
    "records best": ("tvm-hybrid records best r.jsonl --json",),
    "records check": ("tvm-hybrid records check r.jsonl",),
    "records merge": ("tvm-hybrid records merge a.jsonl b.jsonl -o all.jsonl",),
    "records prune": ("tvm-hybrid records prune r.jsonl",),
    "records export": ("tvm-hybrid records export r.jsonl database/",),
    "records import": ("tvm-hybrid records import database/ r.jsonl",),
    "simulate": ("tvm-hybrid simulate --strategy model",),
    "record-spaces": ("tvm-hybrid record-spaces --list",),
    "calibrate": ("tvm-hybrid calibrate",),
    "kernels": ("tvm-hybrid kernels --json",),
    "doctor": ("tvm-hybrid doctor --json",),
    "completion": (
        "tvm-hybrid completion bash > ~/.local/share/bash-completion/completions/tvm-hybrid",
        "tvm-hybrid completion zsh > ~/.zfunc/_tvm-hybrid",
        "tvm-hybrid completion fish > ~/.config/fish/completions/tvm-hybrid.fish",
    ),
}


def add_examples(command: click.Command, name: str) -> None:
    """Puts examples behind the help of a command, and of those in it."""
    found = EXAMPLES.get(name, ())
    if found:
        command.epilog = "\n".join(("\b", "Examples:", *(f"  {line}" for line in found)))
    for inner, each in getattr(command, "commands", {}).items():
        add_examples(each, f"{name} {inner}")
