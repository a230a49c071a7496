//! An engine with a tokenizer: prompts in, text out as it comes.

use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::speculation::Guessing;
use crate::{console, constraint, early, interrupt, load, recommended};
use puna_chat::Stops;
use puna_engine::{Aids, Engine, EngineOptions, Event, FinishReason, Request, Timings};
use puna_flags::{Config, Sampling, Spec};
use puna_grammar::Grammar;
use puna_runtime::{Model, ModelInformation};
use puna_sampling::{DEFAULT_BREAKERS, Parameters, SAMPLERS, random_seed};
use puna_server::{dry_breakers, grammar_tokens, infill_texts};
use puna_tokenizer::{Decoder, Tokenizer};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// How often to look for Ctrl-C while nothing comes.
const PATIENCE: Duration = Duration::from_millis(50);

/// A model that answers.
pub struct Session {
    /// The engine, with one sequence.
    pub engine: Engine,
    /// The tokenizer of the model.
    pub tokenizer: Tokenizer,
    /// Facts about the model.
    pub information: ModelInformation,
    /// Chat template of the file; what is wrong with its key matters only to who needs it.
    pub template: Result<Option<String>, puna_gguf::Error>,
    /// Bytes of the caches.
    pub cache_bytes: u64,
    /// Whether an encoder reads the prompts.
    pub has_encoder: bool,
    sampling: Parameters,
    grammar: Option<Grammar>,
    end_of_generation: Arc<[u32]>,
    ignore_end: bool,
    predict: i32,
    keep: i32,
    stops: Vec<String>,
    special: bool,
    /// Print how many tokens there are whenever so many more have come; 0 means never.
    count_every: usize,
}

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The model or a stop text ended it.
    Complete,
    /// The limit of tokens or the context.
    Length,
    /// Ctrl-C.
    Interrupted,
}

/// A finished answer.
#[derive(Debug)]
pub struct Answer {
    /// What was shown.
    pub text: String,
    /// The tokens, up to the one that ended the text.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub end: End,
    /// What it took.
    pub timings: Timings,
}

impl Session {
    /// Loads the model that the flags, which are those of `spec`, name. `predict` is the tool's own limit of tokens.
    pub fn start(
        invocation: &Invocation,
        spec: &Spec<Config>,
        config: &Config,
        console: &Console,
        predict: i32,
    ) -> Result<Self, Failure> {
        interrupt::install();
        early::check(invocation, config)?;
        check_sampling(invocation, &config.sampling)?;
        let guessing = Guessing::open(invocation, config, console)?;
        let opened = load::open(invocation, config, console, true)?;
        let tokenizer = opened.tokenizer(console)?;
        let grammar = config.sampling.grammar.as_ref();
        let grammar = constraint::grammar(invocation, grammar, || grammar_tokens(&tokenizer))?;
        let model = load::model_with(&opened, config, console, &guessing.options(config, &opened, 1)?)?;
        let proposers = guessing.proposers(config, console, &opened, &tokenizer, 1)?;
        warn_of_shift(&model, config, console);
        let information = model.information().clone();
        let cache_bytes = model.memory().iter().map(|memory| memory.caches).sum();
        if tokenizer.vocabulary().len() > information.vocabulary as usize {
            console.warn(&format!(
                "the tokenizer has {} tokens, the model knows {}",
                tokenizer.vocabulary().len(),
                information.vocabulary
            ));
        }
        let has_encoder = model.has_encoder();
        let step_tokens = model.options().micro_batch;
        let options =
            EngineOptions { step_tokens, context_shift: config.context.shift, ..EngineOptions::default() };
        let metadata = &opened.file.metadata;
        let recommended = recommended::sampling(invocation, spec, config, metadata, console)?;
        let sampling = parameters(&recommended, &tokenizer, information.vocabulary)?;
        // The beginning token does not count among the tokens that a context shift keeps.
        let begin = i32::from(config.context.keep > 0 && tokenizer.vocabulary().add_bos());
        Ok(Self {
            end_of_generation: tokenizer.vocabulary().end_of_generation_tokens().collect(),
            engine: Engine::start_with(model, options, Aids { proposers, ..Aids::default() })
                .map_err(|error| Failure::Failed(error.to_string()))?,
            tokenizer,
            information,
            template: metadata.optional_str("tokenizer.chat_template").map(|text| text.map(str::to_owned)),
            cache_bytes,
            has_encoder,
            sampling,
            grammar,
            ignore_end: config.sampling.ignore_eos,
            predict: config.prompt.predict.unwrap_or(predict),
            keep: config.context.keep.saturating_add(begin),
            stops: config.prompt.reverse.clone(),
            special: config.prompt.special,
            count_every: usize::try_from(config.prompt.print_token_count).unwrap_or(0),
        })
    }

    /// Refuses a prompt that the engine would refuse, so that nothing is printed before.
    pub fn check(&self, prompt: &[u32]) -> Result<(), Failure> {
        let request = self.request(prompt.to_vec());
        let known = &self.information;
        let checked = request.validate(known.vocabulary, known.context, known.context_is_learned(), 1);
        checked.map_err(|error| Failure::Failed(error.to_string()))
    }

    /// More bytes than a saved state of the context can have.
    pub fn saved_bytes(&self) -> u64 {
        let tokens = u64::from(self.information.context);
        self.cache_bytes.saturating_add(64 * tokens).saturating_add(1 << 20)
    }

    /// From now on the most likely token is chosen, whatever flags and file say.
    pub fn be_greedy(&mut self) {
        self.sampling.temperature = 0.0;
    }

    /// A request as the flags describe it.
    pub fn request(&self, prompt: Vec<u32>) -> Request {
        Request {
            predict: self.predict,
            sampling: self.sampling.clone(),
            grammar: self.grammar.clone(),
            end_of_generation: self.end_of_generation.clone(),
            ignore_end: self.ignore_end,
            sequence: Some(0),
            keep: self.keep,
            ..Request::new(prompt)
        }
    }

    /// The seed of the draws.
    pub fn seed(&self) -> u32 {
        self.sampling.seed
    }

    /// Runs a request and hands over its text as it comes: complete characters, stop texts found and cut off.
    /// Ctrl-C ends the answer, not the program.
    pub fn generate(
        &self,
        request: Request,
        show: &mut dyn FnMut(&str) -> Result<(), Failure>,
    ) -> Result<Answer, Failure> {
        let _busy = interrupt::busy();
        let prompt_tokens = request.prompt.len();
        let mut decoder = Decoder::new(&self.tokenizer, self.special);
        let mut stops = Stops::new(&self.stops);
        let mut text = String::new();
        let mut say = |part: String| -> Result<(), Failure> {
            text.push_str(&part);
            if part.is_empty() { Ok(()) } else { show(&part) }
        };
        let (id, events) = self.engine.submit(request);
        let mut interrupted = false;
        let mut tokens = Vec::new();
        let (reason, timings) = loop {
            match events.recv_timeout(PATIENCE) {
                Ok(Event::Token { id: token, .. }) if !interrupted && !stops.stopped() => {
                    tokens.push(token);
                    let count = prompt_tokens + tokens.len();
                    if self.count_every > 0 && count.is_multiple_of(self.count_every) {
                        console::plain(&format!("\n({count} of {} tokens)", self.information.context));
                    }
                    say(stops.push(&decoder.push(token)))?;
                    if stops.stopped() {
                        self.engine.cancel(id);
                    }
                }
                Ok(Event::Started { .. } | Event::Token { .. } | Event::Progress { .. })
                | Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Finished { reason, timings }) => break (reason, timings),
                Ok(Event::Failed(error)) => return Err(Failure::Failed(error.to_string())),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::Failed("the engine has stopped".into()));
                }
            }
            if interrupt::take() {
                interrupted = true;
                self.engine.cancel(id);
            }
        };
        say(stops.push(&decoder.finish()))?;
        say(stops.finish())?;
        let end = match reason {
            _ if interrupted => End::Interrupted,
            _ if stops.stopped() => End::Complete,
            FinishReason::EndOfGeneration { .. } | FinishReason::GrammarEnd => End::Complete,
            FinishReason::Length => End::Length,
            FinishReason::Cancelled => End::Interrupted,
        };
        Ok(Answer { text, tokens, end, timings })
    }
}

/// Refuses sampling settings that no model could be used with; what depends on the vocabulary comes later.
pub fn check_sampling(invocation: &Invocation, sampling: &Sampling) -> Result<(), Failure> {
    if let Some(source) = &sampling.grammar {
        constraint::read(invocation, source)?;
    }
    settings(sampling).validate(usize::MAX).map_err(|error| invocation.usage(error))
}

/// Says that a model cannot do what `--context-shift` asks for.
pub fn warn_of_shift(model: &Model, config: &Config, console: &Console) {
    if let (true, Err(error)) = (config.context.shift, model.check_shift(0)) {
        console.warn(&format!("--context-shift computes the rest of a full context anew: {error}"));
    }
}

/// The sampling settings of the flags, for a model with this tokenizer and logits of so many tokens.
pub fn parameters(
    sampling: &Sampling,
    tokenizer: &Tokenizer,
    vocabulary: u32,
) -> Result<Parameters, Failure> {
    let mut parameters = settings(sampling);
    let within = |token: &u32| *token < vocabulary;
    parameters.suppress = tokenizer.vocabulary().suppress_tokens().iter().copied().filter(within).collect();
    // Both go through the whole vocabulary, so only what is used is made.
    if parameters.dry_multiplier != 0.0 {
        parameters.dry_breakers = Arc::new(dry_breakers(&breakers(sampling), tokenizer));
    }
    if parameters.samplers.iter().any(|spec| spec.name == "infill") {
        parameters.infill_texts = Some(Arc::new(infill_texts(tokenizer)));
    }
    parameters.validate(vocabulary as usize).map_err(|error| Failure::Failed(error.to_string()))?;
    Ok(parameters)
}

/// What of them needs no model.
fn settings(sampling: &Sampling) -> Parameters {
    let defaults = Parameters::default();
    let samplers = match &sampling.samplers {
        None => defaults.samplers.clone(),
        Some(names) => {
            names.iter().filter_map(|name| SAMPLERS.iter().find(|spec| spec.name == name)).collect()
        }
    };
    Parameters {
        seed: sampling.seed.unwrap_or_else(random_seed),
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        typical_p: sampling.typical_p,
        penalty_last_n: sampling.repeat_last_n,
        repeat_penalty: sampling.repeat_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        top_n_sigma: sampling.top_n_sigma,
        xtc_probability: sampling.xtc_probability,
        xtc_threshold: sampling.xtc_threshold,
        dynatemp_range: sampling.dynatemp_range,
        dynatemp_exponent: sampling.dynatemp_exponent,
        dry_multiplier: sampling.dry_multiplier,
        dry_base: sampling.dry_base,
        dry_allowed_length: sampling.dry_allowed_length,
        dry_penalty_last_n: sampling.dry_penalty_last_n,
        mirostat: sampling.mirostat,
        mirostat_tau: sampling.mirostat_tau,
        mirostat_eta: sampling.mirostat_eta,
        adaptive_target: sampling.adaptive_target,
        adaptive_decay: sampling.adaptive_decay,
        logit_bias: sampling.logit_bias.clone(),
        samplers,
        ..defaults
    }
}

/// Texts that end a repetition for DRY.
pub fn breakers(sampling: &Sampling) -> Vec<String> {
    sampling.dry_breakers.clone().unwrap_or_else(|| DEFAULT_BREAKERS.map(str::to_owned).to_vec())
}

/// One line about speed.
pub fn summary(timings: &Timings) -> String {
    let cached = match timings.cached_tokens {
        0 => String::new(),
        cached => format!(" (+{cached} reused)"),
    };
    let guessed = match timings.guessed_tokens {
        0 => String::new(),
        guessed => format!(" ({} of {guessed} guessed ones right)", timings.accepted_tokens),
    };
    format!(
        "[ prompt: {} tokens{cached}, {:.1} t/s | generation: {} tokens{guessed}, {:.1} t/s ]",
        timings.prompt_tokens,
        timings.prompt_per_second(),
        timings.generated_tokens,
        timings.generated_per_second()
    )
}
