//! The page of facts, which the process publishes to its agent.

use std::sync::atomic::{AtomicU64, Ordering};

use protocol::message::{FromProcess, Report};
use protocol::page::{Facts, Residency};

/// Errors after which every call of the process fails until it is started again: illegal address, launch timeout, assert, hardware stack error, illegal
/// instruction, misaligned address, invalid address space, invalid program counter, launch failed and contained exception, as the driver's documentation states
/// of each; and, from calls of a context that has worked, device unavailable, uncorrectable error of memory and uncorrectable error of NVLink, after which its
/// device has to be reset. Other codes, of misuse, unfinished work and captures, concern only the program.
const STICKY: [u32; 13] = [
    46, 214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721,
];

/// What the page does not state of a process that greets its agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// Number of the process.
    pub pid: u32,
    /// Whether it was connected before.
    pub again: bool,
    /// Whether it has computed since.
    pub open: bool,
    /// Its kernel time, in nanoseconds.
    pub busy_ns: u64,
    /// Name of its program.
    pub program: String,
    /// Host memory for copies of its device memory, in bytes.
    pub host_bytes: u64,
    /// Part of `host_bytes` that may be registered with the driver, in bytes.
    pub pinned_bytes: u64,
}

/// Returns the hello message of a process.
#[must_use]
pub fn hello(facts: &Facts, greeting: Greeting) -> FromProcess {
    let residency = Residency::from_number(facts.residency.load(Ordering::Relaxed));
    FromProcess::Hello {
        version: protocol::VERSION,
        pid: greeting.pid,
        again: greeting.again,
        open: greeting.open,
        busy_ns: greeting.busy_ns,
        ungated_ns: facts.ungated_ns.load(Ordering::Relaxed),
        bytes_used: facts.bytes_used.load(Ordering::Relaxed),
        program: greeting.program,
        residency: residency.unwrap_or(Residency::None),
        host_bytes: greeting.host_bytes,
        pinned_bytes: greeting.pinned_bytes,
    }
}

/// Copies the counters to a new page. Launches that other threads make at this moment may be missed.
pub fn carry_over(from: &Facts, to: &Facts, busy_ns: u64) {
    let copy = |from: &AtomicU64, to: &AtomicU64| {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    };
    copy(&from.launches.0, &to.launches.0);
    copy(&from.busy_since, &to.busy_since);
    copy(&from.ungated_ns, &to.ungated_ns);
    copy(&from.bound_exceeded, &to.bound_exceeded);
    copy(&from.bytes_used, &to.bytes_used);
    copy(&from.bytes_fixed, &to.bytes_fixed);
    copy(&from.refused_allocations, &to.refused_allocations);
    copy(&from.unknown_symbols, &to.unknown_symbols);
    for (from, to) in from.fixed.iter().zip(&to.fixed) {
        copy(from, to);
    }
    to.busy_ns.store(busy_ns, Ordering::Relaxed);
    for (from, to) in [
        (&from.mps, &to.mps),
        (&from.inflight_us, &to.inflight_us),
        (&from.unmeasured, &to.unmeasured),
        (&from.last_error, &to.last_error),
        (&from.residency, &to.residency),
    ] {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Publishes the work in flight, in nanoseconds.
pub fn publish_in_flight(facts: &Facts, ns: u64) {
    let us = u32::try_from(ns.div_ceil(1_000)).unwrap_or(u32::MAX);
    facts.inflight_us.store(us, Ordering::Release);
}

/// Returns whether a code of the driver is that of an error after which every call of the process fails.
#[must_use]
pub fn is_sticky(code: i32) -> bool {
    STICKY.contains(&code.unsigned_abs())
}

/// Notes an error of the driver, and returns its report if it is the first sticky one.
#[must_use]
pub fn note_error(facts: &Facts, code: i32) -> Option<Report> {
    let is_first = facts.last_error.load(Ordering::Relaxed) == 0 && is_sticky(code);
    is_first.then(|| {
        let code = code.unsigned_abs();
        facts.last_error.store(code, Ordering::Relaxed);
        Report::Fatal(code)
    })
}

/// Counts a refused allocation of `bytes`, and returns its report. Repeated refusals are reported ever more rarely.
#[must_use]
pub fn note_refusal(facts: &Facts, bytes: u64) -> Option<Report> {
    let count = facts.refused_allocations.fetch_add(1, Ordering::Relaxed) + 1;
    count
        .is_power_of_two()
        .then_some(Report::OutOfMemory(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_page_continues_the_counters_of_the_old_one() {
        let (from, to) = (Facts::new(), Facts::new());
        for (number, counter) in [
            &from.launches.0,
            &from.busy_since,
            &from.ungated_ns,
            &from.bound_exceeded,
            &from.bytes_used,
            &from.bytes_fixed,
            &from.refused_allocations,
            &from.unknown_symbols,
        ]
        .into_iter()
        .enumerate()
        {
            counter.store(number as u64 + 1, Ordering::Relaxed);
        }
        for (number, counter) in from.fixed.iter().enumerate() {
            counter.store(number as u64 + 20, Ordering::Relaxed);
        }
        from.mps.store(1, Ordering::Relaxed);
        from.last_error.store(700, Ordering::Relaxed);
        carry_over(&from, &to, 99);
        let read = [
            &to.launches.0,
            &to.busy_since,
            &to.ungated_ns,
            &to.bound_exceeded,
            &to.bytes_used,
            &to.bytes_fixed,
            &to.refused_allocations,
            &to.unknown_symbols,
            &to.busy_ns,
        ]
        .map(|counter| counter.load(Ordering::Relaxed));
        assert_eq!(read, [1, 2, 3, 4, 5, 6, 7, 8, 99]);
        let fixed = to.fixed.each_ref();
        let fixed = fixed.map(|counter| counter.load(Ordering::Relaxed));
        assert_eq!(fixed, [20, 21, 22, 23, 24, 25]);
        assert_eq!(to.mps.load(Ordering::Relaxed), 1);
        assert_eq!(to.last_error.load(Ordering::Relaxed), 700);
    }

    #[test]
    fn a_hello_has_the_counters_of_the_page() {
        let facts = Facts::new();
        let greeting = Greeting {
            pid: 7,
            again: true,
            open: false,
            busy_ns: 8,
            program: "python3".to_owned(),
            host_bytes: 9,
            pinned_bytes: 4,
        };
        facts.ungated_ns.store(5, Ordering::Relaxed);
        facts.bytes_used.store(6, Ordering::Relaxed);
        facts
            .residency
            .store(Residency::Host as u32, Ordering::Relaxed);
        assert_eq!(
            hello(&facts, greeting),
            FromProcess::Hello {
                version: protocol::VERSION,
                pid: 7,
                again: true,
                open: false,
                busy_ns: 8,
                ungated_ns: 5,
                bytes_used: 6,
                program: "python3".to_owned(),
                residency: Residency::Host,
                host_bytes: 9,
                pinned_bytes: 4,
            }
        );
    }

    #[test]
    fn only_the_first_sticky_error_is_reported() {
        let facts = Facts::new();
        for code in [0, 1, 2, 600, 699, 701, 704, 708, 709, 713, 720, 801] {
            assert_eq!(note_error(&facts, code), None, "{code}");
        }
        assert_eq!(note_error(&facts, 719), Some(Report::Fatal(719)));
        assert_eq!(note_error(&facts, 700), None);
        assert_eq!(facts.last_error.load(Ordering::Relaxed), 719);
    }

    #[test]
    fn repeated_refusals_are_reported_ever_more_rarely() {
        let facts = Facts::new();
        let reported = (1..=64).filter(|bytes| note_refusal(&facts, *bytes).is_some());
        assert_eq!(reported.collect::<Vec<u64>>(), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(facts.refused_allocations.load(Ordering::Relaxed), 64);
    }

    #[test]
    fn work_in_flight_is_published_in_whole_microseconds_upwards() {
        let facts = Facts::new();
        for (ns, us) in [(0, 0), (1, 1), (1_000, 1), (1_001, 2), (u64::MAX, u32::MAX)] {
            publish_in_flight(&facts, ns);
            assert_eq!(facts.inflight_us.load(Ordering::Relaxed), us);
        }
    }
}
