//! `POST /slots/{id}`: saving, restoring and erasing what a slot holds.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use axum::response::Response;
use puna_engine::{Engine, EngineError};
use serde_json::{Value, json};

use crate::api::identifier;
use crate::api::information::enabled;
use crate::app::App;
use crate::edge::Call;
use crate::error::{ApiError, ApiResult, Kind};
use crate::fields::{Fields, missing};
use crate::stream::json_response;

/// Longest name of a file in bytes.
const LONGEST_NAME: usize = 200;

/// `POST /slots/{id}?action=save|restore|erase`.
pub async fn act(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let id = call.parameter("id").unwrap_or("");
    let count = app.slot_count();
    let slot = id.parse::<u32>().ok().filter(|slot| (*slot as usize) < count);
    let slot = slot
        .ok_or_else(|| ApiError::invalid(format!("there is no slot '{id}', slots are 0 to {}", count - 1)))?;
    let action = call.query("action").unwrap_or("").to_owned();
    let engine = app.served.engine.awake().await?;
    let result = call.work(&app, move |app, body| match action.as_str() {
        "erase" => erase(&engine, slot),
        "save" => save(app, &engine, slot, &Fields::parse(body)?),
        "restore" => restore(app, &engine, slot, &Fields::parse(body)?),
        other => Err(ApiError::invalid(format!("action '{other}', expected save, restore or erase"))),
    });
    Ok(json_response(&result.await?))
}

fn save(app: &App, engine: &Engine, slot: u32, fields: &Fields) -> ApiResult<Value> {
    let (name, path) = file(app, fields)?;
    let fault = |error: &std::io::Error| failed("save", &name, &path, error);
    // A large cache is not copied for nothing.
    if std::fs::metadata(&path).is_ok_and(|data| !data.is_file()) {
        return Err(fault(&std::io::ErrorKind::IsADirectory.into()));
    }
    let start = Instant::now();
    let tokens = engine.held(slot)?.len();
    let written = write(&path, |file| engine.save(slot, file)).map_err(|error| match &error {
        EngineError::NotWritten { source } => fault(source),
        EngineError::Busy { .. } => busy(slot),
        _ => error.into(),
    })?;
    Ok(json!({
        "id_slot": slot, "filename": name, "n_saved": tokens, "n_written": written,
        "timings": { "save_ms": start.elapsed().as_secs_f64() * 1e3 },
    }))
}

fn restore(app: &App, engine: &Engine, slot: u32, fields: &Fields) -> ApiResult<Value> {
    let (name, path) = file(app, fields)?;
    let start = Instant::now();
    let (mut file, length) = open(&path, &name, app.front.options.slot_bytes)?;
    let restored = engine.restore(slot, &mut file, length, app.strengths());
    let tokens = restored.map_err(|error| match error {
        EngineError::Busy { .. } => busy(slot),
        EngineError::Stopped | EngineError::Panic { .. } => error.into(),
        reason => ApiError::invalid(format!("'{name}' is not a saved slot of this model: {reason}")),
    })?;
    Ok(json!({
        "id_slot": slot, "filename": name, "n_restored": tokens.len(), "n_read": length,
        "timings": { "restore_ms": start.elapsed().as_secs_f64() * 1e3 },
    }))
}

fn erase(engine: &Engine, slot: u32) -> ApiResult<Value> {
    let erased = engine.held(slot)?.len();
    engine.clear(slot).map_err(|error| match error {
        EngineError::Busy { .. } => busy(slot),
        other => other.into(),
    })?;
    Ok(json!({ "id_slot": slot, "n_erased": erased }))
}

fn busy(slot: u32) -> ApiError {
    ApiError::invalid(format!(
        "slot {slot} is busy with a request: try again when that has ended (GET /slots tells), or name another slot"
    ))
}

/// The error for a file that cannot be used, and what helps.
fn failed(action: &str, name: &str, path: &Path, error: &std::io::Error) -> ApiError {
    let what = format!("cannot {action} '{name}'");
    let folder = !path.parent().is_some_and(Path::is_dir);
    match error.kind() {
        std::io::ErrorKind::NotFound if !folder => ApiError::new(Kind::NotFound, format!("{what}: {error}")),
        std::io::ErrorKind::IsADirectory => {
            ApiError::invalid(format!("{what}: there is something that is no file; give another filename"))
        }
        _ => ApiError::invalid(format!(
            "{what}: {error}; the folder of --slot-save-path must be there and writable, with room for the cache"
        )),
    }
}

/// The file in the folder for slots. Names that could lead out of it are refused.
fn file(app: &App, fields: &Fields) -> ApiResult<(String, PathBuf)> {
    enabled(app.front.options.slot_folder.is_some(), "--slot-save-path")?;
    let name = fields.text(&["filename"])?.ok_or_else(|| missing("filename"))?;
    if !is_safe(name) {
        let message = format!("field 'filename': {name:?} is not a plain file name");
        return Err(ApiError::invalid(message));
    }
    let folder = app.front.options.slot_folder.as_deref().unwrap_or(Path::new("."));
    Ok((name.to_owned(), folder.join(name)))
}

/// Letters, digits and a few marks, not beginning with a dot: safe on every platform.
fn is_safe(name: &str) -> bool {
    let fine = |letter: char| letter.is_alphanumeric() || matches!(letter, '.' | '_' | '-' | ' ');
    // Windows drops dots and blanks at the end, and gives devices the names of files.
    let ends = |letter: char| letter == '.' || letter == ' ';
    let stem = name.split('.').next().unwrap_or("").trim().to_ascii_uppercase();
    let numbered = |prefix: &str| stem.strip_prefix(prefix).is_some_and(|rest| rest.chars().count() == 1);
    let device = ["CON", "PRN", "AUX", "NUL"].contains(&stem.as_str()) || numbered("COM") || numbered("LPT");
    !name.is_empty()
        && name.len() <= LONGEST_NAME
        && name.chars().all(fine)
        && !name.starts_with(ends)
        && !name.ends_with(ends)
        && !device
}

/// Opens a file that cannot be larger than what a slot may hold, whatever lies under its name; also its bytes.
fn open(path: &Path, name: &str, most: u64) -> ApiResult<(File, u64)> {
    let fault = |error: std::io::Error| failed("restore", name, path, &error);
    // Before it is opened: opening a pipe waits for its other end.
    let data = std::fs::metadata(path).map_err(fault)?;
    if !data.is_file() {
        return Err(fault(std::io::ErrorKind::IsADirectory.into()));
    }
    if data.len() > most {
        let message =
            format!("'{name}' has {} bytes, but a slot of this model has {most} at most", data.len());
        return Err(ApiError::invalid(message));
    }
    Ok((File::open(path).map_err(fault)?, data.len()))
}

/// Writes beside the file and renames, so that there is never half a file under its name.
fn write(path: &Path, save: impl FnOnce(&mut File) -> Result<u64, EngineError>) -> Result<u64, EngineError> {
    let beside = path.with_file_name(format!(".{}.tmp", identifier("slot-")));
    let fault = |source| EngineError::NotWritten { source };
    let written = File::create_new(&beside).map_err(fault).and_then(|mut file| {
        let written = save(&mut file)?;
        file.sync_all().map_err(fault)?;
        std::fs::rename(&beside, path).map_err(fault)?;
        Ok(written)
    });
    if written.is_err() {
        // What is left of a failed attempt is of no use; there may be nothing.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::is_safe;

    #[test]
    fn names_of_files() {
        for name in ["a", "slot-1.bin", "été_2.x", "a b", "console"] {
            assert!(is_safe(name), "{name:?}");
        }
        let long = "x".repeat(201);
        for name in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "/etc/passwd",
            "a\\b",
            "C:x",
            ".hidden",
            "a\0",
            "x.",
            "x ",
            "NUL",
            "com1.txt",
            "a\nb",
            "..%2fx",
            "~",
            &long,
        ] {
            assert!(!is_safe(name), "{name:?}");
        }
    }
}
