"""Random Unicode strings with the ids that Hugging Face's `tokenizers` gives for the starter models.

    pip install tokenizers gguf
    python tests/tokenizers/random_strings.py models/SmolLM2-135M-Instruct.Q4_1.gguf models/gemma-3-270m-q4_k_m.gguf

The tokenizers are rebuilt from the vocabulary and the merges in the model files. Beside each model a file
`NAME.random.json` is written, which the test `random_strings_equal_those_of_tokenizers` of the tokenizer reads.
"""

import json
import random
import sys
from pathlib import Path

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

COUNT = 3000
# Ranges of characters: ASCII, Latin, Greek and Cyrillic, Hebrew to Thai, Hangul, kana, ideographs, symbols, emoji, all.
RANGES = [(0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x52F), (0x590, 0xE7F), (0xAC00, 0xD7A3), (0x3040, 0x30FF),
          (0x4E00, 0x9FFF), (0x2000, 0x2BFF), (0x1F300, 0x1FAFF), (0x0, 0x10FFFF)]
WORDS = ["the", " the", "Hello", "'s", "don't", "I'LL", "\n", "\n\n", "  ", "\t", " \n", "123", "1234567", "3.14", "x != y",
         "é", "e\u0301", "한국어", "漢字", "🦙", "👩‍👩‍👧", "\u200b", "\ufeff", "\u3000", "</s>x", "<|", "|>", "()[]{};", "//", "_a_B"]


def text(generator):
    parts = []
    for _ in range(generator.randrange(1, 24)):
        if generator.random() < 0.5:
            parts.append(generator.choice(WORDS))
            continue
        low, high = generator.choice(RANGES)
        for _ in range(generator.randrange(1, 6)):
            code = generator.randint(low, high)
            if not 0xD800 <= code < 0xE000:
                parts.append(chr(code))
    return "".join(parts)


def field(reader, key):
    found = reader.fields.get(key)
    if found is None:
        return None
    kinds = [kind.name for kind in found.types]
    values = [found.parts[index] for index in found.data]
    values = [bytes(value).decode() if kinds[-1] == "STRING" else value[0] for value in values]
    return values if kinds[0] == "ARRAY" else values[0]


def build(reader):
    tokens, kinds = field(reader, "tokenizer.ggml.tokens"), field(reader, "tokenizer.ggml.token_type")
    vocabulary = {}
    for index, token in enumerate(tokens):
        vocabulary.setdefault(token, index)
    model = field(reader, "tokenizer.ggml.model")
    if model == "gpt2":
        merges = [merge.split(" ") for merge in field(reader, "tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE(vocabulary, [tuple(merge) for merge in merges]))
        assert field(reader, "tokenizer.ggml.pre") == "smollm"
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    else:
        assert model == "llama" and not field(reader, "tokenizer.ggml.add_space_prefix")
        scores = field(reader, "tokenizer.ggml.scores")
        merges = []
        for token, index in vocabulary.items():
            if kinds[index] == 1:
                pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
                pairs = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
                pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
                merges += [(pair, scores[index]) for pair in pairs]
        merges.sort(key=lambda entry: -entry[1])
        tokenizer = Tokenizer(models.BPE(
            vocabulary, [pair for pair, _ in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    own = [AddedToken(token, normalized=False, special=False) for token, kind in zip(tokens, kinds) if kind == 4]
    tokenizer.add_tokens(own)
    return tokenizer


for path in map(Path, sys.argv[1:]):
    tokenizer = build(GGUFReader(path))
    generator = random.Random(1)
    texts = [text(generator) for _ in range(COUNT)]
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    target = path.with_suffix(".random.json")
    target.write_text(json.dumps(dict(texts=texts, ids=ids)))
    print(target, len(texts), "texts")
