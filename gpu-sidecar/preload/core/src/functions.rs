//! What is known of kernels and graphs: how long one launch takes, and whether it is a collective among several ranks.
//!
//! A table of fixed size without locks. Two functions in one place push each other out: then both are measured anew, which
//! costs an event at each of their first launches and nothing else.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::driver::{self, Handle, SUCCESS};

const PLACES: usize = 1024;
/// A function that was not measured yet counts as this long, in nanoseconds.
const UNKNOWN_NS: u64 = 50_000;
/// So many measurements are taken of single launches before several are measured together.
const SINGLE: u32 = 3;
/// Nothing is expected to take longer than an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;
const COLLECTIVE: u32 = 1 << 31;

#[derive(Debug)]
struct Place {
    key: AtomicUsize,
    estimate_ns: AtomicU64,
    /// How often it was measured, and [`COLLECTIVE`].
    seen: AtomicU32,
}

static TABLE: [Place; PLACES] = [const {
    Place {
        key: AtomicUsize::new(0),
        estimate_ns: AtomicU64::new(UNKNOWN_NS),
        seen: AtomicU32::new(0),
    }
}; PLACES];

/// What is known of one function.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    /// Its place in the table.
    pub(crate) place: u16,
    /// How long a launch takes, in nanoseconds.
    pub(crate) estimate_ns: u64,
    /// It was measured so seldom that its next launch is measured alone.
    pub(crate) is_new: bool,
    /// A kernel that waits for other ranks.
    pub(crate) is_collective: bool,
}

/// Looks a function or graph up.
#[inline]
pub(crate) fn known(key: Handle, kind: Kind) -> Known {
    let place = (key >> 4 ^ key >> 14) % PLACES;
    let Some(entry) = TABLE.get(place) else {
        return NOTHING;
    };
    if entry.key.load(Ordering::Relaxed) != key {
        entry.key.store(key, Ordering::Relaxed);
        entry.estimate_ns.store(UNKNOWN_NS, Ordering::Relaxed);
        let collective = if kind == Kind::Kernel && is_collective(key) {
            COLLECTIVE
        } else {
            0
        };
        entry.seen.store(collective, Ordering::Relaxed);
    }
    let seen = entry.seen.load(Ordering::Relaxed);
    Known {
        place: u16::try_from(place).unwrap_or(0),
        estimate_ns: entry.estimate_ns.load(Ordering::Relaxed),
        is_new: seen & !COLLECTIVE < SINGLE,
        is_collective: seen & COLLECTIVE != 0,
    }
}

const NOTHING: Known = Known {
    place: 0,
    estimate_ns: UNKNOWN_NS,
    is_new: true,
    is_collective: false,
};

/// What a handle is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A `CUfunction` or `CUkernel`.
    Kernel,
    /// A `CUgraphExec`.
    Graph,
}

/// A launch of the function in that place, and how long it was expected to take, in nanoseconds.
pub(crate) type Part = (u16, u64);

/// These launches took so long together: each counts for the part of it that it was expected to take. What is known of a
/// function moves a quarter of the way.
pub(crate) fn measured(parts: &[Part], took_ns: u64) {
    let expected: u64 = parts.iter().map(|(_, expected)| expected).sum();
    for &(place, own) in parts {
        let Some(entry) = TABLE.get(usize::from(place)) else {
            continue;
        };
        let target = u128::from(own) * u128::from(took_ns) / u128::from(expected.max(1));
        let target = u64::try_from(target)
            .unwrap_or(u64::MAX)
            .clamp(100, LONGEST_NS);
        let seen = entry.seen.load(Ordering::Relaxed);
        let after = if seen & !COLLECTIVE < SINGLE {
            entry.seen.store(seen + 1, Ordering::Relaxed);
            target
        } else {
            let before = entry.estimate_ns.load(Ordering::Relaxed);
            before - before / 4 + target / 4
        };
        entry.estimate_ns.store(after.max(100), Ordering::Relaxed);
    }
}

/// The kernel's name, as the driver tells it.
pub(crate) fn name(function: Handle) -> Option<&'static CStr> {
    let mut name: *const c_char = std::ptr::null();
    // A launch takes either kind of handle. The driver checks a `CUkernel` and takes a `CUfunction` as it is, so that the
    // former is asked first.
    // SAFETY: a place to write to, and a handle that the program launches.
    let code = unsafe { driver::cuKernelGetName(&raw mut name, function) };
    if code != SUCCESS || name.is_null() {
        // SAFETY: as above.
        let code = unsafe { driver::cuFuncGetName(&raw mut name, function) };
        if code != SUCCESS || name.is_null() {
            return None;
        }
    }
    // SAFETY: the driver's text ends, and lives as long as the module.
    Some(unsafe { CStr::from_ptr(name) })
}

fn is_collective(function: Handle) -> bool {
    name(function).is_some_and(|name| is_of_nccl(name.to_bytes()))
}

/// NCCL's kernels are named so since its version 2.19, and before it.
fn is_of_nccl(name: &[u8]) -> bool {
    name.starts_with(b"ncclDevKernel") || name.starts_with(b"ncclKernel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_follow_what_is_measured() {
        let key = 0x7f00_1230;
        let first = known(key, Kind::Graph);
        assert!(first.is_new && first.estimate_ns == UNKNOWN_NS);
        // All of them were launched before anything was known: what they say does not add up.
        for _launch in 0..100 {
            measured(&[(first.place, UNKNOWN_NS)], UNKNOWN_NS * 2);
        }
        let later = known(key, Kind::Graph);
        assert!(!later.is_new);
        assert_eq!(later.estimate_ns, UNKNOWN_NS * 2);
        // From now on a quarter of the way.
        measured(&[(first.place, 100_000)], 200_000);
        assert_eq!(known(key, Kind::Graph).estimate_ns, 125_000);
        // Of several each has its part.
        let other = known(0x7f00_5550, Kind::Graph);
        measured(&[(first.place, 100_000), (other.place, 300_000)], 800_000);
        assert_eq!(known(0x7f00_5550, Kind::Graph).estimate_ns, 600_000);
    }

    #[test]
    fn a_function_in_the_same_place_begins_anew() {
        let place = known(0x10, Kind::Graph).place;
        let other = (2..)
            .map(|number| number << 4)
            .find(|&key| usize::from(place) == (key >> 4 ^ key >> 14) % PLACES);
        let other = other.expect("there is one");
        measured(&[(place, UNKNOWN_NS)], 1_000);
        assert!(known(0x10, Kind::Graph).estimate_ns < UNKNOWN_NS);
        assert_eq!(known(other, Kind::Graph).estimate_ns, UNKNOWN_NS);
    }

    #[test]
    fn collectives_are_known_by_their_names() {
        assert!(is_of_nccl(
            b"ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
        ));
        assert!(is_of_nccl(b"ncclKernel_AllGather"));
        assert!(!is_of_nccl(b"my_ncclDevKernel"));
        assert!(!is_of_nccl(b""));
    }
}
