//! State of the processes of a GPU.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use agent_core::local::{READY_NS, SharedPages};
use policy::tokens::{ProcessId, Quota};
use policy::{Span, Time};

use super::NOTHING;
use crate::generate::nanos;

/// Handle of a pod on a GPU. Numbers are reused; `life` distinguishes the pods that had the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub(super) number: u32,
    pub(super) life: u32,
}

impl Member {
    /// Returns the pod's number on its GPU, which is reused after the pod is removed.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.number
    }
}

/// Description of a pod for its GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guest {
    /// Number by which the owner identifies the pod.
    pub owner: u32,
    /// SMs of the pod, in hundredths of a percent.
    pub sm: u32,
    /// Share of wall time.
    pub quota: Quota,
    /// Speed without neighbours, f(S).
    pub speed: f64,
    /// Slowdown for each running neighbour, κ.
    pub interference: f64,
    /// Work of one launch, in ns at speed 1; 0 if negligible.
    pub launch: f64,
    /// Periodic suspension of the process, if any.
    pub suspension: Option<Suspension>,
}

/// Periodic suspension of a process which is stopped and continued, or which reaches its CPU limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// Length of a period in which the process runs.
    pub runs: Span,
    /// Length of a period in which the process is suspended.
    pub suspended: Span,
    /// Whether the agent can observe the suspension, as after SIGSTOP.
    pub is_observable: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gate {
    Shut,
    Open,
    /// Ordered to close: work in flight runs to its end.
    Draining,
}

#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) guest: Guest,
    /// Number at the agent.
    pub(super) id: ProcessId,
    /// Pages shared with the agent.
    pub(super) pages: Arc<SharedPages>,
    pub(super) life: u32,
    pub(super) here: bool,
    pub(super) gate: Gate,
    /// Whether the report that the gate is shut is under way to the agent.
    pub(super) reports_close: bool,
    pub(super) wants: bool,
    pub(super) runs: bool,
    /// Work of the current burst, its remainder, and the work still to run after a close; in ns at speed 1.
    pub(super) given: f64,
    pub(super) left: f64,
    pub(super) in_flight: f64,
    /// Time of the latest order to close.
    pub(super) closed_at: Time,
    pub(super) rate: f64,
    /// Time for which the process ran.
    pub(super) busy: Span,
    /// Start of the suspension, and the expected end of the work in flight at that time.
    pub(super) suspended_since: Option<(Time, Time)>,
    /// Whether a probe arrived during the suspension.
    pub(super) owes_answer: bool,
    /// Order that arrived during the suspension.
    pub(super) order: Option<PendingOrder>,
}

/// An order that reached a process during its suspension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingOrder {
    Opens,
    Closes,
}

impl Process {
    /// Returns a process without work, in its number's first life.
    pub(super) const fn new(guest: Guest, id: ProcessId, pages: Arc<SharedPages>) -> Self {
        Self {
            guest,
            id,
            pages,
            life: 0,
            here: true,
            gate: Gate::Shut,
            reports_close: false,
            wants: false,
            runs: false,
            given: 0.0,
            left: 0.0,
            in_flight: f64::INFINITY,
            closed_at: Time::ZERO,
            rate: 0.0,
            busy: Span::ZERO,
            suspended_since: None,
            owes_answer: false,
            order: None,
        }
    }

    /// Returns the epoch of the last token: orders about earlier ones are ignored.
    pub(super) fn token(&self) -> u64 {
        self.pages.orders.gate.epoch() & !1
    }

    /// Returns whether other processes wait for the SMs of this one.
    pub(super) fn is_contended(&self) -> bool {
        self.pages.orders.contended.load(Ordering::Relaxed) != 0
    }

    /// Returns whether the process has a token and no use for it while others wait.
    pub(super) fn returns_at_once(&self) -> bool {
        let may_return = self.gate == Gate::Open && self.suspended_since.is_none();
        may_return && !self.wants && self.is_contended()
    }

    /// Returns the work that is launched but not executed, as far as the agent's bound allows.
    pub(super) fn most_launched(&self) -> f64 {
        let bound_us = self.pages.orders.inflight_us_max.load(Ordering::Relaxed);
        self.launched(f64::from(bound_us) * 1e3 * self.rate)
    }

    /// Publishes that work is in flight from `since` to `ends`.
    pub(super) fn publish_work(&self, since: Time, ends: Time) {
        let us = ends.since(since).0.div_ceil(1_000);
        let us = u32::try_from(us).unwrap_or(u32::MAX);
        let facts = &self.pages.facts;
        facts.inflight_us.store(us, Ordering::Relaxed);
        let since = if us > 0 { since.0 + READY_NS } else { 0 };
        facts.busy_since.store(since, Ordering::Relaxed);
    }

    /// Returns how long this much work, in ns at speed 1, takes at the current speed.
    pub(super) fn lasts(&self, work: f64) -> Span {
        Span(nanos(work / self.rate.max(1e-9)))
    }

    /// Returns the work that is launched but not executed, if launches are made while less than `in_flight` is in flight.
    fn launched(&self, in_flight: f64) -> f64 {
        let launch = self.guest.launch;
        if launch <= NOTHING {
            return in_flight;
        }
        let done = self.given - self.left;
        let ahead = done + (in_flight - launch).max(0.0);
        (((ahead - NOTHING) / launch).ceil() * launch - done).max(0.0)
    }
}
