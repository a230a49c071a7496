//! Numbers of bytes for people.

/// `2.50 GiB`, `12.0 MiB` or `3 KiB`.
pub fn size(bytes: u64) -> String {
    const MEBIBYTE: u64 = 1 << 20;
    match bytes {
        0..MEBIBYTE => format!("{} KiB", bytes.div_ceil(1 << 10)),
        MEBIBYTE..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / MEBIBYTE as f64),
        _ => format!("{:.2} GiB", bytes as f64 / (1_u64 << 30) as f64),
    }
}
