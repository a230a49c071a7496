//! One row of a flag table, and the sets of tools that a row belongs to.

/// What a flag does instead of changing a configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Print the tool's help.
    Help,
    /// Print version and build.
    Version,
    /// Print the completion script for bash.
    CompletionBash,
    /// Print the devices that were found.
    ListDevices,
    /// Print the models in the cache folder.
    ListModels,
}

/// Setter of a flag with a value: writes one field, or says in a few words what it expected.
pub type SetValue<C> = fn(&mut C, &str) -> Result<(), String>;

/// What follows a flag and what it sets.
pub enum Kind<C> {
    /// Takes no value. Called with `true` for a positive spelling and `false` for a negative one.
    Switch(fn(&mut C, bool)),
    /// Takes one value.
    Value {
        /// Name of the value in the help text.
        placeholder: &'static str,
        /// Writes the value.
        set: SetValue<C>,
        /// True for free text: the next argument is the value even when it is spelled like a flag.
        text: bool,
        /// For a flag that may stand alone: the words that count as its value; without one of them the value
        /// is the first.
        words: &'static [&'static str],
    },
    /// Prints something and ends.
    Action(Action),
    /// Known, but it would change the result and nothing here can do so yet: using it is an error.
    NotYet {
        /// Name of the value in the help text; empty for a flag without a value.
        placeholder: &'static str,
    },
}

/// One row of a flag table; `C` is the configuration it writes.
pub struct Flag<C: 'static> {
    /// Spellings with their dashes, separated by spaces: `-ngl --gpu-layers`. The first one with two dashes is
    /// the flag's own name.
    pub spellings: &'static str,
    /// Spellings that switch it off.
    pub negative: &'static str,
    /// Environment variable that is read when the flag is absent.
    pub env: Option<&'static str>,
    /// The value in effect when the flag is absent; applying it to a default configuration changes nothing.
    pub default: Option<&'static str>,
    /// One sentence for the help text.
    pub help: &'static str,
    /// Why the flag is accepted without having an effect, if so.
    pub inert: Option<&'static str>,
    /// The tools that know the flag.
    pub tools: ToolSet,
    /// Value and setter.
    pub kind: Kind<C>,
}

impl<C> Flag<C> {
    const fn new(spellings: &'static str, help: &'static str, kind: Kind<C>) -> Self {
        let tools = ToolSet::ALL;
        Self { spellings, negative: "", env: None, default: None, help, inert: None, tools, kind }
    }

    /// A flag without a value.
    pub const fn switch(spellings: &'static str, help: &'static str, set: fn(&mut C, bool)) -> Self {
        Self::new(spellings, help, Kind::Switch(set))
    }

    /// A flag with a value that never looks like a flag: a number, a word, a path.
    pub const fn value(
        spellings: &'static str,
        placeholder: &'static str,
        help: &'static str,
        set: SetValue<C>,
    ) -> Self {
        Self::new(spellings, help, Kind::Value { placeholder, set, text: false, words: &[] })
    }

    /// A flag with free text as its value.
    pub const fn text(
        spellings: &'static str,
        placeholder: &'static str,
        help: &'static str,
        set: SetValue<C>,
    ) -> Self {
        Self::new(spellings, help, Kind::Value { placeholder, set, text: true, words: &[] })
    }

    /// A flag whose value is one of a few words and may be left out, which means the first of them.
    pub const fn word(
        spellings: &'static str,
        placeholder: &'static str,
        words: &'static [&'static str],
        help: &'static str,
        set: SetValue<C>,
    ) -> Self {
        Self::new(spellings, help, Kind::Value { placeholder, set, text: false, words })
    }

    /// A flag that prints something and ends.
    pub const fn action(spellings: &'static str, help: &'static str, action: Action) -> Self {
        Self::new(spellings, help, Kind::Action(action))
    }

    /// A flag that is refused; `placeholder` is empty if it takes no value.
    pub const fn not_yet(spellings: &'static str, placeholder: &'static str, help: &'static str) -> Self {
        Self::new(spellings, help, Kind::NotYet { placeholder })
    }

    /// With spellings that switch it off.
    pub const fn negative(self, negative: &'static str) -> Self {
        Self { negative, ..self }
    }

    /// With an environment variable.
    pub const fn env(self, name: &'static str) -> Self {
        Self { env: Some(name), ..self }
    }

    /// With a shown (and tested) default.
    pub const fn default(self, value: &'static str) -> Self {
        Self { default: Some(value), ..self }
    }

    /// Accepted without effect, for this reason.
    pub const fn inert(self, reason: &'static str) -> Self {
        Self { inert: Some(reason), ..self }
    }

    /// Known to these tools only.
    pub const fn tools(self, tools: ToolSet) -> Self {
        Self { tools, ..self }
    }

    /// The flag's own name without dashes: its first long spelling, or its first spelling if it has no long one.
    pub fn name(&self) -> &'static str {
        let mut spellings = self.spellings.split_whitespace();
        let long = spellings.clone().find(|spelling| spelling.starts_with("--"));
        long.or_else(|| spellings.next()).unwrap_or("").trim_start_matches('-')
    }

    /// The name of the negative form without dashes, if there is one.
    pub fn negative_name(&self) -> Option<&'static str> {
        let mut spellings = self.negative.split_whitespace();
        let long = spellings.clone().find(|spelling| spelling.starts_with("--"));
        long.or_else(|| spellings.next()).map(|spelling| spelling.trim_start_matches('-'))
    }
}

/// Flags under one heading of the help text.
pub struct Group<C: 'static> {
    /// The heading.
    pub heading: &'static str,
    /// Its rows.
    pub flags: &'static [Flag<C>],
}

/// A set of tools.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToolSet(u32);

#[allow(missing_docs)] // each constant is the tool of that name
impl ToolSet {
    pub const CLI: Self = Self(1 << 0);
    pub const COMPLETION: Self = Self(1 << 1);
    pub const SIMPLE: Self = Self(1 << 2);
    pub const RUN: Self = Self(1 << 3);
    pub const LOGITS: Self = Self(1 << 4);
    pub const TOKENIZE: Self = Self(1 << 5);
    pub const INFO: Self = Self(1 << 6);
    pub const DEVICES: Self = Self(1 << 7);
    pub const PULL: Self = Self(1 << 8);
    pub const LIST: Self = Self(1 << 9);
    pub const BENCH: Self = Self(1 << 10);
    pub const SERVE: Self = Self(1 << 11);
    pub const GRAMMAR: Self = Self(1 << 12);
    pub const BATCHED_BENCH: Self = Self(1 << 15);
    pub const PERPLEXITY: Self = Self(1 << 16);
    pub const QUANTIZE: Self = Self(1 << 17);
    pub const GGUF_SPLIT: Self = Self(1 << 18);
    pub const DIFFUSION: Self = Self(1 << 13);
    pub const IMATRIX: Self = Self(1 << 21);
    pub const EXPORT_LORA: Self = Self(1 << 22);
    pub const CVECTOR: Self = Self(1 << 23);
    pub const GGUF_HASH: Self = Self(1 << 26);
    pub const GGUF: Self = Self(1 << 27);
    pub const CONVERT_LEGACY: Self = Self(1 << 28);
    pub const CONVERT: Self = Self(1 << 19);
    pub const CONVERT_LORA: Self = Self(1 << 20);
    pub const EMBEDDING: Self = Self(1 << 24);
    pub const RERANK: Self = Self(1 << 25);
    /// Every tool.
    pub const ALL: Self = Self(u32::MAX);
    /// Tools that hold a conversation.
    pub const CHAT: Self = Self::CLI.or(Self::COMPLETION).or(Self::RUN);
    /// Tools that use chat templates.
    pub const TEMPLATE: Self = Self::CHAT.or(Self::SERVE).or(Self::DIFFUSION);
    /// Tools that generate text.
    pub const GENERATE: Self = Self::CHAT.or(Self::SIMPLE).or(Self::SERVE);
    /// Tools that run a model.
    pub const ENGINE: Self = Self::GENERATE
        .or(Self::LOGITS)
        .or(Self::PERPLEXITY)
        .or(Self::BATCHED_BENCH)
        .or(Self::EMBED)
        .or(Self::DIFFUSION)
        .or(Self::IMATRIX)
        .or(Self::CVECTOR);
    /// Tools that put a model onto devices, or say how they would.
    pub const PLACED: Self = Self::ENGINE.or(Self::INFO);
    /// Tools that turn texts into numbers.
    pub const EMBED: Self = Self::EMBEDDING.or(Self::RERANK);
    /// Tools that need a model file.
    pub const MODEL: Self =
        Self::ENGINE.or(Self::TOKENIZE).or(Self::INFO).or(Self::PULL).or(Self::GRAMMAR).or(Self::EXPORT_LORA);

    /// Both sets.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if the sets share a tool.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}
