//! How much memory a program may still take.

/// Bytes of memory that are free or can be made free, swap included, within what a container grants. `None` where the
/// system does not say.
pub fn available() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = of_machine(&read("/proc/meminfo")?)?;
    let own = read("/proc/self/cgroup").unwrap_or_default();
    let group = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").trim_end_matches('/');
    let of_group = |file: &str| read(&format!("/sys/fs/cgroup{group}/{file}"));
    let granted =
        (|| of_container(&of_group("memory.max")?, &of_group("memory.current")?, &of_group("memory.stat")?))(
        );
    Some(granted.map_or(machine, |granted| granted.min(machine)))
}

/// What `/proc/meminfo` says.
fn of_machine(text: &str) -> Option<u64> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    let available = value("MemAvailable")?;
    available.saturating_add(value("SwapFree").unwrap_or(0)).checked_mul(1024)
}

/// What a control group says; `None` without a limit.
fn of_container(limit: &str, current: &str, statistics: &str) -> Option<u64> {
    let limit: u64 = limit.trim().parse().ok()?;
    let current: u64 = current.trim().parse().ok()?;
    // Pages of files are given back when memory is short.
    let files = statistics.lines().find_map(|line| line.strip_prefix("file "))?.trim().parse::<u64>().ok()?;
    Some(limit.saturating_sub(current.saturating_sub(files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_understood() {
        let text = "MemTotal:       24683036 kB\nMemFree:        19155968 kB\nMemAvailable:   24075264 kB\nSwapFree:  36 kB\n";
        assert_eq!(of_machine(text), Some((24_075_264 + 36) * 1024));
        assert_eq!(of_machine("MemTotal: 1 kB\n"), None);
        assert_eq!(of_container("1000\n", "700\n", "anon 5\nfile 400\n"), Some(700));
        assert_eq!(of_container("100\n", "700\n", "file 4\n"), Some(0));
        assert_eq!(of_container("max\n", "700\n", "file 4\n"), None);
    }
}
