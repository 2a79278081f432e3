"""Tiny models over the words of some texts: an encoder of the kind of SPLADE, and a cross-encoder with random weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, PreTrainedTokenizerFast

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
DIMENSIONS = 128


def make_splade(folder: Path, texts: Iterable[str]) -> Path:
    """A checkpoint to which a text is about the words that it has, each about as much, and about nothing else.

    Its layers pass on the random vector of each word, and a logit is the product of two: some 128 for the word itself, and
    within 12 or so of 0 for others, which the bias takes off.
    """
    tokenizer = _tokenizer(texts)
    torch.manual_seed(0)
    model = BertForMaskedLM(_config(tokenizer))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "word_embeddings" in name:
                parameter.normal_()
            elif "LayerNorm.weight" in name:
                parameter.fill_(1)
            else:
                parameter.zero_()
        model.cls.predictions.transform.dense.weight.copy_(torch.eye(DIMENSIONS))
        model.cls.predictions.decoder.bias.fill_(-80)
        model.cls.predictions.decoder.bias[: len(SPECIAL)] = -10_000
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_cross_encoder(folder: Path, texts: Iterable[str], labels: int = 1) -> Path:
    tokenizer = _tokenizer(texts)
    torch.manual_seed(0)
    BertForSequenceClassification(_config(tokenizer, num_labels=labels)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _config(tokenizer: PreTrainedTokenizerFast, **more: int) -> BertConfig:
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=DIMENSIONS,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=DIMENSIONS,
        max_position_embeddings=512,
        hidden_act="linear",
        **more,
    )


def _tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    lower, split = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    words = {word for text in texts for word, _ in split.pre_tokenize_str(lower.normalize_str(text))}
    ids = {word: i for i, word in enumerate([*SPECIAL.values(), *sorted(words)])}
    inner = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = lower, split
    inner.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(word, ids[word]) for word in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=512, **SPECIAL)
