//! In which time at least one kernel of the process ran: the union over its streams.

use std::sync::atomic::Ordering;

use protocol::page::Facts;
use protocol::union::Union;

/// Stretches closer together than this are published as one, in nanoseconds: the page keeps a bounded number. The sum
/// does not contain the gap.
const JOIN_NS: u64 = 50_000;
/// A stretch that goes on for so long, in nanoseconds, is published in parts, so that a reader is never far behind.
const PART_NS: u64 = 2_000_000;

/// What was busy, and what was published of it.
#[derive(Debug)]
pub(crate) struct Busy {
    union: Union,
    open: Option<(u64, u64)>,
}

impl Busy {
    pub(crate) const fn new() -> Self {
        Self {
            union: Union::new(),
            open: None,
        }
    }

    /// Kernel time until now, in nanoseconds.
    pub(crate) const fn total_ns(&self) -> u64 {
        self.union.total()
    }

    /// Adds a stretch; what of it was counted already counts once.
    pub(crate) fn add(&mut self, begin: u64, end: u64, facts: &Facts) {
        if begin >= end {
            return;
        }
        let _fresh = self.union.add(begin, end);
        facts.busy_ns.store(self.union.total(), Ordering::Release);
        match &mut self.open {
            Some((from, to)) if begin <= to.saturating_add(JOIN_NS) && end >= *from => {
                *from = (*from).min(begin);
                *to = (*to).max(end);
                if *to - *from >= PART_NS {
                    facts.push(*from, *to);
                    self.open = Some((*to, *to));
                }
            }
            open => {
                if let Some((from, to)) = open.replace((begin, end)) {
                    facts.push(from, to);
                }
            }
        }
    }

    /// Publishes what was held back to be joined.
    pub(crate) fn flush(&mut self, facts: &Facts) {
        if let Some((from, to)) = self.open.take() {
            facts.push(from, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_is_published_together_and_all_of_it_once_flushed() {
        let (mut busy, facts) = (Busy::new(), Facts::new());
        for number in 0..500 {
            busy.add(number * 30_000, number * 30_000 + 20_000, &facts);
        }
        busy.flush(&facts);
        let mut read = Vec::new();
        let count = facts.stretches(0, &mut read);
        assert!(count < 20, "{count}");
        assert_eq!(read.first().map(|first| first.0), Some(0));
        assert_eq!(read.last().map(|last| last.1), Some(499 * 30_000 + 20_000));
        assert_eq!(busy.total_ns(), 500 * 20_000);
        assert_eq!(facts.busy_ns.load(Ordering::Relaxed), 500 * 20_000);
    }
}
