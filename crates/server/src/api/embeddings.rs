//! `/v1/embeddings`, `/embedding`, `/rerank`: texts to numbers.

use std::sync::Arc;

use axum::response::Response;
use puna_engine::{EmbeddingSender, EngineError, normalize};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::app::App;
use crate::caller::Caller;
use crate::edge::Call;
use crate::error::{ApiError, ApiResult, Kind};
use crate::fields::{Fields, missing, wrong};
use crate::options::Embeds;
use crate::prompt;
use crate::stream::json_response;

/// Most texts of one request.
const MOST_TEXTS: usize = 2048;

/// How embeddings are shown.
struct Shape {
    base64: bool,
    normalize: i32,
    dimensions: Option<usize>,
}

/// `POST /v1/embeddings`, as OpenAI's clients expect it.
pub async fn openai(app: Arc<App>, call: Call) -> ApiResult<Response> {
    embeddings(app, call, false).await
}

/// `POST /embedding`: the peer's own shape.
pub async fn native(app: Arc<App>, call: Call) -> ApiResult<Response> {
    embeddings(app, call, true).await
}

async fn embeddings(app: Arc<App>, call: Call, native: bool) -> ApiResult<Response> {
    let embeds = *embeds(&app)?;
    let check = move |app: &App, fields: &Fields| {
        let (name, value) = fields.get(&["input", "content"]).ok_or_else(|| missing("input"))?;
        // The peer's clients use the other name, and expect its shape.
        let native = native || name == "content";
        if embeds.per_token && !native {
            return Err(ApiError::invalid(
                "the server pools no embeddings (--pooling none): ask at /embeddings, or start it with another pooling",
            ));
        }
        let texts = texts(name, value, app)?;
        let dimensions = fields.integer(&["dimensions"], 1..=embeds.width as i64)?;
        let base64 = match fields.text(&["encoding_format"])?.unwrap_or("float") {
            "float" => false,
            "base64" => true,
            other => {
                let other: String = other.chars().take(64).collect();
                return Err(ApiError::invalid(format!(
                    "field 'encoding_format': expected float or base64, got {other}"
                )));
            }
        };
        let normalize = fields.integer(&["embd_normalize"], -1..=i64::from(i32::MAX))?;
        let shape = Shape {
            base64,
            normalize: normalize.map_or(embeds.normalize, |norm| norm as i32),
            dimensions: dimensions.map(|count| count as usize),
        };
        Ok((texts, shape, native))
    };
    let (texts, shape, native) = call.prepare(&app, check).await?;
    let tokens: usize = texts.iter().map(Vec::len).sum();
    let rows = embed(&app, &call.caller, texts).await?;
    let shown = |row: &[f32]| {
        let mut row = row[..shape.dimensions.unwrap_or(row.len()).min(row.len())].to_vec();
        if !embeds.ranks {
            normalize(&mut row, shape.normalize);
        }
        match shape.base64 {
            true => json!(base64(&row.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())),
            false => json!(row),
        }
    };
    let rows = rows.iter().enumerate();
    if native {
        let entry = |(index, rows): (usize, &Vec<f32>)| {
            let rows: Vec<Value> = rows.chunks_exact(embeds.width.max(1)).map(shown).collect();
            json!({ "index": index, "embedding": rows })
        };
        return Ok(json_response(&Value::Array(rows.map(entry).collect())));
    }
    let entry = |(index, row): (usize, &Vec<f32>)| json!({ "object": "embedding", "index": index, "embedding": shown(row) });
    Ok(json_response(&json!({
        "object": "list",
        "model": app.served.facts.name,
        "data": rows.map(entry).collect::<Vec<_>>(),
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}

/// `POST /api/embed`, and with `prompt` its older form `POST /api/embeddings`: Ollama's shapes.
pub async fn ollama(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let embeds = *embeds(&app)?;
    if embeds.per_token {
        return Err(ApiError::invalid(
            "the server pools no embeddings (--pooling none): start it with another pooling",
        ));
    }
    let check = move |app: &App, fields: &Fields| {
        let (name, value) = fields.get(&["input", "prompt"]).ok_or_else(|| missing("input"))?;
        let dimensions = fields.integer(&["dimensions"], 1..=embeds.width as i64)?;
        Ok((texts(name, value, app)?, name == "prompt", dimensions.map(|count| count as usize)))
    };
    let (texts, old, dimensions) = call.prepare(&app, check).await?;
    let tokens: usize = texts.iter().map(Vec::len).sum();
    let mut rows = embed(&app, &call.caller, texts).await?;
    for row in &mut rows {
        row.truncate(dimensions.unwrap_or(row.len()));
        normalize(row, embeds.normalize);
    }
    Ok(json_response(&match old {
        true => json!({ "embedding": rows.first() }),
        false => json!({ "model": app.served.facts.name, "embeddings": rows, "prompt_eval_count": tokens }),
    }))
}

/// What is asked of `/rerank`.
struct Ranking {
    texts: Vec<Vec<u32>>,
    documents: Vec<String>,
    top: usize,
    /// The shape of Hugging Face's text-embeddings-inference.
    bare: bool,
    shows_documents: bool,
    sigmoid: bool,
}

/// `POST /rerank`: documents by how well they answer a query, in Jina's shape, or with `texts` in that of
/// text-embeddings-inference.
pub async fn rerank(app: Arc<App>, call: Call) -> ApiResult<Response> {
    if !embeds(&app)?.ranks {
        let message =
            "this server does not rank: start it with --reranking and a model that has a classifier";
        return Err(ApiError::new(Kind::NotSupported, message));
    }
    let ranking = call.prepare(&app, ranking).await?;
    let tokens: usize = ranking.texts.iter().map(Vec::len).sum();
    let rows = embed(&app, &call.caller, ranking.texts).await?;
    let score = |row: &Vec<f32>| {
        let score = row.first().copied().unwrap_or(f32::NAN);
        if ranking.sigmoid { 1.0 / (1.0 + (-score).exp()) } else { score }
    };
    let mut scores: Vec<(usize, f32)> = rows.iter().map(score).enumerate().collect();
    scores.sort_by(|a, b| b.1.total_cmp(&a.1));
    scores.truncate(ranking.top);
    let result = |(index, score): &(usize, f32)| {
        let document = ranking.documents.get(*index).filter(|_| ranking.shows_documents);
        let mut result = match ranking.bare {
            true => json!({ "index": index, "score": score }),
            false => json!({ "index": index, "relevance_score": score }),
        };
        if let (Some(document), Some(members)) = (document, result.as_object_mut()) {
            match ranking.bare {
                true => members.insert("text".into(), json!(document)),
                false => members.insert("document".into(), json!({ "text": document })),
            };
        }
        result
    };
    let results: Vec<Value> = scores.iter().map(result).collect();
    if ranking.bare {
        return Ok(json_response(&Value::Array(results)));
    }
    Ok(json_response(&json!({
        "object": "list",
        "model": app.served.facts.name,
        "results": results,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}

fn ranking(app: &App, fields: &Fields) -> ApiResult<Ranking> {
    let query = fields.text(&["query"])?.ok_or_else(|| missing("query"))?;
    let (name, value) = fields.get(&["documents", "texts"]).ok_or_else(|| missing("documents"))?;
    let bare = name == "texts";
    let expected = "a list of strings, at least one";
    let items =
        value.as_array().filter(|items| !items.is_empty()).ok_or_else(|| wrong(name, value, expected))?;
    limit(name, items.len())?;
    let text = |item: &Value| {
        let text = item.as_str().or_else(|| item.get("text").and_then(Value::as_str));
        text.map(str::to_owned).ok_or_else(|| wrong(name, item, "a string or an object with 'text'"))
    };
    let documents: Vec<String> = items.iter().map(text).collect::<ApiResult<_>>()?;
    let top = fields.integer(&["top_n", "top_k"], 1..=i64::from(i32::MAX))?;
    let tokenizer = &app.served.tokenizer;
    Ok(Ranking {
        texts: documents.iter().map(|document| tokenizer.encode_pair(query, document)).collect(),
        documents,
        top: top.map_or(usize::MAX, |top| top as usize),
        bare,
        shows_documents: fields.boolean(&["return_text", "return_documents"])?.unwrap_or(false),
        sigmoid: fields.boolean(&["normalize"])?.unwrap_or(false),
    })
}

/// What the server knows about its embeddings, or the error that it makes none.
fn embeds(app: &App) -> ApiResult<&Embeds> {
    app.served.embeds.as_ref().ok_or_else(|| {
        ApiError::new(
            Kind::NotSupported,
            "this server generates text: start it with --embeddings, or --reranking for ranks",
        )
    })
}

fn limit(name: &str, count: usize) -> ApiResult<()> {
    if count <= MOST_TEXTS {
        return Ok(());
    }
    Err(ApiError::invalid(format!("field '{name}': {count} texts, at most {MOST_TEXTS}")))
}

/// One text, or a list of them: each a string, a list of token ids, or an object with `content`.
fn texts(name: &str, value: &Value, app: &App) -> ApiResult<Vec<Vec<u32>>> {
    let one = |value: &Value| {
        let value = value.get("content").unwrap_or(value);
        let parts = value.as_array().filter(|parts| parts.iter().any(Value::is_object));
        let joined = parts.map(|parts| {
            let text = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
            let texts: Option<Vec<String>> = parts.iter().map(text).collect();
            texts.map(|texts| Value::String(texts.concat()))
        });
        let value = match joined {
            Some(Some(ref text)) => text,
            Some(None) => return Err(wrong(name, value, "parts with 'text'")),
            None => value,
        };
        match prompt::tokens(name, value, &app.served.tokenizer, true, true) {
            Ok(tokens) if tokens.is_empty() => Err(ApiError::invalid(format!(
                "field '{name}': a text is empty: leave it out, or give a text of at least one token"
            ))),
            other => other,
        }
    };
    match value {
        Value::Array(items) if items.is_empty() => {
            Err(ApiError::invalid(format!("field '{name}': expected at least one text")))
        }
        Value::Array(items) if !items.iter().any(Value::is_number) => {
            limit(name, items.len())?;
            items.iter().map(one).collect()
        }
        other => Ok(vec![one(other)?]),
    }
}

type Found = Result<Vec<Vec<f32>>, EngineError>;

/// The handler that waits; it is dropped when its client leaves.
struct Answer(oneshot::Sender<Found>);

impl EmbeddingSender for Answer {
    fn is_awaited(&self) -> bool {
        !self.0.is_closed()
    }

    fn send(self: Box<Self>, found: Found) {
        // Who left in this moment has no use for it.
        drop(self.0.send(found));
    }
}

/// Asks the engine.
async fn embed(app: &Arc<App>, caller: &Arc<Caller>, texts: Vec<Vec<u32>>) -> ApiResult<Vec<Vec<f32>>> {
    let _place = app.admit(1)?;
    caller.note_texts(app, &texts).await;
    let engine = app.served.engine.awake().await?;
    let (sender, receiver) = oneshot::channel();
    engine.embed_to(texts, Box::new(Answer(sender)));
    match receiver.await {
        Ok(found) => Ok(found?),
        Err(_) => Err(ApiError::new(Kind::Unavailable, "the server ends")),
    }
}

/// Base64 with the standard alphabet and padding (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for index in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * index)) as usize % 64];
            text.push(if index <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_of_every_remainder() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(super::base64(bytes.as_bytes()), text);
        }
        assert_eq!(super::base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }
}
