//! Files that break the format: counts, lengths, types, offsets, cuts, random bytes.

use super::Cases;
use super::raw::{Numbers, Raw, RawValue};
use crate::ValueType;

/// Counts and lengths that no file has.
const HUGE: [u64; 6] = [1 << 31, u32::MAX as u64, 1 << 40, i64::MAX as u64, 1 << 63, u64::MAX];
const CUTS: usize = 40;
const FLIPS: u64 = 60;

pub(super) fn add(cases: &mut Cases, good: &Raw) {
    preamble(cases);
    keys(cases, good);
    values(cases);
    directory(cases, good);
    offsets(cases, good);
    cuts(cases);
    flips(cases);
}

fn preamble(cases: &mut Cases) {
    for magic in [*b"GGML", *b"FUGG", *b"PK\x03\x04", [0; 4], [0xff; 4]] {
        cases.whole(format!("structure/magic-{magic:02x?}"), move |good| {
            let mut bytes = good.serialise();
            bytes.splice(0..4, magic);
            bytes
        });
    }
    for version in [0, 1, 4, 0x0300_0000, u32::MAX] {
        cases.change(format!("structure/version-{version}"), move |raw| raw.version = version);
    }
    for count in HUGE {
        cases.change(format!("structure/key-count-{count}"), move |raw| raw.key_count = Some(count));
        cases.change(format!("structure/tensor-count-{count}"), move |raw| raw.tensor_count = Some(count));
    }
    cases.change("structure/one-key-more".into(), |raw| raw.key_count = Some(raw.pairs.len() as u64 + 1));
    cases.change("structure/many-keys".into(), |raw| {
        raw.pairs.extend((0..70_000).map(|index| (format!("k{index}").into_bytes(), RawValue::from(0u8))));
    });
}

fn keys(cases: &mut Cases, good: &Raw) {
    let odd: [(&str, Vec<u8>); 4] = [
        ("empty", Vec::new()),
        ("not-utf8", b"general.\xff\xfe".to_vec()),
        ("long", vec![b'k'; 70_000]),
        ("very-long", vec![b'k'; 1 << 20]),
    ];
    for (what, key) in odd {
        cases.change(format!("structure/key-{what}"), move |raw| raw.pairs.push((key.clone(), 1u32.into())));
    }
    for index in 0..good.pairs.len().min(4) {
        cases.change(format!("structure/key-twice-{index}"), move |raw| {
            if let Some(pair) = raw.pairs.get(index).cloned() {
                raw.pairs.push(pair);
            }
        });
    }
}

/// Values whose bytes are not what their type says. They go last, so that nothing after them is misread first.
fn values(cases: &mut Cases) {
    let mut bad = |what: String, bytes: Vec<u8>| {
        cases.change(format!("structure/value-{what}"), move |raw| {
            raw.pairs.push((b"hostile.value".to_vec(), RawValue::Bytes(bytes.clone())));
        });
    };
    for id in [13u32, 255, 1 << 16, i32::MAX as u32, u32::MAX] {
        bad(format!("type-{id}"), [id.to_le_bytes().as_slice(), &[0; 16]].concat());
        let array = [9u32.to_le_bytes(), id.to_le_bytes(), [1, 0, 0, 0], [0; 4]].concat();
        bad(format!("element-type-{id}"), [array.as_slice(), &[0; 16]].concat());
    }
    for length in HUGE {
        bad(format!("string-length-{length}"), [&8u32.to_le_bytes()[..], &length.to_le_bytes()].concat());
        for element in [ValueType::U8, ValueType::U32, ValueType::String, ValueType::F64] {
            let head = [9u32.to_le_bytes(), element.id().to_le_bytes()].concat();
            bad(format!("array-{element}-length-{length}"), [&head[..], &length.to_le_bytes()].concat());
        }
    }
    for length in [0u64, 1, 1 << 62] {
        let head = [9u32.to_le_bytes(), 9u32.to_le_bytes()].concat();
        bad(format!("nested-array-{length}"), [&head[..], &length.to_le_bytes(), &[0; 32]].concat());
    }
}

fn directory(cases: &mut Cases, good: &Raw) {
    if good.tensors.is_empty() {
        return;
    }
    let last = good.tensors.len() - 1;
    for (what, extent) in [("2^42+1", (1u64 << 42) + 1), ("2^61", 1 << 61), ("2^63-1", i64::MAX as u64)] {
        for (place, index) in [("first", 0), ("last", last)] {
            cases.change(format!("structure/{place}-tensor-columns-{what}"), move |raw| {
                dimension(raw, index, 0, extent)
            });
            cases.change(format!("structure/{place}-tensor-rows-{what}"), move |raw| {
                dimension(raw, index, 1, extent)
            });
        }
    }
    for extent in [1u64 << 63, u64::MAX] {
        cases.change(format!("structure/dimension-{extent}"), move |raw| dimension(raw, 0, 0, extent));
    }
    cases.change("structure/dimensions-multiply-to-2^64".into(), |raw| {
        if let Some(tensor) = raw.tensors.first_mut() {
            tensor.dimensions = vec![1 << 32, 1 << 16, 1 << 16, 1];
        }
    });
    for count in [5usize, 64, 4096] {
        cases.change(format!("structure/{count}-dimensions"), move |raw| {
            if let Some(tensor) = raw.tensors.first_mut() {
                tensor.dimensions = vec![1; count];
            }
        });
    }
    for format in [4u32, 5, 31, 32, 33, 36, 37, 38, 43, 255, 1 << 16, i32::MAX as u32, u32::MAX] {
        cases.change(format!("structure/tensor-format-{format}"), move |raw| {
            if let Some(tensor) = raw.tensors.first_mut() {
                tensor.format = format;
            }
        });
    }
    let names: [(&str, Vec<u8>); 6] = [
        ("empty", Vec::new()),
        ("64-bytes", vec![b't'; 64]),
        ("2^20-bytes", vec![b't'; 1 << 20]),
        ("not-utf8", b"blk\xff.weight".to_vec()),
        ("cut-utf8", b"blk.\xe6\xbc".to_vec()),
        ("surrogate", b"blk.\xed\xa0\x80".to_vec()),
    ];
    for (what, name) in names {
        cases.change(format!("structure/tensor-name-{what}"), move |raw| {
            if let Some(tensor) = raw.tensors.first_mut() {
                tensor.name = name.clone();
            }
        });
    }
    for index in std::collections::BTreeSet::from([0, last / 2, last]) {
        cases.relaid(format!("structure/tensor-twice-{index}"), move |raw| {
            if let Some(tensor) = raw.tensors.get(index).cloned() {
                raw.tensors.push(tensor);
            }
        });
    }
    // The last key is then read as a tensor.
    cases.change("structure/one-key-less".into(), |raw| {
        raw.key_count = Some((raw.pairs.len() as u64).saturating_sub(1));
    });
    cases.change("structure/one-tensor-more".into(), |raw| {
        raw.tensor_count = Some(raw.tensors.len() as u64 + 1)
    });
}

/// Sets one dimension (contiguous first) of one tensor, adding it if need be.
fn dimension(raw: &mut Raw, tensor: usize, axis: usize, extent: u64) {
    if let Some(tensor) = raw.tensors.get_mut(tensor) {
        tensor.dimensions.resize(tensor.dimensions.len().max(axis + 1), 1);
        if let Some(old) = tensor.dimensions.get_mut(axis) {
            *old = extent;
        }
    }
}

fn offsets(cases: &mut Cases, good: &Raw) {
    let count = good.tensors.len();
    for offset in [1u64, 16, 32, 1 << 31, 1 << 40, i64::MAX as u64, u64::MAX, u64::MAX - 31] {
        cases.change(format!("structure/first-offset-{offset}"), move |raw| {
            if let Some(tensor) = raw.tensors.first_mut() {
                tensor.offset = offset;
            }
        });
    }
    if count >= 2 {
        cases.change("structure/offsets-equal".into(), |raw| {
            raw.tensors.iter_mut().for_each(|tensor| tensor.offset = 0)
        });
        cases.change("structure/offsets-swapped".into(), move |raw| raw.tensors.swap(0, count - 1));
        cases.change("structure/offsets-reversed".into(), |raw| raw.tensors.reverse());
        cases.change("structure/offset-overlap".into(), |raw| {
            if let Some(tensor) = raw.tensors.last_mut() {
                tensor.offset = tensor.offset.saturating_sub(32);
            }
        });
        cases.change("structure/offset-gap".into(), |raw| {
            if let Some(tensor) = raw.tensors.last_mut() {
                tensor.offset += 32;
                tensor.data.splice(0..0, [0; 32]);
            }
        });
    }
    let wrong = [0u64, 3, 24, 33, (1 << 32) - 1, 1 << 32, 1 << 63];
    for alignment in wrong {
        cases.change(format!("structure/alignment-{alignment}"), move |raw| {
            raw.set("general.alignment", alignment)
        });
    }
    cases.change("structure/alignment-negative".into(), |raw| raw.set("general.alignment", -32i32));
    cases.change("structure/alignment-float".into(), |raw| raw.set("general.alignment", 32f32));
    cases.change("structure/alignment-string".into(), |raw| raw.set("general.alignment", "32"));
    if count >= 1 {
        cases.change("structure/alignment-2^31".into(), |raw| raw.set("general.alignment", 1u32 << 31));
        cases.change("structure/alignment-2^24".into(), |raw| raw.set("general.alignment", 1u32 << 24));
    }
}

/// Cuts over the whole file, closer together at its start. All remove at least one byte that is needed.
fn cuts(cases: &mut Cases) {
    for index in 0..CUTS {
        cases.whole(format!("truncate/{index}-of-{CUTS}"), move |good| {
            let mut bytes = good.serialise();
            let needed = match good.tensors.last() {
                None => good.header().len(),
                Some(tensor) => {
                    let padding = (tensor.data.len() as u64).wrapping_neg() % good.alignment;
                    bytes.len() - padding as usize
                }
            };
            // Quadratic: the header's parts are small and many, the data's large and few.
            let keep =
                if index < 12 { index } else { (needed - 1) * index * index / ((CUTS - 1) * (CUTS - 1)) };
            bytes.truncate(keep.min(needed.saturating_sub(1)));
            bytes
        });
    }
    cases.whole("truncate/last-kilobyte".into(), |good| {
        let mut bytes = good.serialise();
        bytes.truncate(bytes.len().saturating_sub(1024));
        bytes
    });
}

fn flips(cases: &mut Cases) {
    for seed in 0..FLIPS {
        cases.whole(format!("flip/{seed}"), move |good| {
            let mut numbers = Numbers(seed);
            let mut bytes = good.serialise();
            // Mostly the first kilobytes, where lengths and types lie close together.
            let header = good.header().len();
            let reach = if seed % 3 == 0 { header } else { header.min(2048) };
            for _ in 0..1 + numbers.below(4) {
                let (place, value) = (numbers.below(reach), numbers.next() as u8);
                if let Some(byte) = bytes.get_mut(place) {
                    *byte ^= value.max(1);
                }
            }
            bytes
        });
    }
}
