//! `POST /infill`: the text between a beginning and an end, for models that were trained to fill gaps.

use std::sync::Arc;

use axum::response::Response;
use puna_tokenizer::{Role, Tokenizer};
use serde_json::Value;

use crate::api::native::Native;
use crate::app::App;
use crate::edge::Call;
use crate::error::{ApiError, ApiResult, Kind};
use crate::fields::{Fields, missing, wrong};
use crate::plan::Plan;
use crate::prompt;
use crate::stream::answer;

/// Between other files if the model has no token for that.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";
/// What models saw as the name of a repository and of the file with the gap.
const REPOSITORY: &str = "myproject\n";
const FILE: &str = "filename\n";
/// Most other files.
const MOST_FILES: usize = 1000;

/// `POST /infill`.
pub async fn infill(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let (plan, protocol) = call
        .prepare(&app, |app, fields| {
            let prompt = gap(app, fields)?;
            let probable = fields.integer(&["n_probs", "logprobs"], 0..=1000)?.filter(|count| *count > 0);
            let plan = Plan::new(app, fields, vec![prompt], probable.map(|count| count as usize), &["stop"])?;
            let protocol = Native::new(app, &plan, fields)?;
            Ok((plan, protocol))
        })
        .await?;
    answer(&app, &call.caller, plan, protocol).await
}

/// The tokens that mark parts.
struct Marks {
    prefix: u32,
    suffix: u32,
    middle: u32,
    repository: Option<u32>,
    separator: Option<u32>,
}

impl Marks {
    fn of(tokenizer: &Tokenizer) -> ApiResult<Self> {
        let vocabulary = tokenizer.vocabulary();
        let needed = |role, name: &str| {
            vocabulary.role(role).ok_or_else(|| {
                let message = format!("this model cannot fill gaps: its vocabulary has no {name} token");
                ApiError::new(Kind::NotSupported, message)
            })
        };
        Ok(Self {
            prefix: needed(Role::FimPrefix, "prefix")?,
            suffix: needed(Role::FimSuffix, "suffix")?,
            middle: needed(Role::FimMiddle, "middle")?,
            repository: vocabulary.role(Role::FimRepository),
            separator: vocabulary.role(Role::FimSeparator),
        })
    }
}

/// The prompt: other files, then the text around the gap, of which the parts next to the gap stay if it is long.
fn gap(app: &App, fields: &Fields) -> ApiResult<Vec<u32>> {
    let (tokenizer, defaults) = (&app.served.tokenizer, &app.served.defaults);
    let marks = Marks::of(tokenizer)?;
    let plain = |text: &str| tokenizer.encode(text, false, false);
    let text = |name: &'static str| fields.text(&[name])?.ok_or_else(|| missing(name));
    let (prefix, suffix) = (plain(text("input_prefix")?), plain(text("input_suffix")?));
    let begun = match fields.get(&["prompt"]) {
        None => Vec::new(),
        Some((name, value)) => prompt::tokens(name, value, tokenizer, false, true)?,
    };
    let window = defaults.infill;
    let before = prefix.len().min(3 * (window / 4));
    let after = suffix.len().min((window / 4).saturating_sub(2 + begun.len()));
    let prefix = prefix.get(prefix.len() - before..).unwrap_or_default();
    let suffix = suffix.get(..after).unwrap_or_default();

    let predict = fields.integer(&["n_predict", "max_tokens"], -1..=i64::from(i32::MAX))?;
    let predict = predict.unwrap_or(i64::from(defaults.predict)).max(0) as usize;
    let room = (app.served.engine.context() as usize).saturating_sub(window + predict.saturating_mul(2));
    let others = others(tokenizer, &marks, fields)?;
    let mut tokens = Vec::new();
    if tokenizer.vocabulary().add_bos() {
        tokens.extend(tokenizer.vocabulary().bos());
    }
    tokens.extend(others.get(others.len() - others.len().min(room)..).unwrap_or_default());
    let first = [&[marks.prefix][..], prefix].concat();
    let second = [&[marks.suffix][..], suffix].concat();
    let parts = if defaults.suffix_first { [second, first] } else { [first, second] };
    tokens.extend(parts.concat());
    tokens.push(marks.middle);
    tokens.extend(begun);
    Ok(tokens)
}

/// Other files of the project, and what comes before the one with the gap.
fn others(tokenizer: &Tokenizer, marks: &Marks, fields: &Fields) -> ApiResult<Vec<u32>> {
    let plain = |text: &str| tokenizer.encode(text, false, false);
    let mut tokens = Vec::new();
    if let Some(repository) = marks.repository {
        tokens.push(repository);
        tokens.extend(plain(REPOSITORY));
    }
    let files = fields.list(&["input_extra"])?.map_or(&[][..], Vec::as_slice);
    if files.len() > MOST_FILES {
        let message = format!("field 'input_extra': {} files, at most {MOST_FILES}", files.len());
        return Err(ApiError::invalid(message));
    }
    for (index, file) in files.iter().enumerate() {
        let place = format!("input_extra[{index}]");
        let Value::Object(members) = file else { return Err(wrong(&place, file, "an object")) };
        let member = |name: &str| match members.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(other) => Err(wrong(&format!("{place}.{name}"), other, "a string")),
        };
        let text = member("text")?.ok_or_else(|| missing(&format!("{place}.text")))?;
        let name = member("filename")?.unwrap_or("tmp");
        match marks.separator {
            Some(separator) => {
                tokens.push(separator);
                tokens.extend(plain(&format!("{name}\n")));
            }
            None => tokens.extend(plain(SNIPPET)),
        }
        tokens.extend(plain(text));
    }
    if let Some(separator) = marks.separator {
        tokens.push(separator);
        tokens.extend(plain(FILE));
    }
    Ok(tokens)
}
