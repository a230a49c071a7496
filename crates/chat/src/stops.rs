//! Texts that end an answer, wherever token borders fall.

/// Looks for stop texts in text that comes in parts. What may be the beginning of a stop text is held back
/// until it is known not to be one.
#[derive(Debug, Default)]
pub struct Stops {
    stops: Vec<String>,
    held: String,
    found: Option<String>,
}

impl Stops {
    /// For these texts; empty ones are ignored.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, held: String::new(), found: None }
    }

    /// Adds text and returns what can be shown now. After the first stop text nothing is shown any more.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped() {
            return String::new();
        }
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        if let Some((place, stop)) = found.min_by_key(|(place, _)| *place) {
            self.found = Some(stop.clone());
            self.held.truncate(place);
            return std::mem::take(&mut self.held);
        }
        // The longest end of the text that begins a stop text.
        let kept = self.stops.iter().map(|stop| self.overlap(stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - kept);
        std::mem::replace(&mut self.held, rest)
    }

    /// Bytes at the end of what is held that begin `stop`.
    fn overlap(&self, stop: &str) -> usize {
        let borders = stop.char_indices().map(|(place, _)| place).filter(|place| *place > 0);
        let fitting = borders.filter(|place| self.held.ends_with(&stop[..*place]));
        fitting.max().unwrap_or(0)
    }

    /// Whether a stop text was found.
    pub fn stopped(&self) -> bool {
        self.found.is_some()
    }

    /// The stop text that was found.
    pub fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// Ends the text: what was held back is no stop text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text shown, and whether it stopped, for every way of cutting the text in two and letter by letter.
    fn check(stops: &[&str], text: &str, expected: &str, stopped: bool) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_string()).collect();
        let show = |parts: &[&str]| {
            let mut matcher = Stops::new(&stops);
            let mut shown = String::new();
            for part in parts {
                shown.push_str(&matcher.push(part));
                assert!(!matcher.stopped() || stopped);
            }
            shown.push_str(&matcher.finish());
            (shown, matcher.stopped())
        };
        for (place, _) in text.char_indices() {
            assert_eq!(show(&[&text[..place], &text[place..]]), (expected.to_string(), stopped), "{place}");
        }
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(show(&letters), (expected.to_string(), stopped));
    }

    #[test]
    fn finds_stops_across_parts() {
        check(&["O P Q"], "L M N O P Q R S", "L M N ", true);
        check(&["\n"], "one\ntwo", "one", true);
        check(&["?\n"], "really?\nyes", "really", true);
        check(&["?\n"], "really? yes?", "really? yes?", false);
        check(&["ab"], "aaab", "aa", true);
        check(&["aab"], "aaaaab", "aaa", true);
        check(&["later", "ate"], "plate later", "pl", true);
        check(&["</s>", "User:"], "hello <s> Use", "hello <s> Use", false);
        check(&["é漢"], "caf\u{e9}漢字", "caf", true);
        check(&["é漢"], "café é", "café é", false);
        check(&[], "anything", "anything", false);
        check(&[""], "anything", "anything", false);
        check(&["any"], "any", "", true);
    }

    #[test]
    fn shows_text_as_soon_as_it_can() {
        let mut matcher = Stops::new(&["STOP".to_string()]);
        assert_eq!(matcher.push("go S"), "go ");
        assert_eq!(matcher.push("TO"), "");
        assert_eq!(matcher.push("RE STOP more"), "STORE ");
        assert_eq!(matcher.push("never shown"), "");
        assert_eq!(matcher.finish(), "");
    }
}
