"""Makes the small tokenizers in tests/fixtures/convert-tokenizer with the ids that Hugging Face's libraries give.

    pip install tokenizers transformers sentencepiece
    python crates/convert/tests/make_tokenizers.py
"""

import json
import shutil
from pathlib import Path

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig

FOLDER = Path(__file__).resolve().parents[3] / "tests" / "fixtures" / "convert-tokenizer"
TEXTS = [
    "Hello world, this is a test.",
    "  two  spaces and\ta tab\n\nnew lines  ",
    "don't we'll I'm THEY'RE",
    "1234567 and 3.14159, 2024-05-06",
    "naïve café, Ünïcödé, Straße",
    "漢字と かな and 한국어",
    "x += y*2; // comment\n    return x",
    "emoji 🦀🦀 end",
    "<|special|>after a special token",
]
CORPUS = TEXTS * 3 + [
    "the quick brown fox jumps over the lazy dog", "this is the test of the tests", "hello hello world world",
    "return x + y", "12 123 1234 12345", "we will test the testing of tests",
]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def split(pattern):
    return [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]


BYTE_LEVEL = {
    "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "llama3": split(LLAMA3),
    "qwen2": split(QWEN2),
    "starcoder": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
}


def finish(name, tokenizer, settings):
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder, settings, [tokenizer.encode(text).ids for text in TEXTS])


def write(folder, settings, ids):
    config = LlamaConfig(
        vocab_size=600, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        architectures=["LlamaForCausalLM"])
    if settings.pop("bert", False):
        config.architectures = ["BertModel"]
        config.layer_norm_eps = 1e-12
    config.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "ids.json").write_text(json.dumps(dict(texts=TEXTS, ids=ids), ensure_ascii=False))
    print(folder.name, sum(f.stat().st_size for f in folder.iterdir()))


def byte_level(name, parts):
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    tokenizer.pre_tokenizer = parts[0] if len(parts) == 1 else pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<|begin|>", "<|special|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(CORPUS, trainer)
    settings = dict(eos_token="<|special|>")
    if name == "llama3":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
        settings["bos_token"] = "<|begin|>"
    finish(name, tokenizer, settings)


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    settings = {f"{role}_token": f"[{role.upper()}]" for role in ["pad", "unk", "cls", "sep", "mask"]}
    finish("bert", tokenizer, dict(bert=True, **settings))


def sentence_piece():
    """SentencePiece itself, and the same as `tokenizer.json` with merges only."""
    folder = FOLDER / "sentencepiece"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(text.replace("\n", " ") for text in CORPUS))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "tokenizer"), model_type="bpe", vocab_size=420,
        byte_fallback=True, character_coverage=0.99, remove_extra_whitespaces=False, split_digits=True,
        normalization_rule_name="identity", minloglevel=2)
    corpus.unlink()
    (folder / "tokenizer.vocab").unlink()
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    ids = [[processor.bos_id()] + processor.encode(text) for text in TEXTS]
    write(folder, dict(add_bos_token=True, bos_token="<s>", eos_token="</s>", unk_token="<unk>"), ids)


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    finish("unigram", tokenizer, dict(pad_token="<pad>", eos_token="</s>", unk_token="<unk>"))


for name, parts in BYTE_LEVEL.items():
    byte_level(name, parts)
word_piece()
sentence_piece()
unigram()
