//! Reports of what a pod has used, and what its processes have in flight.

use super::{PodId, ProcessId, Tokens};
use crate::{Span, Time};

/// Use of the slot by one pod since its last report.
#[derive(Clone, Copy, Debug)]
pub struct Usage<'a> {
    /// Pod of the processes.
    pub pod: PodId,
    /// Additional wall time in which at least one kernel of the pod ran. Zero where nothing was measured: a holder which
    /// reports nothing is charged for the passing time.
    pub used: Span,
    /// Processes of the pod of which something is known. Those without a token are ignored.
    pub processes: &'a [ProcessUsage],
}

/// Use of a token by one process, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Process of the report.
    pub process: ProcessId,
    /// Whether the process has launched since its last report, so that its token is in use and worth renewing.
    pub is_active: bool,
    /// Time since which a kernel or graph has been in flight that [`Usage::used`] does not include yet; `None`: nothing is.
    pub unfinished_since: Option<Time>,
    /// What the process has in flight or is submitting.
    pub activity: Activity,
}

/// What a process has in flight or is submitting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Nothing is known: the work is assumed to last as long as [`ProcessUsage::unfinished_since`] states it.
    Unknown,
    /// Nothing is in flight.
    Idle {
        /// Time since which that has been so; counts from the grant at the earliest.
        since: Time,
    },
    /// Something is in flight.
    Busy {
        /// Time since which that has been so.
        since: Time,
        /// Expected duration from then on; `None` if nothing of the kind was ever measured.
        expected: Option<Span>,
    },
}

impl Tokens {
    /// Records the use of the slot by a pod and its processes. To be called before the events and wake-ups of the same time.
    pub fn report(&mut self, now: Time, usage: &Usage<'_>) {
        for process in usage.processes {
            let id = process.process;
            if process.is_active {
                self.active(now, id);
            }
            self.unfinished(now, id, process.unfinished_since);
            match process.activity {
                Activity::Unknown => {}
                Activity::Idle { since } => self.idle(now, id, since),
                Activity::Busy { since, expected } => self.busy(now, id, since, expected),
            }
        }
        // Last: all time before unfinished work is taken as reported, and time reported twice would count twice until the
        // next report.
        if usage.used > Span::ZERO {
            self.used(now, usage.pod, usage.used);
        }
    }
}
