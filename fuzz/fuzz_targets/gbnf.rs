#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| puna_fuzz::gbnf(data));
