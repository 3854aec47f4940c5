"""Small models of the package transformers, sized as in its own tests, and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

Made = tuple[Any, dict[str, Any]]  # a model and the arguments of a call

WORDS = 99
_WIDTHS = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
}
_OF_TEXT = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_LANGUAGE = {**_WIDTHS, **_OF_TEXT, "num_key_value_heads": 2, "max_position_embeddings": 64}


def tokens(length: int = 7) -> Any:
    """Token ids of two sentences."""
    return torch.randint(3, WORDS, (2, length))


def sentences() -> dict[str, Any]:
    """Two sentences, the second one shorter and padded."""
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 5:] = 0
    return {"input_ids": tokens(), "attention_mask": mask}


def images(size: int) -> dict[str, Any]:
    """Two images."""
    return {"pixel_values": torch.randn(2, 3, size, size)}


def bert() -> Made:
    config = transformers.BertConfig(**_WIDTHS, **_OF_TEXT)
    return transformers.BertModel(config), {**sentences(), "token_type_ids": tokens() % 2}


def distilbert() -> Made:
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37}
    config = transformers.DistilBertConfig(**_OF_TEXT, **sizes)
    return transformers.DistilBertModel(config), sentences()


def roberta() -> Made:
    config = transformers.RobertaConfig(**_WIDTHS, **_OF_TEXT)
    return transformers.RobertaModel(config), sentences()


def gpt2() -> Made:
    sizes = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 37}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**_OF_TEXT, **sizes)), sentences()


def llama() -> Made:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_LANGUAGE)), sentences()


def mistral() -> Made:
    config = transformers.MistralConfig(**_LANGUAGE, sliding_window=4)
    return transformers.MistralForCausalLM(config), sentences()


def qwen3() -> Made:
    config = transformers.Qwen3Config(**_LANGUAGE, head_dim=8)
    return transformers.Qwen3ForCausalLM(config), sentences()


def t5() -> Made:
    sizes = {"d_model": 32, "d_ff": 37, "d_kv": 8, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(**_OF_TEXT, **sizes)
    model = transformers.T5ForConditionalGeneration(config)
    return model, {**sentences(), "decoder_input_ids": tokens(5)}


def vit() -> Made:
    config = transformers.ViTConfig(**_WIDTHS, image_size=30, patch_size=2, num_labels=10)
    return transformers.ViTForImageClassification(config), images(30)


def swin() -> Made:
    sizes = {"embed_dim": 16, "depths": [1, 2, 1], "num_heads": [2, 2, 4], "window_size": 2}
    config = transformers.SwinConfig(image_size=32, patch_size=2, **sizes)
    return transformers.SwinModel(config), images(32)


def resnet() -> Made:
    sizes = {"embedding_size": 10, "hidden_sizes": [10, 20, 30, 40], "depths": [1, 1, 2, 1]}
    config = transformers.ResNetConfig(**sizes, num_labels=3)
    return transformers.ResNetForImageClassification(config), images(32)


def convnext() -> Made:
    config = transformers.ConvNextConfig(hidden_sizes=[10, 20, 30, 40], depths=[2, 2, 3, 2])
    return transformers.ConvNextModel(config), images(32)


def mobilenet_v2() -> Made:
    config = transformers.MobileNetV2Config(depth_multiplier=0.25, image_size=32, num_labels=3)
    return transformers.MobileNetV2ForImageClassification(config), images(32)


def whisper() -> Made:
    each = {"layers": 2, "attention_heads": 4, "ffn_dim": 32}
    sizes = {f"{part}_{name}": each[name] for part in ("encoder", "decoder") for name in each}
    limits = {"max_source_positions": 30, "max_target_positions": 40, "decoder_start_token_id": 1}
    config = transformers.WhisperConfig(d_model=16, **_OF_TEXT, **sizes, **limits)
    sound = torch.randn(2, 80, 60)
    return transformers.WhisperModel(config), {
        "input_features": sound,
        "decoder_input_ids": tokens(),
    }


def clip() -> Made:
    text = {**_WIDTHS, **_OF_TEXT, "max_position_embeddings": 64}
    vision = {**_WIDTHS, "image_size": 30, "patch_size": 2}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=64)
    return transformers.CLIPModel(config), {**sentences(), **images(30)}


def rt_detr(large: bool) -> Made:
    """A detector in evaluation mode without zero weights; with one level or three."""
    width, levels = (16, 3) if large else (8, 1)
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=width,
        hidden_sizes=[width] * 4,
        depths=[1] * 4,
        layer_type="bottleneck" if large else "basic",
        out_features=["stage2", "stage3", "stage4"][-levels:],
    )
    config = transformers.RTDetrConfig(
        backbone_config=backbone,
        encoder_hidden_dim=width,
        encoder_in_channels=[width] * levels,
        feat_strides=[8, 16, 32][-levels:],
        encode_proj_layers=[levels - 1],
        encoder_ffn_dim=24,
        encoder_attention_heads=2,
        d_model=width,
        num_queries=6,
        decoder_in_channels=[width] * levels,
        decoder_ffn_dim=24,
        num_feature_levels=levels,
        decoder_n_points=2,
        decoder_layers=levels,
        decoder_attention_heads=2,
        num_denoising=0,
        num_labels=4,
    )
    model = _disturbed(transformers.RTDetrForObjectDetection(config).eval(), 0.3)
    return model, {"pixel_values": torch.randn(1, 3, 96, 128)}


def vits(large: bool) -> Made:
    """A speech model in evaluation mode with noise of scale 0."""
    count = 2 if large else 1
    config = transformers.VitsConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=count,
        num_attention_heads=2,
        window_size=2,
        ffn_dim=24,
        flow_size=16,
        spectrogram_bins=9,
        upsample_initial_channel=16,
        upsample_rates=[4] * count,
        upsample_kernel_sizes=[8] * count,
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        prior_encoder_num_flows=count,
        prior_encoder_num_wavenet_layers=count,
        posterior_encoder_num_wavenet_layers=1,
        depth_separable_num_layers=count,
        duration_predictor_num_flows=count + 1,
        duration_predictor_flow_bins=4,
        duration_predictor_filter_channels=16,
        noise_scale=0.0,
        noise_scale_duration=0.0,
    )
    model = _disturbed(transformers.VitsModel(config).eval(), 0.1)
    words = tokens(9)[:1]
    return model, {"input_ids": words, "attention_mask": torch.ones_like(words)}


def _disturbed(model: Any, by: float) -> Any:
    """The model with perturbed weights: no value is 0 and no two are equal."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * by)
    return model


WITH_ATTENTION: tuple[Callable[[], Made], ...] = (
    *(bert, distilbert, roberta, gpt2, llama, mistral, qwen3, t5, vit, swin, whisper, clip),
)
WITHOUT_ATTENTION: tuple[Callable[[], Made], ...] = (resnet, convnext, mobilenet_v2)
