//! The pre-tokenizers by the names of `tokenizer.ggml.pre`. Patterns are those of the models' `tokenizer.json`.

use crate::pre_tokenizer::Step::{self, DigitGroups, Matches, MatchesOrSpacePowers, MatchesOrSpaces, OnlyMatches};

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

const GPT2: Step =
    MatchesOrSpaces(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";
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
    Row { names: &["jina-v1-en", "jina-v2-code", "roberta-bpe"], steps: &[GPT2], add_separator: true, ..PLAIN },
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
                r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
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
                r"[一-\u{9fff}㐀-\u{4dbf}豈-\u{faff}\u{3040}-ゟ゠-ヿ･-ﾟ⼀-\u{2fdf}เ-\u{e7f}\u{e80}-\u{eff}ក-\u{17ff}က-႟ꩠ-ꩿꧠ-\u{a9ff}가-\u{d7af}ᄀ-ᇿ]+",
            ),
            DEEPSEEK3,
        ],
        ..PLAIN
    },
    Row {
        names: &["youtu"],
        steps: &[
            Matches(
                r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+",
            ),
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
