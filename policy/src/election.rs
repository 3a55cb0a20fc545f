//! Which of several processes leads: the holder of a Lease (`coordination.k8s.io/v1`).
//!
//! As in Kubernetes' own programs, a lease is over when its record was not seen to change for its duration by the watcher's
//! own clock: clocks of different machines need not agree. A holder that could not renew for [`Terms::renew`], which is
//! shorter, is to end its process before another one can take the lease.
//!
//! The write itself is a compare-and-swap by the caller (`resourceVersion`): of two that acquire at once one fails, and
//! looks again.

use crate::{Span, Time};

/// How long what takes. The default is that of Kubernetes' own programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// For how long a lease is taken; longer than `renew`.
    pub lease: Span,
    /// A leader whose last renewal is so long ago leads no more; longer than `retry`.
    pub renew: Span,
    /// Between two attempts to acquire or renew it.
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

/// Whose the lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// There is no lease, or nobody's name is in it.
    Nobody,
    /// This process's.
    Own,
    /// Another's.
    Other,
}

/// A lease as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Whose it is.
    pub holder: Holder,
    /// A number that is another after each write.
    pub version: u64,
    /// For how long its holder says that it holds after a renewal.
    pub duration: Span,
}

/// What to do about a lease that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Write this process's name into it.
    Acquire,
    /// Renew it.
    Renew,
    /// Another process leads; look again at this time.
    Follow(Time),
    /// This process led, and does not any more: it is to end.
    Lost,
}

/// What a process knows of the lease.
#[derive(Clone, Copy, Debug, Default)]
pub struct Election {
    terms: Terms,
    /// The last version that was read, and when it was first seen.
    seen: Option<(u64, Time)>,
    /// When this process last wrote the lease, while it leads: the begin of the write.
    renewed: Option<Time>,
}

impl Election {
    /// Returns what a process knows that has not looked yet.
    #[must_use]
    pub const fn new(terms: Terms) -> Self {
        Self {
            terms,
            seen: None,
            renewed: None,
        }
    }

    /// How long what takes.
    #[must_use]
    pub const fn terms(&self) -> Terms {
        self.terms
    }

    /// Whether this process leads at `now`.
    #[must_use]
    pub fn leads(&self, now: Time) -> bool {
        self.renewed
            .is_some_and(|at| now < at.after(self.terms.renew))
    }

    /// Until when this process leads, if it does not renew.
    #[must_use]
    pub fn leads_until(&self) -> Option<Time> {
        self.renewed.map(|at| at.after(self.terms.renew))
    }

    /// Returns what to do about a lease that was read at `now`.
    pub fn evaluate(&mut self, now: Time, record: &Record) -> Verdict {
        let since = match self.seen {
            Some((version, since)) if version == record.version => since,
            _ => {
                self.seen = Some((record.version, now));
                now
            }
        };
        if self.renewed.is_some() {
            // It may be read late: what was written by another in between has an owner.
            return if record.holder == Holder::Own && self.leads(now) {
                Verdict::Renew
            } else {
                Verdict::Lost
            };
        }
        match record.holder {
            Holder::Nobody => Verdict::Acquire,
            // A process of this name led before this one began: it is gone, and its lease is as good as ours.
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

    /// A write that began at `begun` succeeded, and made this version.
    pub fn wrote(&mut self, begun: Time, version: u64) {
        self.seen = Some((version, begun));
        self.renewed = Some(begun);
    }

    /// Gives leadership up, as at the end of the process.
    pub const fn release(&mut self) {
        self.renewed = None;
    }
}
