"""Which published models shrink: trace, check in both modes, and the share of parameters at half width.

    python benchmarks/published_models.py torchvision timm transformers --out results/published_models.json

torchvision, timm and transformers are no dependencies of fedwidth: a family whose package is not installed is left out.
Models of torchvision and timm are taken as they are, with random weights; those of transformers are made small. A model
that takes too long is given up and listed as such.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedwidth.plan.axis import Fixed, leaves

TORCHVISION = {
    **dict.fromkeys(("alexnet", "vgg11_bn", "resnet18", "resnet50", "wide_resnet50_2", "resnext50_32x4d"), 64),
    **dict.fromkeys(("densenet121", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0"), 64),
    **dict.fromkeys(("efficientnet_v2_s", "mnasnet0_5", "regnet_y_400mf", "convnext_tiny", "shufflenet_v2_x1_0"), 64),
    **{"googlenet": 96, "inception_v3": 299, "vit_b_16": 224, "swin_t": 64, "swin_v2_t": 64, "maxvit_t": 224},
    **dict.fromkeys(("shufflenet_v2_x0_5", "regnet_x_400mf", "mobilenet_v3_large", "mnasnet1_0", "resnet34"), 64),
}
TIMM = {
    **dict.fromkeys(("edgenext_xx_small", "skresnet18", "eca_nfnet_l0", "lambda_resnet26t", "resnest14d"), 64),
    **dict.fromkeys(("res2net50_26w_4s", "dpn48b", "ghostnet_100", "hrnet_w18_small", "tf_mixnet_s"), 64),
    **dict.fromkeys(("cspresnet50", "dm_nfnet_f0", "ese_vovnet19b_dw", "fbnetc_100", "hardcorenas_a"), 64),
    **dict.fromkeys(("mobileone_s0", "repvgg_a0", "rexnet_100", "selecsls42b", "starnet_s1", "tinynet_e"), 64),
    **dict.fromkeys(("convmixer_768_32", "poolformer_s12", "fastvit_t8", "inception_next_atto"), 64),
    **dict.fromkeys(("halonet26t", "botnet26t_256"), 256),
    **dict.fromkeys(("swin_tiny_patch4_window7_224", "deit_tiny_patch16_224", "mixer_s32_224", "gmlp_s16_224"), 224),
    **dict.fromkeys(("xcit_nano_12_p16_224", "pit_ti_224", "levit_128s", "cait_xxs24_224", "coat_tiny"), 224),
    **dict.fromkeys(("naflexvit_base_patch16_gap",), 64),
    **dict.fromkeys(("crossvit_tiny_240", "beit_base_patch16_224", "twins_pcpvt_small", "visformer_tiny"), 224),
}
MAX_SHARE, MAX_REASONS = 0.34, 4
"""The share of the parameters at half width above which reasons are given, and how many."""
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TOKENS = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 40}
BOTH = {
    f"{half}_{what}": number
    for half in ("encoder", "decoder")
    for what, number in (("layers", 1), ("ffn_dim", 48), ("attention_heads", 4))
}
SOUND = {
    **{"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2},
    **{"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "mask_time_length": 2},
}
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "BertForSequenceClassification": ("BertConfig", SMALL),
    "RobertaForSequenceClassification": ("RobertaConfig", SMALL),
    "DistilBertForSequenceClassification": (
        "DistilBertConfig",
        {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
    ),
    "AlbertForSequenceClassification": ("AlbertConfig", {**SMALL, "embedding_size": 16}),
    "ElectraForSequenceClassification": ("ElectraConfig", {**SMALL, "embedding_size": 16}),
    "DebertaV2ForSequenceClassification": ("DebertaV2Config", SMALL),
    "ConvBertForSequenceClassification": ("ConvBertConfig", {**SMALL, "embedding_size": 32}),
    "MPNetForSequenceClassification": ("MPNetConfig", SMALL),
    "FunnelForSequenceClassification": (
        "FunnelConfig",
        {"block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48},
    ),
    "LongformerForSequenceClassification": ("LongformerConfig", {**SMALL, "attention_window": 4}),
    "BigBirdForSequenceClassification": ("BigBirdConfig", {**SMALL, "attention_type": "original_full"}),
    "FNetForSequenceClassification": ("FNetConfig", {k: SMALL[k] for k in list(SMALL)[:3]}),
    "GPT2LMHeadModel": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SMALL),
    "GPTJForCausalLM": ("GPTJConfig", {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}),
    "OPTForCausalLM": (
        "OPTConfig",
        {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    ),
    "BloomForCausalLM": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "FalconForCausalLM": ("FalconConfig", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}),
    "LlamaForCausalLM": ("LlamaConfig", {**SMALL, "num_key_value_heads": 2}),
    "MistralForCausalLM": ("MistralConfig", {**SMALL, "num_key_value_heads": 2}),
    "GemmaForCausalLM": ("GemmaConfig", {**SMALL, "num_key_value_heads": 2, "head_dim": 8}),
    "Gemma2ForCausalLM": ("Gemma2Config", {**SMALL, "num_key_value_heads": 2, "head_dim": 8}),
    "PhiForCausalLM": ("PhiConfig", SMALL),
    "Phi3ForCausalLM": ("Phi3Config", {**SMALL, "num_key_value_heads": 2}),
    "Qwen2ForCausalLM": ("Qwen2Config", {**SMALL, "num_key_value_heads": 2}),
    "Qwen3ForCausalLM": ("Qwen3Config", {**SMALL, "num_key_value_heads": 2, "head_dim": 8}),
    "StableLmForCausalLM": ("StableLmConfig", {**SMALL, "num_key_value_heads": 2}),
    "MixtralForCausalLM": ("MixtralConfig", {**SMALL, "num_key_value_heads": 2, "num_local_experts": 4}),
    "Qwen2MoeForCausalLM": (
        "Qwen2MoeConfig",
        {**SMALL, "num_key_value_heads": 2, "num_experts": 4, "moe_intermediate_size": 24},
    ),
    "DeepseekV3ForCausalLM": (
        "DeepseekV3Config",
        {
            **SMALL,
            **{"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1},
            **{"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
            **{"first_k_dense_replace": 1, "num_key_value_heads": 4, "n_group": 2, "topk_group": 1},
        },
    ),
    "MambaForCausalLM": ("MambaConfig", {"hidden_size": 32, "state_size": 8, "num_hidden_layers": 2}),
    "Mamba2ForCausalLM": (
        "Mamba2Config",
        {"hidden_size": 32, "num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 2, "num_hidden_layers": 2},
    ),
    "RwkvForCausalLM": ("RwkvConfig", {"hidden_size": 32, "num_hidden_layers": 2}),
    "Qwen3MoeForCausalLM": (
        "Qwen3MoeConfig",
        {
            **SMALL,
            **{"num_key_value_heads": 2, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2},
            **{"moe_intermediate_size": 24},
        },
    ),
    "BartForSequenceClassification": ("BartConfig", {**BOTH, "d_model": 32, "max_position_embeddings": 40}),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0},
    ),
    "Wav2Vec2ForCTC": ("Wav2Vec2Config", {**SMALL, **SOUND}),
    "HubertForCTC": ("HubertConfig", {**SMALL, **SOUND}),
    "ViTForImageClassification": ("ViTConfig", {**SMALL, "image_size": 64, "patch_size": 16}),
    "SwinForImageClassification": (
        "SwinConfig",
        {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "image_size": 64, "patch_size": 4},
    ),
    "ConvNextForImageClassification": ("ConvNextConfig", {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}),
    "SegformerForSemanticSegmentation": (
        "SegformerConfig",
        {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 32},
    ),
    "DetrForObjectDetection": (
        "DetrConfig",
        {
            **{**BOTH, "d_model": 32, "num_queries": 5, "num_labels": 4, "use_timm_backbone": False},
            "backbone_config": {
                **{"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 16, 32]},
                **{"depths": [1, 1, 1, 1], "out_features": ["stage4"]},
            },
        },
    ),
}


def build(family: str, name: str) -> tuple[nn.Module, Any]:
    """The model with random weights, and example inputs."""
    torch.manual_seed(0)
    if family == "transformers":
        import transformers

        transformers.logging.set_verbosity_error()
        config, settings = TRANSFORMERS[name]
        model = getattr(transformers, name)(getattr(transformers, config)(**{**TOKENS, **settings}))
        return model, example(model.main_input_name, seq2seq=name.startswith("T5"))
    size = (TORCHVISION if family == "torchvision" else TIMM)[name]
    if family == "torchvision":
        import torchvision

        more = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        return torchvision.models.get_model(name, weights=None, **more), torch.randn(2, 3, size, size)
    import timm

    return timm.create_model(name), torch.randn(2, 3, size, size)


def example(name: str, *, seq2seq: bool) -> dict[str, Tensor]:
    """Inputs for a small model that takes words, sounds or pictures."""
    if name == "input_values":
        return {name: torch.randn(2, 400)}
    if name == "pixel_values":
        return {name: torch.randn(2, 3, 64, 64)}
    words = torch.randint(3, 50, (2, 8))
    words[:, -1] = TOKENS["eos_token_id"]  # BART's classifier reads where a sentence ends
    return {name: words, "decoder_input_ids": words} if seq2seq else {name: words}


def counted(result: Any) -> Any:
    """What of the output must stay whole."""
    if hasattr(result, "pred_boxes"):
        return result.logits, result.pred_boxes
    return result.logits if hasattr(result, "logits") and not isinstance(result, (Tensor, tuple)) else result


def examine(family: str, name: str) -> dict[str, Any]:
    """What tracing and checking give, in this process."""
    import fedwidth
    from fedwidth.plan.shares import share, why_so_large

    model, inputs = build(family, name)
    begin = time.perf_counter()
    plan = fedwidth.trace(model, inputs, output=counted)
    found: dict[str, Any] = {"groups": len(plan.groups), "trace_seconds": round(time.perf_counter() - begin, 1)}
    begin = time.perf_counter()
    plan.check(model, inputs, output=counted)
    found["check_seconds"] = round(time.perf_counter() - begin, 1)
    found["share_at_half"] = round(share(plan, 0.5).parameters, 3)
    if found["share_at_half"] > MAX_SHARE:
        found["why"] = (why_so_large(plan, share(plan, 0.5)) + one_sided(plan))[:MAX_REASONS]
    if plan.unknown_operators:
        found["without_rule"] = dict(plan.unknown_operators)
    return found


def one_sided(plan: Any) -> list[str]:
    """Weights of which one side alone shrinks, the largest first: they keep half of their parameters, not a quarter."""
    counts = plan.counts(0.5)
    shapes, found = plan.narrow_shapes(counts), []
    names = [name for name in plan.parameters if name not in plan.tied]
    total = sum(math.prod(plan.shapes[name]) for name in names)
    for name in names:
        full, narrow = math.prod(plan.shapes[name]), math.prod(shapes[name])
        if 0.4 * full < narrow <= 0.6 * full and narrow > 0.02 * total:
            kept = [axis for axis, n, m in zip(plan.axes[name], plan.shapes[name], shapes[name], strict=True) if n == m]
            why = next((leaf.reason for axis in kept for leaf in leaves(axis) if isinstance(leaf, Fixed)), "one side")
            found.append((narrow / total, f"{name} shrinks on one side ({narrow / total:.0%}): {why}"))
    return [line for _, line in sorted(found, reverse=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    families = {"torchvision": TORCHVISION, "timm": TIMM, "transformers": TRANSFORMERS}
    parser.add_argument("families", nargs="*", default=list(families))
    parser.add_argument("--only", help="a part of the names to take")
    parser.add_argument("--seconds", type=float, default=600, help="limit for one model")
    parser.add_argument("--workers", type=int, default=1, help="models examined side by side, each in a process")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--examine", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.examine:
        print(json.dumps(examine(*given.examine)))
        return
    results: dict[str, Any] = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    wanted = [(family, name) for family in given.families for name in families[family] if (given.only or "") in name]
    with ThreadPoolExecutor(given.workers) as pool:
        examined = {pool.submit(_in_a_process, *one, given.seconds): one for one in wanted}
        for done in as_completed(examined):
            (family, name), found = examined[done], done.result()
            results.setdefault(family, {})[name] = found
            print(f"{family:12} {name:34} {json.dumps(found)}", flush=True)
            if given.out:
                given.out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def _in_a_process(family: str, name: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", __file__, "--examine", family, name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"took more than {seconds:.0f} s"}
    if done.returncode:
        return {"problem": done.stderr.strip().splitlines()[-1][:300] if done.stderr.strip() else "died"}
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
