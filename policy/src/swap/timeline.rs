//! When a request finishes whose model is under way (M2.6).
//!
//! Groups arrive one after the other; compute goes on in order and waits only for the groups that it touches. For
//! a model of n equal groups, x to copy and c to compute with each, the last result is there after
//! x + (n − 1) · max(x, c) + c, which for small groups is max(C, W/B): with the fixed cost of a swap the fit
//! L = max(C, W/B) + a of Torpor Table 4.

use crate::Span;

/// A link to a slot, as fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Throughput of copies of a group's size.
    pub bytes_per_second: u64,
    /// What a swap costs beside the copies (a).
    pub overhead: Span,
}

/// A piece of compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How many groups, in order of transfer, have to be there ([`super::Groups::needed`]).
    pub needs: u32,
    /// How long it computes.
    pub compute: Span,
}

/// How a pipelined swap goes, from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Timeline {
    /// When compute first began; equal to `finished` if there is none.
    pub began: Span,
    /// When the last group is there, also if nothing waits for it.
    pub transferred: Span,
    /// When the last step ends.
    pub finished: Span,
    /// How long compute waited for groups, its first step included and the lead not.
    pub waited: Span,
}

impl Link {
    /// How long a copy of so many bytes takes, rounded up. A link without throughput never ends.
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

    /// The latency of a request whose model is swapped in while it computes: L = max(C, W/B) + a.
    #[must_use]
    pub fn latency(&self, compute: Span, bytes: u64) -> Span {
        add(compute.max(self.transfer(bytes)), self.overhead)
    }
}

/// How a swap goes whose groups take these times to copy, one after the other, and whose compute has these steps, in
/// order. `lead`: the time before both. A step that needs more groups than there are waits for all.
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
        // What an earlier step needed has been waited for, so the latest arrival asked for is enough.
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

/// [`timeline`] for groups that are all alike, each with a step of its own, in closed form.
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
