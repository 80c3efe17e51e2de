"""Models of the transformers package; tests skip them where it is not installed."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zoo.case import Case, words


def bert(**sizes: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    chosen = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4} | sizes
    fixed = {"vocab_size": 50, "num_hidden_layers": 2, "max_position_embeddings": 32, "num_labels": 5}
    return BertForSequenceClassification(BertConfig(**fixed, **chosen))


def gpt2(**sizes: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    chosen = {"n_embd": 32, "n_inner": 48, "n_head": 4} | sizes
    fixed = {"vocab_size": 50, "n_layer": 2, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**fixed, **chosen))


def llama(**sizes: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    chosen = {"hidden_size": 32, "intermediate_size": 48} | heads | sizes
    fixed = {"vocab_size": 50, "num_hidden_layers": 2, "max_position_embeddings": 32, "tie_word_embeddings": True}
    return LlamaForCausalLM(LlamaConfig(**fixed, **chosen))


def t5(**sizes: int) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    chosen = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4} | sizes
    fixed = {"vocab_size": 50, "num_layers": 1, "decoder_start_token_id": 0, "dropout_rate": 0.0}
    return T5ForConditionalGeneration(T5Config(**fixed, **chosen))


def logits(result: Any) -> Tensor:
    return result.logits


HUGGING_FACE: dict[str, Case] = {
    # residual stream, pooler; per layer query-key, value and intermediate
    "bert": Case(
        bert,
        lambda: bert(hidden_size=16, intermediate_size=24),
        lambda: {"input_ids": words()},
        [8, 8, 8, 8, 32, 32, 48, 48],
        whole=lambda: bert(hidden_size=16, intermediate_size=24, num_attention_heads=2),
        whole_groups=[4, 4, 32, 32, 48, 48],
        couplings=2,
        silent=("key.bias",),
    ),
    "gpt2": Case(
        gpt2,
        lambda: gpt2(n_embd=16, n_inner=24),
        lambda: {"input_ids": words()},
        [8, 8, 8, 8, 32, 48, 48],
        whole=lambda: gpt2(n_embd=16, n_inner=24, n_head=2),
        whole_groups=[4, 4, 32, 48, 48],
        couplings=2,
    ),
    # rotary embedding pairs units d and d + 4, so 4 pairs, the same in all layers; one value width per layer
    "llama": Case(
        llama,
        lambda: llama(hidden_size=16, intermediate_size=24, head_dim=4),
        lambda: {"input_ids": words()},
        [4, 8, 8, 32, 48, 48],
        whole=lambda: llama(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1),
        whole_groups=[2, 2, 32, 48, 48],
        couplings=2,
    ),
    # residual stream of encoder and decoder; three attentions with query-key and value; two feed-forwards
    "t5": Case(
        t5,
        lambda: t5(d_model=16, d_kv=4, d_ff=24),
        lambda: {"input_ids": words(), "decoder_input_ids": words()[:, :4]},
        [8, 8, 8, 8, 8, 8, 32, 48, 48],
        whole=lambda: t5(d_model=16, num_heads=2, d_ff=24),
        couplings=3,
        output=logits,
    ),
}
