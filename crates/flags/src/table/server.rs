//! How models are served.

use crate::config::Config;
use crate::flag::{Flag, ToolSet};
use crate::values::{at_least, filled, integer, path};

const SERVE: ToolSet = ToolSet::SERVE;

/// Flags that make a server of many models.
const ROUTER: &[&str] = &["models-dir", "models-preset"];

/// Texts separated by commas.
fn list(value: &str) -> Result<Vec<String>, String> {
    let texts: Vec<String> =
        value.split(',').map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect();
    if texts.is_empty() { Err("expected at least one text".into()) } else { Ok(texts) }
}

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::value("--host", "HOST", "Host name or address to listen on", |c: &mut Config, v| {
        c.server.host = filled(v)?;
        Ok(())
    })
    .env("LLAMA_ARG_HOST")
    .default("127.0.0.1")
    .tools(SERVE),
    Flag::value("--port", "PORT", "Port to listen on; 0 means any that is free", |c: &mut Config, v| {
        c.server.port = integer(v)?;
        Ok(())
    })
    .env("LLAMA_ARG_PORT")
    .default("8080")
    .tools(SERVE),
    Flag::value("-np --parallel", "N", "Requests answered at once; -1 means 4", |c: &mut Config, v| {
        c.server.parallel = match integer::<i32>(v)? {
            -1 => None,
            _ => Some(at_least(v, 1).map_err(|_| "expected -1 or a whole number of at least 1")?),
        };
        Ok(())
    })
    .env("LLAMA_ARG_N_PARALLEL")
    .default("-1")
    .tools(SERVE),
    Flag::value(
        "--queue-limit",
        "N",
        "Requests that may wait; more are told to come back",
        |c: &mut Config, v| {
            c.server.queue = integer::<u32>(v)? as usize;
            Ok(())
        },
    )
    .default("512")
    .tools(SERVE),
    Flag::text("--api-key", "KEY,...", "Keys that clients need", |c: &mut Config, v| {
        c.server.api_keys.extend(list(v)?);
        Ok(())
    })
    .env("LLAMA_API_KEY")
    .tools(SERVE),
    Flag::value("--api-key-file", "FILE", "File with keys, one a line", |c: &mut Config, v| {
        c.server.api_key_file = Some(path(v)?);
        Ok(())
    })
    .env("LLAMA_ARG_API_KEY_FILE")
    .tools(SERVE),
    Flag::value(
        "--api-keys",
        "FILE",
        "JSON file of keys with names, models, ends and limits; read again when it changes",
        |c: &mut Config, v| {
            c.server.key_file = Some(path(v)?);
            Ok(())
        },
    )
    .tools(SERVE),
    Flag::value("--audit-log", "FILE", "File for a line of JSON about each request", |c: &mut Config, v| {
        c.server.audit_log = Some(path(v)?);
        Ok(())
    })
    .tools(SERVE),
    Flag::value(
        "--audit-rules",
        "FILE",
        "JSON file of rules for the log's risk level",
        |c: &mut Config, v| {
            c.server.audit_rules = Some(path(v)?);
            Ok(())
        },
    )
    .needs(&["audit-log"])
    .tools(SERVE),
    Flag::switch("--audit-prompts", "Write prompts into the audit log, too", |c: &mut Config, on| {
        c.server.audit_prompts = on;
    })
    .needs(&["audit-log"])
    .tools(SERVE),
    Flag::switch("--allow-unauthenticated", "Serve other machines without a key", |c: &mut Config, on| {
        c.server.allow_unauthenticated = on;
    })
    .tools(SERVE),
    Flag::text(
        "--cors-origins",
        "ORIGIN,...",
        "Web pages that may use the server: *, localhost, or origins",
        |c: &mut Config, v| {
            c.server.origins = list(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_CORS_ORIGINS")
    .default("localhost")
    .tools(SERVE),
    Flag::text(
        "--api-prefix",
        "PREFIX",
        "Text before every path, with a slash first",
        |c: &mut Config, v| {
            let fine = |letter: char| letter.is_ascii_alphanumeric() || "/-_.".contains(letter);
            let prefix = v.trim_end_matches('/');
            if !prefix.is_empty() && (!prefix.starts_with('/') || !prefix.chars().all(fine)) {
                return Err("expected a path such as /llama".into());
            }
            c.server.prefix = prefix.to_owned();
            Ok(())
        },
    )
    .env("LLAMA_ARG_API_PREFIX")
    .tools(SERVE),
    Flag::text("-a --alias", "NAME", "Name of the model in answers", |c: &mut Config, v| {
        c.server.alias = Some(filled(v)?);
        Ok(())
    })
    .env("LLAMA_ARG_ALIAS")
    .tools(SERVE),
    Flag::switch("--metrics", "Answer GET /metrics", |c: &mut Config, on| c.server.metrics = on)
        .env("LLAMA_ARG_ENDPOINT_METRICS")
        .tools(SERVE),
    Flag::switch("--slots", "Answer GET /slots", |c: &mut Config, on| c.server.slots = on)
        .negative("--no-slots")
        .env("LLAMA_ARG_ENDPOINT_SLOTS")
        .default("on")
        .tools(SERVE),
    Flag::switch("--props", "Answer POST /props", |c: &mut Config, on| c.server.properties = on)
        .env("LLAMA_ARG_ENDPOINT_PROPS")
        .tools(SERVE),
    Flag::value("--slot-save-path", "DIR", "Folder for saved slots", |c: &mut Config, v| {
        c.server.slot_folder = Some(path(v)?);
        Ok(())
    })
    .tools(SERVE),
    Flag::value("--max-body", "MIB", "Largest body of a request", |c: &mut Config, v| {
        c.server.body_mebibytes = at_least(v, 1)?;
        Ok(())
    })
    .default("16")
    .tools(SERVE),
    Flag::value(
        "-to --timeout",
        "SECONDS",
        "How long a client may take to send a body, or leave an answer untaken",
        |c: &mut Config, v| {
            c.server.timeout = at_least(v, 1)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_TIMEOUT")
    .default("60")
    .tools(SERVE),
    Flag::value(
        "--sse-ping-interval",
        "SECONDS",
        "Silence in a stream after which a comment is sent; -1 means never",
        |c: &mut Config, v| {
            c.server.ping = at_least(v, -1)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_SSE_PING_INTERVAL")
    .default("30")
    .tools(SERVE),
    Flag::switch("--cache-prompt", "Reuse what a slot holds of a prompt", |c: &mut Config, on| {
        c.server.cache_prompt = on;
    })
    .negative("--no-cache-prompt")
    .env("LLAMA_ARG_CACHE_PROMPT")
    .default("on")
    .tools(SERVE),
    Flag::value(
        "-cram --cache-ram",
        "MIB",
        "Memory for what slots held before; 0 means none, -1 no limit",
        |c: &mut Config, v| {
            c.server.cache_mebibytes = i64::from(at_least::<i32>(v, -1)?);
            Ok(())
        },
    )
    .env("LLAMA_ARG_CACHE_RAM")
    .default("2048")
    .tools(SERVE),
    Flag::value(
        "--cache-disk",
        "DIR",
        "Folder in which what slots hold outlives the program",
        |c: &mut Config, v| {
            c.server.cache_folder = Some(path(v)?);
            Ok(())
        },
    )
    .tools(SERVE),
    Flag::value("--cache-disk-size", "MIB", "Largest size of that folder", |c: &mut Config, v| {
        c.server.cache_folder_mebibytes = at_least(v, 1)?;
        Ok(())
    })
    .default("4096")
    .needs(&["cache-disk"])
    .tools(SERVE),
    Flag::value(
        "--cache-reuse",
        "N",
        "Move later parts of a prompt, of at least N tokens, instead of computing them again; 0 means never",
        |c: &mut Config, v| {
            c.server.cache_reuse = integer(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_CACHE_REUSE")
    .default("0")
    .tools(SERVE),
    Flag::switch("--spm-infill", "The text after a gap comes first", |c: &mut Config, on| {
        c.server.suffix_first = on;
    })
    .tools(SERVE),
    Flag::switch(
        "--prefill-assistant",
        "Continue a conversation's last message if it is the assistant's",
        |c: &mut Config, on| c.server.prefill = on,
    )
    .negative("--no-prefill-assistant")
    .env("LLAMA_ARG_PREFILL_ASSISTANT")
    .default("on")
    .tools(SERVE),
    Flag::switch("-cb --cont-batching", "Requests share steps", |_, _| ())
        .negative("-nocb --no-cont-batching")
        .env("LLAMA_ARG_CONT_BATCHING")
        .inert("they always do")
        .tools(SERVE),
    Flag::value("--threads-http", "N", "Threads for connections", |_, v| integer::<i32>(v).map(drop))
        .env("LLAMA_ARG_THREADS_HTTP")
        .inert("two serve any number")
        .tools(SERVE),
    Flag::switch("--ui --webui", "Answer with a web page at /", |c: &mut Config, on| c.server.page = on)
        .negative("--no-ui --no-webui")
        .env("LLAMA_ARG_UI")
        .default("on")
        .tools(SERVE),
    Flag::value("-sps --slot-prompt-similarity", "N", "How alike prompts of a slot must be", |_, v| {
        crate::values::number_in(v, 0.0, 1.0).map(drop)
    })
    .inert("the slot with the longest common beginning is chosen")
    .tools(SERVE),
    Flag::value("--ssl-key-file", "FILE", "Private key for TLS, PEM", |c: &mut Config, v| {
        c.server.tls_key = Some(path(v)?);
        Ok(())
    })
    .env("LLAMA_ARG_SSL_KEY_FILE")
    .needs(&["ssl-cert-file"])
    .tools(SERVE),
    Flag::value("--ssl-cert-file", "FILE", "Certificate chain for TLS, PEM", |c: &mut Config, v| {
        c.server.tls_certificate = Some(path(v)?);
        Ok(())
    })
    .env("LLAMA_ARG_SSL_CERT_FILE")
    .needs(&["ssl-key-file"])
    .tools(SERVE),
    Flag::value("--models-dir", "DIR", "Serve all models of a folder", |c: &mut Config, v| {
        c.server.models_folder = Some(path(v)?);
        Ok(())
    })
    .env("LLAMA_ARG_MODELS_DIR")
    .tools(SERVE),
    Flag::value(
        "--models-preset",
        "FILE",
        "Serve the models of an INI file, with flags for each",
        |c: &mut Config, v| {
            c.server.models_preset = Some(path(v)?);
            Ok(())
        },
    )
    .env("LLAMA_ARG_MODELS_PRESET")
    .tools(SERVE),
    Flag::value(
        "--models-max",
        "N",
        "Models loaded at the same time; 0 means no limit",
        |c: &mut Config, v| {
            c.server.models_most = integer::<u32>(v)? as usize;
            Ok(())
        },
    )
    .env("LLAMA_ARG_MODELS_MAX")
    .default("4")
    .needs(ROUTER)
    .tools(SERVE),
    Flag::switch("--models-autoload", "Requests load the models that they name", |c: &mut Config, on| {
        c.server.models_autoload = on;
    })
    .negative("--no-models-autoload")
    .env("LLAMA_ARG_MODELS_AUTOLOAD")
    .default("on")
    .needs(ROUTER)
    .tools(SERVE),
    Flag::value(
        "--sleep-idle-seconds",
        "SECONDS",
        "Time without requests after which the model's memory is freed until the next; -1 means never",
        |c: &mut Config, v| {
            c.server.sleep = match integer::<i32>(v)? {
                -1 => None,
                _ => Some(at_least(v, 1).map_err(|_| "expected -1 or a whole number of at least 1")?),
            };
            Ok(())
        },
    )
    .default("-1")
    .tools(SERVE),
    Flag::switch(
        "--routed",
        "Tell a router what happens, on the standard output, and end when the standard input does",
        |c: &mut Config, on| c.server.routed = on,
    )
    .tools(SERVE),
];
