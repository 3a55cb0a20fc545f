//! Number of worker threads: one, unless the container's CPU quota is two CPUs or more.
//!
//! With a second worker, wake-ups across threads increase the cost of each request by about half, so it only pays if
//! there is a CPU for it.

use std::fs;

/// Returns the number of worker threads for this container, from 1 to the number of CPUs.
#[must_use]
pub fn count() -> usize {
    let quota = fs::read_to_string("/sys/fs/cgroup/cpu.max").map_or_else(
        |_| {
            let read = |name| fs::read_to_string(format!("/sys/fs/cgroup/cpu/{name}")).ok();
            cpus_v1(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?)
        },
        |text| cpus_v2(&text),
    );
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    quota.map_or(1, |cpus| cpus.clamp(1, cores))
}

/// Returns the whole CPUs of a `cpu.max` file: `QUOTA PERIOD` in µs, or `max PERIOD`, which yields `None`.
fn cpus_v2(text: &str) -> Option<usize> {
    let (quota, period) = text.trim().split_once(' ')?;
    cpus_v1(quota, period)
}

fn cpus_v1(quota: &str, period: &str) -> Option<usize> {
    let quota: usize = quota.trim().parse().ok()?;
    let period: usize = period.trim().parse().ok()?;
    quota.checked_div(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_rounded_down_to_whole_cpus() {
        assert_eq!(cpus_v2("max 100000\n"), None);
        assert_eq!(cpus_v2("10000 100000\n"), Some(0));
        assert_eq!(cpus_v2("250000 100000\n"), Some(2));
        assert_eq!(cpus_v1("-1\n", "100000\n"), None);
        assert_eq!(cpus_v1("400000", "100000"), Some(4));
        assert_eq!(cpus_v1("1", "0"), None);
    }
}
