"""Narrow models of the transformers package as folders that `from_pretrained` opens."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from export_runs import RECIPE  # noqa: E402

import fedwidth  # noqa: E402
from fedwidth.config.read import read_settings  # noqa: E402
from fedwidth.errors import OptionError, PlanError  # noqa: E402
from fedwidth.experiment import Experiment  # noqa: E402
from fedwidth.export.formats import export  # noqa: E402
from fedwidth.export.hugging_face import checked_config, narrow_config, save_folder  # noqa: E402
from fedwidth.export.load import take  # noqa: E402

SMALL = {"vocab_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 16}


def bert():
    config = transformers.BertConfig(hidden_size=32, intermediate_size=48, num_labels=3, **SMALL)
    return transformers.BertForSequenceClassification(config)


def llama():
    config = transformers.LlamaConfig(hidden_size=32, intermediate_size=48, num_key_value_heads=2, **SMALL)
    return transformers.LlamaForCausalLM(config)


def gpt2():
    config = transformers.GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=16)
    return transformers.GPT2LMHeadModel(config)


def gemma():
    config = transformers.GemmaConfig(hidden_size=32, intermediate_size=48, num_key_value_heads=2, head_dim=8, **SMALL)
    return transformers.GemmaForCausalLM(config)


def t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=40, use_cache=False, **sizes))


SIZES = {bert: "hidden_size", llama: "hidden_size", gpt2: "n_embd", gemma: "hidden_size", t5: "d_model"}


def narrowed(make, heads):
    torch.manual_seed(0)
    model, words = make().eval(), torch.randint(0, 40, (2, 9))
    inputs = {"input_ids": words, **({"decoder_input_ids": words} if make is t5 else {})}
    plan = fedwidth.trace(model, inputs, heads=heads, output=lambda out: out[0])
    return fedwidth.narrow(model, plan, fedwidth.method("heterofl").select(plan, capacity=0.5)).eval(), inputs


ROTARY = (llama, gemma)


@pytest.mark.parametrize("heads", ["within", "whole"])
@pytest.mark.parametrize("make", SIZES, ids=lambda make: make.__name__)
def test_a_narrow_model_reloads_with_a_configuration_of_its_width(make, heads, tmp_path):
    small, inputs = narrowed(make, heads)
    if heads == "within" and make in ROTARY:
        with pytest.raises(PlanError, match="heads = 'whole'"):
            save_folder(small, tmp_path / "small", inputs)
        assert not list(tmp_path.iterdir())
        return
    save_folder(small, tmp_path / "small", inputs)
    again = type(small).from_pretrained(tmp_path / "small").eval()
    assert getattr(again.config, SIZES[make]) == 16
    with torch.no_grad():
        assert torch.equal(again(**inputs)[0], small(**inputs)[0])


def test_the_number_of_heads_is_found_though_no_shape_states_it():
    small, inputs = narrowed(bert, "whole")
    assert checked_config(small, inputs).num_attention_heads == 2
    small, inputs = narrowed(bert, "within")
    assert checked_config(small, inputs).num_attention_heads == 4


def test_a_model_no_configuration_gives_is_one_clear_line():
    model, words = bert(), torch.randint(0, 40, (2, 9))
    plan = fedwidth.trace(model, {"input_ids": words}, output=lambda out: out[0])
    counts = plan.counts(0.5)
    feed_forward = [name for name in counts if name.endswith("intermediate.dense")]
    uneven = counts | {feed_forward[0]: 7}
    index = fedwidth.Index.of_units(plan, {name: range(count) for name, count in uneven.items()})
    with pytest.raises(PlanError, match="no configuration of BertForSequenceClassification gives this width"):
        narrow_config(fedwidth.narrow(model, plan, index))


def test_a_run_is_exported_as_a_folder(tmp_path):
    changes = [
        "model.name=hugging_face:classifier",
        "model.options={}",
        "data.name=hugging_face:text",
        "rounds=1",
        "evaluation.capacities=[0.5]",
    ]
    Experiment(read_settings(RECIPE, changes).main).run(tmp_path / "run")
    taken = take(tmp_path / "run", "1/2")
    with pytest.raises(OptionError, match="is a folder"):
        export(taken, "safetensors", tmp_path / "phone.safetensors")
    export(taken, "safetensors", tmp_path / "phone")
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "phone")
    words = torch.randint(2, 30, (2, 8))
    with torch.no_grad():
        assert torch.equal(again(words).logits, taken.model(words).logits)
    assert again.config.hidden_size == 8
    assert "FedRolex" in (tmp_path / "phone" / "README.md").read_text()
    export(taken, "safetensors", tmp_path / "phone", overwrite=True)
    for other in (tmp_path, tmp_path / "run"):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(OptionError, match="a folder that `fedwidth export` did not write"):
            export(taken, "safetensors", other, overwrite=True)
        assert sorted(tmp_path.rglob("*")) == before
    export(taken, "torch", tmp_path / "phone.pt2")
    mask = torch.ones_like(words)
    program = torch.export.load(tmp_path / "phone.pt2").module()
    with torch.no_grad():
        assert torch.allclose(program(input_ids=words, attention_mask=mask), taken.model(words, mask).logits, atol=1e-5)
