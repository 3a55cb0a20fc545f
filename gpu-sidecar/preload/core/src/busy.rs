//! Periods in which at least one kernel of the process ran: the union over its streams.

use std::sync::atomic::Ordering;

use protocol::page::Facts;
use protocol::union::Union;

/// Periods less than this apart, in nanoseconds, are published as one, because the page has room for a bounded number. The total
/// excludes the gaps.
const JOIN_NS: u64 = 50_000;
/// Length in nanoseconds from which an open period is published in parts, so that readers are never far behind.
const PART_NS: u64 = 2_000_000;

/// Kernel time of the process, and the period that is not published yet.
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

    /// Returns the kernel time until now, in nanoseconds.
    pub(crate) const fn total_ns(&self) -> u64 {
        self.union.total()
    }

    /// Adds a period from `begin` to `end`, in nanoseconds. Overlaps with earlier periods count once.
    pub(crate) fn add(&mut self, begin: u64, end: u64, facts: &Facts) {
        if begin >= end {
            return;
        }
        let _added = self.union.add(begin, end);
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

    /// Publishes the period that was held back to be joined with the next one.
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
    fn near_periods_are_published_as_one_and_all_by_a_flush() {
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
