//! The integer formats, and how a function for one of them is called.

pub(super) use puna_quant::integers::{INTEGERS, Integer, Scales};

/// The position of the format whose codes are whole bytes.
pub(super) const EIGHT_BITS: usize = {
    let mut position = 0;
    while INTEGERS[position].bits != 8 {
        position += 1;
    }
    position
};

/// Calls `$function::<F>($arguments)` for the constant `F` equal to the position `$format` in [`INTEGERS`].
macro_rules! with_format {
    ($format:expr, $function:ident $arguments:tt) => {
        with_format!(
            $format, $function $arguments,
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24
        )
    };
    ($format:expr, $function:ident $arguments:tt, $($position:literal)*) => {
        match $format {
            $($position => $function::<$position> $arguments,)*
            other => unreachable!("no integer format {other}"),
        }
    };
}
pub(super) use with_format;
