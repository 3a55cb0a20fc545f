//! Leader election among several processes: the holder of a Lease (`coordination.k8s.io/v1`) leads.
//!
//! As in Kubernetes' own programs, a lease has expired when its record has not changed for its duration, measured by
//! the observer's own clock, so clocks of different machines need not agree. A holder that could not renew for
//! [`Terms::renew`], which is shorter, must end its process before another process can take the lease.
//!
//! The write itself is a compare-and-swap by the caller (`resourceVersion`): if two processes acquire at once, one of
//! them fails and reads the lease again.
//!
//! # Examples
//!
//! ```
//! use policy::election::{Election, Holder, Record, Terms, Verdict};
//! use policy::{Span, Time};
//!
//! let mut election = Election::new(Terms::default());
//! let record = Record { holder: Holder::Vacant, version: 1, duration: Span::from_secs(15) };
//! assert_eq!(election.evaluate(Time(0), &record), Verdict::Acquire);
//! election.wrote(Time(0), 2);
//! assert!(election.leads(Time(1)));
//! // Without a renewal, leadership ends after `Terms::renew`.
//! assert!(!election.leads(Time::ZERO.after(Span::from_secs(10))));
//! ```

use crate::{Span, Time};

/// Durations of an election. The defaults are those of Kubernetes' own programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Duration of a lease; longer than `renew`.
    pub lease: Span,
    /// Time since its last renewal after which a leader no longer leads; longer than `retry`.
    pub renew: Span,
    /// Time between two attempts to acquire or renew the lease.
    pub retry: Span,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            lease: Span::from_secs(15),
            renew: Span::from_secs(10),
            retry: Span::from_secs(2),
        }
    }
}

/// Holder of the lease, from this process's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// No lease exists, or no holder is recorded in it.
    Vacant,
    /// This process holds the lease.
    Own,
    /// Another process holds the lease.
    Other,
}

/// Lease record as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Holder of the lease.
    pub holder: Holder,
    /// Version of the record, which differs after each write.
    pub version: u64,
    /// Time for which the holder claims the lease after a renewal.
    pub duration: Span,
}

/// Decision about a lease that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Write this process's name into the lease.
    Acquire,
    /// Renew the lease, which this process holds.
    Renew,
    /// Another process leads; read the lease again at this time.
    Follow(Time),
    /// This process led and no longer does: it must end.
    Lost,
}

/// State of the election in one process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Election {
    terms: Terms,
    /// Last version that was read, with the time at which it was first observed.
    seen: Option<(u64, Time)>,
    /// Start of this process's last successful write, while it leads.
    renewed: Option<Time>,
}

impl Election {
    /// Creates the state of a process that has not read the lease yet.
    #[must_use]
    pub const fn new(terms: Terms) -> Self {
        Self {
            terms,
            seen: None,
            renewed: None,
        }
    }

    /// Returns the durations of this election.
    #[must_use]
    pub const fn terms(&self) -> Terms {
        self.terms
    }

    /// Returns whether this process leads at `now`.
    #[must_use]
    pub fn leads(&self, now: Time) -> bool {
        self.renewed
            .is_some_and(|at| now < at.after(self.terms.renew))
    }

    /// Returns the time until which this process leads if it does not renew, or `None` if it does not lead.
    #[must_use]
    pub fn leads_until(&self) -> Option<Time> {
        self.renewed.map(|at| at.after(self.terms.renew))
    }

    /// Returns the decision about a lease that was read at `now`.
    pub fn evaluate(&mut self, now: Time, record: &Record) -> Verdict {
        let since = match self.seen {
            Some((version, since)) if version == record.version => since,
            _ => {
                self.seen = Some((record.version, now));
                now
            }
        };
        if self.renewed.is_some() {
            // The lease may be read late, after another process has written it in the meantime.
            return if record.holder == Holder::Own && self.leads(now) {
                Verdict::Renew
            } else {
                Verdict::Lost
            };
        }
        match record.holder {
            Holder::Vacant => Verdict::Acquire,
            // A process of this name led before this one began. It is gone, so its lease can be taken at once.
            Holder::Own => Verdict::Acquire,
            Holder::Other => {
                let over = since.after(record.duration);
                if now >= over {
                    Verdict::Acquire
                } else {
                    Verdict::Follow(over.min(now.after(self.terms.retry)))
                }
            }
        }
    }

    /// Records that a write begun at `begun` succeeded and created this version.
    pub fn wrote(&mut self, begun: Time, version: u64) {
        self.seen = Some((version, begun));
        self.renewed = Some(begun);
    }

    /// Gives up leadership, as at the end of the process.
    pub const fn release(&mut self) {
        self.renewed = None;
    }
}
