"""The built-in model: a Llama of 157,888 parameters with random weights and a tokenizer of its own.

Saved as an ordinary model folder, so that it takes the same road as a model of any size. The tokenizer is a
byte-level BPE, lossless for any text. Its vocabulary holds the words of the corpus beside this module as
whole ids, taken without merges as in Llama 3, because the length of sequences is what training costs; the
merges are for all other words. Everything is deterministic.
"""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trainer_client.models.corpus import CORPUS, NOUNS

END_OF_TURN = "<|end|>"
SPECIAL_TOKENS = ("<|pad|>", END_OF_TURN, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MERGES = 224

# A marker of a call, a word with the space before it, a digit, a run of other signs, or white space.
_PIECES = r" ?</?call>| ?[A-Za-z_]+| ?[0-9]| ?[^\sA-Za-z_0-9]+|\s+(?!\S)|\s+"


def build_tiny(folder: Path, seed: int = 0) -> None:
    """Writes the model folder; the same seed gives the same bytes."""
    tokenizer = build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Returns the tokenizer with its chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = _find_words(CORPUS + "".join(f"{noun} {noun}\n" for noun in NOUNS.split()))
    merges = _learn_merges(words)
    pieces = [*SPECIAL_TOKENS, *alphabet, *(left + right for left, right in merges), *words]
    numbered = {token: number for number, token in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocab=numbered, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END_OF_TURN, pad_token=SPECIAL_TOKENS[0]
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _find_words(corpus: str) -> list[str]:
    """Returns the words of the corpus in the spelling of the tokenizer, which has a letter for each byte."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return sorted({letters.pre_tokenize_str(piece)[0][0] for piece in re.findall(_PIECES, corpus)})


def _learn_merges(words: list[str]) -> list[tuple[str, str]]:
    """Learns the merges of a BPE, each different word once, because they are for words that are not here."""
    spellings = [list(word) for word in words]
    merges: list[tuple[str, str]] = []
    while len(merges) < MERGES:
        pairs = Counter(pair for spelling in spellings for pair in pairwise(spelling))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        spellings = [_merge(spelling, best) for spelling in spellings]
    return merges


def _merge(spelling: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for letter in spelling:
        if merged and (merged[-1], letter) == pair:
            merged[-1] += letter
        else:
            merged.append(letter)
    return merged
