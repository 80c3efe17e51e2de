"""The real `peft`: it loads our adapters and we load its, for a small BERT and a small Llama."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import fedwidth
from fedwidth.adapters import load, merge, save
from fedwidth.data import from_tensors
from fedwidth.experiment import Experiment
from fedwidth.settings import DataSettings, DeviceSettings, EvaluationSettings, MethodSettings, Settings
from hugging_face import LENGTH, WORDS, classifier

TARGETS = {"bert": ["query", "value", "intermediate.dense"], "llama": ["q_proj", "v_proj", "down_proj"]}


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForSequenceClassification(LlamaConfig(vocab_size=WORDS, num_labels=2, pad_token_id=0, **sizes))


def model_of(kind: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return (classifier() if kind == "bert" else llama()).eval()


def words() -> Tensor:
    return torch.randint(2, WORDS, (6, LENGTH), generator=torch.Generator().manual_seed(1))


def drawn(model: nn.Module) -> nn.Module:
    """The model with every factor drawn: new adapters add nothing."""
    draws = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=draws) / 4)
    return model


@pytest.fixture
def peft():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("peft", reason="peft is not installed: make test-peft has an environment with it")


def prepared(peft, kind: str) -> nn.Module:
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=TARGETS[kind], lora_dropout=0.0, bias="none")
    return drawn(peft.get_peft_model(model_of(kind), config)).eval()


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.filterwarnings("ignore")
def test_peft_loads_our_adapters(peft, kind, tmp_path):
    ours = drawn(fedwidth.adapt(model_of(kind), rank=4, targets=TARGETS[kind], alpha=6)).eval()
    save(ours, tmp_path)
    theirs = peft.PeftModel.from_pretrained(model_of(kind), str(tmp_path)).eval()
    wanted = ours(words()).logits
    assert float((wanted - model_of(kind)(words()).logits).abs().max()) > 1e-4
    torch.testing.assert_close(theirs(words()).logits, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.filterwarnings("ignore")
def test_we_load_adapters_of_peft(peft, kind, tmp_path):
    theirs = prepared(peft, kind)
    theirs.save_pretrained(str(tmp_path))
    wanted = theirs(words()).logits
    ours = load(model_of(kind), tmp_path).eval()
    torch.testing.assert_close(ours(words()).logits, wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(merge(ours)(words()).logits, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(merge(theirs)(words()).logits, wanted, rtol=1e-4, atol=1e-5)
    again = load(prepared(peft, kind), tmp_path)  # into a model that peft prepared
    torch.testing.assert_close(again(words()).logits, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_layers_that_are_trained_whole_go_with_them(peft, tmp_path):
    ours = drawn(fedwidth.adapt(model_of("bert"), rank=4, targets=["query"], train=["classifier.*"])).eval()
    with torch.no_grad():
        ours.classifier.weight.add_(1.0)
    save(ours, tmp_path)
    theirs = peft.PeftModel.from_pretrained(model_of("bert"), str(tmp_path)).eval()
    torch.testing.assert_close(theirs(words()).logits, ours(words()).logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(load(model_of("bert"), tmp_path)(words()).logits, ours(words()).logits)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_peft_prepared_is_trained_by_ranks(peft, kind, tmp_path):
    model = fedwidth.adapt(prepared(peft, kind), outside="freeze")
    inputs = words().repeat(8, 1)
    labels = (inputs[:, 0] > WORDS // 2).long()
    data = from_tensors(inputs, labels, inputs, labels)
    settings = Settings(
        rounds=2,
        engine="serial",
        method=MethodSettings("fedrolex"),
        data=DataSettings(clients=4),
        devices=DeviceSettings("1:1 1/4:1", per_round=4),
        evaluation=EvaluationSettings(every=2, local=False),
    )
    experiment = Experiment(settings, model=model, data=data)
    assert set(experiment.plan.groups) == experiment.plan.rank_groups
    index = fedwidth.method("fedrolex").select(experiment.plan, capacity=0.5, round=1)
    small = fedwidth.narrow(model, experiment.plan, index)
    torch.testing.assert_close(small(words()).logits, model(words()).logits, rtol=1e-4, atol=1e-5)
    result = experiment.run()
    assert result.metrics[-1]["adapters"]["error"] is not None
    model.load_state_dict(result.server.state, strict=False)
    model.save_pretrained(str(tmp_path))  # it is still peft's own
    torch.testing.assert_close(
        load(model_of(kind), tmp_path)(words()).logits, model.eval()(words()).logits, rtol=1e-4, atol=1e-5
    )
