//! The check for broken tensors.

mod common;

use common::{bytes, files, stem};
use puna_quant::{DType, FORMATS, FloatField, QuantError, validate_rows};

#[test]
fn encodings_of_the_peer_are_sound() {
    for (dtype, suffix) in files("quant") {
        if suffix == "q" || suffix == "qi" {
            let name = format!("quant/{}.{suffix}", stem(dtype));
            assert_eq!(validate_rows(dtype, &bytes(&name)), Ok(()), "{name}");
        }
    }
}

/// Every field of every format, in the last of three blocks, set to infinity and to NaN.
#[test]
fn each_field_is_checked() {
    for format in FORMATS {
        assert_eq!(validate_rows(format.dtype, &vec![0; 3 * format.bytes]), Ok(()), "{}", format.name);
        for field in format.floats {
            let (offset, patterns): (usize, Vec<Vec<u8>>) = match *field {
                FloatField::F16(at) => (at, vec![vec![0x00, 0x7c], vec![0x00, 0xfc], vec![0x01, 0x7e]]),
                FloatField::BF16(at) => (at, vec![vec![0x80, 0x7f], vec![0x80, 0xff], vec![0xc0, 0x7f]]),
                FloatField::F32(at) => {
                    (at, [f32::INFINITY, f32::NAN].iter().map(|x| x.to_le_bytes().to_vec()).collect())
                }
                FloatField::F64(at) => {
                    (at, [f64::INFINITY, f64::NAN].iter().map(|x| x.to_le_bytes().to_vec()).collect())
                }
                FloatField::E8M0(at) => (at, vec![vec![0xff]]),
                FloatField::SplitF16(at) => (
                    at,
                    vec![vec![0, 0x00, 0, 0x00, 0, 0xc0, 0, 0x70], vec![0, 0x10, 0, 0x00, 0, 0xc0, 0, 0xf0]],
                ),
            };
            for pattern in patterns {
                let mut rows = vec![0; 3 * format.bytes];
                let at = 2 * format.bytes + offset;
                rows[at..at + pattern.len()].copy_from_slice(&pattern);
                match validate_rows(format.dtype, &rows) {
                    Err(QuantError::NotFinite { dtype, block: 2, offset: found, value }) => {
                        assert_eq!((dtype, found), (format.dtype, offset));
                        assert!(!value.is_finite());
                    }
                    other => panic!("{} {field:?} {pattern:x?}: {other:?}", format.name),
                }
            }
        }
    }
}

#[test]
fn largest_finite_numbers_pass() {
    assert_eq!(validate_rows(DType::F16, &[0xff, 0x7b]), Ok(()));
    assert_eq!(validate_rows(DType::F32, &f32::MAX.to_le_bytes()), Ok(()));
    let mut block = [0xff; 17];
    block[0] = 254;
    assert_eq!(validate_rows(DType::MXFP4, &block), Ok(()));
}

#[test]
fn formats_without_floats_accept_any_bytes() {
    for format in FORMATS.iter().filter(|format| format.floats.is_empty()) {
        assert_eq!(validate_rows(format.dtype, &vec![0xff; 2 * format.bytes]), Ok(()), "{}", format.name);
    }
}

#[test]
fn errors_name_format_block_and_byte() {
    let error = validate_rows(DType::Q4_0, &[0; 19]).expect_err("partial block");
    assert_eq!(error.to_string(), "19 bytes are no whole number of q4_0 blocks of 18 bytes");
    let mut rows = [0; 40];
    rows[23] = 0x7c;
    let error = validate_rows(DType::Q4_1, &rows).expect_err("infinite minimum");
    assert_eq!(error.to_string(), "q4_1 block 1 holds inf at byte 2, but only finite numbers are allowed");
}

/// Long rows are searched in runs; the index must be that in the row.
#[test]
fn the_first_of_many_elements_is_named() {
    for position in [0, 255, 256, 257, 999] {
        let mut rows = vec![0; 2 * 1000];
        rows[2 * position + 1] = 0x7c;
        rows[2 * 999 + 1] = 0xfc;
        match validate_rows(DType::F16, &rows) {
            Err(QuantError::NotFinite { block, offset: 0, .. }) => assert_eq!(block, position),
            other => panic!("element {position}: {other:?}"),
        }
    }
}

#[test]
fn the_first_block_is_named_whichever_field_is_broken() {
    let mut rows = [0; 3 * 20];
    rows[41] = 0x7c; // d of block 2
    rows[23] = 0x7e; // m of block 1
    match validate_rows(DType::Q4_1, &rows) {
        Err(QuantError::NotFinite { block: 1, offset: 2, value, .. }) => assert!(value.is_nan()),
        other => panic!("{other:?}"),
    }
}

/// Independent of the table of fields: wherever a NaN pattern makes the decoding NaN, the check must object.
#[test]
fn what_passes_decodes_to_numbers() {
    let patterns: [&[u8]; 4] = [&[0x00, 0x7e], &[0xc0, 0x7f], &[0xf8, 0x7f], &[0xc0, 0x11, 0x70]];
    for format in FORMATS {
        let mut objections = 0;
        for pattern in patterns.iter().filter(|pattern| pattern.len() <= format.bytes) {
            for at in 0..=format.bytes - pattern.len() {
                let mut block = vec![0x11; format.bytes];
                block[at..at + pattern.len()].copy_from_slice(pattern);
                if common::decode(format.dtype, &block).iter().any(|x| x.is_nan()) {
                    let error = validate_rows(format.dtype, &block);
                    assert!(error.is_err(), "{}: {pattern:x?} at byte {at}", format.name);
                    objections += 1;
                }
            }
        }
        let always_finite = format.floats.is_empty() || format.dtype == DType::MXFP4;
        assert_eq!(objections == 0, always_finite, "{}", format.name);
    }
}
