//! Measurement of one stream.

use std::collections::VecDeque;

use super::group::{LAUNCHES, LaunchGroup, WORK_NS};
use crate::Handle;
use crate::functions::FunctionInfo;

/// Event recorded in a stream, and its position among the launches.
#[derive(Debug)]
pub struct Mark {
    /// Event of this library's own.
    pub event: Handle,
    /// Position among the launches.
    pub kind: MarkKind,
}

/// Position of a mark among the launches.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "few of them are there at a time, and nearly all are of the large kind"
)]
pub enum MarkKind {
    /// A burst begins after the mark.
    Begin {
        /// Time at which the mark was recorded if the stream was idle then, which is also its completion time.
        idle_since: Option<u64>,
        /// Earliest possible start of the burst's first kernel, in nanoseconds.
        not_before: u64,
    },
    /// The mark follows these launches.
    End {
        /// Launches since the previous mark.
        launches: LaunchGroup,
        /// Whether nothing was running any more when it was recorded.
        late: bool,
    },
}

/// Event with a time on the host's clock, in nanoseconds.
pub type Reference = (Handle, u64);

/// What follows from a completed mark.
#[derive(Debug, Default)]
pub struct Completion {
    /// Launches that have finished.
    pub finished: Option<LaunchGroup>,
    /// Period in which they ran, in nanoseconds.
    pub ran: Option<(u64, u64)>,
    /// Whether the period is a measurement of the launches' functions.
    pub is_measured: bool,
    /// Events that are not needed any more.
    pub retired: [Option<Handle>; 2],
}

/// Measurement of one stream. Its owner records and queries events and reads the clock.
#[derive(Debug)]
pub struct Measurement {
    context: Handle,
    /// Handle of the stream, with the default stream made explicit; never 0.
    handle: Handle,
    /// Launches since the last mark.
    unmarked: LaunchGroup,
    /// Marks not yet known to be complete, in the order of the stream.
    marks: VecDeque<Mark>,
    /// Event and time of the last complete mark, in nanoseconds, while the burst continues after it.
    last: Option<Reference>,
    /// Number of launches since the burst began.
    launches: u32,
    /// Whether operations other than kernels entered the stream since it was last known to be idle.
    pub other_work: bool,
    /// Event in this stream with a known time on the host's clock, in nanoseconds.
    reference: Option<Reference>,
    /// Whether the program has destroyed the stream.
    pub destroyed: bool,
    /// Time at which all marked work is expected to be complete, in nanoseconds on the host's clock; the driver is not queried
    /// before it.
    expected_end: u64,
    /// Earliest possible start of the burst's first kernel, in nanoseconds.
    begins: u64,
}

impl Measurement {
    /// Creates the measurement of a stream of which nothing is known.
    #[must_use]
    pub const fn new(context: Handle, handle: Handle) -> Self {
        Self {
            context,
            handle,
            unmarked: LaunchGroup::EMPTY,
            marks: VecDeque::new(),
            last: None,
            launches: 0,
            other_work: true,
            reference: None,
            begins: 0,
            expected_end: 0,
            destroyed: false,
        }
    }

    /// Returns the context of the stream.
    #[must_use]
    pub const fn context(&self) -> Handle {
        self.context
    }

    /// Returns the handle of the stream, with the default stream made explicit.
    #[must_use]
    pub const fn handle(&self) -> Handle {
        self.handle
    }

    /// Returns whether no work is known to be in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty() && self.unmarked.is_empty()
    }

    /// Returns whether launches have no mark after them.
    #[must_use]
    pub const fn has_unmarked(&self) -> bool {
        !self.unmarked.is_empty()
    }

    /// Returns the marks that are not known to be complete.
    #[must_use]
    pub const fn marks(&self) -> &VecDeque<Mark> {
        &self.marks
    }

    /// Returns whether all marked work is expected to be complete at `now`.
    #[must_use]
    pub fn should_be_over(&self, now: u64) -> bool {
        self.marks.is_empty() || now >= self.expected_end
    }

    /// Returns whether all work, marked or not, is expected to be complete at `now`.
    #[must_use]
    pub const fn should_be_idle(&self, now: u64) -> bool {
        now >= self
            .expected_end
            .saturating_add(self.unmarked.estimate_ns())
    }

    /// Begins to count the launches of a new burst.
    pub const fn restart(&mut self) {
        self.launches = 0;
    }

    /// Ends the burst if nothing is in flight, so that the next one is not measured from its end. Returns an event that is not needed
    /// any more.
    pub fn end_burst(&mut self) -> Option<Handle> {
        if !self.marks.is_empty() {
            return None;
        }
        let before = self.last.take();
        self.unneeded(before)
    }

    /// Returns the events that are kept, and forgets them.
    pub fn take_events(&mut self) -> [Option<Handle>; 2] {
        let last = self.end_burst();
        [last, self.reference.take().map(|(event, _)| event)]
    }

    /// Adds a launch. Returns whether a mark is due after it.
    #[inline]
    pub fn add(&mut self, info: FunctionInfo) -> bool {
        self.unmarked.add(info);
        self.launches = self.launches.saturating_add(1);
        self.unmarked.len() >= LAUNCHES
            || self.unmarked.estimate_ns() >= WORK_NS
            || info.is_new
            || (self.launches < LAUNCHES && self.launches.is_power_of_two())
    }

    /// Takes the launches for which a mark is recorded at `now`.
    pub fn take_unmarked(&mut self, now: u64) -> LaunchGroup {
        let launches = std::mem::replace(&mut self.unmarked, LaunchGroup::EMPTY);
        let begin = self.expected_end.max(now);
        self.expected_end = begin.saturating_add(launches.estimate_ns());
        launches
    }

    /// Notes a mark that was recorded.
    pub fn push(&mut self, mark: Mark) {
        self.marks.push_back(mark);
    }

    /// Takes the oldest mark, which is complete.
    pub fn pop(&mut self) -> Option<Mark> {
        self.marks.pop_front()
    }

    /// Accounts for a completed mark. `elapsed` returns the nanoseconds between two completed events, if the driver can measure them.
    pub fn complete(
        &mut self,
        mark: Mark,
        elapsed: impl Fn(Handle, Handle) -> Option<u64>,
    ) -> Completion {
        match mark.kind {
            MarkKind::Begin {
                idle_since,
                not_before,
            } => {
                let at = match (idle_since, self.reference) {
                    (Some(at), _) => at,
                    (None, Some((reference, at))) => {
                        at.saturating_add(elapsed(reference, mark.event).unwrap_or(0))
                    }
                    (None, None) => not_before,
                };
                let mut retired = [None; 2];
                if idle_since.is_some() {
                    let before = self.reference.replace((mark.event, at));
                    retired[0] = self.unneeded(before);
                }
                let before = self.last.replace((mark.event, at));
                retired[1] = self.unneeded(before);
                // The kernel was launched after the event was recorded, and cannot have begun before that.
                self.begins = at.max(not_before);
                Completion {
                    retired,
                    ..Completion::default()
                }
            }
            MarkKind::End { launches, late } => {
                let finished = Some(launches);
                let Some((from, at)) = self.last else {
                    return Completion {
                        finished,
                        retired: [Some(mark.event), None],
                        ..Completion::default()
                    };
                };
                let took = elapsed(from, mark.event).unwrap_or_else(|| launches.estimate_ns());
                let mut end = at.saturating_add(took);
                let begin = at.max(self.begins);
                if late {
                    end = end.min(begin.saturating_add(launches.estimate_ns()));
                }
                let before = self.last.replace((mark.event, at.saturating_add(took)));
                Completion {
                    finished,
                    ran: Some((begin, end)),
                    is_measured: !late,
                    retired: [self.unneeded(before), None],
                }
            }
        }
    }

    /// Returns an event unless it is the reference or the last one.
    fn unneeded(&self, event: Option<Reference>) -> Option<Handle> {
        let (event, _) = event?;
        let is = |kept: &Option<Reference>| kept.is_some_and(|(kept, _)| kept == event);
        (!is(&self.reference) && !is(&self.last)).then_some(event)
    }

    /// Returns how much of the work before the first mark is expected to be done at `now`, in nanoseconds.
    #[must_use]
    pub fn done_of_first(&self, now: u64) -> u64 {
        let (Some((_, at)), Some(mark)) = (self.last, self.marks.front()) else {
            return 0;
        };
        match &mark.kind {
            MarkKind::End { launches, .. } => {
                let runs_for = now.saturating_sub(at.max(self.begins));
                runs_for.min(launches.estimate_ns())
            }
            MarkKind::Begin { .. } => 0,
        }
    }

    /// Discards all work and events of a destroyed context, and passes the launches to `finish`.
    pub fn discard(&mut self, mut finish: impl FnMut(&LaunchGroup)) {
        let unmarked = std::mem::replace(&mut self.unmarked, LaunchGroup::EMPTY);
        finish(&unmarked);
        for mark in self.marks.drain(..) {
            if let MarkKind::End { launches, .. } = mark.kind {
                finish(&launches);
            }
        }
        self.last = None;
        self.reference = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(estimate_ns: u64) -> FunctionInfo {
        FunctionInfo {
            slot: 0,
            estimate_ns,
            is_new: false,
            is_collective: false,
        }
    }

    fn end(event: Handle, estimate_ns: u64, late: bool) -> Mark {
        let launches = LaunchGroup::of(info(estimate_ns));
        let kind = MarkKind::End { launches, late };
        Mark { event, kind }
    }

    fn begin(event: Handle, idle_since: Option<u64>, not_before: u64) -> Mark {
        let kind = MarkKind::Begin {
            idle_since,
            not_before,
        };
        Mark { event, kind }
    }

    fn unmeasurable(_from: Handle, _to: Handle) -> Option<u64> {
        None
    }

    #[test]
    fn work_in_flight_is_done_in_proportion_to_the_time_since_its_start() {
        let mut state = Measurement::new(0, 1);
        assert_eq!(state.done_of_first(9_000), 0, "nothing was launched");
        state.push(end(1, 5_000, false));
        assert_eq!(state.done_of_first(9_000), 0, "its start is unknown");
        state.last = Some((1, 2_000));
        assert_eq!(state.done_of_first(1_000), 0);
        assert_eq!(state.done_of_first(6_000), 4_000);
        state.push(end(1, 5_000, false));
        let both = state.done_of_first(90_000);
        assert_eq!(both, 5_000, "the second may not have started");
        // The burst's first launch comes after the mark before it.
        state.begins = 3_500;
        assert_eq!(state.done_of_first(6_000), 2_500);
        state.marks.push_front(begin(2, Some(2_000), 3_500));
        assert_eq!(state.done_of_first(6_000), 0, "it may not have started");
    }

    #[test]
    fn marks_are_due_after_powers_of_two_and_then_every_sixteenth() {
        let mut state = Measurement::new(0, 1);
        let mut due = Vec::new();
        for number in 1..=48 {
            if state.add(info(10)) {
                due.push(number);
                let _launches = state.take_unmarked(0);
            }
        }
        assert_eq!(due, [1, 2, 4, 8, 24, 40]);
        state.restart();
        assert!(state.add(info(10)));
    }

    #[test]
    fn a_mark_is_due_after_a_millisecond_and_after_a_new_function() {
        let mut state = Measurement::new(0, 1);
        for _ in 0..2 {
            let _due = state.add(info(10));
        }
        let _launches = state.take_unmarked(0);
        assert!(!state.add(info(WORK_NS - 1)));
        assert!(state.add(info(1)));
        let new = FunctionInfo {
            is_new: true,
            ..info(1)
        };
        let _launches = state.take_unmarked(0);
        assert!(state.add(new));
    }

    #[test]
    fn kernel_time_is_the_time_between_two_marks() {
        let mut state = Measurement::new(0, 1);
        let none = state.complete(begin(1, Some(1_000), 1_100), unmeasurable);
        assert!(none.ran.is_none() && none.retired == [None, None]);
        let first = state.complete(end(2, 500, false), |from, to| {
            assert_eq!((from, to), (1, 2));
            Some(4_000)
        });
        // Not before the launch itself.
        assert_eq!(first.ran, Some((1_100, 5_000)));
        assert!(first.is_measured);
        // The first event stays the reference; the second is needed until the third.
        assert_eq!(first.retired, [None, None]);
        let second = state.complete(end(3, 500, false), |_, _| Some(1_000));
        assert_eq!(second.ran, Some((5_000, 6_000)));
        assert_eq!(second.retired, [Some(2), None]);
    }

    #[test]
    fn a_late_mark_counts_the_expected_run_time_and_measures_nothing() {
        let mut state = Measurement::new(0, 1);
        let _begin = state.complete(begin(1, Some(1_000), 1_000), unmeasurable);
        let late = state.complete(end(2, 300, true), |_, _| Some(90_000));
        assert_eq!((late.ran, late.is_measured), (Some((1_000, 1_300)), false));
        // The next one is measured from the mark.
        let next = state.complete(end(3, 300, false), |_, _| Some(500));
        assert_eq!(next.ran, Some((91_000, 91_500)));
    }

    #[test]
    fn a_burst_in_a_busy_stream_is_timed_from_the_last_idle_one() {
        let mut state = Measurement::new(0, 1);
        let _idle = state.complete(begin(1, Some(1_000), 1_000), unmeasurable);
        let _end = state.end_burst();
        let _busy = state.complete(begin(2, None, 5_000), |from, _| {
            assert_eq!(from, 1);
            Some(6_000)
        });
        let end = state.complete(end(3, 1, false), |_, _| Some(10));
        assert_eq!(end.ran, Some((7_000, 7_010)));
    }

    #[test]
    fn without_a_reference_a_burst_begins_at_its_launch() {
        let mut state = Measurement::new(0, 1);
        let _begin = state.complete(begin(1, None, 5_000), unmeasurable);
        let end = state.complete(end(2, 40, false), unmeasurable);
        assert_eq!(end.ran, Some((5_000, 5_040)), "the estimate stands in");
    }

    #[test]
    fn launches_without_a_begin_finish_unmeasured() {
        let mut state = Measurement::new(0, 1);
        let completion = state.complete(end(7, 40, false), unmeasurable);
        assert_eq!(completion.finished.map(|all| all.estimate_ns()), Some(40));
        assert_eq!(completion.ran, None);
        assert_eq!(completion.retired, [Some(7), None]);
    }

    #[test]
    fn a_burst_ends_only_with_nothing_in_flight() {
        let mut state = Measurement::new(0, 1);
        let _begin = state.complete(begin(1, None, 0), unmeasurable);
        state.push(end(2, 1, false));
        assert_eq!(state.end_burst(), None);
        let mark = state.pop().unwrap();
        assert_eq!(state.complete(mark, unmeasurable).retired, [Some(1), None]);
        assert_eq!(state.end_burst(), Some(2));
        assert_eq!(state.end_burst(), None);
    }

    #[test]
    fn a_new_reference_retires_the_old_one() {
        let mut state = Measurement::new(0, 1);
        let _begin = state.complete(begin(1, Some(0), 0), unmeasurable);
        assert_eq!(state.end_burst(), None, "it is the reference");
        let next = state.complete(begin(2, Some(10), 10), unmeasurable);
        assert_eq!(next.retired, [Some(1), None]);
        assert_eq!(state.take_events(), [None, Some(2)]);
    }

    #[test]
    fn expected_ends_add_up_while_the_stream_is_busy() {
        let mut state = Measurement::new(0, 1);
        let _due = state.add(info(1_000));
        assert!(state.should_be_over(0) && !state.should_be_idle(999));
        let launches = state.take_unmarked(500);
        state.push(end(1, launches.estimate_ns(), false));
        assert!(!state.should_be_over(1_499) && state.should_be_over(1_500));
        let _due = state.add(info(1_000));
        assert!(!state.should_be_idle(2_499) && state.should_be_idle(2_500));
        let _launches = state.take_unmarked(600);
        assert!(!state.should_be_over(2_499) && state.should_be_over(2_500));
    }

    #[test]
    fn all_work_of_a_destroyed_context_is_finished() {
        let mut state = Measurement::new(0, 1);
        state.push(begin(1, None, 0));
        state.push(end(2, 40, false));
        let _due = state.add(info(2));
        let mut finished = 0;
        state.discard(|launches| finished += launches.estimate_ns());
        assert_eq!(finished, 42);
        assert!(state.is_empty() && !state.has_unmarked());
    }
}
