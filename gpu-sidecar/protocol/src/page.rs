//! Two shared pages for each process: *orders*, which the agent writes and the process maps read-only, and *facts*, which
//! the process writes and the agent believes only about that process.
//!
//! A field is aligned to 64 bytes where another reader or writer uses it at every launch. The first word is the version of
//! the layout. Both sides have sealed the memory files against shrinking before they map them, so that no access can fail.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::VERSION;

/// How large a page's memory file is.
pub const PAGE_BYTES: usize = 4096;
/// How many stretches of busy time *facts* keeps.
pub const STRETCHES: usize = 192;

/// A number of 64 bits that one side counts up and the other waits for by its low half.
///
/// Even: open. Odd: closed. Only one side writes.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Gate {
    low: AtomicU32,
    high: AtomicU32,
}

impl Gate {
    /// Closed at the given epoch, which is made odd; open at an even one.
    #[must_use]
    pub const fn at(epoch: u64) -> Self {
        let (low, high) = halves(epoch);
        Self {
            low: AtomicU32::new(low),
            high: AtomicU32::new(high),
        }
    }

    /// The word that waiters wait on, and the only one that a launch reads.
    #[must_use]
    pub const fn word(&self) -> &AtomicU32 {
        &self.low
    }

    /// A launch may go on as far as the gate is concerned.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.low.load(Ordering::Relaxed) & 1 == 0
    }

    /// The whole number.
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

    /// Goes to an epoch. For the writer alone.
    pub fn set(&self, epoch: u64) {
        let (low, high) = halves(epoch);
        // A reader between the two stores sees an epoch that never was, but the right parity as soon as the low half is
        // there, and `epoch` reads again when the high half changes.
        self.high.store(high, Ordering::Release);
        self.low.store(low, Ordering::SeqCst);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn halves(epoch: u64) -> (u32, u32) {
    (epoch as u32, (epoch >> 32) as u32)
}

/// What the agent orders.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Orders {
    layout: AtomicU32,
    /// The right to launch.
    pub gate: Gate,
    /// Until when an open gate is meant to stay open, in nanoseconds of `CLOCK_MONOTONIC`. A backstop: the agent closes by
    /// the epoch.
    pub open_until: AtomicU64,
    /// How many microseconds of work may be in flight before a launch waits.
    pub inflight_us_max: AtomicU32,
    /// 1 while somebody who may compute waits for SMs that this process holds: it gives back what it does not use.
    pub contended: AtomicU32,
    /// Counted up, and its waiters woken, whenever the process's own thread must look at this page.
    pub attention: AtomicU32,
    /// Counted up every 50 ms while a thread of the process is parked: an agent that does not is hung.
    pub heartbeat: AtomicU32,
    /// The residency that is wanted: a [`Residency`].
    pub residency_wanted: AtomicU32,
    /// Counted up with every change of `residency_wanted`.
    pub order_seq: AtomicU32,
    /// How many bytes of the device the pod may have, in all its processes; 0: no limit.
    pub memory_limit: AtomicU64,
    /// How many bytes this process may create; beyond them it asks with a `Claim`.
    pub memory_claim: AtomicU64,
    /// What all other processes of the pod hold of its memory limit, in bytes.
    pub memory_others: AtomicU64,
    /// The `seq` of the last `Claim` that was answered. A futex word.
    pub claim_answered: AtomicU32,
}

impl Orders {
    /// A closed gate, no limits.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            layout: AtomicU32::new(VERSION as u32),
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
        }
    }

    /// The version that wrote it.
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

/// Where a process's model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Residency {
    /// Nothing was loaded yet.
    None = 0,
    /// On the device.
    Resident = 1,
}

/// Time in which at least one kernel of the process ran, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Stretch {
    begin: AtomicU64,
    end: AtomicU64,
}

/// What the process says about itself.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Facts {
    layout: AtomicU32,
    /// Threads that are parked at the gate.
    pub parked: AtomicU32,
    /// Microseconds of work in flight, as estimated.
    pub inflight_us: AtomicU32,
    /// Launches in flight of functions whose time is not known yet: `inflight_us` says nothing of them.
    pub unmeasured: AtomicU32,
    /// The device ordinal's attribute "MPS enabled": 0 no, 1 yes, 2 not known.
    pub mps: AtomicU32,
    /// Kernels, graphs and cooperative launches, in all.
    pub launches: Counter,
    /// When the oldest work in flight began, in nanoseconds of `CLOCK_MONOTONIC`; 0: nothing is in flight.
    pub busy_since: AtomicU64,
    /// Nanoseconds in which at least one kernel of the process ran, as far as they are over.
    pub busy_ns: AtomicU64,
    /// Nanoseconds during which the gate stood open because no agent was there.
    pub ungated_ns: AtomicU64,
    /// Launches that were let through although they were not waited for, since the bound in flight could not be kept.
    pub bound_exceeded: AtomicU64,
    /// Bytes of the device that count against the limit.
    pub bytes_used: AtomicU64,
    /// Those among them that could not be moved to the host: pools, arrays, managed memory.
    pub bytes_fixed: AtomicU64,
    /// Allocations that were refused because of the limit.
    pub refused_allocations: AtomicU64,
    /// Functions that were looked up and that the declaration table does not know.
    pub unknown_symbols: AtomicU64,
    /// The last error of the driver that will not go away; 0: none.
    pub last_error: AtomicU32,
    /// Where the model is: a [`Residency`].
    pub residency: AtomicU32,
    /// The `order_seq` that was last carried out.
    pub done_seq: AtomicU32,
    stretches_seen: AtomicU64,
    stretches: [Stretch; STRETCHES],
}

/// A counter in a line of its own.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Counter(pub AtomicU64);

impl Facts {
    /// Nothing happened yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            layout: AtomicU32::new(VERSION as u32),
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
        }
    }

    /// The version that wrote it.
    #[must_use]
    pub fn layout(&self) -> u32 {
        self.layout.load(Ordering::Relaxed)
    }

    /// Adds a stretch of busy time. For the process alone, one thread at a time.
    pub fn push(&self, begin: u64, end: u64) {
        let count = self.stretches_seen.load(Ordering::Relaxed);
        if let Some(slot) = self.stretches.get(place(count)) {
            slot.begin.store(begin, Ordering::Relaxed);
            slot.end.store(end, Ordering::Relaxed);
        }
        self.stretches_seen
            .store(count.wrapping_add(1), Ordering::Release);
    }

    /// Reads the stretches after the first `seen` ones into `into`, at most [`STRETCHES`] of the newest, and says how many
    /// there have been. What is written meanwhile, or makes no sense, is left out; it comes back through `busy_ns`.
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
        // What was overwritten while it was read is not what it was.
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
    fn the_layout_is_what_version_1_has() {
        assert_eq!(offset_of!(Orders, gate), 64);
        assert_eq!(offset_of!(Orders, open_until), 128);
        assert_eq!(offset_of!(Orders, inflight_us_max), 136);
        assert_eq!(offset_of!(Orders, contended), 140);
        assert_eq!(offset_of!(Orders, attention), 144);
        assert_eq!(offset_of!(Orders, memory_limit), 160);
        assert_eq!(offset_of!(Facts, launches), 64);
        assert_eq!(offset_of!(Facts, busy_since), 128);
        assert_eq!(offset_of!(Facts, stretches), 216);
        assert_eq!(size_of::<Facts>(), 216 + 16 * STRETCHES + 40);
    }

    #[test]
    fn an_epoch_goes_beyond_its_low_half() {
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
    fn a_reader_that_comes_late_gets_the_newest() {
        let facts = Facts::new();
        let many = 3 * STRETCHES as u64;
        for number in 1..=many {
            facts.push(number, number + 1);
        }
        let mut read = Vec::new();
        assert_eq!(facts.stretches(0, &mut read), many);
        assert_eq!(read.len(), STRETCHES);
        assert_eq!(read.last(), Some(&(many, many + 1)));
        // A count that goes backwards is a lie; nothing is read twice.
        read.clear();
        assert_eq!(facts.stretches(u64::MAX, &mut read), many);
        assert!(read.is_empty());
    }

    #[test]
    fn stretches_that_make_no_sense_are_left_out() {
        let facts = Facts::new();
        facts.push(10, 5);
        facts.push(10, 10);
        facts.push(10, 11);
        let mut read = Vec::new();
        let _seen = facts.stretches(0, &mut read);
        assert_eq!(read, [(10, 11)]);
    }
}
