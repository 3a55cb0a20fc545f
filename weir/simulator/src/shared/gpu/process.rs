//! What a GPU knows of the processes on it.

use policy::tokens::Quota;
use policy::{Span, Time};

use super::NOTHING;
use crate::generate::nanos;

/// A pod of a GPU, in one of the lives of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub(super) number: u32,
    pub(super) life: u32,
}

impl Member {
    /// Its number on its GPU; free again when it is gone.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.number
    }
}

/// What a pod is to its GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guest {
    /// What its owner calls it.
    pub owner: u32,
    /// Its SMs, in hundredths of a percent.
    pub sm: u32,
    /// Its part of wall time.
    pub quota: Quota,
    /// f(S): its speed without neighbours.
    pub speed: f64,
    /// κ.
    pub interference: f64,
    /// Work of one launch, in ns at speed 1; 0: next to nothing.
    pub launch: f64,
    /// It stands still now and then.
    pub stands: Option<Stands>,
}

/// A process that runs for a while and then stands still, again and again: one that is stopped and continued, or at its CPU limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stands {
    /// How long it runs.
    pub runs: Span,
    /// How long it stands still.
    pub stands: Span,
    /// It can be seen that it does, as after SIGSTOP.
    pub is_seen: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gate {
    Shut,
    Open,
    /// Told to close: what is in flight runs to its end.
    Draining,
}

#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) guest: Guest,
    pub(super) life: u32,
    pub(super) here: bool,
    pub(super) gate: Gate,
    /// The scheduler does not know yet that the gate is shut.
    pub(super) tells: bool,
    pub(super) contended: bool,
    pub(super) wants: bool,
    pub(super) runs: bool,
    /// Work of its burst, how much of that is left, and how much is still to run after a close; in ns at speed 1.
    pub(super) given: f64,
    pub(super) left: f64,
    pub(super) in_flight: f64,
    /// What it may have in flight, in ns.
    pub(super) bound: f64,
    /// When it was told to close last.
    pub(super) closed_at: Time,
    pub(super) rate: f64,
    /// Time in which it ran, and what of it the scheduler knows.
    pub(super) busy: Span,
    pub(super) told: Span,
    /// Changes with every token, so that old messages are void.
    pub(super) token: u64,
    /// The scheduler counts it as holder.
    pub(super) holds: bool,
    /// Since when it stands still, and when what it had in flight then should be over.
    pub(super) stands_since: Option<(Time, Time)>,
    /// It was probed while it stood still.
    pub(super) owes_answer: bool,
    /// When it last stopped computing or got its token.
    pub(super) idle_since: Time,
    /// What it should have done when it stood still.
    pub(super) order: Option<Order>,
}

/// An order that reached a process while it stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Opens,
    Closes,
}

impl Process {
    /// One without work, in its number's first life.
    pub(super) const fn new(guest: Guest) -> Self {
        Self {
            guest,
            life: 0,
            here: true,
            gate: Gate::Shut,
            tells: false,
            contended: false,
            wants: false,
            runs: false,
            given: 0.0,
            left: 0.0,
            in_flight: f64::INFINITY,
            bound: 0.0,
            closed_at: Time::ZERO,
            rate: 0.0,
            busy: Span::ZERO,
            told: Span::ZERO,
            token: 0,
            holds: false,
            stands_since: None,
            owes_answer: false,
            idle_since: Time::ZERO,
            order: None,
        }
    }

    /// Returns how long so much work, in ns at speed 1, takes at the present speed.
    pub(super) fn lasts(&self, work: f64) -> Span {
        Span(nanos(work / self.rate.max(1e-9)))
    }

    /// Work of the launches that have been made and not run, where so much may be in flight: a launch is made while less is.
    pub(super) fn launched(&self, in_flight: f64) -> f64 {
        let launch = self.guest.launch;
        if launch <= NOTHING {
            return in_flight;
        }
        let done = self.given - self.left;
        let ahead = done + (in_flight - launch).max(0.0);
        (((ahead - NOTHING) / launch).ceil() * launch - done).max(0.0)
    }
}
