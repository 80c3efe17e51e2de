"""Published models that once stayed mostly whole: small ones of the transformers package, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedwidth.core.index import Index
from fedwidth.core.narrow import narrow
from fedwidth.plan.shares import share
from fedwidth.plan.trace import trace

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TOKENS = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
FEATURES = {
    **{"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2},
    **{"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "mask_time_length": 2},
}


def make(model: str, config: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**{**TOKENS, **settings}))


def words() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 50, (2, 8), generator=torch.Generator().manual_seed(1))}


def sentences() -> dict[str, Tensor]:
    return {"input_ids": torch.tensor([[5, 6, 7, 8, 2], [9, 8, 7, 5, 2]])}


def sounds() -> dict[str, Tensor]:
    return {"input_values": torch.randn(2, 400, generator=torch.Generator().manual_seed(1))}


def pictures() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))}


def detr() -> nn.Module:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    layers = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in (("layers", 1), ("ffn_dim", 48))}
    heads = {f"{part}_attention_heads": 4 for part in ("encoder", "decoder")}
    torch.manual_seed(0)
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, d_model=32, num_queries=5, num_labels=4, **layers, **heads
    )
    return transformers.DetrForObjectDetection(config)


BART = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 40}

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], str]] = {
    "Mixtral": (
        lambda: make(
            "MixtralForCausalLM", "MixtralConfig", **SIZES, num_key_value_heads=2, num_local_experts=4, head_dim=8
        ),
        words,
        "",
    ),
    "Qwen2-MoE": (
        lambda: make(
            "Qwen2MoeForCausalLM",
            "Qwen2MoeConfig",
            **SIZES,
            **EXPERTS,
            num_key_value_heads=2,
            num_experts=4,
            shared_expert_intermediate_size=32,
        ),
        words,
        "",
    ),
    "Qwen3-MoE": (
        lambda: make(
            "Qwen3MoeForCausalLM",
            "Qwen3MoeConfig",
            **SIZES,
            **EXPERTS,
            num_key_value_heads=2,
            num_experts=4,
            head_dim=8,
        ),
        words,
        "",
    ),
    "DeepSeek-V3": (
        lambda: make(
            "DeepseekV3ForCausalLM",
            "DeepseekV3Config",
            **SIZES,
            **EXPERTS,
            **LATENT,
            n_routed_experts=8,
            n_shared_experts=1,
            first_k_dense_replace=1,
            num_key_value_heads=4,
            n_group=2,
            topk_group=1,
        ),
        words,
        "",
    ),
    "Longformer": (
        lambda: make(
            "LongformerForSequenceClassification",
            "LongformerConfig",
            **SIZES,
            attention_window=4,
            max_position_embeddings=40,
        ),
        words,
        "",
    ),
    "Funnel": (
        lambda: make(
            "FunnelForSequenceClassification",
            "FunnelConfig",
            block_sizes=[1, 1],
            num_decoder_layers=1,
            d_model=32,
            n_head=4,
            d_head=8,
            d_inner=48,
        ),
        words,
        "",
    ),
    "Mamba 2": (
        lambda: make(
            "Mamba2ForCausalLM",
            "Mamba2Config",
            hidden_size=32,
            num_heads=8,
            head_dim=8,
            state_size=16,
            n_groups=2,
            num_hidden_layers=2,
            chunk_size=4,
        ),
        words,
        "",
    ),
    "BART": (lambda: make("BartForSequenceClassification", "BartConfig", **BART), sentences, ""),
    "DETR": (detr, pictures, "numbered positions"),
    "FNet": (
        lambda: make(
            "FNetForSequenceClassification",
            "FNetConfig",
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            max_position_embeddings=40,
        ),
        words,
        "turned into frequencies",
    ),
    "Wav2Vec2": (lambda: make("Wav2Vec2ForCTC", "Wav2Vec2Config", **SIZES, **FEATURES), sounds, ""),
    "HuBERT": (lambda: make("HubertForCTC", "HubertConfig", **SIZES, **FEATURES), sounds, ""),
    "Gemma": (
        lambda: make("GemmaForCausalLM", "GemmaConfig", **SIZES, num_key_value_heads=2, head_dim=8),
        words,
        "",
    ),
}


def counted(result: Any) -> Any:
    return (result.logits, result.pred_boxes) if hasattr(result, "pred_boxes") else result.logits


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_shrinks_or_says_why(name: str) -> None:
    build, inputs, reason = MODELS[name]
    model = build()
    plan = trace(model, inputs(), output=counted)
    assert not plan.unknown_operators
    plan.check(model, inputs(), output=counted)
    assert share(plan, 0.5).parameters <= 0.34 or reason in {why for _, _, why in plan.frozen() if reason}
    small = narrow(model, plan, Index.of_units(plan, {g: range(n) for g, n in plan.counts(0.25).items()})).train()
    found = small(**inputs()).logits
    found.float().square().mean().backward()
    assert all(parameter.grad is None or torch.isfinite(parameter.grad).all() for parameter in small.parameters())
