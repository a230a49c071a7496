//! Encoders against the peer's encodings and against their own definition.

mod common;

use common::{ELEMENTS, bytes, decode, encode, floats, root_mean_square_error, stem};
use puna_quant::DType;

#[test]
fn encodings_equal_those_of_the_peer_to_the_byte() {
    let input = floats("quant/input.f32");
    assert_eq!(input.len(), ELEMENTS);
    for dtype in [
        DType::F16,
        DType::BF16,
        DType::Q8_0,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::IQ4_NL,
    ] {
        let found = encode(dtype, &input);
        let expected = bytes(&format!("quant/{}.q", stem(dtype)));
        assert_eq!(found.len(), expected.len(), "{dtype}");
        let size = dtype.format().bytes;
        let different: Vec<usize> = found
            .chunks(size)
            .zip(expected.chunks(size))
            .enumerate()
            .filter(|(_, (found, expected))| found != expected)
            .map(|(block, _)| block)
            .collect();
        assert!(different.is_empty(), "{dtype}: blocks {different:?} of {}", found.len() / size);
    }
}

#[test]
fn errors_are_no_larger_than_those_of_the_peer() {
    let input = floats("quant/input.f32");
    let table: serde_json::Value = serde_json::from_slice(&bytes("quant/table.json")).expect("JSON");
    for dtype in [
        DType::F16,
        DType::BF16,
        DType::Q8_0,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::IQ4_NL,
    ] {
        let found = root_mean_square_error(&decode(dtype, &encode(dtype, &input)), &input);
        let limit = table["types"][stem(dtype)]["q_rmse"].as_f64().expect("q_rmse");
        assert!(found <= limit * (1.0 + 1e-6), "{dtype}: {found} > {limit}");
    }
}

#[test]
fn f32_keeps_every_bit() {
    let input = floats("quant/input.f32");
    assert_eq!(encode(DType::F32, &input), bytes("quant/input.f32"));
}

#[test]
fn q8_1_is_q8_0_with_the_sum() {
    let input = floats("quant/input.f32");
    let (with_sum, plain) = (encode(DType::Q8_1, &input), encode(DType::Q8_0, &input));
    for (block, (with_sum, plain)) in with_sum.chunks(36).zip(plain.chunks(34)).enumerate() {
        assert_eq!(with_sum[..2], plain[..2]);
        assert_eq!(with_sum[4..], plain[2..]);
        let peak = input[32 * block..32 * block + 32].iter().fold(0f32, |peak, x| peak.max(x.abs()));
        let sum: i32 = plain[2..].iter().map(|&code| i32::from(code as i8)).sum();
        let expected = half::f16::from_f32(peak / 127.0 * sum as f32);
        assert_eq!(with_sum[2..4], expected.to_le_bytes());
    }
}

#[test]
fn q8_k_puts_the_peak_at_the_end_and_stores_sums() {
    let input = floats("quant/input.f32");
    let encoded = encode(DType::Q8_K, &input);
    let decoded = decode(DType::Q8_K, &encoded);
    for (index, block) in encoded.chunks(292).enumerate() {
        let elements = &input[256 * index..256 * index + 256];
        let peak =
            (0..256).max_by(|&a, &b| elements[a].abs().total_cmp(&elements[b].abs())).expect("elements");
        let d = f32::from_le_bytes(block[..4].try_into().expect("four bytes"));
        if elements[peak] == 0.0 {
            assert_eq!(block, [0; 292], "block {index}");
            continue;
        }
        assert_eq!(block[4 + peak] as i8, -127, "block {index}");
        assert!((d * -127.0 - elements[peak]).abs() <= elements[peak].abs() * 1e-6);
        for (group, sum) in block[260..].chunks(2).enumerate() {
            let codes = &block[4 + 16 * group..20 + 16 * group];
            let expected: i16 = codes.iter().map(|&code| i16::from(code as i8)).sum();
            assert_eq!(i16::from_le_bytes([sum[0], sum[1]]), expected, "block {index} group {group}");
        }
        for i in 0..256 {
            let error = (decoded[256 * index + i] - elements[i]).abs();
            assert!(error <= d.abs() * 0.5001, "block {index} element {i}: error {error}, step {d}");
        }
    }
}

#[test]
fn halves_round_away_from_zero_in_q8_0_and_to_even_in_q8_k() {
    let mut x = [0.0; 256];
    x[0] = -127.0; // makes the scale 1 in both
    (x[1], x[2], x[3], x[4]) = (0.5, -0.5, 2.5, -2.5);
    let q8_0 = encode(DType::Q8_0, &x[..32]);
    assert_eq!(q8_0[2..7].iter().map(|&code| code as i8).collect::<Vec<_>>(), [-127, 1, -1, 3, -3]);
    let q8_k = encode(DType::Q8_K, &x);
    assert_eq!(q8_k[4..9].iter().map(|&code| code as i8).collect::<Vec<_>>(), [-127, 0, 0, 2, -2]);
}

/// Half-way cases of the truncating encoders go up, in units of d.
#[test]
fn halves_round_up_in_the_four_and_five_bit_formats() {
    let mut x = [0.0; 32];
    (x[0], x[1], x[2]) = (-8.0, 0.5, -0.5);
    assert_eq!(decode(DType::Q4_0, &encode(DType::Q4_0, &x))[..3], [-8.0, 1.0, 0.0]);
    x[0] = -16.0;
    assert_eq!(decode(DType::Q5_0, &encode(DType::Q5_0, &x))[..3], [-16.0, 1.0, 0.0]);
    (x[0], x[1], x[2]) = (15.0, 0.5, 1.5);
    assert_eq!(decode(DType::Q4_1, &encode(DType::Q4_1, &x))[..3], [15.0, 1.0, 2.0]);
    x[0] = 31.0;
    assert_eq!(decode(DType::Q5_1, &encode(DType::Q5_1, &x))[..3], [31.0, 1.0, 2.0]);
}
