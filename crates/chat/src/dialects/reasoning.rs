//! How models mark their reasoning.

/// How a kind of model marks its reasoning.
#[derive(Debug)]
pub struct ReasoningMarks {
    /// Text before it.
    pub begin: &'static str,
    /// Text after it. The first one ends the reasoning, also where the reasoning only speaks of the mark.
    pub end: &'static str,
    /// Whether it can begin anywhere in an answer, not only at its start.
    pub anywhere: bool,
}

const fn at_start(begin: &'static str, end: &'static str) -> ReasoningMarks {
    ReasoningMarks { begin, end, anywhere: false }
}

const fn anywhere(begin: &'static str, end: &'static str) -> ReasoningMarks {
    ReasoningMarks { begin, end, anywhere: true }
}

/// Every known way to mark reasoning; the first whose ends both stand in a template counts.
pub const REASONING: &[ReasoningMarks] = &[
    // gpt-oss; the template has the parts of the mark apart.
    anywhere("<|channel|>analysis<|message|>", "<|end|>"),
    anywhere(" to=self<|message|>", "<|eom|>"),
    anywhere("<|channel>thought", "<channel|>"),
    at_start("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    at_start("<|START_THINKING|>", "<|END_THINKING|>"),
    at_start("<seed:think>", "</seed:think>"),
    at_start("<mm:think>", "</mm:think>"),
    at_start("<think:opensource>", "</think:opensource>"),
    at_start("<|think|>", "<|end|>"),
    at_start("[THINK]", "[/THINK]"),
    at_start("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    at_start("<think>", "</think>"),
];

impl ReasoningMarks {
    /// Those of a template's model, if it reasons.
    pub(super) fn find(template: &str) -> Option<&'static Self> {
        REASONING.iter().find(|marks| marks.known_to(template))
    }

    /// Whether a template's model marks its reasoning so.
    pub(super) fn known_to(&self, template: &str) -> bool {
        let has = |mark: &str| template.contains(mark);
        match self.end {
            "<|end|>" if self.begin == "<|think|>" => has("<|think|>") && has("<|begin|>"),
            "<|end|>" => has("<|channel|>analysis") || (has("<|channel|>") && has("analysis")),
            "<|eom|>" => has("to=self") && has("<|eom|>"),
            "<|close|>think<|sep|>" => has("<|open|>") && has("<|close|>"),
            "</think:opensource>" => has("think:opensource") || has("hy_Assistant"),
            end => has(end),
        }
    }
}
