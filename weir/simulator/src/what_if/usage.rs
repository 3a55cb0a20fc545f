//! Use of slots in a run: by function, by node, and over time.

use policy::pool::billing::Bill;
use policy::{Span, Time};

use crate::node::{Occupancy, Outcome};
use crate::statistics::Timeline;

/// Largest number of steps in the timeline of busy slots; at least half as many are used.
const BINS: usize = 240;

/// Sums over a function's slot occupancies.
#[derive(Clone, Copy, Default)]
pub(super) struct FunctionUse {
    pub(super) requests: u64,
    pub(super) busy: Span,
    /// Time that loads add to execution.
    pub(super) added: Span,
    pub(super) bill: Bill,
}

/// Use of slots within the counted time.
pub(super) struct Usage {
    /// Sums of each function.
    pub(super) used: Vec<FunctionUse>,
    /// Time for which the slots of each node were occupied, summed over its slots.
    pub(super) node_busy: Vec<Span>,
    /// Part of it that loads add to execution.
    pub(super) node_added: Vec<Span>,
    /// Occupancies, cut to the counted time.
    pub(super) taken: Vec<Occupancy>,
    /// Busy share of each slot over time.
    pub(super) timeline: Timeline,
}

impl Usage {
    /// Sums the occupancies of a run over the counted time from `from` until `until`.
    pub(super) fn of(
        functions: usize,
        (nodes, slots): (usize, usize),
        outcome: &Outcome,
        from: Time,
        until: Time,
    ) -> Self {
        let counted = until.since(from);
        let width = Span((counted.0 / BINS as u64 + 1).max(1_000_000));
        let mut timeline = match Timeline::new(from, nodes * slots, BINS, width) {
            Ok(timeline) => timeline,
            Err(error) => unreachable!("{error}"),
        };
        timeline.pass(until);
        let mut used = vec![FunctionUse::default(); functions];
        let mut node_busy = vec![Span::ZERO; nodes];
        let mut node_added = vec![Span::ZERO; nodes];
        let mut taken = outcome.taken.clone();
        for own in &mut taken {
            own.from = own.from.max(from);
            own.loaded = own.loaded.clamp(own.from, own.to);
            let at = own.function as usize;
            let busy = own.to.since(own.from);
            let added = if own.loaded > own.from {
                busy.less(own.execution)
            } else {
                Span::ZERO
            };
            let node = own.slot as usize / slots;
            node_busy[node].0 += busy.0;
            node_added[node].0 += added.0;
            used[at].requests += 1;
            used[at].busy.0 += busy.0;
            used[at].added.0 += added.0;
            used[at].bill.used(busy);
            timeline.busy(own.slot as usize, own.from, own.to);
        }
        if !outcome.stopped {
            // Includes requests that were still running at the end.
            for (busy, node) in node_busy.iter_mut().zip(&outcome.nodes) {
                busy.0 = node.busy.iter().map(|busy| busy.0).sum();
            }
        }
        Self {
            used,
            node_busy,
            node_added,
            taken,
            timeline,
        }
    }
}

/// Returns the largest number of slots occupied at one time.
pub(super) fn peak(taken: &[Occupancy]) -> u32 {
    let mut from: Vec<Time> = taken.iter().map(|own| own.from).collect();
    from.sort_unstable();
    let mut ends = taken.iter().map(|own| own.to).peekable();
    let (mut now, mut most) = (0_u32, 0);
    for from in from {
        // An occupancy that ends when another begins does not overlap with it.
        while ends.next_if(|&to| to <= from).is_some() {
            now -= 1;
        }
        now += 1;
        most = most.max(now);
    }
    most
}

#[cfg(test)]
mod tests {
    use testing::Random;

    use super::*;

    #[test]
    fn the_peak_agrees_with_a_naive_count() {
        let mut random = Random(7);
        let mut below = |bound: u64| random.below(bound);
        for round in 0..200 {
            let mut taken: Vec<Occupancy> = (0..below(20))
                .map(|_| {
                    let from = below(50);
                    let to = from + 1 + below(20);
                    Occupancy {
                        slot: 0,
                        function: 0,
                        from: Time(from),
                        loaded: Time(from),
                        execution: Span::ZERO,
                        to: Time(to),
                    }
                })
                .collect();
            taken.sort_by_key(|own| own.to);
            let at = |now: u64| {
                let holds = |own: &&Occupancy| own.from <= Time(now) && Time(now) < own.to;
                taken.iter().filter(holds).count()
            };
            let naive = (0..80).map(at).max().unwrap_or(0);
            assert_eq!(peak(&taken) as usize, naive, "round {round}");
        }
    }
}
