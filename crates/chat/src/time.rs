//! The calendar behind `strftime_now`: the caller says what time it is, so rendering stays a pure function.

/// A point in time on the user's wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    seconds: i64,
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The parts of a date that format directives name.
struct Calendar {
    year: i64,
    month: usize,
    day: i64,
    day_of_year: i64,
    weekday: usize,
    hour: i64,
    minute: i64,
    second: i64,
}

impl LocalTime {
    /// From seconds since 1970-01-01T00:00:00 on the wall clock, i.e. Unix seconds plus the zone's offset. Values
    /// beyond the years 1 to 9999 are clamped.
    pub fn from_seconds(seconds: i64) -> LocalTime {
        LocalTime { seconds: seconds.clamp(-62_135_596_800, 253_402_300_799) }
    }

    /// From a date and a time of day; out-of-range parts carry over (month 13 is the next January).
    pub fn from_date(year: i64, month: i64, day: i64, hour: i64, minute: i64, second: i64) -> LocalTime {
        let year = year.clamp(1, 9999) + (month.clamp(-9999, 9999) - 1).div_euclid(12);
        let month = (month.clamp(-9999, 9999) - 1).rem_euclid(12);
        // Years start in March, so that the leap day is the last day of a year.
        let (march_year, march_month) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
        let era_days = march_year * 365 + march_year.div_euclid(4) - march_year.div_euclid(100)
            + march_year.div_euclid(400);
        let days = era_days + (153 * march_month + 2) / 5 + day - 719_469;
        LocalTime::from_seconds(days * 86_400 + hour * 3_600 + minute * 60 + second)
    }

    /// From a text like `2026-07-04T09:05:03`; nothing if it is none, or no date that there is.
    pub fn parse(text: &str) -> Option<LocalTime> {
        let (date, time) = text.split_once('T')?;
        let numbers = |text: &str, separator: char, lengths: [usize; 3]| {
            let parts: Vec<&str> = text.split(separator).collect();
            let [a, b, c] = parts.as_slice() else { return None };
            let number = |text: &str, length: usize| {
                let plain = text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit());
                plain.then(|| text.parse::<i64>().ok()).flatten()
            };
            Some([number(a, lengths[0])?, number(b, lengths[1])?, number(c, lengths[2])?])
        };
        let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
        let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
        let parsed = LocalTime::from_date(year, month, day, hour, minute, second);
        (parsed.format("%FT%T") == text).then_some(parsed)
    }

    fn calendar(self) -> Calendar {
        let days = self.seconds.div_euclid(86_400);
        let second_of_day = self.seconds.rem_euclid(86_400);
        let since_march_0000 = days + 719_468;
        let era = since_march_0000.div_euclid(146_097);
        let day_of_era = since_march_0000.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_march_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_march_year + 2) / 153;
        let day = day_of_march_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let day_of_year =
            if month <= 2 { day_of_march_year - 305 } else { day_of_march_year + 60 + i64::from(leap) };
        Calendar {
            year,
            month: usize::try_from(month).unwrap_or(1),
            day,
            day_of_year,
            weekday: usize::try_from((days + 4).rem_euclid(7)).unwrap_or(0),
            hour: second_of_day / 3_600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
        }
    }

    /// Formats with the directives of C's and Python's `strftime` (English names). Unknown directives stay as they
    /// are; time zone directives give an empty text, as Python does for times without zone.
    pub fn format(self, format: &str) -> String {
        let date = self.calendar();
        let mut out = String::new();
        let mut characters = format.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            match characters.next() {
                None => out.push('%'),
                Some('-') => match characters.next() {
                    None => out.push_str("%-"),
                    Some(directive) => {
                        let text = self.directive(&date, directive);
                        let trimmed = text.trim_start_matches(['0', ' ']);
                        out.push_str(if trimmed.is_empty() { "0" } else { trimmed });
                    }
                },
                Some(directive) => out.push_str(&self.directive(&date, directive)),
            }
        }
        out
    }

    fn directive(self, date: &Calendar, directive: char) -> String {
        let weekday = DAYS[date.weekday % 7];
        let month = MONTHS[(date.month + 11) % 12];
        let hour12 = if date.hour % 12 == 0 { 12 } else { date.hour % 12 };
        match directive {
            'Y' => date.year.to_string(),
            'y' => format!("{:02}", date.year % 100),
            'm' => format!("{:02}", date.month),
            'd' => format!("{:02}", date.day),
            'e' => format!("{:2}", date.day),
            'j' => format!("{:03}", date.day_of_year),
            'H' => format!("{:02}", date.hour),
            'I' => format!("{hour12:02}"),
            'M' => format!("{:02}", date.minute),
            'S' => format!("{:02}", date.second),
            'f' => "000000".to_owned(),
            'p' => if date.hour < 12 { "AM" } else { "PM" }.to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'w' => date.weekday.to_string(),
            'u' => if date.weekday == 0 { 7 } else { date.weekday }.to_string(),
            's' => self.seconds.to_string(),
            'F' => self.format("%Y-%m-%d"),
            'T' | 'X' => self.format("%H:%M:%S"),
            'R' => self.format("%H:%M"),
            'D' | 'x' => self.format("%m/%d/%y"),
            'c' => self.format("%a %b %e %H:%M:%S %Y"),
            'Z' | 'z' => String::new(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            other => format!("%{other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LocalTime;

    #[test]
    fn formats_known_dates() {
        let time = LocalTime::from_date(2026, 7, 4, 9, 5, 3);
        assert_eq!(time.format("%Y-%m-%d %H:%M:%S %a %A %b %B %j %p %I"), {
            "2026-07-04 09:05:03 Sat Saturday Jul July 185 AM 09"
        });
        assert_eq!(time.format("%d %b %Y|%-d/%-m|%%|%q"), "04 Jul 2026|4/7|%|%q");
        assert_eq!(LocalTime::from_seconds(0).format("%c"), "Thu Jan  1 00:00:00 1970");
        assert_eq!(LocalTime::from_date(2024, 2, 29, 0, 0, 0).format("%F %j"), "2024-02-29 060");
        assert_eq!(LocalTime::from_date(2024, 12, 31, 23, 59, 59).format("%D %j"), "12/31/24 366");
        assert_eq!(LocalTime::from_date(1900, 3, 1, 0, 0, 0).format("%F %j %u"), "1900-03-01 060 4");
    }

    #[test]
    fn texts_are_read() {
        let time = LocalTime::from_date(2026, 7, 4, 9, 5, 3);
        assert_eq!(LocalTime::parse("2026-07-04T09:05:03"), Some(time));
        for wrong in [
            "",
            "2026-07-04",
            "2026-07-04 09:05:03",
            "2026-13-04T09:05:03",
            "2026-02-30T09:05:03",
            "2026-07-04T24:05:03",
            "2026-07-04T09:05:61",
            "2026-7-4T9:5:3",
            "+026-07-04T09:05:03",
            "2026-07-04T09:05:03Z",
            "0000-01-01T00:00:00",
        ] {
            assert_eq!(LocalTime::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_day_survives_the_round_trip() {
        for day in (-700_000..2_900_000i64).step_by(97) {
            let time = LocalTime::from_seconds(day * 86_400);
            let date = time.calendar();
            let month = i64::try_from(date.month).unwrap();
            assert_eq!(LocalTime::from_date(date.year, month, date.day, 0, 0, 0), time);
        }
    }
}
