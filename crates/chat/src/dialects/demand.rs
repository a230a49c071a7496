//! Calls that an answer must have, or must have once it begins one: as a grammar.

use serde_json::Value;

use super::form::{self, Blank, Calls, Form, optional, text};
use super::{Dialect, ReasoningMarks, Tool, lark};

/// Texts that begin calls; with more of them nothing is demanded of calls that the model may leave out.
const MOST_STARTS: usize = 200;

/// What is asked for.
#[derive(Debug)]
pub struct Demand<'a> {
    /// The functions of which one is to be called, none for an answer only. Their parameters are schemas that a grammar
    /// can enforce.
    pub tools: &'a [Tool],
    /// More than one call may be written.
    pub parallel: bool,
    /// The answer has to be a call. Otherwise the grammar is for what follows from one of the [`Start`]s on.
    pub required: bool,
    /// Or else JSON of this schema, if a call is not required.
    pub answer: Option<&'a Value>,
}

/// What a call begins with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Start {
    /// This text.
    Word(String),
    /// A match of this regular expression; its first group is the beginning.
    Pattern(String),
}

/// The grammar in llguidance's variant of Lark, for answers to this prompt, and what calls begin with. `control` has the
/// names and ids of the model's control tokens.
pub fn demand(
    template: &str,
    prompt: &str,
    dialect: &Dialect,
    asked: &Demand<'_>,
    control: &[(String, u32)],
) -> (String, Vec<Start>) {
    let calls = Calls { template, tools: asked.tools, parallel: asked.parallel };
    let calls = (dialect.form)(&calls);
    let starts = starts(dialect, &calls, asked.tools);
    let whole = match (asked.required, asked.answer) {
        (true, _) => after_reasoning(template, prompt, dialect, calls),
        (false, Some(answer)) => {
            let answer = Form::Json(answer.clone());
            let either = if asked.tools.is_empty() { answer } else { Form::Any(vec![calls, answer]) };
            after_reasoning(template, prompt, dialect, either)
        }
        (false, None) => calls,
    };
    (lark::grammar(&whole, control), starts)
}

/// What the reasoning in answers to this prompt begins and ends with, and whether the prompt has begun it; nothing if
/// there is none.
pub fn reasoning_of(template: &str, prompt: &str) -> Option<(&'static str, &'static str, bool)> {
    let marks = ReasoningMarks::find(template)?;
    let prompt = prompt.trim_end();
    let open = prompt.ends_with(marks.begin.trim_end());
    (open || !prompt.ends_with(marks.end.trim_end())).then_some((marks.begin, marks.end, open))
}

/// Lets the model reason first, if it does that.
fn after_reasoning(template: &str, prompt: &str, dialect: &Dialect, rest: Form) -> Form {
    let lead = dialect.between.map_or(Form::All(Vec::new()), |between| optional(text(between)));
    let Some((begin, end, open)) = reasoning_of(template, prompt) else {
        return Form::All(vec![lead, rest]);
    };
    let inside = Form::All(vec![Form::Plain(Value::Null, end.to_owned()), Blank]);
    let reasoning = match open {
        true => inside,
        false => optional(Form::All(vec![text(begin.trim_start()), inside])),
    };
    Form::All(vec![reasoning, lead, rest])
}

fn starts(dialect: &Dialect, calls: &Form, tools: &[Tool]) -> Vec<Start> {
    let (mut words, _) = form::beginnings(calls);
    for word in &mut words {
        // A mark that stands for nothing else is enough.
        let marks = dialect.begin.iter().chain(dialect.frame);
        let mark = marks.filter(|mark| word.starts_with(**mark) && mark.starts_with(['<', '[', ']']));
        if let Some(mark) = mark.max_by_key(|mark| mark.len()).filter(|_| !dialect.always) {
            word.truncate(mark.len());
        }
    }
    words.sort();
    words.dedup();
    if words.len() > MOST_STARTS {
        return Vec::new();
    }
    if dialect.opened.is_some() || words.iter().any(|word| word.starts_with('{')) {
        // Without a mark only the name shows that it is a call, and only at the beginning.
        let names: Vec<String> = tools.iter().map(|tool| escaped(&tool.name)).collect();
        let names = names.join("|");
        return vec![Start::Pattern(match dialect.opened {
            Some(mark) => format!(r"(?:\A|{})((?:{names})\n)", escaped(mark)),
            None => format!(r#"\A\s*(\{{\s*"name"\s*:\s*"(?:{names})")"#),
        })];
    }
    words.into_iter().filter(|word| !word.is_empty()).map(Start::Word).collect()
}

/// A text as a regular expression.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii_punctuation() {
            out.push('\\');
        }
        out.push(character);
    }
    out
}
