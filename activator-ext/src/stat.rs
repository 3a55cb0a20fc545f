//! Counts for the reports to the autoscaler (contracts §9): for each revision and second, the mean number of requests in
//! flight, and the number of arrivals.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use policy::Span;
use policy::scaling::shed_concurrency;
use tokio::time::Instant;

/// Length of a window.
pub(crate) const WINDOW: Duration = Duration::from_secs(1);

/// The counts of one revision's requests.
#[derive(Debug)]
pub(crate) struct RevisionStat {
    /// Largest number of requests at an instance at a time; `None`: no limit.
    concurrency: Option<u32>,
    counts: Mutex<Counts>,
}

#[derive(Debug)]
struct Counts {
    /// Time up to which `area` is computed.
    updated: Instant,
    window_start: Instant,
    carried: u32,
    arrivals: u32,
    /// Integral of the requests in flight over this window, in request seconds.
    area: f64,
    /// Sum of the estimated execution times of requests shed in this window.
    shed: Span,
    /// Whether one of this window's requests was reported at once, so that it is not reported again.
    is_reported_ahead: bool,
    /// Whether the last window had no request.
    is_idle: bool,
}

/// The counts of a finished window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Window {
    /// Mean number of requests in flight, plus shed requests for their estimated execution times.
    pub(crate) concurrency: f64,
    /// Number of arrivals in the window.
    pub(crate) arrivals: f64,
}

/// The count of a request in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct CountGuard(Arc<RevisionStat>);

impl RevisionStat {
    /// Returns counts without requests.
    #[must_use]
    pub(crate) fn new(concurrency: Option<u32>, now: Instant) -> Arc<Self> {
        Arc::new(Self {
            concurrency,
            counts: Mutex::new(Counts {
                updated: now,
                window_start: now,
                carried: 0,
                arrivals: 0,
                area: 0.0,
                shed: Span::ZERO,
                is_reported_ahead: false,
                is_idle: true,
            }),
        })
    }

    /// Counts an arrival; `is_cold`: no instance serves. Returns whether to report it to the autoscaler at once: the
    /// first one in flight, at most once in a window.
    #[must_use]
    pub(crate) fn arrive(self: &Arc<Self>, now: Instant, is_cold: bool) -> (CountGuard, bool) {
        let mut counts = self.counts();
        counts.update(now);
        let is_first = is_cold && counts.carried == 0 && !counts.is_reported_ahead;
        counts.carried += 1;
        counts.arrivals = counts.arrivals.saturating_add(1);
        counts.is_reported_ahead |= is_first;
        drop(counts);
        (CountGuard(Arc::clone(self)), is_first)
    }

    /// Moves the count of a request whose instance belongs to another revision to that revision; the arrival stays
    /// here.
    pub(crate) fn take_over(self: &Arc<Self>, counted: &mut CountGuard) {
        if Arc::ptr_eq(self, &counted.0) {
            return;
        }
        let now = Instant::now();
        let mut counts = self.counts();
        counts.update(now);
        counts.carried += 1;
        drop(counts);
        *counted = CountGuard(Arc::clone(self));
    }

    /// Returns the number of requests in flight.
    pub(crate) fn carried(&self) -> u32 {
        self.counts().carried
    }

    /// Counts a shed request with its estimated execution time.
    pub(crate) fn add_shed(&self, execution: Span) {
        let mut counts = self.counts();
        counts.shed = Span(counts.shed.0.saturating_add(execution.0));
    }

    /// Ends the window and starts the next. `instances` is the number that serve. Returns `None` if neither this window
    /// nor the one before had requests: the autoscaler averages over the seconds with reports, and expects none on idle
    /// revisions.
    pub(crate) fn finish_window(&self, now: Instant, instances: usize) -> Option<Window> {
        let mut counts = self.counts();
        counts.update(now);
        let length = now.saturating_duration_since(counts.window_start);
        let instances = u32::try_from(instances.max(1)).unwrap_or(u32::MAX);
        let capacity = self.concurrency.map(|own| own.saturating_mul(instances));
        let shed = shed_concurrency(counts.shed, length.into(), capacity);
        let mean = if length.is_zero() {
            0.0
        } else {
            counts.area / length.as_secs_f64()
        };
        let ahead = f64::from(u8::from(counts.is_reported_ahead));
        let was_idle = counts.is_idle;
        counts.is_idle = counts.area == 0.0
            && counts.carried == 0
            && counts.arrivals == 0
            && counts.shed == Span::ZERO;
        let window = Window {
            concurrency: (mean + shed - ahead).max(0.0),
            arrivals: (f64::from(counts.arrivals) - ahead).max(0.0),
        };
        counts.window_start = now;
        counts.arrivals = 0;
        counts.area = 0.0;
        counts.shed = Span::ZERO;
        counts.is_reported_ahead = false;
        (!was_idle || !counts.is_idle).then_some(window)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn update(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.updated).as_secs_f64();
        self.updated = self.updated.max(now);
        self.area += f64::from(self.carried) * elapsed;
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        let mut counts = self.0.counts();
        counts.update(Instant::now());
        counts.carried -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_window_has_the_mean_of_requests_in_flight_and_all_arrivals() {
        let stat = RevisionStat::new(Some(1), Instant::now());
        let (first, _) = stat.arrive(Instant::now(), false);
        let (second, _) = stat.arrive(Instant::now(), false);
        tokio::time::advance(WINDOW / 2).await;
        drop(first);
        tokio::time::advance(WINDOW / 2).await;
        let window = stat.finish_window(Instant::now(), 1).unwrap();
        assert_eq!((window.concurrency, window.arrivals), (1.5, 2.0));
        tokio::time::advance(WINDOW).await;
        drop(second);
        let window = stat.finish_window(Instant::now(), 1).unwrap();
        assert_eq!((window.concurrency, window.arrivals), (1.0, 0.0));
        assert_eq!(stat.carried(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_reported_at_once_is_first_only_once() {
        let stat = RevisionStat::new(None, Instant::now());
        let (_request, is_first) = stat.arrive(Instant::now(), true);
        assert!(is_first);
        tokio::time::advance(WINDOW).await;
        let window = stat.finish_window(Instant::now(), 1).unwrap();
        assert_eq!((window.concurrency, window.arrivals), (0.0, 0.0));
        tokio::time::advance(WINDOW).await;
        assert_eq!(
            stat.finish_window(Instant::now(), 1).unwrap().concurrency,
            1.0
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_moved_request_counts_for_one_revision_at_a_time() {
        let [from, to] = [(); 2].map(|()| RevisionStat::new(None, Instant::now()));
        let (mut counted, _) = from.arrive(Instant::now(), false);
        tokio::time::advance(WINDOW / 4).await;
        to.take_over(&mut counted);
        to.take_over(&mut counted);
        tokio::time::advance(WINDOW / 4).await;
        drop(counted);
        tokio::time::advance(WINDOW / 2).await;
        let now = Instant::now();
        let windows = [from.finish_window(now, 1), to.finish_window(now, 1)];
        assert_eq!(
            windows.map(|window| window.unwrap().concurrency),
            [0.25, 0.25]
        );
        assert_eq!((from.carried(), to.carried()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn shed_requests_count_for_their_estimated_execution_times() {
        let stat = RevisionStat::new(Some(2), Instant::now());
        stat.add_shed(Span::from_millis(500));
        tokio::time::advance(WINDOW).await;
        assert_eq!(
            stat.finish_window(Instant::now(), 1).unwrap().concurrency,
            0.5
        );
        tokio::time::advance(WINDOW).await;
        assert_eq!(
            stat.finish_window(Instant::now(), 1).unwrap().concurrency,
            0.0
        );
    }

    #[tokio::test(start_paused = true)]
    async fn without_instances_one_request_per_window_is_first() {
        let stat = RevisionStat::new(Some(1), Instant::now());
        let mut firsts = 0;
        for _ in 0..100 {
            let (_gone, is_first) = stat.arrive(Instant::now(), true);
            firsts += u32::from(is_first);
        }
        assert_eq!(firsts, 1);
        tokio::time::advance(WINDOW).await;
        assert_eq!(
            stat.finish_window(Instant::now(), 0).unwrap().arrivals,
            99.0
        );
        assert!(stat.arrive(Instant::now(), true).1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_window_without_a_request_is_not_reported() {
        let stat = RevisionStat::new(Some(1), Instant::now());
        let finish = async || {
            tokio::time::advance(WINDOW).await;
            stat.finish_window(Instant::now(), 1)
                .map(|window| window.concurrency)
        };
        assert_eq!(finish().await, None);
        let (request, _) = stat.arrive(Instant::now(), false);
        assert_eq!(finish().await, Some(1.0));
        drop(request);
        assert_eq!(finish().await, Some(0.0));
        assert_eq!(finish().await, None);
    }
}
