//! The pre-tokenizers by the names of `tokenizer.ggml.pre`. Patterns are those of the models' `tokenizer.json`.

use crate::pre_tokenizer::Step::{
    self, DigitGroups, Matches, MatchesOrSpacePowers, MatchesOrSpaces, OnlyMatches,
};

/// How text becomes the characters that merges work on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alphabet {
    /// Each byte is one of GPT-2's 256 printable characters.
    Bytes,
    /// Characters are themselves.
    Characters,
    /// Characters are themselves, spaces are `▁`.
    CharactersAndBlocks,
}

/// One pre-tokenizer.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) names: &'static [&'static str],
    pub(crate) steps: &'static [Step],
    /// A word that is a token needs no merges.
    pub(crate) ignore_merges: bool,
    pub(crate) add_bos: bool,
    pub(crate) add_separator: bool,
    pub(crate) alphabet: Alphabet,
}

const PLAIN: Row = Row {
    names: &[],
    steps: &[],
    ignore_merges: false,
    add_bos: false,
    add_separator: false,
    alphabet: Alphabet::Bytes,
};

/// The name of the row for files without a name.
pub(crate) const DEFAULT: &str = "default";

/// The row of a name.
pub(crate) fn find(name: &str) -> Option<&'static Row> {
    PRE_TOKENIZERS.iter().find(|row| row.names.contains(&name))
}

const GPT2: Step = MatchesOrSpaces(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");
const LLAMA3: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
const QWEN2: Step = MatchesOrSpaces(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
);
const DEEPSEEK3: Step = MatchesOrSpaces(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"##,
);
const GPT4O: Step = MatchesOrSpaces(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
);
const CJK: Step = Matches(r"[一-龥\u{3040}-ゟ゠-ヿ]+");
const NUMBERS_OF_THREE: Step = Matches(r"\p{N}{1,3}");
const NUMBERS: Step = Matches(r"\p{N}");
const LINES: Step = Matches(r"[^\n]+|[\n]+");

/// All pre-tokenizers.
pub(crate) const PRE_TOKENIZERS: &[Row] = &[
    Row {
        names: &[DEFAULT],
        steps: &[Matches(r"[\p{P}\$\+<=>\^~\|]+"), GPT2, Matches(r"\p{N}+"), Matches(r"[0-9][0-9][0-9]")],
        ..PLAIN
    },
    Row {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        steps: &[MatchesOrSpaces(LLAMA3)],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    Row { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], steps: &[MatchesOrSpaces(LLAMA3)], ..PLAIN },
    Row { names: &["glm4", "glm5"], steps: &[MatchesOrSpaces(LLAMA3)], ignore_merges: true, ..PLAIN },
    Row { names: &["jais-2"], steps: &[MatchesOrSpacePowers(LLAMA3)], ..PLAIN },
    Row {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        steps: &[QWEN2],
        ..PLAIN
    },
    Row {
        names: &["qwen35"],
        steps: &[MatchesOrSpaces(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+",
        )],
        ..PLAIN
    },
    Row {
        names: &["seed-coder"],
        steps: &[MatchesOrSpaces(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+",
        )],
        ..PLAIN
    },
    Row {
        names: &["ufakzeka"],
        steps: &[MatchesOrSpaces(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+")],
        ..PLAIN
    },
    Row { names: &["laguna"], steps: &[LINES, QWEN2], ..PLAIN },
    Row {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        steps: &[GPT2],
        ..PLAIN
    },
    Row {
        names: &["jina-v1-en", "jina-v2-code", "roberta-bpe"],
        steps: &[GPT2],
        add_separator: true,
        ..PLAIN
    },
    Row {
        names: &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        steps: &[NUMBERS, GPT2],
        ..PLAIN
    },
    Row {
        names: &["deepseek-llm"],
        steps: &[
            Matches(r"[\r\n]"),
            Matches(
                r"\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+",
            ),
            Matches(r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+"),
            Matches(r"\s+$"),
            Matches(r"[一-龥\u{800}-一가-\u{d7ff}]+"),
            Matches(r"\p{N}+"),
        ],
        ..PLAIN
    },
    Row {
        names: &["deepseek-coder"],
        steps: &[
            Matches(r"[\r\n]"),
            Matches(r"\s?\p{L}+"),
            Matches(r"\s?\p{P}+"),
            Matches(r"[一-龥\u{800}-一가-\u{d7ff}]+"),
            NUMBERS,
        ],
        ..PLAIN
    },
    Row {
        names: &["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"],
        steps: &[NUMBERS_OF_THREE, CJK, DEEPSEEK3],
        ..PLAIN
    },
    Row {
        names: &["spark2_5"],
        steps: &[
            NUMBERS_OF_THREE,
            CJK,
            MatchesOrSpaces(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]"##,
            ),
            NUMBERS,
        ],
        ..PLAIN
    },
    Row {
        names: &["afmoe"],
        steps: &[
            DigitGroups { before_word_end: false },
            Matches(
                r"[一-\u{9fff}㐀-\u{4dbf}\u{f900}-\u{faff}\u{3040}-ゟ゠-ヿ･-ﾟ⼀-\u{2fdf}เ-\u{e7f}\u{e80}-\u{eff}ក-\u{17ff}က-႟ꩠ-ꩿꧠ-\u{a9ff}가-\u{d7af}ᄀ-ᇿ]+",
            ),
            DEEPSEEK3,
        ],
        ..PLAIN
    },
    Row {
        names: &["youtu"],
        steps: &[
            Matches(r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+"),
            MatchesOrSpaces(
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
            ),
        ],
        ignore_merges: true,
        ..PLAIN
    },
    Row {
        names: &["falcon"],
        steps: &[Matches(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, Matches(r"[0-9][0-9][0-9]")],
        ..PLAIN
    },
    Row {
        names: &["tekken"],
        steps: &[MatchesOrSpaces(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
        )],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    Row { names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], steps: &[GPT4O], ..PLAIN },
    Row { names: &["granite-embed-multi-97m"], steps: &[GPT4O], ignore_merges: true, ..PLAIN },
    Row {
        names: &["tiny_aya", "cohere2moe"],
        steps: &[DigitGroups { before_word_end: true }, GPT4O],
        ..PLAIN
    },
    Row {
        names: &["kimi-k2"],
        steps: &[MatchesOrSpaces(
            r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
        )],
        ..PLAIN
    },
    Row {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        steps: &[MatchesOrSpaces(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]",
        )],
        ..PLAIN
    },
    Row {
        names: &["exaone-moe"],
        steps: &[MatchesOrSpaces(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]",
        )],
        ..PLAIN
    },
    Row {
        names: &["minicpm5"],
        steps: &[
            NUMBERS_OF_THREE,
            MatchesOrSpaces(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
            ),
        ],
        ignore_merges: true,
        ..PLAIN
    },
    Row {
        names: &["superbpe"],
        steps: &[Matches(r"\p{N}+"), DigitGroups { before_word_end: false }],
        ..PLAIN
    },
    Row {
        names: &["poro-chat", "bloom", "gpt3-finnish"],
        steps: &[Matches(r" ?[^(\s|.,!?…。，、।۔،)]+")],
        ..PLAIN
    },
    Row { names: &["viking"], steps: &[Matches(r" ?[^(\s|.,!?…。，、।۔،)]+"), NUMBERS], ..PLAIN },
    Row {
        names: &["chameleon"],
        steps: &[
            Matches(r"<sentinel:[0-9]+>"),
            Matches(r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
            Matches(r"([\t\n]|    |  )"),
            NUMBERS,
            Matches(r"[\p{P}!-/:-@\[-`{-~]"),
            GPT2,
        ],
        add_bos: true,
        ..PLAIN
    },
    Row {
        names: &["gemma4", "granite-embed-multi-311m", "sarvam-moe"],
        steps: &[LINES],
        alphabet: Alphabet::CharactersAndBlocks,
        ..PLAIN
    },
    Row { names: &["whitespace"], steps: &[OnlyMatches(r"\S+")], alphabet: Alphabet::Characters, ..PLAIN },
];
