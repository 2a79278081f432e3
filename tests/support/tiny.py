"""A random model that knows nothing, for tests that need a real one but not a good one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VOCABULARY = 512
"""Tokens of the small tokenizer: SmolLM2's 49,152 would be nine tenths of a tiny model's work."""

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
"""The special tokens that SmolLM2's template uses, with SmolLM2's ids: 0, 1 and 2."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""SmolLM2's own; tests/engines compares it with what the built-in model brings."""

SENTENCES = """\
system user assistant You are a helpful AI assistant named SmolLM, trained by Hugging Face
You help to answer questions. You see one question and the passages that a search engine has found for it.
Choose one action. Write the action alone, on one line, in one of these forms: [No Retrieval] [Retrieval] [Planning]
Write the numbers of the passages that help to answer the question: Action: [1] Action: [1, 2] Action: []
Decide on the next step. Facts so far, facts that are missing, what to search for: Action: [Retrieval] a query [LLM]
The subquestions of a question, each with a number, and which of them must be answered before it. Question: Answer:
Answer with the fewest words that you can, and say nothing else. If no passage has the answer, give your best guess.
Thimphu is the capital of Bhutan, a kingdom in Asia. The currency of the country is the ngultrum.
On which river lies town 1? Town 1 lies on river 7. Which town is number 2? Which arm, number 3? [left arm] [right arm]
"""


def make_tokenizer() -> PreTrainedTokenizerBase:
    """Byte-level BPE as SmolLM2's: every digit apart, the same special tokens, the same chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES.splitlines(), trainer)
    nothing, start, end = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=nothing,
        bos_token=start,
        eos_token=end,
        pad_token=end,
        chat_template=CHAT_TEMPLATE,
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
    )


def make_tiny(folder: Path, *, seed: int, context: int = 4096, tokenizer: Path | None = None, **sizes: int) -> Path:
    """A Llama of two layers in float32. Its head size is one that vLLM's CPU backend has kernels for.

    Args:
        folder: where it is written.
        seed: of its weights.
        context: tokens that it is made for.
        tokenizer: a model folder whose tokenizer it gets, instead of the one of `make_tokenizer`.
        sizes: override those of the configuration.
    """
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    words = make_tokenizer() if tokenizer is None else AutoTokenizer.from_pretrained(tokenizer)
    small = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": len(words),
    }
    config = LlamaConfig(
        **small | sizes,
        max_position_embeddings=context,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
