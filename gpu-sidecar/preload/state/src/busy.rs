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
pub struct Busy {
    union: Union,
    open: Option<(u64, u64)>,
}

impl Default for Busy {
    fn default() -> Self {
        Self::new()
    }
}

impl Busy {
    /// Creates the record of a process that has run no kernel.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            union: Union::new(),
            open: None,
        }
    }

    /// Returns the kernel time until now, in nanoseconds.
    #[must_use]
    pub const fn total_ns(&self) -> u64 {
        self.union.total()
    }

    /// Adds a period from `begin` to `end`, in nanoseconds. Overlaps with earlier periods count once.
    pub fn add(&mut self, begin: u64, end: u64, facts: &Facts) {
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
    pub fn flush(&mut self, facts: &Facts) {
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

    #[test]
    fn empty_periods_and_overlaps_add_nothing() {
        let (mut busy, facts) = (Busy::new(), Facts::new());
        busy.add(100, 100, &facts);
        busy.add(200, 100, &facts);
        assert_eq!(busy.total_ns(), 0);
        busy.add(1_000, 3_000, &facts);
        busy.add(2_000, 4_000, &facts);
        assert_eq!(busy.total_ns(), 3_000);
    }

    #[test]
    fn a_long_period_is_published_in_parts() {
        let (mut busy, facts) = (Busy::new(), Facts::new());
        for number in 0..10 {
            busy.add(number * 1_000_000, (number + 1) * 1_000_000, &facts);
        }
        let mut read = Vec::new();
        let _seen = facts.stretches(0, &mut read);
        assert_eq!(read.len(), 5);
        assert!(read.iter().all(|(begin, end)| end - begin == PART_NS));
        busy.flush(&facts);
        busy.flush(&facts);
        assert_eq!(facts.stretches(0, &mut Vec::new()), 5 + 1);
    }

    #[test]
    fn distant_periods_are_published_apart() {
        let (mut busy, facts) = (Busy::new(), Facts::new());
        busy.add(0, 10, &facts);
        busy.add(10 + JOIN_NS + 1, 20 + JOIN_NS, &facts);
        busy.flush(&facts);
        let mut read = Vec::new();
        let _seen = facts.stretches(0, &mut read);
        assert_eq!(read, [(0, 10), (11 + JOIN_NS, 20 + JOIN_NS)]);
    }
}
