//! Statistics for the autoscaler: time-weighted concurrency and arrivals of the last complete second.
//!
//! A request counts from its arrival to the end of its response, including its wait. The report is Knative's `Stat`
//! protobuf message, of which the autoscaler reads at most 336 bytes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use policy::Span;
use policy::scaling::shed_concurrency;
use prost::Message as _;
use proxy::autoscaler::StatMessage;
use tokio::time::{Instant, MissedTickBehavior};

/// Length of a measurement window.
pub(crate) const WINDOW: Duration = Duration::from_secs(1);

/// Counter of requests, with a report every second.
#[derive(Debug)]
pub(crate) struct Stat {
    pod: String,
    start: Instant,
    /// Concurrency limit at the user container; `None` without a limit.
    concurrency: Option<u32>,
    counts: Mutex<Counts>,
    report: Mutex<Bytes>,
}

#[derive(Debug)]
struct Counts {
    /// Time at which the areas below were last updated.
    updated: Instant,
    window_start: Instant,
    all: Series,
    proxied: Series,
    /// Total estimated execution time of the requests shed in this window.
    shed: Span,
}

#[derive(Debug, Default)]
struct Series {
    concurrency: u32,
    arrivals: u32,
    /// Integral of the concurrency over this window, in request-seconds.
    area: f64,
}

/// Guard that counts a request, from its arrival to the end of its response.
#[derive(Debug)]
pub(crate) struct CountGuard {
    stat: Arc<Stat>,
    proxied: bool,
}

impl Stat {
    /// Creates the statistics without requests; the first report has only the pod's name. `concurrency` is the limit at
    /// the user container, if there is one.
    #[must_use]
    pub(crate) fn new(pod: &str, concurrency: Option<u32>, now: Instant) -> Arc<Self> {
        let empty = StatMessage {
            pod_name: pod.to_owned(),
            ..StatMessage::default()
        };
        Arc::new(Self {
            pod: pod.to_owned(),
            start: now,
            concurrency,
            counts: Mutex::new(Counts {
                updated: now,
                window_start: now,
                all: Series::default(),
                proxied: Series::default(),
                shed: Span::ZERO,
            }),
            report: Mutex::new(empty.encode_to_vec().into()),
        })
    }

    /// Counts a request that arrives at `now`, until the guard is dropped. `proxied` states that the activator sent the
    /// request, and so counts it as well.
    #[must_use]
    pub(crate) fn arrive(self: &Arc<Self>, now: Instant, proxied: bool) -> CountGuard {
        let mut counts = self.counts();
        counts.update(now);
        counts.all.arrive();
        if proxied {
            counts.proxied.arrive();
        }
        drop(counts);
        CountGuard {
            stat: Arc::clone(self),
            proxied,
        }
    }

    /// Counts a shed request by its estimated execution time. It counts in the mean of all requests but not in that of
    /// proxied ones, since the activator, which reports those to the autoscaler, has not seen it run.
    pub(crate) fn add_shed(&self, execution: Span) {
        let mut counts = self.counts();
        counts.shed = Span(counts.shed.0.saturating_add(execution.0));
    }

    /// Returns the encoded report of the last complete window.
    pub(crate) fn report(&self) -> Bytes {
        self.report
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Completes a window each second. Never returns.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut tick = tokio::time::interval_at(self.start + WINDOW, WINDOW);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.finish_window(Instant::now());
        }
    }

    fn finish_window(&self, now: Instant) {
        let mut counts = self.counts();
        counts.update(now);
        let window = now.saturating_duration_since(counts.window_start);
        let shed = shed_concurrency(counts.shed, window.into(), self.concurrency);
        let window = window.as_secs_f64();
        let average = |series: &Series| {
            if window > 0.0 {
                series.area / window
            } else {
                0.0
            }
        };
        let message = StatMessage {
            pod_name: self.pod.clone(),
            average_concurrent_requests: average(&counts.all) + shed,
            average_proxied_concurrent_requests: average(&counts.proxied),
            request_count: f64::from(counts.all.arrivals) / WINDOW.as_secs_f64(),
            proxied_request_count: f64::from(counts.proxied.arrivals) / WINDOW.as_secs_f64(),
            process_uptime: now.saturating_duration_since(self.start).as_secs_f64(),
        };
        counts.window_start = now;
        counts.all.restart();
        counts.proxied.restart();
        counts.shed = Span::ZERO;
        drop(counts);
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) =
            message.encode_to_vec().into();
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn update(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.updated).as_secs_f64();
        self.updated = self.updated.max(now);
        self.all.area += f64::from(self.all.concurrency) * elapsed;
        self.proxied.area += f64::from(self.proxied.concurrency) * elapsed;
    }
}

impl Series {
    const fn arrive(&mut self) {
        self.concurrency += 1;
        self.arrivals = self.arrivals.saturating_add(1);
    }

    const fn restart(&mut self) {
        self.arrivals = 0;
        self.area = 0.0;
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        let mut counts = self.stat.counts();
        counts.update(Instant::now());
        counts.all.concurrency -= 1;
        if self.proxied {
            counts.proxied.concurrency -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(stat: &Stat) -> StatMessage {
        StatMessage::decode(stat.report()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_has_means_and_arrivals_and_the_next_one_starts_from_zero() {
        let stat = Stat::new("pod", Some(1), Instant::now());
        assert_eq!(
            decode(&stat),
            StatMessage {
                pod_name: "pod".to_owned(),
                ..StatMessage::default()
            }
        );
        let first = stat.arrive(Instant::now(), true);
        let second = stat.arrive(Instant::now(), false);
        tokio::time::advance(Duration::from_millis(500)).await;
        drop(first);
        tokio::time::advance(Duration::from_millis(500)).await;
        stat.finish_window(Instant::now());
        let message = decode(&stat);
        assert!(
            (message.average_concurrent_requests - 1.5).abs() < 1e-9,
            "{message:?}"
        );
        assert!(
            (message.average_proxied_concurrent_requests - 0.5).abs() < 1e-9,
            "{message:?}"
        );
        assert!(
            (message.request_count - 2.0).abs() < 1e-9
                && (message.proxied_request_count - 1.0).abs() < 1e-9
        );
        assert!((message.process_uptime - 1.0).abs() < 1e-9);
        tokio::time::advance(WINDOW).await;
        drop(second);
        stat.finish_window(Instant::now());
        let message = decode(&stat);
        assert!(
            (message.average_concurrent_requests - 1.0).abs() < 1e-9
                && message.request_count == 0.0
        );
    }

    #[tokio::test(start_paused = true)]
    async fn shed_requests_count_once_and_within_bounds() {
        let stat = Stat::new("pod", Some(2), Instant::now());
        let average = || decode(&stat).average_concurrent_requests;
        stat.add_shed(Span::from_millis(500));
        stat.add_shed(Span::from_millis(2_000));
        tokio::time::advance(WINDOW).await;
        stat.finish_window(Instant::now());
        assert!((average() - 2.5).abs() < 1e-9);
        assert!(decode(&stat).average_proxied_concurrent_requests.abs() < 1e-9);
        stat.add_shed(Span::from_millis(60_000));
        tokio::time::advance(WINDOW).await;
        stat.finish_window(Instant::now());
        assert!((average() - 20.0).abs() < 1e-9);
        tokio::time::advance(WINDOW).await;
        stat.finish_window(Instant::now());
        assert!(average().abs() < 1e-9);
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_with_the_longest_pod_name_fits_the_autoscalers_limit() {
        let stat = Stat::new(&"p".repeat(253), None, Instant::now());
        drop(stat.arrive(Instant::now(), true));
        let _busy = stat.arrive(Instant::now(), true);
        tokio::time::advance(WINDOW).await;
        stat.finish_window(Instant::now());
        assert!(stat.report().len() <= 336, "{}", stat.report().len());
    }
}
