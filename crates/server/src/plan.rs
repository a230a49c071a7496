//! A checked request for text: what is generated and what of it the client wants to see.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_engine::Request;
use serde_json::{Map, Value, json};

use crate::api::adapters::strengths;
use crate::app::App;
use crate::error::{ApiError, ApiResult, Kind};
use crate::fields::Fields;
use crate::{grammar, sampling};

/// Most stop texts of one request.
const MOST_STOPS: usize = 256;
const INT: i64 = i32::MAX as i64;
/// Largest priority, and the smallest without its sign.
const MOST_PRIORITY: i64 = 1_000_000;

/// A checked request. Everything in it is within its limits.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the engine gets, one for each choice, in order.
    pub requests: Vec<Request>,
    /// Texts that end an answer.
    pub stops: Vec<String>,
    /// Control tokens are part of the text.
    pub special: bool,
    /// Control tokens that are part of the text in any case.
    pub shown: Arc<HashSet<u32>>,
    /// How long an answer may take after its first token; it ends at the next line break.
    pub deadline: Option<Duration>,
    /// Parts as they come instead of everything at the end.
    pub stream: bool,
    /// Counts of tokens at the end of a stream.
    pub include_usage: bool,
    /// Ids of tokens are shown.
    pub return_tokens: bool,
    /// What an answer took so far is shown with each part of it.
    pub timings_per_token: bool,
    /// How far the prompt is, is shown.
    pub return_progress: bool,
    /// Silence after which a comment is sent.
    pub ping: Option<Duration>,
    /// The settings, as they are echoed.
    pub settings: Value,
}

/// Fields that would change the result and that nothing here obeys yet.
const REFUSED: &[&str] = &["n_indent"];

impl Plan {
    /// Reads the fields that all endpoints share. `probabilities` is the number of most probable tokens to
    /// report, `choices` the number of answers to each prompt.
    pub fn new(
        app: &App,
        fields: &Fields,
        prompts: Vec<Vec<u32>>,
        probabilities: Option<usize>,
        stop_fields: &[&str],
    ) -> ApiResult<Self> {
        let served = &app.served;
        if served.engine.embeds() {
            let message =
                "this server makes embeddings: start it without --embeddings and --reranking for text";
            return Err(ApiError::new(Kind::NotSupported, message));
        }
        refuse(fields)?;
        let context = served.engine.context();
        for prompt in &prompts {
            if prompt.len() >= context as usize {
                let learned = served.engine.context_is_learned();
                return Err(ApiError::context_size(prompt.len(), context, learned));
            }
        }
        let slots = app.slot_count() as i64;
        let choices = fields.integer(&["n_cmpl", "n"], 1..=slots)?.unwrap_or(1) as usize;
        let parameters = sampling::parameters(fields, &served.defaults, &served.tokenizer)?;
        let names = ["n_predict", "max_completion_tokens", "max_tokens", "max_output_tokens"];
        let predict = fields.integer(&names, -1..=INT)?.map_or(served.defaults.predict, |value| value as i32);
        let keep = fields.integer(&["n_keep"], -1..=INT)?.map_or(served.defaults.keep, |value| value as i32);
        let discard = fields.integer(&["n_discard"], 0..=INT)?.unwrap_or(0);
        let move_parts = fields
            .integer(&["n_cache_reuse"], 0..=INT)?
            .map_or(served.defaults.move_parts, |value| usize::try_from(value).unwrap_or(0));
        let slot = fields.integer(&["id_slot"], -1..=slots - 1)?.and_then(|slot| u32::try_from(slot).ok());
        let ignore_end = fields.boolean(&["ignore_eos"])?.unwrap_or(served.defaults.ignore_end);
        let reuse = fields.boolean(&["cache_prompt"])?.unwrap_or(served.defaults.reuse);
        let deadline =
            fields.integer(&["t_max_predict_ms"], -1..=INT)?.and_then(|time| u64::try_from(time).ok());
        let priority = fields.integer(&["priority"], -MOST_PRIORITY..=MOST_PRIORITY)?.unwrap_or(0);
        let time = fields.integer(&["deadline_ms"], 1..=INT)?.and_then(|time| u64::try_from(time).ok());
        let ping = match fields.integer(&["sse_ping_interval"], -1..=86_400)? {
            None => app.front.options.ping,
            Some(seconds) if seconds > 0 => Some(Duration::from_secs(seconds as u64)),
            Some(_) => None,
        };
        let (grammar, shown) = grammar::grammar(app, fields)?;
        let after_sampling = fields.boolean(&["post_sampling_probs"])?.unwrap_or(false);
        let stops = fields.texts(stop_fields)?.unwrap_or_default();
        if stops.len() > MOST_STOPS {
            let message = format!(
                "field '{}': {} texts, at most {MOST_STOPS}",
                stop_fields.join("' or '"),
                stops.len()
            );
            return Err(ApiError::invalid(message));
        }
        let stream = fields.boolean(&["stream"])?.unwrap_or(false);
        let stream_options = Fields(fields.object(&["stream_options"])?.cloned().unwrap_or_default());

        let timings_per_token = fields.boolean(&["timings_per_token"])?.unwrap_or(false);
        let mut settings = sampling::echo(&parameters);
        settings.extend(members(json!({
            "n_predict": predict, "max_tokens": predict, "n_keep": keep, "n_discard": discard,
            "ignore_eos": ignore_end, "stop": stops, "stream": stream, "timings_per_token": timings_per_token,
            "n_probs": probabilities.unwrap_or(0), "post_sampling_probs": after_sampling, "cache_prompt": reuse,
            "grammar": "", "grammar_lazy": false, "grammar_triggers": [],
        })));
        settings.extend(shown);
        let adapters = match fields.get(&["lora"]) {
            None => app.strengths(),
            Some((name, value)) => strengths(app, name, value)?,
        };
        let lora = adapters.iter().enumerate().map(|(id, scale)| json!({ "id": id, "scale": scale }));
        settings.insert("lora".into(), lora.collect());
        let template = Request {
            adapters,
            predict,
            end_of_generation: served.tokenizer.vocabulary().end_of_generation_tokens().collect(),
            ignore_end,
            log_probabilities: probabilities,
            after_sampling,
            sequence: slot,
            reuse,
            move_parts,
            keep,
            discard: u32::try_from(discard).unwrap_or(0),
            sampling: parameters,
            grammar,
            priority: i32::try_from(priority).unwrap_or(0),
            deadline: time.and_then(|time| Instant::now().checked_add(Duration::from_millis(time))),
            ..Request::new(Vec::new())
        };
        let mut requests = Vec::with_capacity(prompts.len().saturating_mul(choices));
        for prompt in prompts {
            for choice in 0..choices {
                let mut request = Request { prompt: prompt.clone(), ..template.clone() };
                // Equal seeds would give equal answers.
                request.sampling.seed = template.sampling.seed.wrapping_add(choice as u32);
                requests.push(request);
            }
        }
        Ok(Self {
            requests,
            stops,
            special: false,
            shown: Arc::default(),
            deadline: deadline.map(Duration::from_millis),
            stream,
            include_usage: stream_options.boolean(&["include_usage"])?.unwrap_or(false),
            return_tokens: fields.boolean(&["return_tokens"])?.unwrap_or(false),
            timings_per_token,
            return_progress: fields.boolean(&["return_progress"])?.unwrap_or(false),
            ping,
            settings: Value::Object(settings),
        })
    }
}

/// Refuses what would be ignored otherwise.
fn refuse(fields: &Fields) -> ApiResult<()> {
    for name in REFUSED {
        let Some((_, value)) = fields.get(&[name]) else { continue };
        let empty = match value {
            Value::Bool(on) => !on,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::Object(_) | Value::Null => false,
        };
        if !empty {
            return Err(ApiError::invalid(format!("field '{name}' is not supported yet")));
        }
    }
    Ok(())
}

/// The members of an object.
pub fn members(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}
