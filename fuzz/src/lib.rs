//! What the fuzz targets do with their input. Each function panics if something is wrong; too much time or memory is for
//! the driver to see.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::OnceLock;

use puna_chat::dialects::{DIALECTS, Delta, OutputParser, Tools};
use puna_chat::{Conversation, Stops, Template};
use puna_gguf::{File, Metadata};
use puna_grammar::{Grammar, Tokens, check};
use puna_tokenizer::{Decoder, Tokenizer};
use serde_json::{Map, json};

/// A target: its name, what it does, and pieces from which a driver without coverage makes inputs.
pub type Target = (&'static str, fn(&[u8]), &'static [&'static str]);

/// All targets.
pub const TARGETS: &[Target] = &[
    (
        "gbnf",
        gbnf,
        &[
            "root ::= ",
            "\n",
            "a ::= ",
            "\"x\"",
            "[a-z]",
            "[^\"\\\\]",
            "(",
            ")",
            "|",
            "*",
            "+",
            "?",
            "{2}",
            "{0,3}",
            "{1,}",
            "<[97]>",
            "!<[98]>",
            ".",
            "#",
            "a",
            " ",
            "\\x41",
            "\0",
            "xxab",
            "root ::= (\"x\" | a)* a\na ::= [a-c]{1,4}\n",
            "%llguidance {}\nstart: %json {\"const\": -9223372036854775808}\n",
            "%llguidance {}\nstart: \"x\" /[a-z]+/ %json {\"type\": \"integer\"}\n",
        ],
    ),
    (
        "schema",
        schema,
        &[
            "{\"type\":\"object\"",
            "\"properties\":{\"a\":",
            "}",
            "{\"type\":\"string\"}",
            ",",
            "\"required\":[\"a\"]",
            "{\"$ref\":\"#\"}",
            "{\"anyOf\":[",
            "]}",
            "\"pattern\":\"^a+$\"",
            "\"maxLength\":3",
            "{\"enum\":[1,\"x\",null]}",
            "{\"type\":\"array\",\"items\":",
            "\"minItems\":2",
            "{",
            "\"allOf\":[",
            "true",
            "{\"type\":\"number\",\"minimum\":0.5}",
            "{\"const\":-9223372036854775808}",
            "{\"type\":\"integer\",\"minimum\":-1e30,\"maximum\":-1e29}",
            "\"maximum\":9223372036854775807",
            "\"minimum\":-9223372036854775808",
            "{\"type\":\"integer\",\"multipleOf\":99999}",
            "{\"type\":\"array\",\"items\":{\"enum\":[1,2,\"a\"]},\"uniqueItems\":true}",
            "\0",
            "{\"a\":\"x\"}",
            "[1,2]",
            "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}\0{\"a\":\"x\"}",
        ],
    ),
    (
        "tokenizer",
        tokenizer,
        &[
            "a", "hello", " ", "  ", "\n", "\t", "123", "é", "漢字", "🦙", "<s>", "</s>", "<|x|>", "\u{301}",
            "ab", "▁", "'s", "\u{feff}", "<0x41>", "\u{0}",
        ],
    ),
    (
        "template",
        template,
        &[
            "{{",
            "}}",
            "{%",
            "%}",
            " for m in messages ",
            " endfor ",
            " if ",
            " endif ",
            "m.content",
            "m['role']",
            " | tojson",
            " | length",
            "| join(',')",
            "set x = ",
            "namespace(a=1)",
            "[",
            "]",
            "(",
            ")",
            "'a'",
            "1",
            " + ",
            " * ",
            "range(9)",
            " macro f(a) ",
            " endmacro ",
            "f(1)",
            "tools",
            "raise_exception('x')",
            "x",
            ".split('a')",
            "[::-1]",
            "-",
            " else ",
            "generation",
            " for i in range(99999) ",
            "'a' * 99999",
            " set ns = namespace(x='a') ",
            " set ns.x = ns.x + ns.x ",
            "ns.x",
            "f()",
            " call f() ",
            " endcall ",
            "caller()",
            " filter upper ",
            " endfilter ",
            " set y ",
            " endset ",
            "| replace('a', 'aa')",
            "| list",
            "| map(attribute='role')",
            "| safe",
            "|indent(9999)",
            " if loop.first ",
            "loop.index",
            "dict(a=1)",
            "| sort",
            "| batch(2)",
            "{#",
            "#}",
            "{% raw %}",
            " endraw ",
        ],
    ),
    (
        "output",
        output,
        &[
            "<tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
            "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
            "{",
            "}",
            "\"",
            "\\",
            "\\u00",
            "f",
            ":",
            ",",
            "[TOOL_CALLS]",
            "[ARGS]",
            "<function=",
            ">",
            "<parameter=",
            "</parameter>",
            "</function>",
            "<|channel|>",
            "<|message|>",
            "<|tool_call>call:",
            "<|\"|>",
            "é",
            "\n",
            " ",
            "```json",
            "ab",
            "</s>",
            "<｜DSML｜invoke name=\"",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
            "{\"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}",
            "\"name\"",
            "\"arguments\"",
            "[",
            "]",
            "(",
            ")",
            "=",
            "'",
            "a",
            "\u{3000}",
            "<![CDATA[",
            "]]>",
            "<|tool_call_start|>",
            "<|tool_call_end|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<|python_tag|>",
            "<function name=\"",
            "<param name=\"",
            "</param>",
            "<invoke name=\"",
            "<parameter name=\"",
            "\">",
            "</invoke>",
            "]<]minimax[>[<invoke name=\"",
            "]<]minimax[>[<",
            "]<]minimax[>[</",
            "<atem:invoke name=\"",
            " to=f<|message|>",
            "<|open|>call tool=\"",
            "<|open|>argument key=\"",
            "<|sep|>",
            "<|close|>argument<|sep|>",
            "functools",
            "<TOOLCALL>",
            "<|tool_call:begin|>",
            "<|tool_call:name|>",
            "<|tool_call:args|>",
            "<tool_call:opensource>",
            "<tool_sep:opensource>",
            ">>>",
            "all\n",
            "<tool_call|>",
            "<|START_ACTION|>",
            "Action:",
        ],
    ),
];

/// A text before a zero byte and what follows it.
fn two(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|byte| *byte == 0) {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &[]),
    }
}

/// A grammar, a zero byte, and a text for it.
pub fn gbnf(data: &[u8]) {
    let (grammar, text) = two(data);
    let Ok(grammar) = std::str::from_utf8(grammar) else { return };
    let Ok(grammar) = Grammar::new(grammar, &Tokens::bytes()) else { return };
    let Ok(mut constraint) = grammar.constraint() else { return };
    for byte in text.iter().take(200) {
        let Ok(Some(mask)) = constraint.mask() else { return };
        let allowed = puna_grammar::allows(mask, u32::from(*byte));
        let mut copy = constraint.clone();
        assert_eq!(constraint.accept(u32::from(*byte)).is_ok(), allowed);
        if !allowed {
            return;
        }
        // Taking a token back leads to the same place.
        copy.accept(u32::from(*byte)).unwrap();
        copy.rollback(1).unwrap();
        copy.accept(u32::from(*byte)).unwrap();
        assert_eq!(copy.is_complete(), constraint.is_complete());
    }
}

/// A JSON schema, a zero byte, and a text for it.
pub fn schema(data: &[u8]) {
    let (schema, text) = two(data);
    let Ok(schema) = serde_json::from_slice(schema) else { return };
    let Ok(grammar) = Grammar::json_schema(&schema, &Tokens::bytes()) else { return };
    // What is accepted is JSON.
    if let Ok(None) = check(&grammar, text) {
        serde_json::from_slice::<serde::de::IgnoredAny>(text).expect("accepted text is JSON");
    }
}

/// Sources of chat templates, rendered with a conversation.
pub fn template(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let Ok(template) = Template::parse(source, "<s>", "</s>") else { return };
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let _ = template.render(&Conversation {
        messages: vec![json!({"role": "user", "content": "a"}), json!({"role": "assistant", "content": "b"})],
        tools: Some(json!([tool])),
        add_generation_prompt: true,
        extra: Map::new(),
        now: None,
    });
}

/// Parts of an answer, neighbours of one kind joined however they were cut.
fn joined(deltas: Vec<Delta>) -> String {
    let mut all = String::new();
    let mut kind = "";
    for delta in deltas {
        let (name, text) = match delta {
            Delta::Content(text) => ("content", text),
            Delta::Reasoning(text) => ("reasoning", text),
            Delta::Arguments(text) => ("arguments", text),
            Delta::Call(name) => ("call", name),
        };
        if kind != name || name == "call" {
            all.push_str(&format!("\n{name}: "));
            kind = name;
        }
        all.push_str(&text);
    }
    all
}

/// Answers of models: parsed in pieces they give what they give at once, and stop texts are found the same. The first byte
/// chooses the dialect.
pub fn output(data: &[u8]) {
    let Some((first, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let dialect = DIALECTS.get(usize::from(*first) % DIALECTS.len());
    let parser = || {
        let tools = [
            json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}),
        ];
        let prompt = dialect.and_then(|dialect| dialect.opened).unwrap_or("");
        OutputParser::new("<think></think>", prompt, true, dialect, Tools::from_json(&tools))
    };
    let mut whole = parser();
    let mut expected = whole.push(text);
    expected.extend(whole.finish());
    let mut pieces = parser();
    let mut found = Vec::new();
    for character in text.chars() {
        found.extend(pieces.push(&character.to_string()));
    }
    found.extend(pieces.finish());
    let name = dialect.map_or("", |dialect| dialect.name);
    assert_eq!(joined(found), joined(expected), "{name}");

    let stops = ["</s>".to_owned(), "ab".to_owned(), "bc".to_owned()];
    let (mut whole, mut pieces) = (Stops::new(&stops), Stops::new(&stops));
    let mut expected = whole.push(text);
    expected.push_str(&whole.finish());
    let mut found: String = text.chars().map(|character| pieces.push(&character.to_string())).collect();
    found.push_str(&pieces.finish());
    assert_eq!((found, pieces.found()), (expected, whole.found()));
}

/// A small vocabulary for a tokenizer model.
fn small(model: &str) -> Option<Tokenizer> {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["\u{2581}", "ab", "a", "b", "<|x|>", "\u{2581}a", "é", "a\u{2581}"].map(str::to_owned));
    let mut kinds = vec![6; tokens.len()];
    kinds[..3].copy_from_slice(&[2, 3, 3]);
    kinds[259..].fill(1);
    kinds[263] = 4;
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.model", model);
    metadata
        .set("tokenizer.ggml.scores", (0..tokens.len()).map(|index| -(index as f32)).collect::<Vec<f32>>());
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.token_type", kinds);
    metadata.set("tokenizer.ggml.unknown_token_id", 0u32);
    Tokenizer::from_metadata(&metadata).ok()?
}

/// Small tokenizers of every kind, and those of the shared vocabularies if they are there.
fn tokenizers() -> &'static [Tokenizer] {
    static TOKENIZERS: OnceLock<Vec<Tokenizer>> = OnceLock::new();
    TOKENIZERS.get_or_init(|| {
        let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let folder = above.map(|folder| folder.join("shared/fixtures/vocab")).find(|folder| folder.exists());
        let files = folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
        let mut files: Vec<_> = files.map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
        files.sort();
        let read =
            |path: &std::path::PathBuf| Tokenizer::from_metadata(&File::header(path).ok()?.metadata).ok()?;
        let kinds = ["llama", "t5", "rwkv", "plamo2", "bert"];
        kinds.iter().filter_map(|kind| small(kind)).chain(files.iter().filter_map(read)).collect()
    })
}

/// Text for a tokenizer, which the first byte chooses.
pub fn tokenizer(data: &[u8]) {
    let Some((first, text)) = data.split_first() else { return };
    let all = tokenizers();
    let tokenizer = &all[usize::from(*first) / 2 % all.len()];
    let tokens = tokenizer.encode_bytes(text, false, first & 1 == 1);
    let whole = tokenizer.decode(&tokens, true);
    // Piece by piece it is the same text, but for the blank that decoding a whole text takes away.
    let mut decoder = Decoder::new(tokenizer, true);
    let mut pieces: String = tokens.iter().map(|token| decoder.push(*token)).collect();
    pieces.push_str(&decoder.finish());
    let whole = String::from_utf8_lossy(&whole);
    assert!(pieces == whole || pieces.strip_prefix(' ') == Some(&*whole), "{pieces:?} and {whole:?}");
}
