//! Expected run time of kernels and graphs, and detection of collectives among several ranks.
//!
//! A lock-free table of fixed size. Two functions with the same slot replace each other, and both are then measured again, which
//! costs one event at each of their first launches.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::driver::{self, Handle, SUCCESS};

const SLOTS: usize = 1024;
/// Expected run time of a function that was never measured, in nanoseconds.
const UNKNOWN_NS: u64 = 50_000;
/// Number of measurements of single launches before several launches are measured together.
const SINGLE: u32 = 3;
/// Upper bound of an expected run time: one hour, in nanoseconds.
const LONGEST_NS: u64 = 3_600_000_000_000;
/// Bit of [`Slot::measurements`] which marks a collective among several ranks.
const COLLECTIVE: u32 = 1 << 31;

#[derive(Debug)]
struct Slot {
    key: AtomicUsize,
    estimate_ns: AtomicU64,
    /// Number of measurements, saturating at [`SINGLE`], and the bit [`COLLECTIVE`].
    measurements: AtomicU32,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        key: AtomicUsize::new(0),
        estimate_ns: AtomicU64::new(UNKNOWN_NS),
        measurements: AtomicU32::new(0),
    }
}; SLOTS];

/// Properties of one function or graph.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FunctionInfo {
    /// Index of the function's slot in the table.
    pub(crate) slot: u16,
    /// Expected run time of one launch, in nanoseconds.
    pub(crate) estimate_ns: u64,
    /// Whether the function has fewer than [`SINGLE`] measurements, so that its next launch is measured alone.
    pub(crate) is_new: bool,
    /// Whether the function is a kernel that waits for other ranks.
    pub(crate) is_collective: bool,
}

/// Returns the properties of a function or graph. A function new to its slot replaces the slot's previous one.
#[inline]
pub(crate) fn lookup(key: Handle, kind: Kind) -> FunctionInfo {
    let slot = (key >> 4 ^ key >> 14) % SLOTS;
    let Some(entry) = TABLE.get(slot) else {
        return UNTRACKED;
    };
    if entry.key.load(Ordering::Relaxed) != key {
        entry.key.store(key, Ordering::Relaxed);
        entry.estimate_ns.store(UNKNOWN_NS, Ordering::Relaxed);
        let collective = if kind == Kind::Kernel && is_collective(key) {
            COLLECTIVE
        } else {
            0
        };
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

const UNTRACKED: FunctionInfo = FunctionInfo {
    slot: 0,
    estimate_ns: UNKNOWN_NS,
    is_new: true,
    is_collective: false,
};

/// Kind of a launched handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A `CUfunction` or `CUkernel`.
    Kernel,
    /// A `CUgraphExec`.
    Graph,
}

/// Slot of a launched function, and the run time expected for the launch in nanoseconds.
pub(crate) type Part = (u16, u64);

/// Records that these launches took `took_ns` together. Each is attributed the share that was expected of it. A new function
/// takes the measured value; later measurements move the estimate by a quarter of the difference.
pub(crate) fn record(parts: &[Part], took_ns: u64) {
    let expected: u64 = parts.iter().map(|(_, expected)| expected).sum();
    for &(slot, own) in parts {
        let Some(entry) = TABLE.get(usize::from(slot)) else {
            continue;
        };
        let target = u128::from(own) * u128::from(took_ns) / u128::from(expected.max(1));
        let target = u64::try_from(target)
            .unwrap_or(u64::MAX)
            .clamp(100, LONGEST_NS);
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
        entry.estimate_ns.store(after.max(100), Ordering::Relaxed);
    }
}

/// Returns the kernel's name from the driver; `None` if the driver has none.
pub(crate) fn name(function: Handle) -> Option<&'static CStr> {
    let mut name: *const c_char = std::ptr::null();
    // A launch accepts either kind of handle. The driver validates a `CUkernel` but uses a `CUfunction` unchecked, so the former
    // is queried first.
    // SAFETY: `name` is valid for writes, and the program launches this handle.
    let code = unsafe { driver::cuKernelGetName(&raw mut name, function) };
    if code != SUCCESS || name.is_null() {
        // SAFETY: as above.
        let code = unsafe { driver::cuFuncGetName(&raw mut name, function) };
        if code != SUCCESS || name.is_null() {
            return None;
        }
    }
    // SAFETY: the driver's NUL-terminated name lives as long as the module.
    Some(unsafe { CStr::from_ptr(name) })
}

fn is_collective(function: Handle) -> bool {
    name(function).is_some_and(|name| is_of_nccl(name.to_bytes()))
}

/// Returns whether a kernel is NCCL's: `ncclDevKernel…` since version 2.19, `ncclKernel…` before.
fn is_of_nccl(name: &[u8]) -> bool {
    name.starts_with(b"ncclDevKernel") || name.starts_with(b"ncclKernel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_follow_what_is_measured() {
        let key = 0x7f00_1230;
        let first = lookup(key, Kind::Graph);
        assert!(first.is_new && first.estimate_ns == UNKNOWN_NS);
        // Estimates made before the first measurement do not add up to the measured time.
        for _launch in 0..100 {
            record(&[(first.slot, UNKNOWN_NS)], UNKNOWN_NS * 2);
        }
        let later = lookup(key, Kind::Graph);
        assert!(!later.is_new);
        assert_eq!(later.estimate_ns, UNKNOWN_NS * 2);
        // Later measurements move the estimate by a quarter.
        record(&[(first.slot, 100_000)], 200_000);
        assert_eq!(lookup(key, Kind::Graph).estimate_ns, 125_000);
        // Launches measured together share the time in proportion.
        let other = lookup(0x7f00_5550, Kind::Graph);
        record(&[(first.slot, 100_000), (other.slot, 300_000)], 800_000);
        assert_eq!(lookup(0x7f00_5550, Kind::Graph).estimate_ns, 600_000);
    }

    #[test]
    fn a_function_that_takes_over_a_slot_is_measured_anew() {
        let slot = lookup(0x10, Kind::Graph).slot;
        let other = (2..)
            .map(|number| number << 4)
            .find(|&key| usize::from(slot) == (key >> 4 ^ key >> 14) % SLOTS);
        let other = other.expect("some key has the same slot");
        record(&[(slot, UNKNOWN_NS)], 1_000);
        assert!(lookup(0x10, Kind::Graph).estimate_ns < UNKNOWN_NS);
        assert_eq!(lookup(other, Kind::Graph).estimate_ns, UNKNOWN_NS);
    }

    #[test]
    fn collectives_are_recognised_by_name() {
        assert!(is_of_nccl(
            b"ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
        ));
        assert!(is_of_nccl(b"ncclKernel_AllGather"));
        assert!(!is_of_nccl(b"my_ncclDevKernel"));
        assert!(!is_of_nccl(b""));
    }
}
