//! When a request finishes with a model that is being swapped in (M2.6).
//!
//! Groups arrive one after the other. Compute proceeds in order and waits only for the groups that it touches. For a
//! model of n equal groups, with x to copy and c to compute each, the last result is there after x + (n − 1) · max(x,
//! c) + c. For small groups that is max(C, W/B), and with the fixed cost of a swap it is the fit L = max(C, W/B) + a of
//! Torpor Table 4.

use crate::Span;

/// Link to a slot, as fitted to measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Throughput of copies of a group's size, in bytes per second.
    pub bytes_per_second: u64,
    /// Fixed cost of a swap in addition to the copies (a).
    pub overhead: Span,
}

/// Step of the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of groups, in order of transfer, that must be there ([`super::Groups::needed`]).
    pub needs: u32,
    /// Time for which the step computes.
    pub compute: Span,
}

/// Course of a pipelined swap, as times since its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Timeline {
    /// Time at which compute first began; equal to `finished` if there is none.
    pub began: Span,
    /// Time at which the last group is there, even if no step waits for it.
    pub transferred: Span,
    /// Time at which the last step ends.
    pub finished: Span,
    /// Total time for which compute waited for groups, including before its first step and excluding the lead.
    pub waited: Span,
}

impl Link {
    /// Returns the time that a copy of `bytes` takes, rounded up. Without throughput it never ends: `u64::MAX`.
    #[must_use]
    pub fn transfer(&self, bytes: u64) -> Span {
        if self.bytes_per_second == 0 {
            return if bytes == 0 {
                Span::ZERO
            } else {
                Span(u64::MAX)
            };
        }
        let nanos = u128::from(bytes) * 1_000_000_000;
        narrow(nanos.div_ceil(u128::from(self.bytes_per_second)))
    }

    /// Returns the latency of a request with a model that is swapped in while it computes: L = max(C, W/B) + a.
    #[must_use]
    pub fn latency(&self, compute: Span, bytes: u64) -> Span {
        add(compute.max(self.transfer(bytes)), self.overhead)
    }
}

/// Returns the course of a swap with groups that take these times to copy, one after the other, and with these compute
/// steps, in order. `lead` is the time before both. A step that needs more groups than there are waits for all.
#[must_use]
pub fn timeline(
    lead: Span,
    transfers: impl IntoIterator<Item = Span>,
    steps: impl IntoIterator<Item = Step>,
) -> Timeline {
    let mut transfers = transfers.into_iter().fuse();
    let mut arrived = 0;
    let mut arrival = lead;
    let mut now = lead;
    let mut began = None;
    let mut waited = Span::ZERO;
    for step in steps {
        while arrived < step.needs
            && let Some(transfer) = transfers.next()
        {
            arrived += 1;
            arrival = add(arrival, transfer);
        }
        // Earlier needs have already been waited for, so the latest arrival is sufficient.
        waited = add(waited, arrival.less(now));
        now = now.max(arrival);
        began.get_or_insert(now);
        now = add(now, step.compute);
    }
    Timeline {
        began: began.unwrap_or(now),
        transferred: transfers.fold(arrival, add),
        finished: now,
        waited,
    }
}

/// Returns [`timeline`] for equal groups with one step each, in closed form.
#[must_use]
pub fn equal_groups(lead: Span, groups: u32, transfer: Span, compute: Span) -> Timeline {
    let Some(more) = groups.checked_sub(1) else {
        return Timeline {
            began: lead,
            transferred: lead,
            finished: lead,
            waited: Span::ZERO,
        };
    };
    let times = |count: u32, span: Span| narrow(u128::from(count) * u128::from(span.0));
    let began = add(lead, transfer);
    Timeline {
        began,
        transferred: add(lead, times(groups, transfer)),
        finished: add(add(began, times(more, transfer.max(compute))), compute),
        waited: add(transfer, times(more, transfer.less(compute))),
    }
}

const fn add(one: Span, other: Span) -> Span {
    Span(one.0.saturating_add(other.0))
}

fn narrow(nanos: u128) -> Span {
    Span(u64::try_from(nanos).unwrap_or(u64::MAX))
}
