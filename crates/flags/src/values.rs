//! Reading of flag values. Each function says what it expected, so that the error can name flag and value.

use std::path::PathBuf;
use std::str::FromStr;

use crate::config::{ISA_ARCHITECTURES, ISA_LEVELS};

/// On, off, or decided by the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Toggle {
    /// On.
    On,
    /// Off.
    Off,
    /// Decided by the program.
    Auto,
}

/// Words that mean yes and no, in flags and in environment variables.
pub(crate) fn boolean(value: &str) -> Result<bool, String> {
    match value {
        "1" | "true" | "on" | "enabled" => Ok(true),
        "0" | "false" | "off" | "disabled" => Ok(false),
        _ => Err("expected on or off".into()),
    }
}

pub(crate) const TOGGLE_WORDS: &[&str] =
    &["on", "off", "auto", "1", "0", "-1", "true", "false", "enabled", "disabled"];

pub(crate) fn toggle(value: &str) -> Result<Toggle, String> {
    match value {
        "auto" | "-1" => Ok(Toggle::Auto),
        _ => match boolean(value) {
            Ok(true) => Ok(Toggle::On),
            Ok(false) => Ok(Toggle::Off),
            Err(_) => Err("expected on, off or auto".into()),
        },
    }
}

/// A type of whole numbers and what it can hold.
pub(crate) trait Whole: TryFrom<i128> {
    const LEAST: i128;
    const MOST: i128;
    fn wide(self) -> i128;
}

macro_rules! whole {
    ($($type:ty)*) => {
        $(impl Whole for $type {
            const LEAST: i128 = <$type>::MIN as i128;
            const MOST: i128 = <$type>::MAX as i128;
            fn wide(self) -> i128 {
                self as i128
            }
        })*
    };
}

whole!(u8 u16 u32 u64 usize i32 i64);

/// A whole number that fits the type of the field.
pub(crate) fn integer<T: Whole>(value: &str) -> Result<T, String> {
    within(value, T::LEAST)
}

/// A whole number of at least `least`.
pub(crate) fn at_least<T: Whole>(value: &str, least: T) -> Result<T, String> {
    within(value, least.wide())
}

fn within<T: Whole>(value: &str, least: i128) -> Result<T, String> {
    let number = i128::from_str(value.trim()).map_err(|_| "expected a whole number".to_owned())?;
    let fits = T::try_from(number).ok().filter(|_| number >= least);
    fits.ok_or_else(|| match number < least {
        true => format!("expected a whole number of at least {least}"),
        false => format!("expected a whole number of at most {}", T::MOST),
    })
}

/// A finite number.
pub(crate) fn number(value: &str) -> Result<f32, String> {
    match f32::from_str(value.trim()) {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err("expected a number".into()),
    }
}

/// A finite number in a range, both ends included.
pub(crate) fn number_in(value: &str, least: f32, most: f32) -> Result<f32, String> {
    match number(value) {
        Ok(number) if number < least || number > most => Err(if most == f32::MAX {
            format!("expected at least {least}")
        } else {
            format!("expected {least} to {most}")
        }),
        other => other,
    }
}

/// A finite number above 0.
pub(crate) fn positive(value: &str) -> Result<f32, String> {
    match number(value) {
        Ok(number) if number <= 0.0 => Err("expected a number above 0".into()),
        other => other,
    }
}

/// One of a few words.
pub(crate) fn choice(value: &str, words: &[&'static str]) -> Result<&'static str, String> {
    words
        .iter()
        .find(|word| **word == value)
        .copied()
        .ok_or_else(|| format!("expected one of {}", words.join(", ")))
}

/// A level of instruction sets that processors of the program's own architecture may have.
pub(crate) fn isa_level(value: &str) -> Result<&'static str, String> {
    let level = choice(value, ISA_LEVELS)?;
    let own = std::env::consts::ARCH;
    match ISA_ARCHITECTURES.iter().find(|(_, levels)| levels.contains(&level)) {
        Some((architecture, _)) if *architecture != own => {
            Err(format!("expected a level of {own}, this one is of {architecture}"))
        }
        _ => Ok(level),
    }
}

/// A path that is not empty.
pub(crate) fn path(value: &str) -> Result<PathBuf, String> {
    if value.is_empty() { Err("expected a path".into()) } else { Ok(PathBuf::from(value)) }
}

/// Text that is not empty.
pub(crate) fn filled(value: &str) -> Result<String, String> {
    if value.is_empty() { Err("expected some text".into()) } else { Ok(value.to_owned()) }
}

/// A comma list of whole numbers.
pub(crate) fn integers<T: Whole>(value: &str) -> Result<Vec<T>, String> {
    value
        .split(',')
        .map(|item| integer(item).map_err(|_| "expected whole numbers separated by commas".into()))
        .collect()
}

/// Splits a comma list; a part in double quotes may hold commas, and two quotes in it mean one.
pub(crate) fn comma_list(value: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut quoted = false;
    let mut letters = value.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                push(&mut items, '"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => items.push(String::new()),
            other => push(&mut items, other),
        }
    }
    items
}

fn push(items: &mut [String], letter: char) {
    if let Some(last) = items.last_mut() {
        last.push(letter);
    }
}

/// Refuses what is no hexadecimal mask.
pub(crate) fn mask(value: &str) -> Result<(), String> {
    let digits = value.trim_start_matches("0x");
    if !digits.is_empty() && digits.chars().all(|digit| digit.is_ascii_hexdigit()) {
        Ok(())
    } else {
        Err("expected a hexadecimal mask".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_say_what_they_expect() {
        assert_eq!(integer::<u32>("12"), Ok(12));
        assert_eq!(integer::<i32>("-1"), Ok(-1));
        assert_eq!(integer::<u32>("-1"), Err("expected a whole number of at least 0".into()));
        assert_eq!(
            integer::<i32>("-99999999999"),
            Err("expected a whole number of at least -2147483648".into())
        );
        assert_eq!(
            integer::<u32>("99999999999999999999"),
            Err("expected a whole number of at most 4294967295".into())
        );
        assert_eq!(integer::<u32>("1.5"), Err("expected a whole number".into()));
        assert_eq!(number("nan"), Err("expected a number".into()));
        assert_eq!(positive("0"), Err("expected a number above 0".into()));
        assert_eq!(positive("1e-3"), Ok(1e-3));
        assert_eq!(number_in("1.5", 0.0, 1.0), Err("expected 0 to 1".into()));
        assert_eq!(at_least::<u32>("0", 1), Err("expected a whole number of at least 1".into()));
    }

    #[test]
    fn levels_of_instruction_sets_are_those_of_the_architecture() {
        for level in ISA_LEVELS {
            let of = ISA_ARCHITECTURES.iter().find(|(_, levels)| levels.contains(level));
            let expected = of.is_none_or(|(architecture, _)| *architecture == std::env::consts::ARCH);
            assert_eq!(isa_level(level).is_ok(), expected, "{level}");
        }
        assert!(isa_level("sse").is_err_and(|error| error.starts_with("expected one of auto, scalar, ")));
    }

    #[test]
    fn lists_split_at_commas_outside_quotes() {
        assert_eq!(comma_list("a,b"), ["a", "b"]);
        assert_eq!(comma_list("\"a,b\",c"), ["a,b", "c"]);
        assert_eq!(comma_list("\"a\"\"b\""), ["a\"b"]);
        assert_eq!(integers::<u32>("1,2,3"), Ok(vec![1, 2, 3]));
        assert!(integers::<u32>("1,,3").is_err());
    }
}
