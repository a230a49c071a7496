//! Every key and every tensor of every zoo model, removed in turn: an error names it, or `docs/architectures.md` says
//! what happens without it. And keys of wrong types and lengths.

mod support;

use puna_gguf::{Array, Tensors, Value};
use support::{subjects, without_layer};

/// A line of the page: names, the architectures that it is about (none for all), what happens.
struct Documented {
    names: Vec<String>,
    architectures: Vec<String>,
    text: String,
}

/// The lines of one part of the page: ``- `name`, `name` (`architecture`), `name`: text``; architectures in brackets concern
/// the names before them, up to the last bracket.
fn documented(part: &str) -> Vec<Documented> {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/architectures.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let part = page.split(&format!("## {part}\n")).nth(1).expect("the page has the part");
    let part = part.split("\n## ").next().expect("a split has a first piece").replace("\n  ", " ");
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let lines = part.lines().filter_map(|line| line.strip_prefix("- ")?.split_once(": "));
    let line = |(head, text): (&str, &str)| {
        let group = |group: &str| {
            let (names, architectures) = group.split_once(" (").unwrap_or((group, ""));
            Documented { names: quoted(names), architectures: quoted(architectures), text: text.to_owned() }
        };
        head.split(')').map(group).filter(|group| !group.names.is_empty()).collect::<Vec<_>>()
    };
    lines.flat_map(line).collect()
}

/// Documented lines with the names in each that some model showed to be true.
struct Page {
    lines: Vec<Documented>,
    shown: Vec<Vec<bool>>,
}

impl Page {
    fn new(part: &str) -> Self {
        let lines = documented(part);
        let shown = lines.iter().map(|line| vec![false; line.names.len()]).collect();
        Self { lines, shown }
    }

    /// Whether a model of the architecture may lack this.
    fn allows(&mut self, architecture: &str, name: &str) -> bool {
        let mut found = false;
        for (line, shown) in self.lines.iter().zip(&mut self.shown) {
            let concerns =
                line.architectures.is_empty() || line.architectures.iter().any(|a| a == architecture);
            for (_, shown) in line.names.iter().zip(shown).filter(|(other, _)| concerns && *other == name) {
                (found, *shown) = (true, true);
            }
        }
        found
    }

    /// Whether the page says that nothing reads this.
    fn is_unread(&self, architecture: &str, name: &str) -> bool {
        self.lines.iter().any(|line| {
            let concerns =
                line.architectures.is_empty() || line.architectures.iter().any(|a| a == architecture);
            concerns && line.text.starts_with("not read") && line.names.iter().any(|other| other == name)
        })
    }

    /// Names that no model needs on the page.
    fn idle(&self) -> Vec<String> {
        let pairs = self.lines.iter().zip(&self.shown);
        let idle = |(line, shown): (&Documented, &Vec<bool>)| {
            let names = line.names.iter().zip(shown).filter(|(_, shown)| !**shown);
            names.map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        pairs.flat_map(idle).collect()
    }
}

/// Whether an error is about this key, and does not only mention it in the rule for another.
fn is_about(error: &str, key: &str) -> bool {
    const EPSILON: &str = ".attention.layer_norm_epsilon";
    let begins = |begin: String| error.starts_with(&begin);
    begins(format!("key {key} "))
        || begins(format!("metadata key {key:?} "))
        || begins(format!("metadata key {key:?}: "))
        // Either of two would do.
        || key.ends_with(EPSILON) && error.contains(&format!(" or {} is missing", &EPSILON[1..]))
}

#[test]
fn a_missing_key_is_named_or_its_default_documented() {
    let mut page = Page::new("Keys that may be absent");
    let mut faults = Vec::new();
    for subject in subjects() {
        for (key, short) in subject.keys() {
            let mut metadata = subject.header.metadata.clone();
            metadata.remove(&key);
            let errors = subject.errors(&metadata, &subject.header.tensors);
            if errors.iter().any(|error| is_about(error, &key) && error.contains(" is missing")) {
                continue;
            }
            // Other sizes follow from a default, which the file's tensors do not have.
            let names_something = |error: &String| error.contains("tensor ") || error.contains("key ");
            if !page.allows(&subject.architecture, &short) || !errors.iter().all(names_something) {
                let found = errors.first().map_or("no error", String::as_str);
                faults.push(format!("{} ({}) without {short}: {found}", subject.name, subject.architecture));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    let idle = page.idle();
    assert!(idle.is_empty(), "keys that no model can lack: {}", idle.join(", "));
}

#[test]
fn a_missing_tensor_is_named_or_its_absence_documented() {
    let mut page = Page::new("Tensors that may be absent");
    let mut faults = Vec::new();
    let mut tried = 0;
    for subject in subjects() {
        let specs = subject.specs();
        for index in 0..specs.len() {
            let mut left = specs.clone();
            let gone = left.remove(index).name;
            let tensors = Tensors::from_specs(&left).expect("names differ");
            tried += 1;
            let errors = subject.errors(&subject.header.metadata, &tensors);
            if errors.iter().any(|error| error.contains(&gone)) {
                continue;
            }
            if !errors.is_empty() || !page.allows(&subject.architecture, &without_layer(&gone)) {
                let found = errors.first().map_or("no error", String::as_str);
                faults.push(format!("{} ({}) without {gone}: {found}", subject.name, subject.architecture));
            }
        }
    }
    assert!(faults.is_empty(), "{} of {tried}:\n{}", faults.len(), faults.join("\n"));
    let idle = page.idle();
    assert!(idle.is_empty(), "tensors that no model can lack: {}", idle.join(", "));
}

/// Arrays whose length is not the number of layers but goes with tensors, which the error then names.
const LISTS: &[&str] = &["ple.layers", "classifier.output_labels", "target_layers"];

/// The array with another number of elements.
fn resized(array: &Array, length: usize) -> Array {
    fn cycled<T: Clone>(values: &[T], length: usize) -> Vec<T> {
        values.iter().cloned().cycle().take(length).collect()
    }
    match array {
        Array::U32(values) => Array::U32(cycled(values, length)),
        Array::I32(values) => Array::I32(cycled(values, length)),
        Array::I64(values) => Array::I64(cycled(values, length)),
        Array::U64(values) => Array::U64(cycled(values, length)),
        Array::F32(values) => Array::F32(cycled(values, length)),
        Array::Bool(values) => Array::Bool(cycled(values, length)),
        Array::String(values) => Array::String(cycled(values, length)),
        other => panic!("a zoo model has an array of another type: {other:?}"),
    }
}

#[test]
fn a_key_of_a_wrong_type_or_length_is_named() {
    let page = Page::new("Keys that may be absent");
    let mut faults = Vec::new();
    for subject in subjects() {
        for (key, short) in subject.keys() {
            let value = subject.header.metadata.get(&key).expect("the key was listed");
            let mut wrong = Vec::new();
            if !page.is_unread(&subject.architecture, &short) {
                wrong.push(Value::Array(Array::String(vec!["no number".into()])));
                if value.text().is_none() {
                    wrong.push(Value::String("no number".into()));
                }
                if value.float().is_some() && value.integer().is_none() {
                    wrong.push(Value::F32(f32::NAN));
                }
                if value.integer().is_some() {
                    wrong.extend([Value::I32(-1), Value::Array(Array::U32(vec![1; 77]))]);
                }
            }
            let is_list = LISTS.contains(&short.as_str());
            match value {
                Value::Array(array) if !is_list => {
                    let lengths = [array.len() + 1, array.len() - 1, 0];
                    wrong.extend(lengths.map(|length| Value::Array(resized(array, length))));
                }
                // Such arrays may hold texts.
                Value::Array(_) => wrong.retain(|value| !matches!(value, Value::Array(_))),
                _ => {}
            }
            for wrong in wrong {
                let mut metadata = subject.header.metadata.clone();
                let shown = format!("{wrong:?}");
                metadata.set(key.clone(), wrong);
                let errors = subject.errors(&metadata, &subject.header.tensors);
                if !errors.iter().any(|error| is_about(error, &key)) {
                    let found = errors.first().map_or("no error", String::as_str);
                    let shown: String = shown.chars().take(60).collect();
                    faults.push(format!(
                        "{} ({}), {short} as {shown}: {found}",
                        subject.name, subject.architecture
                    ));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
