//! Two shared pages for each process: *orders*, which the agent writes and the process maps read-only, and *facts*, which
//! the process writes and which the agent trusts only with respect to that process.
//!
//! A field that another reader or writer uses at every launch is aligned to 64 bytes. The first word is the version of
//! the layout. The memory files are sealed against shrinking before either side maps them, so that no access can fail.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::LAYOUT;

/// Size of a page's memory file, in bytes.
pub const PAGE_BYTES: usize = 4096;
/// Capacity of the ring buffer of busy stretches in *facts*.
pub const STRETCHES: usize = 192;

/// A 64-bit epoch, which one side increments and on the low half of which the other side waits.
///
/// The gate is open at even epochs and closed at odd ones. Only one side writes.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Gate {
    low: AtomicU32,
    high: AtomicU32,
}

impl Gate {
    /// Creates a gate at the given epoch: open if it is even, closed if it is odd.
    #[must_use]
    pub const fn at(epoch: u64) -> Self {
        let (low, high) = halves(epoch);
        Self {
            low: AtomicU32::new(low),
            high: AtomicU32::new(high),
        }
    }

    /// Returns the low half of the epoch: the futex word for waiters, and the only word that a launch reads.
    #[must_use]
    pub const fn word(&self) -> &AtomicU32 {
        &self.low
    }

    /// Returns whether the gate is open, so that a launch need not wait for it.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.low.load(Ordering::Relaxed) & 1 == 0
    }

    /// Returns the 64-bit epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        loop {
            let high = self.high.load(Ordering::Acquire);
            let low = self.low.load(Ordering::Acquire);
            if self.high.load(Ordering::Acquire) == high {
                return u64::from(high) << 32 | u64::from(low);
            }
        }
    }

    /// Sets the epoch. Only the side that writes the gate may call it.
    pub fn set(&self, epoch: u64) {
        let (low, high) = halves(epoch);
        // A reader between the two stores sees an epoch that never existed, but the right parity as soon as the low half
        // is stored, and `epoch` retries when the high half changes.
        self.high.store(high, Ordering::Release);
        self.low.store(low, Ordering::SeqCst);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn halves(epoch: u64) -> (u32, u32) {
    (epoch as u32, (epoch >> 32) as u32)
}

/// The page of orders from the agent to one process.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Orders {
    layout: AtomicU32,
    /// Gate of the process: open while it may launch.
    pub gate: Gate,
    /// Time until which an open gate is meant to stay open, in nanoseconds of `CLOCK_MONOTONIC`. It is only a backstop:
    /// the agent closes the gate by its epoch.
    pub open_until: AtomicU64,
    /// Estimated work in flight, in microseconds, above which a launch waits.
    pub inflight_us_max: AtomicU32,
    /// 1 while a process that may compute waits for SMs that this process holds: this one must give back those it does
    /// not use.
    pub contended: AtomicU32,
    /// Futex word that is incremented, and its waiters woken, whenever the process's own thread must read this page.
    pub attention: AtomicU32,
    /// Counter that the agent increments every 50 ms while a thread of the process is parked; it stops if the agent hangs.
    pub heartbeat: AtomicU32,
    /// Desired residency of the model: a [`Residency`], or [`SEALED`].
    pub residency_wanted: AtomicU32,
    /// Sequence number, incremented with every change of `residency_wanted`.
    pub order_seq: AtomicU32,
    /// Device memory limit of the pod over all its processes, in bytes; 0 without a limit.
    pub memory_limit: AtomicU64,
    /// Device memory that this process may allocate, in bytes; it requests more with a `Claim`.
    pub memory_claim: AtomicU64,
    /// Device memory held by all other processes of the pod, in bytes; it counts against the pod's limit.
    pub memory_others: AtomicU64,
    /// `seq` of the last `Claim` that was answered. A futex word.
    pub claim_answered: AtomicU32,
    /// Time for which an eviction waits for work in flight, in milliseconds; 0 in pages of an agent that evicts nothing.
    pub drain_ms: AtomicU32,
    /// Time without a launch or touch after which the process copies ahead of time what an eviction would copy, in milliseconds; 0: never,
    /// as in pages of an agent without this field.
    pub seal_after_ms: AtomicU32,
    /// Whether the program may compute amid a restore, with what of its memory is there: a number of [`Streaming`]; 0 in pages of an agent without
    /// this field.
    pub streams_restores: AtomicU32,
    /// Code of the sticky driver error of which the agent has taken account: the pod's queue starts nothing more once it has read what the agent sent it before.
    /// 0: none, as always in pages of an agent without this field. A futex word.
    pub error_noted: AtomicU32,
    /// Device memory that a context of this slot takes by itself, in bytes, as another process has measured it; 0: not known, as always in pages of an agent
    /// without this field.
    pub context_residue: AtomicU64,
    /// Host memory which the process may register with the driver, windows and its staging memory, in bytes, plus 1; 0: the windows which came as such, as
    /// always in pages of an agent without this field.
    pub pinned_max: AtomicU64,
}

impl Orders {
    /// Creates a page with a closed gate at epoch 1 and no limits.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            layout: AtomicU32::new(LAYOUT),
            gate: Gate::at(1),
            open_until: AtomicU64::new(0),
            inflight_us_max: AtomicU32::new(u32::MAX >> 1),
            contended: AtomicU32::new(0),
            attention: AtomicU32::new(0),
            heartbeat: AtomicU32::new(0),
            residency_wanted: AtomicU32::new(Residency::Resident as u32),
            order_seq: AtomicU32::new(0),
            memory_limit: AtomicU64::new(0),
            memory_claim: AtomicU64::new(0),
            memory_others: AtomicU64::new(0),
            claim_answered: AtomicU32::new(0),
            drain_ms: AtomicU32::new(0),
            seal_after_ms: AtomicU32::new(0),
            streams_restores: AtomicU32::new(0),
            error_noted: AtomicU32::new(0),
            context_residue: AtomicU64::new(0),
            pinned_max: AtomicU64::new(0),
        }
    }

    /// Returns the version of the layout that the page was written with.
    #[must_use]
    pub fn layout(&self) -> u32 {
        self.layout.load(Ordering::Relaxed)
    }
}

impl Default for Orders {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether programs compute amid restores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Streaming {
    /// They wait until all of their memory is there.
    #[default]
    Off = 0,
    /// They compute with what is there.
    On = 1,
    /// As [`Self::On`], and what is not there yet has every bit set: a program which uses it all the same computes wrong results, and not by chance
    /// right ones, as with what its memory had before.
    Poisoned = 2,
}

impl Streaming {
    /// Returns the value with this number; [`Self::Off`] for one that is not known.
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        match number {
            1 => Self::On,
            2 => Self::Poisoned,
            _ => Self::Off,
        }
    }
}

/// Number in [`Orders::residency_wanted`] by which a process whose model is on the device copies to the host what has changed of it, ahead of an
/// eviction. It answers in any case; whether the host has all is in [`Facts::sealed`].
pub const SEALED: u32 = 7;

/// Location of a process's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Residency {
    /// No model has been loaded yet.
    None = 0,
    /// The model is on the device.
    Resident = 1,
    /// No work may begin, and what is in flight ends.
    Closing = 2,
    /// The model is being moved to the host.
    Evicting = 3,
    /// The model is on the host, and its memory on the device is released.
    Host = 4,
    /// The model is being moved to the device.
    Restoring = 5,
    /// A move has failed halfway, or the driver has reported a sticky error: the model can be used no more.
    Faulted = 6,
}

impl Residency {
    /// Returns the location with this number; `None` if there is none.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::Resident,
            2 => Self::Closing,
            3 => Self::Evicting,
            4 => Self::Host,
            5 => Self::Restoring,
            6 => Self::Faulted,
            _ => return None,
        })
    }

    /// Returns the name of the location, as in responses and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Resident => "resident",
            Self::Closing => "closing",
            Self::Evicting => "evicting",
            Self::Host => "host",
            Self::Restoring => "restoring",
            Self::Faulted => "faulted",
        }
    }
}

/// A time interval in which at least one kernel of the process ran, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Stretch {
    begin: AtomicU64,
    end: AtomicU64,
}

/// The page of facts that one process reports about itself.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Facts {
    layout: AtomicU32,
    /// Number of threads parked at the gate.
    pub parked: AtomicU32,
    /// Estimated work in flight, in microseconds.
    pub inflight_us: AtomicU32,
    /// Launches in flight of functions without a measured execution time, which `inflight_us` does not include.
    pub unmeasured: AtomicU32,
    /// The device ordinal's attribute "MPS enabled": 0 no, 1 yes, 2 not known.
    pub mps: AtomicU32,
    /// Total number of launches: kernels, graphs and cooperative launches.
    pub launches: Counter,
    /// Start of the oldest work in flight, in nanoseconds of `CLOCK_MONOTONIC`; 0 if nothing is in flight.
    pub busy_since: AtomicU64,
    /// Total length of the finished stretches in which at least one kernel of the process ran, in nanoseconds.
    pub busy_ns: AtomicU64,
    /// Total time for which the gate was open because there was no agent, in nanoseconds.
    pub ungated_ns: AtomicU64,
    /// Launches that passed without waiting although the bound on work in flight could not be kept.
    pub bound_exceeded: AtomicU64,
    /// Device memory that counts against the limit, in bytes.
    pub bytes_used: AtomicU64,
    /// Part of `bytes_used` that cannot be moved to the host: pools, arrays and managed memory.
    pub bytes_fixed: AtomicU64,
    /// Number of allocations refused because of the limit.
    pub refused_allocations: AtomicU64,
    /// Number of functions that were looked up and are missing from the declaration table.
    pub unknown_symbols: AtomicU64,
    /// Code of the last sticky driver error; 0 without one.
    pub last_error: AtomicU32,
    /// Current location of the model: a [`Residency`].
    pub residency: AtomicU32,
    /// `order_seq` of the last order that was carried out.
    pub done_seq: AtomicU32,
    stretches_seen: AtomicU64,
    stretches: [Stretch; STRETCHES],
    /// 1 while the host has every byte of the model on the device, as of the last look; 0 from processes without this field.
    pub sealed: AtomicU32,
    /// Device memory that stays when the model leaves, in bytes, by the reason of the same place in [`FIXED_REASONS`]; 0 from processes without
    /// this field. All but the last add up to `bytes_fixed`.
    pub fixed: [AtomicU64; FIXED_REASONS.len()],
    /// Value of [`Orders::pinned_max`] beyond which no memory is registered; 0 from processes without this field, and before the first.
    pub pinned_max: AtomicU64,
}

/// Reasons for which device memory stays when a model leaves: stream-ordered pools, memory nodes of graphs, arrays, managed memory, other memory
/// which the driver has allocated, and the contexts themselves.
pub const FIXED_REASONS: [&str; 6] = ["pool", "graph", "array", "managed", "native", "context"];

/// Place of the contexts themselves in [`FIXED_REASONS`].
pub const FIXED_CONTEXT: usize = 5;

/// A counter in a cache line of its own.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Counter(pub AtomicU64);

impl Facts {
    /// Creates the page of a process that has done no work yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            layout: AtomicU32::new(LAYOUT),
            parked: AtomicU32::new(0),
            inflight_us: AtomicU32::new(0),
            unmeasured: AtomicU32::new(0),
            mps: AtomicU32::new(2),
            launches: Counter(AtomicU64::new(0)),
            busy_since: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            ungated_ns: AtomicU64::new(0),
            bound_exceeded: AtomicU64::new(0),
            bytes_used: AtomicU64::new(0),
            bytes_fixed: AtomicU64::new(0),
            refused_allocations: AtomicU64::new(0),
            unknown_symbols: AtomicU64::new(0),
            last_error: AtomicU32::new(0),
            residency: AtomicU32::new(Residency::None as u32),
            done_seq: AtomicU32::new(0),
            stretches_seen: AtomicU64::new(0),
            stretches: [const {
                Stretch {
                    begin: AtomicU64::new(0),
                    end: AtomicU64::new(0),
                }
            }; STRETCHES],
            sealed: AtomicU32::new(0),
            fixed: [const { AtomicU64::new(0) }; FIXED_REASONS.len()],
            pinned_max: AtomicU64::new(0),
        }
    }

    /// Returns the version of the layout that the page was written with.
    #[must_use]
    pub fn layout(&self) -> u32 {
        self.layout.load(Ordering::Relaxed)
    }

    /// Adds a busy stretch to the ring buffer. Only the process may call it, from one thread at a time.
    pub fn push(&self, begin: u64, end: u64) {
        let count = self.stretches_seen.load(Ordering::Relaxed);
        if let Some(slot) = self.stretches.get(place(count)) {
            slot.begin.store(begin, Ordering::Relaxed);
            slot.end.store(end, Ordering::Relaxed);
        }
        self.stretches_seen
            .store(count.wrapping_add(1), Ordering::Release);
    }

    /// Appends the stretches after the first `seen` ones to `into`, at most the newest [`STRETCHES`], and returns the
    /// total number of stretches so far. Stretches that are overwritten meanwhile or are empty are omitted; `busy_ns`
    /// still includes them.
    pub fn stretches(&self, seen: u64, into: &mut Vec<(u64, u64)>) -> u64 {
        let count = self.stretches_seen.load(Ordering::Acquire);
        let keep = STRETCHES as u64;
        let from = seen.max(count.saturating_sub(keep)).min(count);
        let before = into.len();
        for number in from..count {
            if let Some(slot) = self.stretches.get(place(number)) {
                let begin = slot.begin.load(Ordering::Relaxed);
                let end = slot.end.load(Ordering::Relaxed);
                into.push((begin, end));
            }
        }
        // Stretches that were overwritten while they were read may be torn.
        let now = self.stretches_seen.load(Ordering::Acquire);
        let overwritten = now.saturating_sub(keep).saturating_sub(from);
        let overwritten = usize::try_from(overwritten).unwrap_or(usize::MAX);
        let drop = overwritten.min(into.len() - before);
        into.drain(before..before + drop);
        into.retain(|&(begin, end)| begin < end);
        count
    }
}

impl Default for Facts {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the remainder is below STRETCHES"
)]
const fn place(number: u64) -> usize {
    (number % STRETCHES as u64) as usize
}

const _: () = assert!(size_of::<Orders>() <= PAGE_BYTES);
const _: () = assert!(size_of::<Facts>() <= PAGE_BYTES);

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_layout_is_that_of_version_1() {
        assert_eq!(offset_of!(Orders, gate), 64);
        assert_eq!(offset_of!(Orders, open_until), 128);
        assert_eq!(offset_of!(Orders, inflight_us_max), 136);
        assert_eq!(offset_of!(Orders, contended), 140);
        assert_eq!(offset_of!(Orders, attention), 144);
        assert_eq!(offset_of!(Orders, memory_limit), 160);
        assert_eq!(offset_of!(Facts, launches), 64);
        assert_eq!(offset_of!(Facts, busy_since), 128);
        assert_eq!(offset_of!(Facts, stretches), 216);
        assert_eq!(offset_of!(Orders, claim_answered), 184);
        assert_eq!(offset_of!(Orders, drain_ms), 188);
        assert_eq!(offset_of!(Orders, seal_after_ms), 192);
        assert_eq!(offset_of!(Orders, streams_restores), 196);
        assert_eq!(offset_of!(Orders, error_noted), 200);
        assert_eq!(offset_of!(Orders, context_residue), 208);
        assert_eq!(offset_of!(Facts, sealed), 216 + 16 * STRETCHES);
        assert_eq!(offset_of!(Facts, fixed), 216 + 16 * STRETCHES + 8);
        assert_eq!(size_of::<Facts>(), 216 + 16 * STRETCHES + 104);
    }

    #[test]
    fn contexts_have_their_place_among_the_reasons() {
        assert_eq!(FIXED_REASONS[FIXED_CONTEXT], "context");
    }

    #[test]
    fn a_location_has_one_number() {
        for number in 0..7 {
            let location = Residency::from_number(number).unwrap();
            assert_eq!(location as u32, number);
            assert!(!location.name().is_empty());
        }
        assert_eq!(Residency::from_number(7), None);
    }

    #[test]
    fn an_epoch_carries_into_its_high_half() {
        let gate = Gate::at(u64::from(u32::MAX));
        assert!(!gate.is_open());
        gate.set(1 << 32);
        assert!(gate.is_open());
        assert_eq!(gate.epoch(), 1 << 32);
        gate.set((1 << 32) + 1);
        assert!(!gate.is_open());
    }

    #[test]
    fn stretches_are_read_once_and_in_order() {
        let facts = Facts::new();
        let mut read = Vec::new();
        for number in 0..100 {
            facts.push(number * 10, number * 10 + 5);
        }
        let seen = facts.stretches(0, &mut read);
        assert_eq!((seen, read.len()), (100, 100));
        facts.push(5_000, 5_001);
        read.clear();
        assert_eq!(facts.stretches(seen, &mut read), 101);
        assert_eq!(read, [(5_000, 5_001)]);
    }

    #[test]
    fn a_late_reader_gets_the_newest_stretches() {
        let facts = Facts::new();
        let many = 3 * STRETCHES as u64;
        for number in 1..=many {
            facts.push(number, number + 1);
        }
        let mut read = Vec::new();
        assert_eq!(facts.stretches(0, &mut read), many);
        assert_eq!(read.len(), STRETCHES);
        assert_eq!(read.last(), Some(&(many, many + 1)));
        // A `seen` beyond the count cannot be true; nothing is read twice.
        read.clear();
        assert_eq!(facts.stretches(u64::MAX, &mut read), many);
        assert!(read.is_empty());
    }

    #[test]
    fn empty_and_inverted_stretches_are_omitted() {
        let facts = Facts::new();
        facts.push(10, 5);
        facts.push(10, 10);
        facts.push(10, 11);
        let mut read = Vec::new();
        let _seen = facts.stretches(0, &mut read);
        assert_eq!(read, [(10, 11)]);
    }
}
