//! How many threads to use when nobody says.

use std::collections::BTreeSet;

/// One thread for each physical core that this program may use: a second one on the same core finds its arithmetic
/// units taken. At least 1.
pub fn default_threads() -> usize {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    // What the system grants may be less than the cores there are, but the cores are never more than it grants.
    physical_cores().map_or(usable, |cores| cores.clamp(1, usable))
}

/// Cores of the processors on which this program may run. `None` where the system does not say.
fn physical_cores() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let siblings = |processor| {
        let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
        std::fs::read_to_string(path).ok()
    };
    // Processors of one core have the same list.
    let cores: Option<BTreeSet<String>> = processors(allowed.trim())?.into_iter().map(siblings).collect();
    cores.map(|cores| cores.len()).filter(|cores| *cores > 0)
}

/// Numbers of a list such as `0-3,8`.
fn processors(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // No system has more; the list is not worth a long loop.
        all.extend(first..=last.min(first.saturating_add(1 << 16)));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(processors("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(processors("5"), Some(vec![5]));
        for wrong in ["", "a", "1-", "1,,2"] {
            assert_eq!(processors(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn there_is_a_thread_and_not_more_than_the_system_grants() {
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        assert!((1..=usable).contains(&default_threads()));
    }
}
