//! `/openapi.json`: a description of the endpoints for programs, made from the table of routes and one row for the
//! body of each.

use serde_json::{Map, Value, json};

use crate::error::ERRORS;
use crate::many::{self, OWN_ROUTES};
use crate::routes::{ROUTES, Route};

/// A member of a body: its name and what it may be.
type Member = (&'static str, Shape);

/// What a member may be.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    Texts,
    Flag,
    Number,
    /// A whole number that is at least this.
    Whole(i64),
    Object,
    /// A list of such things.
    List(&'static Shape),
    /// A text, token ids, or lists of such.
    Prompt,
    /// A message with these roles.
    Message(&'static [&'static str]),
}

/// The body of the endpoint whose first path this is: members that must be there, and others that may.
struct Body {
    path: &'static str,
    needed: &'static [Member],
    others: &'static [&'static [Member]],
    /// It is a list of such objects.
    list: bool,
}

const fn body(path: &'static str, needed: &'static [Member], others: &'static [&'static [Member]]) -> Body {
    Body { path, needed, others, list: false }
}

use Shape::{Flag, List, Message, Number, Object, Prompt, Text, Texts, Whole};

const TOKENS: &[Member] = &[("tokens", List(&Whole(0)))];
const PROMPT: &[Member] = &[("prompt", Prompt)];
const ROLES: &[&str] = &["system", "developer", "user", "assistant", "tool"];
const MESSAGES: &[Member] = &[("messages", List(&Message(ROLES)))];
const INPUT: &[Member] = &[("input", Prompt)];
const MODEL: &[Member] = &[("model", Text)];
/// What all that generate take.
const GENERATION: &[Member] = &[
    ("model", Text),
    ("stream", Flag),
    ("temperature", Number),
    ("top_p", Number),
    ("top_k", Whole(0)),
    ("min_p", Number),
    ("seed", Whole(-1)),
    ("stop", Texts),
    ("presence_penalty", Number),
    ("frequency_penalty", Number),
    ("repeat_penalty", Number),
    ("cache_prompt", Flag),
    ("ignore_eos", Flag),
    ("priority", Whole(-1_000_000)),
    ("deadline_ms", Whole(1)),
];
const NATIVE: &[Member] = &[
    ("n_predict", Whole(-1)),
    ("n_probs", Whole(0)),
    ("n_keep", Whole(-1)),
    ("id_slot", Whole(-1)),
    ("lora", List(&Object)),
    ("return_tokens", Flag),
    ("return_progress", Flag),
    ("response_fields", List(&Text)),
];
const COMPLETION: &[Member] = &[("max_tokens", Whole(-1)), ("n", Whole(1)), ("logprobs", Whole(0))];
const CHAT: &[Member] = &[
    ("max_tokens", Whole(-1)),
    ("max_completion_tokens", Whole(-1)),
    ("n", Whole(1)),
    ("logprobs", Flag),
    ("top_logprobs", Whole(0)),
    ("tools", List(&Object)),
    ("stream_options", Object),
    ("chat_template_kwargs", Object),
    ("reasoning_format", Text),
    ("reasoning_effort", Text),
    ("reasoning_budget_tokens", Whole(-1)),
    ("reasoning_budget_message", Text),
];
const RESPONSES: &[Member] =
    &[("instructions", Text), ("max_output_tokens", Whole(-1)), ("tools", List(&Object))];
const ANTHROPIC: &[Member] =
    &[("messages", List(&Message(&["user", "assistant"]))), ("max_tokens", Whole(1))];
const ANTHROPIC_MORE: &[Member] = &[("stop_sequences", List(&Text)), ("tools", List(&Object))];
const OLLAMA: &[Member] = &[
    ("model", Text),
    ("stream", Flag),
    ("options", Object),
    ("keep_alive", Text),
    ("think", Flag),
    ("priority", Whole(-1_000_000)),
    ("deadline_ms", Whole(1)),
    ("reasoning_budget_tokens", Whole(-1)),
];

/// Every endpoint that is posted to.
const BODIES: &[Body] = &[
    body("/props", &[], &[]),
    Body { list: true, ..body("/lora-adapters", &[("id", Whole(0)), ("scale", Number)], &[]) },
    body("/models/load", &[("model", Text)], &[]),
    body("/models/unload", &[("model", Text)], &[]),
    body("/slots/{id}", &[], &[&[("filename", Text)]]),
    body("/audio/transcriptions", &[], &[]),
    body("/tools", &[], &[]),
    body("/completion", PROMPT, &[GENERATION, NATIVE]),
    body("/v1/completions", PROMPT, &[GENERATION, COMPLETION]),
    body("/chat/completions", MESSAGES, &[GENERATION, CHAT]),
    body("/chat/completions/input_tokens", MESSAGES, &[MODEL, CHAT]),
    body("/responses", &[("input", Text)], &[GENERATION, RESPONSES]),
    body("/responses/input_tokens", &[("input", Text)], &[MODEL, RESPONSES]),
    body("/v1/messages", ANTHROPIC, &[GENERATION, ANTHROPIC_MORE]),
    body(
        "/v1/messages/count_tokens",
        &[("messages", List(&Message(&["user", "assistant"])))],
        &[MODEL, ANTHROPIC_MORE],
    ),
    body("/api/chat", &[], &[OLLAMA, MESSAGES]),
    body("/api/generate", &[], &[OLLAMA, &[("prompt", Text), ("system", Text), ("raw", Flag)]]),
    body("/api/show", &[], &[MODEL]),
    body("/api/embed", &[], &[INPUT, PROMPT, MODEL]),
    body(
        "/tokenize",
        &[("content", Text)],
        &[&[("add_special", Flag), ("parse_special", Flag), ("with_pieces", Flag)]],
    ),
    body("/detokenize", TOKENS, &[]),
    body("/apply-template", MESSAGES, &[&[("tools", List(&Object)), ("chat_template_kwargs", Object)]]),
    body("/embedding", INPUT, &[MODEL, &[("embd_normalize", Whole(-1))]]),
    body("/v1/embeddings", INPUT, &[MODEL, &[("encoding_format", Text), ("dimensions", Whole(1))]]),
    body("/rerank", &[("query", Text), ("documents", List(&Text))], &[MODEL, &[("top_n", Whole(0))]]),
    body(
        "/infill",
        &[("input_prefix", Text), ("input_suffix", Text)],
        &[GENERATION, NATIVE, &[("prompt", Text), ("input_extra", List(&Object))]],
    ),
];

impl Shape {
    fn schema(self) -> Value {
        match self {
            Text => json!({ "type": "string" }),
            Texts => {
                json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] })
            }
            Flag => json!({ "type": "boolean" }),
            Number => json!({ "type": "number" }),
            Whole(least) => json!({ "type": "integer", "minimum": least }),
            Object => json!({ "type": "object" }),
            List(items) => json!({ "type": "array", "items": items.schema() }),
            Prompt => json!({ "anyOf": [
                { "type": "string" },
                { "type": "array", "items": { "type": "integer", "minimum": 0 }, "minItems": 1 },
                { "type": "array", "items": { "type": "string" }, "minItems": 1 },
            ] }),
            Message(roles) => json!({
                "type": "object",
                "properties": { "role": { "enum": roles }, "content": { "type": "string" } },
                "required": ["role", "content"],
            }),
        }
    }
}

impl Body {
    fn schema(&self) -> Value {
        let members = self.needed.iter().chain(self.others.iter().copied().flatten());
        let properties: Map<String, Value> =
            members.map(|(name, shape)| ((*name).to_owned(), shape.schema())).collect();
        let required: Vec<&str> = self.needed.iter().map(|(name, _)| *name).collect();
        let one = json!({ "type": "object", "properties": properties, "required": required });
        if self.list { json!({ "type": "array", "items": one }) } else { one }
    }
}

/// The description of a server of one model, whose paths begin with `prefix`.
pub fn of_one(prefix: &str, version: &str) -> Value {
    let mut paths = Map::new();
    ROUTES.iter().for_each(|route| describe(&mut paths, prefix, route));
    description(paths, version)
}

/// The description of a server of many models.
pub fn of_many(prefix: &str, version: &str) -> Value {
    let mut paths = Map::new();
    OWN_ROUTES.iter().for_each(|route| describe(&mut paths, prefix, route));
    let handed_on = ROUTES.iter().filter(|route| !many::is_own(route));
    handed_on.for_each(|route| describe(&mut paths, prefix, route));
    description(paths, version)
}

fn describe<H>(paths: &mut Map<String, Value>, prefix: &str, route: &Route<H>) {
    for path in route.paths {
        let methods = paths.entry(format!("{prefix}{path}")).or_insert_with(|| json!({}));
        methods[route.method.to_ascii_lowercase()] = operation(route, path);
    }
}

fn description(paths: Map<String, Value>, version: &str) -> Value {
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Puna", "version": version, "description": "A server for language models" },
        "paths": paths,
        "components": { "securitySchemes": {
            "bearer": { "type": "http", "scheme": "bearer" },
            "header": { "type": "apiKey", "in": "header", "name": "X-Api-Key" },
        } },
    })
}

/// Statuses that any request may get.
fn statuses<H>(route: &Route<H>) -> Map<String, Value> {
    let mut all = Map::new();
    let good = match route.paths[0] {
        "/" => "text/html",
        "/metrics" => "text/plain",
        _ => "application/json",
    };
    all.insert("200".into(), json!({ "description": "done", "content": content(route, good) }));
    for row in ERRORS {
        let known = all.entry(row.status.to_string()).or_insert_with(|| {
            json!({ "description": "", "content": { "application/json": { "schema": { "type": "object" } } } })
        });
        let before = known["description"].as_str().filter(|text| !text.is_empty());
        known["description"] =
            json!(before.map_or(row.meaning.to_owned(), |text| format!("{text}; {}", row.meaning)));
    }
    all
}

/// What comes back: one value, or a stream if that was asked for.
fn content<H>(route: &Route<H>, kind: &str) -> Value {
    let mut kinds = Map::new();
    let schema = if kind == "application/json" { json!({}) } else { json!({ "type": "string" }) };
    kinds.insert(kind.into(), json!({ "schema": schema }));
    let streams = BODIES.iter().any(|body| {
        body.path == route.paths[0]
            && body.others.iter().copied().flatten().any(|(name, _)| *name == "stream")
    });
    if streams && route.method == "POST" {
        let stream =
            if route.paths[0].starts_with("/api/") { "application/x-ndjson" } else { "text/event-stream" };
        // No schema: readers of descriptions differ on whether it is of an event, a line or the whole.
        kinds.insert(stream.into(), json!({}));
    }
    Value::Object(kinds)
}

fn operation<H>(route: &Route<H>, path: &str) -> Value {
    let mut operation = json!({
        "summary": route.summary,
        "operationId": format!("{} {path}", route.method.to_ascii_lowercase()),
        "responses": statuses(route),
        "security": if route.key { json!([{ "bearer": [] }, { "header": [] }, {}]) } else { json!([]) },
    });
    let mut parameters = Vec::new();
    for part in path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
        parameters.push(json!({ "name": part, "in": "path", "required": true, "schema": { "type": "integer", "minimum": 0 } }));
    }
    if !parameters.is_empty() {
        let actions = json!({ "enum": ["save", "restore", "erase"] });
        parameters.push(json!({ "name": "action", "in": "query", "required": true, "schema": actions }));
        operation["parameters"] = Value::Array(parameters);
    }
    if let Some(body) = BODIES.iter().find(|body| route.method == "POST" && body.path == route.paths[0]) {
        let content = json!({ "application/json": { "schema": body.schema() } });
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    operation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_body() {
        let one = ROUTES.iter().map(|route| (route.method, route.paths[0]));
        let many = OWN_ROUTES.iter().map(|route| (route.method, route.paths[0]));
        let posted: Vec<&str> = one.chain(many).filter(|row| row.0 == "POST").map(|row| row.1).collect();
        for path in &posted {
            assert_eq!(BODIES.iter().filter(|body| body.path == *path).count(), 1, "{path}");
        }
        for body in BODIES {
            assert!(posted.contains(&body.path), "{}", body.path);
        }
        let many = of_many("", "1");
        assert!(
            many["paths"]["/models/load"]["post"].is_object() && many["paths"]["/infill"]["post"].is_object()
        );
    }

    #[test]
    fn paths_and_methods_are_those_of_the_table() {
        let description = of_one("/llm", "1");
        let paths = description["paths"].as_object().unwrap();
        let count: usize = paths.values().map(|methods| methods.as_object().unwrap().len()).sum();
        assert_eq!(count, ROUTES.iter().map(|route| route.paths.len()).sum::<usize>());
        let chat = &paths["/llm/v1/chat/completions"]["post"];
        assert_eq!(
            chat["requestBody"]["content"]["application/json"]["schema"]["required"],
            json!(["messages"])
        );
        assert!(chat["responses"]["429"]["description"].as_str().unwrap().contains("Retry-After"));
        assert!(chat["responses"]["403"]["description"].as_str().unwrap().contains("; "));
        assert_eq!(paths["/llm/health"]["get"]["security"], json!([]));
        assert_eq!(paths["/llm/slots/{id}"]["post"]["parameters"].as_array().unwrap().len(), 2);
    }
}
