//! No content and no length makes a decoder or an encoder panic.

mod common;

use common::{decode, encode};
use puna_quant::{DType, FORMATS, Format, QuantError, decode_row, encode_row};

fn encoders() -> impl Iterator<Item = &'static Format> {
    FORMATS.iter().filter(|format| format.encode.is_some())
}

/// Pseudo-random bytes, the same in every run.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(step).collect()
}

#[test]
fn any_bytes_decode() {
    for format in FORMATS {
        for fill in [0x00, 0x01, 0x7c, 0x7f, 0x80, 0xfc, 0xff] {
            decode(format.dtype, &vec![fill; 3 * format.bytes]);
        }
        decode(format.dtype, &noise(500 * format.bytes));
    }
}

#[test]
fn zero_bytes_decode_to_zeros() {
    for format in FORMATS {
        // Code 0 of E8M0 is a tiny power of two, its elements are still 0.
        for x in decode(format.dtype, &vec![0; 2 * format.bytes]) {
            assert_eq!(x, 0.0, "{}", format.name);
        }
    }
}

#[test]
fn zeros_survive_encoding() {
    for format in encoders() {
        for zero in [0.0, -0.0] {
            let decoded = decode(format.dtype, &encode(format.dtype, &[zero; 512]));
            assert!(decoded.iter().all(|&x| x == 0.0), "{}", format.name);
        }
    }
}

#[test]
fn tiny_elements_encode_to_finite_blocks() {
    for format in encoders() {
        for scale in [f32::from_bits(1), 1e-40, f32::MIN_POSITIVE, 1e-20] {
            let elements: Vec<f32> = (0..256).map(|i| (i - 100) as f32 * scale).collect();
            let decoded = decode(format.dtype, &encode(format.dtype, &elements));
            let worst = elements.iter().zip(&decoded).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
            assert!(worst <= 256.0 * scale, "{}: {scale:e} gives an error of {worst:e}", format.name);
        }
    }
}

#[test]
fn special_elements_do_not_panic() {
    let specials =
        [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::from_bits(1), -0.0];
    for format in encoders() {
        for special in specials {
            encode(format.dtype, &[special; 256]);
            for other in specials {
                let mut elements = [1.0; 256];
                (elements[3], elements[40], elements[41]) = (special, special, other);
                let decoded = decode(format.dtype, &encode(format.dtype, &elements));
                // Blocks without special elements are not touched by their neighbours.
                if format.block <= 32 {
                    let error = (decoded[255] - 1.0).abs();
                    assert!(error < 0.05, "{}: {} beside {special}", format.name, decoded[255]);
                }
            }
        }
    }
}

#[test]
fn wrong_lengths_are_reported_and_leave_the_output_alone() {
    let mut out = [7.0; 33];
    assert_eq!(
        decode_row(DType::Q4_0, &[0; 18], &mut out),
        Err(QuantError::PartialElements { dtype: DType::Q4_0, elements: 33 })
    );
    let expected = QuantError::ByteCount { dtype: DType::Q4_0, elements: 32, expected: 18, found: 17 };
    assert_eq!(decode_row(DType::Q4_0, &[0; 17], &mut out[..32]), Err(expected.clone()));
    assert_eq!(expected.to_string(), "32 elements of q4_0 take 18 bytes, but there are 17");
    assert_eq!(out, [7.0; 33]);

    let mut bytes = [0xaa; 36];
    let expected = QuantError::ByteCount { dtype: DType::Q8_0, elements: 32, expected: 34, found: 36 };
    assert_eq!(encode_row(DType::Q8_0, &[1.0; 32], &mut bytes), Err(expected));
    let expected = QuantError::NoEncoder { dtype: DType::IQ1_M };
    assert_eq!(encode_row(DType::IQ1_M, &[1.0; 256], &mut bytes), Err(expected));
    assert_eq!(bytes, [0xaa; 36]);
    assert_eq!(decode_row(DType::Q6_K, &[], &mut []), Ok(()));
}

#[test]
fn unchecked_functions_stop_at_the_last_whole_block() {
    for format in FORMATS {
        let bytes = noise(3 * format.bytes);
        let mut out = vec![7.0; 3 * format.block];
        (format.decode)(&bytes[..3 * format.bytes - 1], &mut out);
        assert!(out[2 * format.block..].iter().all(|&x| x == 7.0), "{}", format.name);
        (format.decode)(&bytes, &mut out[..3 * format.block - 1]);
        (format.decode)(&[], &mut out);
        (format.decode)(&bytes, &mut []);
    }
    for format in encoders() {
        let mut out = vec![0xaa; 3 * format.bytes];
        let elements = vec![1.0; 3 * format.block];
        if let Some(encode) = format.encode {
            encode(&elements[..3 * format.block - 1], &mut out);
            assert!(out[2 * format.bytes..].iter().all(|&byte| byte == 0xaa), "{}", format.name);
            encode(&elements, &mut out[..3 * format.bytes - 1]);
            encode(&elements, &mut []);
        }
    }
}
