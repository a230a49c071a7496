//! Sampling settings of a request: the fields, their ranges, and what is echoed of them.

use std::sync::Arc;

use puna_sampling::{
    DryBreakers, InfillTexts, Parameters, SamplerSpec, parse_letters, parse_names, random_seed,
};
use puna_tokenizer::{Role, Tokenizer};
use serde_json::{Map, Value, json};

use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, wrong};
use crate::options::Defaults;

/// Most texts that end a repetition.
const MOST_BREAKERS: usize = 64;
const ANY: std::ops::RangeInclusive<i64> = i32::MIN as i64..=i32::MAX as i64;

/// The sampling settings of a request. `suppress` and the like stay as in the defaults.
pub fn parameters(fields: &Fields, defaults: &Defaults, tokenizer: &Tokenizer) -> ApiResult<Parameters> {
    let mut all = defaults.sampling.clone();
    all.seed = match fields.integer(&["seed"], -1..=i64::from(u32::MAX))? {
        Some(seed) if (0..i64::from(u32::MAX)).contains(&seed) => seed as u32,
        _ => defaults.seed.unwrap_or_else(random_seed),
    };
    set(&mut all.temperature, fields.clamped(&["temperature"], 0.0..=f32::MAX)?);
    set(&mut all.dynatemp_range, fields.clamped(&["dynatemp_range"], 0.0..=f32::MAX)?);
    set(&mut all.dynatemp_exponent, fields.number(&["dynatemp_exponent"])?);
    set(&mut all.top_p, fields.clamped(&["top_p"], 0.0..=1.0)?);
    set(&mut all.min_p, fields.clamped(&["min_p"], 0.0..=1.0)?);
    set(&mut all.typical_p, fields.clamped(&["typical_p", "typ_p"], 0.0..=1.0)?);
    set(&mut all.top_n_sigma, fields.number(&["top_n_sigma"])?);
    set(&mut all.xtc_probability, fields.clamped(&["xtc_probability"], 0.0..=1.0)?);
    set(&mut all.xtc_threshold, fields.clamped(&["xtc_threshold"], 0.0..=1.0)?);
    set(&mut all.presence_penalty, fields.number(&["presence_penalty"])?);
    set(&mut all.frequency_penalty, fields.number(&["frequency_penalty"])?);
    set(&mut all.repeat_penalty, fields.number(&["repeat_penalty"])?);
    if all.repeat_penalty <= 0.0 {
        let message = format!("field 'repeat_penalty': {} must be above 0", all.repeat_penalty);
        return Err(ApiError::invalid(message));
    }
    set(&mut all.top_k, fields.integer(&["top_k"], ANY)?.map(|value| value.max(0) as i32));
    let range = -1..=i64::from(i32::MAX);
    set(
        &mut all.penalty_last_n,
        fields.integer(&["repeat_last_n"], range.clone())?.map(|value| value as i32),
    );
    set(&mut all.mirostat, fields.integer(&["mirostat"], 0..=2)?.map(|value| value as i32));
    set(&mut all.mirostat_tau, fields.number(&["mirostat_tau"])?);
    set(&mut all.mirostat_eta, fields.number(&["mirostat_eta"])?);
    set(&mut all.adaptive_target, fields.clamped(&["adaptive_target"], f32::MIN..=1.0)?);
    set(&mut all.adaptive_decay, fields.number(&["adaptive_decay"])?);
    if !(0.0..=0.99).contains(&all.adaptive_decay) {
        let message = format!("field 'adaptive_decay': {} must be between 0 and 0.99", all.adaptive_decay);
        return Err(ApiError::invalid(message));
    }
    set(&mut all.dry_multiplier, fields.number(&["dry_multiplier"])?);
    // A base below 1 means the default one.
    set(&mut all.dry_base, fields.number(&["dry_base"])?.filter(|base| *base >= 1.0));
    set(
        &mut all.dry_penalty_last_n,
        fields.integer(&["dry_penalty_last_n"], range)?.map(|value| value as i32),
    );
    let range = 0..=i64::from(i32::MAX);
    set(
        &mut all.dry_allowed_length,
        fields.integer(&["dry_allowed_length"], range.clone())?.map(|value| value as i32),
    );
    set(&mut all.min_keep, fields.integer(&["min_keep"], range)?.map(|value| value as usize));
    set(&mut all.samplers, samplers(fields)?);
    let breakers = breakers(fields)?;
    let breakers = breakers.as_ref().unwrap_or(&defaults.dry_breakers);
    if all.dry_multiplier != 0.0 {
        all.dry_breakers = Arc::new(dry_breakers(breakers, tokenizer));
    }
    if all.samplers.iter().any(|spec| spec.name == "infill") {
        all.infill_texts = Some(Arc::new(infill_texts(tokenizer)));
    }
    if let Some((name, value)) = fields.get(&["logit_bias"]) {
        all.logit_bias.extend(logit_bias(name, value, tokenizer)?);
    }
    all.validate(tokenizer.vocabulary().len()).map_err(|error| ApiError::invalid(error.to_string()))?;
    Ok(all)
}

/// Texts that end a repetition, if the request names some.
fn breakers(fields: &Fields) -> ApiResult<Option<Vec<String>>> {
    let texts = fields.texts(&["dry_sequence_breakers"])?;
    match texts.as_deref() {
        Some([]) => Err(ApiError::invalid("field 'dry_sequence_breakers': expected at least one text")),
        Some(texts) if texts.len() > MOST_BREAKERS => {
            let message =
                format!("field 'dry_sequence_breakers': {} texts, at most {MOST_BREAKERS}", texts.len());
            Err(ApiError::invalid(message))
        }
        _ => Ok(texts),
    }
}

/// The breakers of these texts for DRY.
pub fn dry_breakers(texts: &[String], tokenizer: &Tokenizer) -> DryBreakers {
    let pieces = pieces(tokenizer);
    let encode = |rest: &[u8]| tokenizer.encode_bytes(rest, false, false);
    DryBreakers::from_texts(texts, pieces.iter().map(Vec::as_slice), encode)
}

/// What the sampler `infill` has to know.
pub fn infill_texts(tokenizer: &Tokenizer) -> InfillTexts {
    let vocabulary = tokenizer.vocabulary();
    InfillTexts {
        pieces: pieces(tokenizer),
        end_of_generation: vocabulary.end_of_generation_tokens().collect(),
        end_of_turn: vocabulary.role(Role::Eot).or(vocabulary.eos()),
    }
}

/// Text of each token, special ones included.
fn pieces(tokenizer: &Tokenizer) -> Vec<Vec<u8>> {
    (0..tokenizer.vocabulary().len() as u32).map(|token| tokenizer.piece(token, true)).collect()
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

/// Samplers by a list of names, or by a string of letters.
fn samplers(fields: &Fields) -> ApiResult<Option<Vec<&'static SamplerSpec>>> {
    let refused =
        |error: puna_sampling::SamplingError| ApiError::invalid(format!("field 'samplers': {error}"));
    match fields.get(&["samplers"]) {
        None => Ok(None),
        Some((_, Value::String(letters))) => parse_letters(letters).map(Some).map_err(refused),
        Some(_) => {
            let names = fields.texts(&["samplers"])?.unwrap_or_default();
            parse_names(&names.join(";")).map(Some).map_err(refused)
        }
    }
}

/// `[[token, bias], …]` or `{token: bias}`; a token is an id or a text, which stands for all of its tokens; a
/// bias of `false` rules out.
fn logit_bias(name: &str, value: &Value, tokenizer: &Tokenizer) -> ApiResult<Vec<(u32, f32)>> {
    let pairs: Vec<(Value, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(key, bias)| (json!(key), bias)).collect(),
        Value::Array(items) => {
            let pair = |item: &'_ Value| item.as_array().filter(|pair| pair.len() == 2).is_some();
            if let Some(item) = items.iter().find(|item| !pair(item)) {
                return Err(wrong(name, item, "pairs of a token and its bias"));
            }
            items.iter().filter_map(|item| Some((item.get(0)?.clone(), item.get(1)?))).collect()
        }
        _ => return Err(wrong(name, value, "a list of pairs or an object")),
    };
    let mut all = Vec::with_capacity(pairs.len());
    let count = tokenizer.vocabulary().len();
    for (token, bias) in pairs {
        let bias = match bias {
            Value::Bool(false) => f32::NEG_INFINITY,
            Value::Number(number) => number.as_f64().unwrap_or(0.0) as f32,
            other => return Err(wrong(name, other, "a number or false as a bias")),
        };
        if bias == f32::INFINITY {
            return Err(ApiError::invalid(format!("field '{name}': a bias is too large")));
        }
        let id = match &token {
            Value::String(text) => text.parse::<i64>().ok(),
            Value::Number(number) => Some(number.as_i64().unwrap_or(-1)),
            other => return Err(wrong(name, other, "an id or a text as a token")),
        };
        match (id, &token) {
            (Some(id), _) => match u32::try_from(id).ok().filter(|id| (*id as usize) < count) {
                Some(id) => all.push((id, bias)),
                None => {
                    let message = format!("field '{name}': token {id} is outside the vocabulary of {count}");
                    return Err(ApiError::invalid(message));
                }
            },
            (None, Value::String(text)) => {
                all.extend(tokenizer.encode(text, false, true).into_iter().map(|id| (id, bias)));
            }
            (None, _) => {}
        }
    }
    Ok(all)
}

/// The settings as `generation_settings` has them.
pub fn echo(parameters: &Parameters) -> Map<String, Value> {
    // Infinity is no JSON number; `false` is how requests spell it.
    let bias = parameters.logit_bias.iter().map(|(token, bias)| match bias.is_finite() {
        true => json!([token, bias]),
        false => json!([token, false]),
    });
    let samplers = parameters.samplers.iter().map(|spec| spec.name).collect::<Vec<_>>();
    let all = json!({
        "seed": parameters.seed,
        "temperature": number(parameters.temperature),
        "top_k": parameters.top_k,
        "top_p": number(parameters.top_p),
        "min_p": number(parameters.min_p),
        "typical_p": number(parameters.typical_p),
        "repeat_last_n": parameters.penalty_last_n,
        "repeat_penalty": number(parameters.repeat_penalty),
        "presence_penalty": number(parameters.presence_penalty),
        "frequency_penalty": number(parameters.frequency_penalty),
        "min_keep": parameters.min_keep,
        "dynatemp_range": number(parameters.dynatemp_range),
        "dynatemp_exponent": number(parameters.dynatemp_exponent),
        "top_n_sigma": number(parameters.top_n_sigma),
        "xtc_probability": number(parameters.xtc_probability),
        "xtc_threshold": number(parameters.xtc_threshold),
        "dry_multiplier": number(parameters.dry_multiplier),
        "dry_base": number(parameters.dry_base),
        "dry_allowed_length": parameters.dry_allowed_length,
        "dry_penalty_last_n": parameters.dry_penalty_last_n,
        "mirostat": parameters.mirostat,
        "mirostat_tau": number(parameters.mirostat_tau),
        "mirostat_eta": number(parameters.mirostat_eta),
        "adaptive_target": number(parameters.adaptive_target),
        "adaptive_decay": number(parameters.adaptive_decay),
        "logit_bias": bias.collect::<Vec<_>>(),
        "samplers": samplers,
    });
    match all {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// The shortest decimal number for one of single precision: 0.8 and not 0.800000011920929.
fn number(value: f32) -> Value {
    json!(value.to_string().parse::<f64>().unwrap_or(f64::from(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_echoed_as_they_were_given() {
        let mut parameters =
            Parameters { temperature: 0.8, top_p: 0.95, min_p: 0.0, ..Parameters::default() };
        parameters.top_n_sigma = -1.0;
        let all = echo(&parameters);
        for (name, expected) in
            [("temperature", "0.8"), ("top_p", "0.95"), ("min_p", "0.0"), ("top_n_sigma", "-1.0")]
        {
            assert_eq!(all[name].to_string(), expected, "{name}");
        }
    }
}
