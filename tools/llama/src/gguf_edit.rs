//! `llama gguf`: prints and changes the metadata of a file.

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::shards::{self, Output};
use crate::{interrupt, pages};
use puna_flags::{Config, Edit, FLAGS, Positional, Spec, ToolSet};
use puna_gguf::{Array, File, Metadata, OpenOptions, TensorSpec, Value};
use puna_models::ModelError;
use puna_runtime::{ModelOptions, Purpose, RuntimeError};
use std::fmt::Write;
use std::path::PathBuf;

/// Flags of `gguf`.
pub const SPEC: Spec<Config> = Spec {
    name: "gguf",
    tool: ToolSet::GGUF,
    about: "Print the metadata and tensors of a model file, or change its metadata: into a new file (-o FILE), or in place \
            (--in-place), which writes a new file, too, and puts it into the old one's place",
    groups: FLAGS,
    positional: Some(Positional {
        placeholder: "FILE",
        help: "Model file",
        set: |config, value| config.positional.push(value.to_owned()),
    }),
};

/// Elements of an array that are printed.
const SHOWN: usize = 8;

/// `llama gguf`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let [path] = config.positional.as_slice() else { return Err(invocation.usage("expected FILE")) };
    let flags = &config.gguf;
    let path = PathBuf::from(path);
    let file = File::open(&path, &OpenOptions::default())?;
    file.warnings().iter().for_each(|warning| console.warn(&warning.to_string()));
    if flags.edits.is_empty() {
        return pages::print(dump(&file, flags.full).as_bytes());
    }
    if file.paths().len() > 1 {
        return Err(Failure::Failed(
            "the model is in several files: merge them first (gguf-split --merge)".into(),
        ));
    }
    let output = match (&flags.output, flags.in_place) {
        (Some(output), false) => output.clone(),
        // What a link points to is replaced, not the link.
        (None, true) => {
            path.canonicalize().map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?
        }
        (Some(_), true) => return Err(invocation.usage("-o and --in-place exclude each other")),
        (None, false) => return Err(invocation.usage("-o FILE or --in-place says where to write")),
    };
    let mut metadata = file.metadata.clone();
    for edit in &flags.edits {
        apply(&mut metadata, edit)?;
    }
    still_loads(&file, &metadata, &flags.edits, &console)?;
    interrupt::install();
    let tensors: Vec<TensorSpec> = file.tensors.iter().map(TensorSpec::from).collect();
    // Writing over the file takes the flag that says so.
    let inputs = if flags.in_place { &[][..] } else { file.paths() };
    let mut written = Output::new(shards::plan(&output, &metadata, vec![tensors])?, inputs)?;
    let bar = console.progress(Some(file.size_on_disk()));
    for tensor in file.tensors.iter() {
        written.copy(file.bytes(tensor), &bar)?;
        file.release(tensor);
    }
    bar.finish_and_clear();
    written.finish()?;
    console.info(&format!("wrote {}", output.display()));
    Ok(())
}

/// Refuses values with which a model could not be loaded any more, and says so of other changes.
fn still_loads(file: &File, metadata: &Metadata, edits: &[Edit], console: &Console) -> Result<(), Failure> {
    let loads = |metadata: &Metadata| {
        let built = |purpose| {
            let options = ModelOptions { purpose, ..ModelOptions::default() };
            puna_runtime::estimate(metadata, &file.tensors, &options).map(|_| ())
        };
        match built(Purpose::Generate) {
            Err(RuntimeError::Model(ModelError::NoLogits { .. })) => built(Purpose::Embed(None)),
            other => other,
        }
    };
    let Err(error) = loads(metadata) else { return Ok(()) };
    if loads(&file.metadata).is_err() {
        return Ok(());
    }
    let reason =
        format!("the model could not be loaded any more: {}", console::printable(&error.to_string(), 500));
    match edits.iter().any(|edit| matches!(edit, Edit::Set(..))) {
        true => Err(Failure::Failed(reason)),
        false => {
            console.warn(&reason);
            Ok(())
        }
    }
}

/// Applies one change.
fn apply(metadata: &mut Metadata, edit: &Edit) -> Result<(), Failure> {
    let missing = |key: &str| Failure::Failed(format!("there is no key {key:?}"));
    let layout =
        |key: &str| Failure::Failed(format!("{key} describes how the data lies and cannot be changed"));
    let fixed = |key: &str| key == "general.alignment" || key.starts_with("split.");
    match edit {
        Edit::Set(key, value) => {
            if fixed(key) {
                return Err(layout(key));
            }
            let value = match metadata.get(key) {
                None => narrow(value),
                Some(old) => like(old, value).ok_or_else(|| {
                    Failure::Failed(format!(
                        "{} is {} in the file, and {} is none; --delete it first to give it another type",
                        console::printable(key, 200),
                        old.type_name(),
                        console::printable(&value.to_string(), 80)
                    ))
                })?,
            };
            metadata.set(key.clone(), value);
        }
        Edit::Delete(key) => {
            if fixed(key) {
                return Err(layout(key));
            }
            metadata.remove(key).ok_or_else(|| missing(key))?;
        }
        Edit::Rename(from, to) => {
            if fixed(from) || fixed(to) {
                return Err(layout(from));
            }
            if metadata.contains(to) {
                return Err(Failure::Failed(format!("there is a key {to:?} already")));
            }
            if !metadata.contains(from) {
                return Err(missing(from));
            }
            // In its old place.
            *metadata = metadata
                .iter()
                .map(|(key, value)| (if key == from { to.clone() } else { key.to_owned() }, value.clone()))
                .collect();
        }
    }
    Ok(())
}

/// The value in the type that the key had, if it fits: whole numbers are floats, too.
fn like(old: &Value, value: &Value) -> Option<Value> {
    let number = value.integer();
    let float = value.float().or_else(|| number.map(|number| number as f64));
    match old {
        Value::U8(_) => number.and_then(|number| u8::try_from(number).ok()).map(Value::U8),
        Value::I8(_) => number.and_then(|number| i8::try_from(number).ok()).map(Value::I8),
        Value::U16(_) => number.and_then(|number| u16::try_from(number).ok()).map(Value::U16),
        Value::I16(_) => number.and_then(|number| i16::try_from(number).ok()).map(Value::I16),
        Value::U32(_) => number.and_then(|number| u32::try_from(number).ok()).map(Value::U32),
        Value::I32(_) => number.and_then(|number| i32::try_from(number).ok()).map(Value::I32),
        Value::U64(_) => number.and_then(|number| u64::try_from(number).ok()).map(Value::U64),
        Value::I64(_) => number.and_then(|number| i64::try_from(number).ok()).map(Value::I64),
        Value::F32(_) => float.map(|float| Value::F32(float as f32)),
        Value::F64(_) => float.map(Value::F64),
        Value::Bool(_) | Value::String(_) => (old.type_name() == value.type_name()).then(|| value.clone()),
        Value::Array(_) => None,
    }
}

/// Flags come in the widest types; files have 32 bits where that is enough.
pub fn narrow(value: &Value) -> Value {
    match value {
        Value::I64(number) => match (u32::try_from(*number), i32::try_from(*number)) {
            (Ok(number), _) => Value::U32(number),
            (_, Ok(number)) => Value::I32(number),
            _ => value.clone(),
        },
        Value::F64(number) => Value::F32(*number as f32),
        other => other.clone(),
    }
}

/// Everything that a file says, but its data.
fn dump(file: &File, full: bool) -> String {
    let mut text = format!("GGUF version {}, alignment {}\n", file.version(), file.alignment());
    for (key, value) in file.metadata.iter() {
        let shown = match value {
            Value::Array(array) => elements(array, if full { usize::MAX } else { SHOWN }),
            Value::String(letters) => {
                format!("{:?}", console::printable(letters, if full { usize::MAX } else { 200 }))
            }
            other => other.to_string(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} ({}) = {shown}", console::printable(key, 200), value.type_name());
    }
    for tensor in file.tensors.iter() {
        let name = console::printable(&tensor.name, 100);
        let _ = writeln!(
            text,
            "{name:40} {:>8} {:?} at {}",
            tensor.dtype.name(),
            tensor.shape,
            tensor.file_offset()
        );
    }
    text
}

fn elements(array: &Array, most: usize) -> String {
    let shown: Vec<String> = (0..array.len().min(most))
        .filter_map(|index| array.get(index))
        .map(|value| console::printable(&value.to_string(), 80))
        .collect();
    let more = if array.len() > most { format!(", ... {} in all", array.len()) } else { String::new() };
    format!("[{}{more}]", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        [("a", Value::U16(1)), ("b", Value::F32(0.5)), ("c", Value::Bool(true))].into_iter().collect()
    }

    #[test]
    fn changes_keep_order_and_types() {
        let mut metadata = sample();
        apply(&mut metadata, &Edit::Set("a".into(), Value::I64(7))).unwrap();
        apply(&mut metadata, &Edit::Set("d".into(), Value::I64(-7))).unwrap();
        apply(&mut metadata, &Edit::Set("b".into(), Value::I64(2))).unwrap();
        apply(&mut metadata, &Edit::Rename("b".into(), "x".into())).unwrap();
        apply(&mut metadata, &Edit::Delete("c".into())).unwrap();
        let found: Vec<(&str, Value)> = metadata.iter().map(|(key, value)| (key, value.clone())).collect();
        assert_eq!(found, [("a", Value::U16(7)), ("x", Value::F32(2.0)), ("d", Value::I32(-7))]);
    }

    #[test]
    fn values_become_as_narrow_as_files_have_them() {
        assert_eq!(narrow(&Value::I64(7)), Value::U32(7));
        assert_eq!(narrow(&Value::I64(-7)), Value::I32(-7));
        assert_eq!(narrow(&Value::I64(1 << 40)), Value::I64(1 << 40));
        assert_eq!(narrow(&Value::F64(0.5)), Value::F32(0.5));
    }

    #[test]
    fn impossible_changes_are_refused() {
        let text = || String::from("general.alignment");
        for edit in [
            Edit::Delete("z".into()),
            Edit::Rename("z".into(), "y".into()),
            Edit::Rename("a".into(), "b".into()),
            Edit::Set(text(), Value::I64(64)),
            Edit::Set("a".into(), Value::String("x".into())),
            Edit::Set("a".into(), Value::I64(1 << 16)),
            Edit::Set("b".into(), Value::Bool(true)),
            Edit::Set("c".into(), Value::I64(1)),
            Edit::Rename("a".into(), text()),
        ] {
            let mut metadata = sample();
            assert!(apply(&mut metadata, &edit).is_err(), "{edit:?}");
            assert_eq!(metadata, sample());
        }
    }
}
