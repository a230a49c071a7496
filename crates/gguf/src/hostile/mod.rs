//! Hostile files for tests: a good file in, several hundred broken or odd ones out.
//!
//! Every program that opens models has to survive these: an error, or a result, but no panic, no endless loop and
//! no memory beyond the order of the file's size. The cases are deterministic, so a failing name can be run again.
//!
//! Names say how a case was made, in the form `group/what`:
//! - `structure/…`: the file breaks a rule of the format; reading it must fail.
//! - `truncate/…`: the file is cut; reading it must fail with a message that has the word "truncated".
//! - `key/…`: well-formed, but a metadata value has another type, an extreme value, or is missing.
//! - `tokenizer/…`, `template/…`: well-formed, with odd token arrays or chat templates.
//! - `shape/…`: well-formed, but a tensor has another shape, format or name, or is missing or one too many.
//! - `flip/…`: random bytes of the header are changed.

mod keys;
mod raw;
mod structure;
mod tensors;
mod tokenizer;

use crate::{Error, File};
use raw::Raw;

/// How one case is made from the good file.
type Mutation = Box<dyn Fn(&Raw) -> Vec<u8>>;

/// Cases of one group, in order.
#[derive(Default)]
struct Cases(Vec<(String, Mutation)>);

impl Cases {
    /// Adds a case that changes the parsed file, which is then laid out as it is.
    fn change(&mut self, name: String, change: impl Fn(&mut Raw) + 'static) {
        self.whole(name, move |good| {
            let mut raw = good.clone();
            change(&mut raw);
            raw.serialise()
        });
    }

    /// Adds a case that changes the parsed file, whose offsets are then set right.
    fn relaid(&mut self, name: String, change: impl Fn(&mut Raw) + 'static) {
        self.change(name, move |raw| {
            change(raw);
            raw.lay_out();
        });
    }

    /// Adds a case that makes all bytes itself.
    fn whole(&mut self, name: String, make: impl Fn(&Raw) -> Vec<u8> + 'static) {
        self.0.push((name, Box::new(make)));
    }
}

/// All cases made from the bytes of `good`, a valid file, each as its name and its bytes. They are made one at a
/// time; a small model is advisable, since most cases are as large as it.
pub fn cases(good: &[u8]) -> Result<impl Iterator<Item = (String, Vec<u8>)>, Error> {
    let file = File::from_bytes(good.to_vec())?;
    let raw = Raw::new(&file);
    let mut cases = Cases::default();
    structure::add(&mut cases, &raw);
    keys::add(&mut cases, &raw);
    tokenizer::add(&mut cases, &raw);
    tensors::add(&mut cases, &raw);
    Ok(cases.0.into_iter().map(move |(name, make)| {
        let bytes = make(&raw);
        (name, bytes)
    }))
}
