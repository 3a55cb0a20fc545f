//! Values of a process's page of facts, and writes to its page of orders.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use protocol::page::{self, FIXED_REASONS, Residency};
use serde::{Deserialize, Serialize};

use crate::action::{NewPages, Order};

/// Values of a page of facts at one time. They are a process's statements about itself, and checked where they are used.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields of the page, documented there")]
pub struct Facts {
    pub launches: u64,
    pub busy_since: u64,
    pub busy_ns: u64,
    pub ungated_ns: u64,
    pub bound_exceeded: u64,
    pub bytes_used: u64,
    pub bytes_fixed: u64,
    pub refused_allocations: u64,
    pub unknown_symbols: u64,
    pub inflight_us: u32,
    pub unmeasured: u32,
    pub parked: u32,
    pub last_error: u32,
    /// Number of the location of the process's memory ([`protocol::page::Residency`]).
    #[serde(default)]
    pub residency: u32,
    /// 1 while the host has every byte of the memory on the device.
    #[serde(default)]
    pub sealed: u32,
    /// Device memory that stays when the model leaves, in bytes, by [`protocol::page::FIXED_REASONS`].
    #[serde(default)]
    pub fixed: [u64; FIXED_REASONS.len()],
    /// Limit of its registered host memory that the process keeps, in bytes, plus 1; 0: it states none.
    #[serde(default)]
    pub pinned_max: u64,
    /// Intervals with kernels which were published since the last reading, as (begin, end) in nanoseconds.
    pub stretches: Vec<(u64, u64)>,
}

impl Facts {
    /// Replaces the values by those of a page. `seen`: number of stretches read so far, which is updated.
    pub fn read(&mut self, page: &page::Facts, seen: &mut u64) {
        self.launches = page.launches.0.load(Ordering::Acquire);
        self.busy_since = page.busy_since.load(Ordering::Acquire);
        self.busy_ns = page.busy_ns.load(Ordering::Acquire);
        self.stretches.clear();
        *seen = page.stretches(*seen, &mut self.stretches);
        // After the sum: work which has ended is either in the sum or still in flight.
        self.inflight_us = page.inflight_us.load(Ordering::Acquire);
        self.unmeasured = page.unmeasured.load(Ordering::Acquire);
        self.ungated_ns = page.ungated_ns.load(Ordering::Relaxed);
        self.bound_exceeded = page.bound_exceeded.load(Ordering::Relaxed);
        self.bytes_used = page.bytes_used.load(Ordering::Relaxed);
        self.bytes_fixed = page.bytes_fixed.load(Ordering::Relaxed);
        self.refused_allocations = page.refused_allocations.load(Ordering::Relaxed);
        self.unknown_symbols = page.unknown_symbols.load(Ordering::Relaxed);
        self.parked = page.parked.load(Ordering::Relaxed);
        self.last_error = page.last_error.load(Ordering::Relaxed);
        self.residency = page.residency.load(Ordering::Acquire);
        self.sealed = page.sealed.load(Ordering::Relaxed);
        // After the limit, if that was written just now: the process states what it keeps before it looks at the limit again.
        fence(Ordering::SeqCst);
        self.pinned_max = page.pinned_max.load(Ordering::Acquire);
        self.fixed = page
            .fixed
            .each_ref()
            .map(|bytes| bytes.load(Ordering::Relaxed));
    }
}

impl NewPages {
    /// Writes the first values to new pages, which the process does not have yet.
    pub fn write(&self, orders: &page::Orders, facts: &page::Facts) {
        orders.gate.set(self.epoch);
        orders
            .memory_limit
            .store(self.memory_limit, Ordering::Relaxed);
        orders
            .memory_claim
            .store(self.memory_claim, Ordering::Relaxed);
        orders
            .inflight_us_max
            .store(self.inflight_us_max, Ordering::Relaxed);
        orders
            .seal_after_ms
            .store(self.seal_after_ms, Ordering::Relaxed);
        orders
            .streams_restores
            .store(self.streaming as u32, Ordering::Relaxed);
        orders
            .pinned_max
            .store(self.pinned_bytes.saturating_add(1), Ordering::Relaxed);
        if self.epoch & 1 == 0 {
            // Until the process has copied its state to these pages, it counts as having work of unknown length.
            facts.inflight_us.store(1, Ordering::Release);
            facts.unmeasured.store(1, Ordering::Release);
        }
    }
}

impl Order {
    /// Writes the values to a page. Returns the word of which all waiters must be woken, if any.
    pub fn write(self, orders: &page::Orders) -> Option<&AtomicU32> {
        match self {
            Self::Open {
                epoch,
                until,
                inflight_us_max,
            } => {
                orders.open_until.store(until, Ordering::Relaxed);
                orders
                    .inflight_us_max
                    .store(inflight_us_max, Ordering::Relaxed);
                orders.contended.store(0, Ordering::Relaxed);
                orders.gate.set(epoch);
                Some(orders.gate.word())
            }
            Self::Shut { epoch } => {
                orders.gate.set(epoch);
                Some(raise_attention(orders))
            }
            Self::Acknowledge { epoch } => {
                orders.gate.set(epoch);
                None
            }
            Self::Extend {
                until,
                inflight_us_max,
            } => {
                orders.open_until.store(until, Ordering::Relaxed);
                orders
                    .inflight_us_max
                    .store(inflight_us_max, Ordering::Relaxed);
                None
            }
            Self::Contended {
                contended,
                inflight_us_max,
            } => {
                orders
                    .inflight_us_max
                    .store(inflight_us_max, Ordering::Relaxed);
                orders
                    .contended
                    .store(u32::from(contended), Ordering::Release);
                contended.then(|| raise_attention(orders))
            }
            Self::Limits {
                memory_limit,
                inflight_us_max,
            } => {
                orders.memory_limit.store(memory_limit, Ordering::Release);
                orders
                    .inflight_us_max
                    .store(inflight_us_max, Ordering::Release);
                None
            }
            Self::MemoryOfOthers(bytes) => {
                orders.memory_others.store(bytes, Ordering::Release);
                None
            }
            Self::Claim { seq, bytes } => {
                orders.memory_claim.store(bytes, Ordering::Release);
                orders.claim_answered.store(seq, Ordering::Release);
                Some(&orders.claim_answered)
            }
            Self::Move {
                seq,
                to_host,
                drain_ms,
            } => {
                let wanted = if to_host {
                    Residency::Host
                } else {
                    Residency::Resident
                };
                orders
                    .residency_wanted
                    .store(wanted as u32, Ordering::Relaxed);
                orders.drain_ms.store(drain_ms, Ordering::Relaxed);
                orders.order_seq.store(seq, Ordering::Release);
                Some(raise_attention(orders))
            }
            Self::Seal { seq } => {
                orders
                    .residency_wanted
                    .store(page::SEALED, Ordering::Relaxed);
                orders.order_seq.store(seq, Ordering::Release);
                Some(raise_attention(orders))
            }
            Self::NoteError { code } => {
                orders.error_noted.store(code, Ordering::Release);
                Some(&orders.error_noted)
            }
            Self::ContextResidue { bytes } => {
                orders.context_residue.store(bytes, Ordering::Release);
                None
            }
            Self::Pinned { bytes } => {
                let limit = bytes.saturating_add(1);
                orders.pinned_max.store(limit, Ordering::SeqCst);
                Some(raise_attention(orders))
            }
            Self::Heartbeat => {
                orders.heartbeat.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

/// Increments the attention word, and returns it.
fn raise_attention(orders: &page::Orders) -> &AtomicU32 {
    orders.attention.fetch_add(1, Ordering::Release);
    &orders.attention
}
