//! Every rule of the format has a file that breaks it, and the message says what and where.

mod common;

use common::{Entry, Image, array, string, value};
use puna_gguf::{Error, File};

#[track_caller]
fn refuse(change: impl FnOnce(&mut Image)) -> Error {
    let error = File::from_bytes(Image::changed(change)).expect_err("a broken file");
    let text = error.to_string();
    assert!(
        text.chars().next().is_some_and(|first| !first.is_uppercase() || text.starts_with("GGUF")),
        "{text}"
    );
    assert!(!text.ends_with('.'), "{text}");
    error
}

#[track_caller]
fn says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

#[test]
fn the_good_file_is_good() {
    let file = File::from_bytes(Image::good().bytes()).expect("a good file");
    assert_eq!(file.metadata.len(), 3);
    assert_eq!(file.metadata.string_array("tokenizer.ggml.tokens").unwrap(), ["<s>", "\u{e9}", ""]);
    let tensor = file.tensors.get("blk.0.attn_q.weight").expect("the tensor");
    assert_eq!(tensor.shape, [3, 32]);
    assert_eq!(file.bytes(tensor), (32..134).collect::<Vec<u8>>());
    assert!(file.warnings().is_empty());
}

#[test]
fn magic() {
    says(&refuse(|image| image.magic = *b"GGML"), &["not a GGUF file", "47, 47, 4d, 4c"]);
    says(&refuse(|image| image.magic = *b"vers"), &["Git LFS"]);
    says(&refuse(|image| image.magic = *b"<!DO"), &["web page"]);
    says(&File::from_bytes(Vec::new()).expect_err("no bytes"), &["empty", "truncated"]);
}

#[test]
fn versions() {
    for version in [2, 3] {
        File::from_bytes(Image::changed(|image| image.version = version)).expect("a supported version");
    }
    for version in [0, 1, 4, u32::MAX] {
        let error = refuse(|image| image.version = version);
        assert!(matches!(error, Error::Version { found } if found == version), "{error}");
    }
    for version in [2, 3u32] {
        let error = refuse(|image| image.version = version.swap_bytes());
        says(&error, &["big-endian", &format!("version {version}")]);
    }
}

#[test]
fn counts() {
    for count in [1u64 << 20, 1 << 31, i64::MAX as u64, 1 << 63, u64::MAX] {
        let error = refuse(|image| image.key_count = Some(count));
        says(&error, &["truncated", &count.to_string(), "metadata keys"]);
        let error = refuse(|image| image.tensor_count = Some(count));
        says(&error, &["truncated", &count.to_string(), "tensors"]);
    }
    let many = (0..70_000).map(|index| (format!("k{index}").into_bytes(), value(0, &[0])));
    let error = refuse(|image| image.keys = many.collect());
    assert!(matches!(error, Error::TooMany { found: 70_000, maximum: 65_536, .. }), "{error}");
}

#[test]
fn numbers_of_shards() {
    let key = |name: &[u8], number: u64| (name.to_vec(), value(10, &number.to_le_bytes()));
    let of_three =
        |number: u64| refuse(|image| image.keys.extend([key(b"split.count", 3), key(b"split.no", number)]));
    says(&of_three(1), &["shard 2 of 3"]);
    // One more than the largest number there is.
    says(&of_three(u64::MAX), &["shard 18446744073709551615 of 3"]);
}

#[test]
fn keys() {
    let with_key = |key: &[u8]| {
        let key = key.to_vec();
        refuse(move |image| image.keys.push((key, value(4, &[0; 4]))))
    };
    assert!(matches!(with_key(b""), Error::KeyLength { length: 0, .. }));
    assert!(matches!(with_key(&[b'k'; 65_536]), Error::KeyLength { length: 65_536, .. }));
    assert!(matches!(with_key(b"\xff"), Error::KeyText { .. }));
    says(&with_key(b"llama.block_count"), &["\"llama.block_count\"", "twice"]);
}

#[test]
fn values() {
    let with = |bytes: Vec<u8>| refuse(|image| image.keys.push((b"odd".to_vec(), bytes)));
    for id in [13, 255, u32::MAX] {
        says(&with(value(id, &[0; 8])), &["\"odd\"", &id.to_string(), "0 to 12"]);
        says(&with(array(id, 1, &[0; 8])), &["\"odd\"", &id.to_string()]);
    }
    for count in [0, 1, 1 << 62] {
        let error = with(array(9, count, &[0; 64]));
        assert!(matches!(error.inner(), Error::NestedArray), "{error}");
        says(&error, &["\"odd\""]);
    }
    for length in [1u64 << 20, 1 << 31, 1 << 63, u64::MAX] {
        says(&with(value(8, &length.to_le_bytes())), &["truncated", "\"odd\"", &length.to_string()]);
        for element in [0, 2, 4, 7, 8, 10, 12] {
            says(&with(array(element, length, &[])), &["truncated", "\"odd\"", &length.to_string()]);
        }
    }
}

#[test]
fn alignment() {
    let with =
        |bytes: Vec<u8>| Image::changed(|image| image.keys.push((b"general.alignment".to_vec(), bytes)));
    for good in
        [value(4, &32u32.to_le_bytes()), value(5, &32i32.to_le_bytes()), value(10, &32u64.to_le_bytes())]
    {
        assert_eq!(File::from_bytes(with(good)).expect("an alignment of 32").alignment(), 32);
    }
    for bad in [0i64, 3, 24, -32, (1 << 32) - 1, 1 << 32, i64::MIN] {
        let error = File::from_bytes(with(value(11, &bad.to_le_bytes()))).expect_err("no power of two");
        says(&error, &["general.alignment", &bad.to_string(), "power of two"]);
    }
    let error = File::from_bytes(with(value(8, &string(b"32")))).expect_err("a string");
    says(&error, &["general.alignment", "str", "u32"]);
    let error = refuse(|image| {
        image.keys.push((b"general.alignment".to_vec(), value(4, &(1u32 << 31).to_le_bytes())));
        image.tensors.truncate(1);
    });
    says(&error, &["truncated", "token_embd.weight"]);
}

fn last(image: &mut Image) -> &mut Entry {
    image.tensors.last_mut().expect("a tensor")
}

#[test]
fn tensor_names() {
    for length in [0, 64, 1 << 20] {
        let error = refuse(|image| last(image).name = vec![b't'; length]);
        assert!(
            matches!(error, Error::TensorNameLength { index: 1, length: found, .. } if found == length as u64)
        );
    }
    File::from_bytes(Image::changed(|image| last(image).name = vec![b't'; 63]))
        .expect("63 bytes are allowed");
    File::from_bytes(Image::changed(|image| last(image).name = b"a\0b".to_vec()))
        .expect("NUL is a character");
    assert!(matches!(refuse(|image| last(image).name = vec![0xff]), Error::TensorNameText { index: 1, .. }));
    says(
        &refuse(|image| last(image).name = b"token_embd.weight".to_vec()),
        &["\"token_embd.weight\"", "twice"],
    );
}

#[test]
fn dimensions() {
    let with = |dimensions: &[u64]| {
        let dimensions = dimensions.to_vec();
        refuse(move |image| last(image).dimensions = dimensions)
    };
    assert!(matches!(with(&[1; 5]), Error::DimensionCount { found: 5, .. }));
    assert!(matches!(with(&[32, 1 << 63]), Error::Dimension { axis: 1, .. }));
    assert!(matches!(with(&[32, u64::MAX]), Error::Dimension { axis: 1, .. }));
    for extent in [(1u64 << 42) + 1, 1 << 61, i64::MAX as u64] {
        says(&with(&[32, extent]), &["blk.0.attn_q.weight"]);
        let error = refuse(|image| image.tensors.first_mut().expect("a tensor").dimensions = vec![4, extent]);
        assert!(
            error.to_string().contains("token_embd.weight") || matches!(error, Error::Offset { .. }),
            "{error}"
        );
    }
    assert!(matches!(with(&[1 << 32, 1 << 32]), Error::TensorSize { .. }));
    assert!(matches!(with(&[1 << 62, 1 << 62, 0]), Error::TensorSize { .. }));
    assert!(matches!(with(&[0, 1 << 62, 1 << 62]), Error::TensorSize { .. }));
    assert!(matches!(with(&[33, 3]), Error::RowLength { row: 33, block: 32, .. }));
    // 32 elements in all, but no whole block in a row.
    assert!(matches!(with(&[16, 2]), Error::RowLength { row: 16, .. }));
    assert!(matches!(with(&[]), Error::RowLength { row: 1, .. }));
    for empty in [vec![0, 3], vec![32, 0], vec![0]] {
        let file = File::from_bytes(Image::changed(|image| last(image).dimensions = empty))
            .expect("zero is allowed");
        assert_eq!(
            file.tensors.iter().last().map(|tensor| (tensor.byte_len(), tensor.elements())),
            Some((0, 0))
        );
    }
    let scalar = Image::changed(|image| (last(image).dimensions, last(image).format) = (vec![], 0));
    let file = File::from_bytes(scalar).expect("a scalar");
    assert_eq!(
        file.tensors.iter().last().map(|tensor| (tensor.byte_len(), tensor.shape.len())),
        Some((4, 0))
    );
}

#[test]
fn number_formats() {
    for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, 255, u32::MAX] {
        let error = refuse(|image| last(image).format = id);
        assert!(matches!(error, Error::UnknownFormat { id: found, .. } if found == id), "{error}");
    }
}

#[test]
fn offsets() {
    for offset in [0u64, 16, 31, 33, 64, 1 << 40, 1 << 63, u64::MAX, u64::MAX - 31] {
        let error = refuse(|image| last(image).offset = offset);
        says(&error, &["blk.0.attn_q.weight", &offset.to_string(), "expected 32"]);
    }
    let error = refuse(|image| image.tensors.reverse());
    assert!(matches!(error, Error::Offset { expected: 0, .. }), "{error}");
}

#[test]
fn data_outside_the_file() {
    // The padding of the last tensor may be missing, its data may not.
    let full = Image::good().bytes();
    File::from_bytes(full[..full.len() - 26].to_vec()).expect("only padding is missing");
    let error = File::from_bytes(full[..full.len() - 27].to_vec()).expect_err("one byte is missing");
    says(&error, &["truncated", "blk.0.attn_q.weight"]);
    File::from_bytes([full, vec![7; 100]].concat()).expect("bytes behind the data do no harm");
}

#[test]
fn text_that_is_not_utf8_is_replaced_and_reported() {
    let bytes =
        Image::changed(|image| image.keys.push((b"general.license".to_vec(), value(8, &string(b"\xa9 x")))));
    let file = File::from_bytes(bytes).expect("a usable file");
    assert_eq!(file.metadata.str("general.license").unwrap(), "\u{fffd} x");
    assert_eq!(file.warnings().len(), 1);
    assert!(file.warnings()[0].to_string().contains("general.license"));
}
