"""Small models of Hugging Face and made-up text for them, as recipes name them."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import Dataset

from fedwidth.data import IGNORE, Data, from_tensors

WORDS, LENGTH, SAMPLES, TESTS = 30, 8, 96, 32


def classifier(*, classes: int = 2) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        num_labels=classes,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config)


def translator() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = T5Config(vocab_size=WORDS, dropout_rate=0.0, decoder_start_token_id=0, use_cache=False, **sizes)
    return T5ForConditionalGeneration(config)


def sentences(number: int, seed: int = 0, padding: int = 0) -> dict[str, torch.Tensor]:
    """Sentences of three to eight words, filled up with padding that the mask leaves out."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(2, WORDS, (number, LENGTH), generator=generator)
    lengths = torch.randint(3, LENGTH + 1, (number, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    return {"input_ids": torch.where(mask.bool(), words, padding), "attention_mask": mask}


class Text(Dataset):
    """Samples as Hugging Face's data sets give them: dictionaries with their labels."""

    def __init__(self, number: int, seed: int, padding: int = 0) -> None:
        self.columns = sentences(number, seed, padding)
        first = self.columns["input_ids"][:, 0]
        self.columns["labels"] = (first > WORDS // 2).long()

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {name: column[number] for name, column in self.columns.items()}


def text(*, padding: int = 0) -> tuple[Text, Text]:
    """Whether a sentence begins with a word of the second half."""
    return Text(SAMPLES, 1, padding), Text(TESTS, 2, padding)


def pairs() -> Data:
    """Sentences and what is to be said: of each of the first four words, which of four kinds it is."""

    def split(number: int, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        inputs = sentences(number, seed)
        answer = torch.where(inputs["attention_mask"][:, :4] > 0, inputs["input_ids"][:, :4] % 4, IGNORE)
        before = torch.cat([torch.zeros(number, 1, dtype=torch.long), answer[:, :-1].clamp(min=0)], dim=1)
        return {**inputs, "decoder_input_ids": before}, answer

    train, test = split(SAMPLES, 3), split(TESTS, 4)
    return from_tensors(*train, *test, classes=WORDS)
