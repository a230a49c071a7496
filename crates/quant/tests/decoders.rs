//! Every decoder against stored decodings, bit for bit.

mod common;

use common::{assert_bits, bytes, decode, files, floats, stem};
use puna_quant::{DType, FORMATS};

#[test]
fn encodings_of_the_peer_decode_to_the_bit() {
    let mut checked = Vec::new();
    for (dtype, suffix) in files("quant") {
        if let Some(encoding) = suffix.strip_suffix(".f32") {
            let name = format!("quant/{}.{encoding}", stem(dtype));
            assert_bits(&name, &decode(dtype, &bytes(&name)), &floats(&format!("{name}.f32")));
            checked.push(name);
        }
    }
    assert_eq!(checked.len(), 47, "{checked:?}");
}

/// Random bytes reach codes and scales that no encoder writes, among them infinite and NaN scales.
#[test]
fn random_blocks_decode_to_the_bit() {
    let mut checked = 0;
    for (dtype, suffix) in files("quant-random") {
        if suffix == "bytes" {
            let name = format!("quant-random/{}", stem(dtype));
            let found = decode(dtype, &bytes(&format!("{name}.bytes")));
            assert_bits(&name, &found, &floats(&format!("{name}.f32")));
            checked += 1;
        }
    }
    assert_eq!(checked, 24);
}

#[test]
fn every_format_is_covered_by_a_test_in_this_file() {
    let by_hand = [
        DType::F32,
        DType::Q8_1,
        DType::Q8_K,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F64,
        DType::Q1_0,
        DType::Q2_0,
    ];
    let files = files("quant");
    for format in FORMATS {
        let stored = files.iter().any(|(dtype, suffix)| *dtype == format.dtype && suffix.ends_with("f32"));
        assert_ne!(stored, by_hand.contains(&format.dtype), "{}", format.name);
    }
}

/// 1.5 in half precision, so that products are exact.
const ONE_AND_A_HALF: [u8; 2] = [0x00, 0x3e];

#[test]
fn q1_0_is_a_sign_bit_and_a_scale() {
    let mut block = ONE_AND_A_HALF.to_vec();
    block.extend((0..16u8).map(|i| i.wrapping_mul(37) ^ 0x5a));
    let found = decode(DType::Q1_0, &block);
    let mut expected = Vec::new();
    for byte in &block[2..] {
        for digit in format!("{byte:08b}").chars().rev() {
            expected.push(if digit == '1' { 1.5 } else { -1.5 });
        }
    }
    assert_bits("q1_0", &found, &expected);
}

/// The encoding in the fixture has no decoding beside it, but the page says how it was made.
#[test]
fn q1_0_fixture_is_the_sign_and_mean_magnitude_of_the_input() {
    let found = decode(DType::Q1_0, &bytes("quant/Q1_0.q"));
    for (found, input) in found.chunks(128).zip(floats("quant/input.f32").chunks(128)) {
        let mean = input.iter().map(|x| f64::from(x.abs())).sum::<f64>() / 128.0;
        for (found, input) in found.iter().zip(input) {
            assert_eq!(*found < 0.0, *input < 0.0);
            let error = (f64::from(found.abs()) - mean).abs();
            assert!(error <= mean / 2048.0 + 1e-9, "{found} for mean {mean}"); // half-precision rounding
        }
    }
}

#[test]
fn q2_0_is_a_two_bit_code_and_a_scale() {
    let mut block = ONE_AND_A_HALF.to_vec();
    block.extend([0b11_10_01_00; 8]);
    block.extend([0b00_01_10_11; 8]);
    let mut expected = [-1.5, 0.0, 1.5, 3.0].repeat(8);
    expected.extend([3.0, 1.5, 0.0, -1.5].repeat(8));
    assert_bits("q2_0", &decode(DType::Q2_0, &block), &expected);
}

#[test]
fn activation_formats_are_codes_times_scale() {
    let codes: Vec<i8> = (0..256).map(|i| (i * 91 % 256 - 128) as i8).collect();
    let expected: Vec<f32> = codes.iter().map(|&code| f32::from(code) * 1.5).collect();
    let codes: Vec<u8> = codes.iter().map(|&code| code as u8).collect();

    let mut block = ONE_AND_A_HALF.to_vec();
    block.extend([0xff, 0xff]); // the sum, not used by the decoder
    block.extend(&codes[..32]);
    assert_bits("q8_1", &decode(DType::Q8_1, &block), &expected[..32]);

    let mut block = 1.5f32.to_le_bytes().to_vec();
    block.extend(&codes);
    block.extend([0xff; 32]);
    assert_bits("q8_K", &decode(DType::Q8_K, &block), &expected);
}

#[test]
fn plain_numbers_convert_to_the_nearest_f32() {
    let f64s: Vec<u8> = [0.1f64, -1e300, 16_777_217.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_bits("f64", &decode(DType::F64, &f64s), &[0.1, f32::NEG_INFINITY, 16_777_216.0]);
    let f32s: Vec<u8> = [0.1f32, -0.0, 1e-45].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_bits("f32", &decode(DType::F32, &f32s), &[0.1, -0.0, 1e-45]);
    assert_bits("i8", &decode(DType::I8, &[0x80, 0x7f, 0xff]), &[-128.0, 127.0, -1.0]);
    assert_bits("i16", &decode(DType::I16, &[0x00, 0x80, 0xff, 0x7f]), &[-32768.0, 32767.0]);
    let i32s: Vec<u8> = [i32::MIN, 16_777_217].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_bits("i32", &decode(DType::I32, &i32s), &[-2_147_483_648.0, 16_777_216.0]);
    let i64s: Vec<u8> = [i64::MIN, -3].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_bits("i64", &decode(DType::I64, &i64s), &[-9_223_372_036_854_775_808.0, -3.0]);
}

#[test]
fn four_bit_float_scales_have_the_documented_special_codes() {
    assert_eq!(puna_quant::half_e8m0(0), 2f32.powi(-127) / 2.0);
    assert_eq!(puna_quant::half_e8m0(1), 2f32.powi(-127));
    assert_eq!(puna_quant::half_e8m0(2), 2f32.powi(-126));
    assert_eq!(puna_quant::half_e8m0(128), 1.0);
    assert_eq!(puna_quant::half_e8m0(255), 2f32.powi(127));
    assert_eq!(puna_quant::half_unsigned_e4m3(0), 0.0);
    assert_eq!(puna_quant::half_unsigned_e4m3(0x7f), 0.0);
    assert_eq!(puna_quant::half_unsigned_e4m3(1), 2f32.powi(-10));
    assert_eq!(puna_quant::half_unsigned_e4m3(0x08), 2f32.powi(-7));
    assert_eq!(puna_quant::half_unsigned_e4m3(0x7e), 224.0);
}
