//! A grammar, a zero byte, and a text for it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use puna_grammar::{Grammar, Tokens};

fuzz_target!(|data: &[u8]| {
    let (grammar, text) = match data.iter().position(|byte| *byte == 0) {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &[][..]),
    };
    let Ok(grammar) = std::str::from_utf8(grammar) else { return };
    let Ok(grammar) = Grammar::new(grammar, &Tokens::bytes()) else { return };
    let Ok(mut constraint) = grammar.constraint() else { return };
    for byte in text.iter().take(200) {
        let Ok(Some(mask)) = constraint.mask() else { return };
        let allowed = puna_grammar::allows(mask, u32::from(*byte));
        let mut copy = constraint.clone();
        assert_eq!(constraint.accept(u32::from(*byte)).is_ok(), allowed);
        if !allowed {
            return;
        }
        // Taking a token back leads to the same place.
        copy.accept(u32::from(*byte)).unwrap();
        copy.rollback(1).unwrap();
        copy.accept(u32::from(*byte)).unwrap();
        assert_eq!(copy.is_complete(), constraint.is_complete());
    }
});
