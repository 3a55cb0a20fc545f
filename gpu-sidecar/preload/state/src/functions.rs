//! Expected run time of kernels and graphs.
//!
//! A lock-free table of fixed size. Two functions with the same slot replace each other, and both are then measured again, which
//! costs one event at each of their first launches.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::Handle;

const SLOTS: usize = 1024;
/// Expected run time of a function that was never measured, in nanoseconds.
pub const UNKNOWN_NS: u64 = 50_000;
/// Number of measurements of single launches before several launches are measured together.
const SINGLE: u32 = 3;
/// Upper bound of an expected run time: one hour, in nanoseconds.
const LONGEST_NS: u64 = 3_600_000_000_000;
/// Lower bound of an expected run time, in nanoseconds.
const SHORTEST_NS: u64 = 100;
/// Bit of [`Slot::measurements`] which marks a collective among several ranks.
const COLLECTIVE: u32 = 1 << 31;

#[derive(Debug)]
struct Slot {
    key: AtomicUsize,
    estimate_ns: AtomicU64,
    /// Number of measurements, saturating at [`SINGLE`], and the bit [`COLLECTIVE`].
    measurements: AtomicU32,
}

/// Table of the functions and graphs that the process launches.
#[derive(Debug)]
pub struct Functions([Slot; SLOTS]);

/// Properties of one function or graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionInfo {
    /// Index of the function's slot in the table.
    pub slot: u16,
    /// Expected run time of one launch, in nanoseconds.
    pub estimate_ns: u64,
    /// Whether the function has fewer than three measurements, so that its next launch is measured alone.
    pub is_new: bool,
    /// Whether the function is a kernel that waits for other ranks.
    pub is_collective: bool,
}

/// Slot of a launched function, and the run time expected for the launch in nanoseconds.
pub type Part = (u16, u64);

const UNTRACKED: FunctionInfo = FunctionInfo {
    slot: 0,
    estimate_ns: UNKNOWN_NS,
    is_new: true,
    is_collective: false,
};

impl Default for Functions {
    fn default() -> Self {
        Self::new()
    }
}

impl Functions {
    /// Creates a table in which no function is measured.
    #[must_use]
    pub const fn new() -> Self {
        Self(
            [const {
                Slot {
                    key: AtomicUsize::new(0),
                    estimate_ns: AtomicU64::new(UNKNOWN_NS),
                    measurements: AtomicU32::new(0),
                }
            }; SLOTS],
        )
    }

    /// Returns the properties of a function or graph. A function new to its slot replaces the slot's previous one, and is asked whether
    /// it is a collective.
    #[inline]
    pub fn lookup(&self, key: Handle, is_collective: impl FnOnce() -> bool) -> FunctionInfo {
        let slot = slot_of(key);
        let Some(entry) = self.0.get(slot) else {
            return UNTRACKED;
        };
        if entry.key.load(Ordering::Relaxed) != key {
            entry.key.store(key, Ordering::Relaxed);
            entry.estimate_ns.store(UNKNOWN_NS, Ordering::Relaxed);
            let collective = if is_collective() { COLLECTIVE } else { 0 };
            entry.measurements.store(collective, Ordering::Relaxed);
        }
        let measurements = entry.measurements.load(Ordering::Relaxed);
        FunctionInfo {
            slot: u16::try_from(slot).unwrap_or(0),
            estimate_ns: entry.estimate_ns.load(Ordering::Relaxed),
            is_new: measurements & !COLLECTIVE < SINGLE,
            is_collective: measurements & COLLECTIVE != 0,
        }
    }

    /// Records that these launches took `took_ns` together. Each is attributed the share that was expected of it. A new function
    /// takes the measured value; later measurements move the estimate by a quarter of the difference.
    pub fn record(&self, parts: &[Part], took_ns: u64) {
        let expected: u64 = parts.iter().map(|(_, expected)| expected).sum();
        for &(slot, own) in parts {
            let Some(entry) = self.0.get(usize::from(slot)) else {
                continue;
            };
            let target = u128::from(own) * u128::from(took_ns) / u128::from(expected.max(1));
            let target = u64::try_from(target)
                .unwrap_or(u64::MAX)
                .clamp(SHORTEST_NS, LONGEST_NS);
            let measurements = entry.measurements.load(Ordering::Relaxed);
            let after = if measurements & !COLLECTIVE < SINGLE {
                entry
                    .measurements
                    .store(measurements + 1, Ordering::Relaxed);
                target
            } else {
                let before = entry.estimate_ns.load(Ordering::Relaxed);
                before - before / 4 + target / 4
            };
            entry
                .estimate_ns
                .store(after.max(SHORTEST_NS), Ordering::Relaxed);
        }
    }
}

#[inline]
const fn slot_of(key: Handle) -> usize {
    (key >> 4 ^ key >> 14) % SLOTS
}

/// Returns whether a kernel is a collective of NCCL: `ncclDevKernel…` since version 2.19, `ncclKernel…` before.
#[must_use]
pub fn is_collective(name: &[u8]) -> bool {
    name.starts_with(b"ncclDevKernel") || name.starts_with(b"ncclKernel")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Handle = 0x7f00_1230;

    fn is_new(functions: &Functions, key: Handle) -> FunctionInfo {
        functions.lookup(key, || false)
    }

    #[test]
    fn estimates_follow_what_is_measured() {
        let functions = Functions::new();
        let first = is_new(&functions, KEY);
        assert!(first.is_new && first.estimate_ns == UNKNOWN_NS);
        // Estimates made before the first measurement do not add up to the measured time.
        for _launch in 0..100 {
            functions.record(&[(first.slot, UNKNOWN_NS)], UNKNOWN_NS * 2);
        }
        let later = is_new(&functions, KEY);
        assert!(!later.is_new);
        assert_eq!(later.estimate_ns, UNKNOWN_NS * 2);
        // Later measurements move the estimate by a quarter.
        functions.record(&[(first.slot, 100_000)], 200_000);
        assert_eq!(is_new(&functions, KEY).estimate_ns, 125_000);
        // Launches measured together share the time in proportion.
        let other = is_new(&functions, 0x7f00_5550);
        functions.record(&[(first.slot, 100_000), (other.slot, 300_000)], 800_000);
        assert_eq!(is_new(&functions, 0x7f00_5550).estimate_ns, 600_000);
    }

    #[test]
    fn a_function_that_takes_over_a_slot_is_measured_anew() {
        let functions = Functions::new();
        let slot = is_new(&functions, 0x10).slot;
        let mut others = (2..).map(|number| number << 4);
        let other = others.find(|&key| usize::from(slot) == slot_of(key));
        let other = other.expect("some key has the same slot");
        functions.record(&[(slot, UNKNOWN_NS)], 1_000);
        assert!(is_new(&functions, 0x10).estimate_ns < UNKNOWN_NS);
        assert_eq!(is_new(&functions, other).estimate_ns, UNKNOWN_NS);
    }

    #[test]
    fn a_function_is_new_until_its_third_measurement() {
        let functions = Functions::new();
        for measured in 0..5 {
            let info = is_new(&functions, KEY);
            assert_eq!(info.is_new, measured < 3, "{measured}");
            functions.record(&[(info.slot, info.estimate_ns)], 1_000);
        }
    }

    #[test]
    fn a_collective_is_asked_for_once_and_stays_one() {
        let functions = Functions::new();
        assert!(functions.lookup(KEY, || true).is_collective);
        let later = functions.lookup(KEY, || panic!("it is known"));
        assert!(later.is_collective && later.is_new);
        functions.record(&[(later.slot, 1)], 1_000);
        assert!(functions.lookup(KEY, || false).is_collective);
    }

    #[test]
    fn an_estimate_is_bounded() {
        let functions = Functions::new();
        let slot = is_new(&functions, KEY).slot;
        functions.record(&[(slot, 1)], 0);
        assert_eq!(is_new(&functions, KEY).estimate_ns, SHORTEST_NS);
        functions.record(&[(slot, 1)], u64::MAX);
        assert_eq!(is_new(&functions, KEY).estimate_ns, LONGEST_NS);
        functions.record(&[(slot, 0)], 5);
        functions.record(&[(u16::MAX, 1)], 5);
        functions.record(&[], 5);
        assert_eq!(is_new(&functions, KEY).estimate_ns, SHORTEST_NS);
    }

    #[test]
    fn collectives_are_recognised_by_name() {
        assert!(is_collective(
            b"ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
        ));
        assert!(is_collective(b"ncclKernel_AllGather"));
        assert!(!is_collective(b"my_ncclDevKernel"));
        assert!(!is_collective(b""));
    }
}
