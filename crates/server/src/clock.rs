//! Times as RFC 3339 writes them, to and from time since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: i64 = 86_400;

/// Days from 1970-01-01 to a date of the Gregorian calendar, counted in eras of 400 years that begin in March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The date of a day since 1970-01-01.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    (year, month, of_year - (153 * shifted + 2) / 5 + 1)
}

/// Seconds since 1970 of a text such as `2027-01-31T12:00:00Z` or `2027-01-31T12:00:00.5+02:00`; 0 for earlier
/// times. Nothing if it is no such text.
pub fn parse(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let number = |from: usize, length: usize| -> Option<i64> {
        let digits = text.get(from..from + length)?;
        if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
    };
    let mark = |place: usize, marks: &[u8]| bytes.get(place).is_some_and(|byte| marks.contains(byte));
    if !(mark(4, b"-") && mark(7, b"-") && mark(10, b"Tt ") && mark(13, b":") && mark(16, b":")) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
    // A date that exists comes back from its day. A leap second counts as the next one.
    if date(days(year, month, day)) != (year, month, day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut zone = text.get(19..)?;
    if let Some(rest) = zone.strip_prefix('.') {
        zone = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
        if zone.len() == rest.len() {
            return None;
        }
    }
    let offset = match zone.as_bytes() {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let start = text.len() - 5;
            let (hours, minutes) = (number(start, 2)?, number(start + 3, 2)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if *sign == b'-' { -60 } else { 60 }
        }
        _ => return None,
    };
    let seconds = days(year, month, day) * DAY + hour * 3600 + minute * 60 + second - offset;
    Some(u64::try_from(seconds).unwrap_or(0))
}

/// A time in UTC with milliseconds.
pub fn text(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let seconds = i64::try_from(since.as_secs()).unwrap_or(0);
    let (year, month, day) = date(seconds.div_euclid(DAY));
    let rest = seconds.rem_euclid(DAY);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let thousandths = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{thousandths:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_there_and_back() {
        for (written, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2024-12-31T23:59:59z", 1_735_689_599),
            ("2027-01-31T12:00:00.25+02:00", 1_801_389_600),
            ("2027-01-31 10:00:00-00:00", 1_801_389_600),
            ("1960-01-01T00:00:00Z", 0),
        ] {
            assert_eq!(parse(written), Some(seconds), "{written}");
        }
        for seconds in [0u64, 1, 951_825_600, 1_801_389_600, 4_102_444_799] {
            let time = text(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 7));
            assert_eq!(parse(&time), Some(seconds), "{time}");
            assert!(time.ends_with(".007Z"));
        }
    }

    #[test]
    fn texts_that_are_no_times() {
        for text in [
            "",
            "2027-01-31",
            "2027-01-31T12:00:00",
            "2027-02-29T00:00:00Z",
            "2027-13-01T00:00:00Z",
            "2027-00-01T00:00:00Z",
            "2027-01-31T24:00:00Z",
            "2027-01-31T12:60:00Z",
            "2027-01-31T12:00:00.Z",
            "2027-01-31T12:00:00+2:00",
            "2027-01-31T12:00:00+02:0é",
            "+027-01-31T12:00:00Z",
            "２027-01-31T12:00:00Z",
            "2027-01-31T12:00:00ZZ",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
