//! The autoscaler's stat: time-weighted concurrency and arrivals of the last whole second.
//!
//! CountGuard from arrival to the end of the response, waiting included. The report is Knative's `Stat`
//! protobuf message; the autoscaler reads at most 336 bytes of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use policy::Span;
use policy::scaling::shed_concurrency;
use prost::Message as _;
use proxy::autoscaler::StatMessage;
use tokio::time::{Instant, MissedTickBehavior};

/// How long a window lasts.
pub(crate) const WINDOW: Duration = Duration::from_secs(1);

/// Counts requests and makes a report every second.
#[derive(Debug)]
pub(crate) struct Stat {
    pod: String,
    start: Instant,
    /// Requests at the user container at once, where that is limited.
    concurrency: Option<u32>,
    counts: Mutex<Counts>,
    report: Mutex<Bytes>,
}

#[derive(Debug)]
struct Counts {
    /// When the areas below were last brought up to date.
    updated: Instant,
    window_start: Instant,
    all: Series,
    proxied: Series,
    /// For how long the requests shed in this window would have run.
    shed: Span,
}

#[derive(Debug, Default)]
struct Series {
    concurrency: u32,
    arrivals: u32,
    /// Request-seconds of this window.
    area: f64,
}

/// One request, from arrival to the end of its response.
#[derive(Debug)]
pub(crate) struct CountGuard {
    stat: Arc<Stat>,
    proxied: bool,
}

impl Stat {
    /// No requests yet. The first report holds the pod's name only. `concurrency`: requests at the user
    /// container at once, where that is limited.
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

    /// A request arrives. `proxied`: the activator sent it and counts it too.
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

    /// A request was shed that would have run for so long. It counts in the mean of all requests but not in
    /// that of proxied ones: the activator, which the autoscaler asks about those, has not seen it run.
    pub(crate) fn add_shed(&self, execution: Span) {
        let mut counts = self.counts();
        counts.shed = Span(counts.shed.0.saturating_add(execution.0));
    }

    /// The last finished window, encoded.
    pub(crate) fn report(&self) -> Bytes {
        self.report
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Finishes a window each second, for ever.
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
    async fn a_window_holds_means_and_arrivals_and_the_next_starts_afresh() {
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
    async fn what_was_shed_counts_within_bounds_and_once() {
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
    async fn the_longest_pod_name_fits_into_what_the_autoscaler_reads() {
        let stat = Stat::new(&"p".repeat(253), None, Instant::now());
        drop(stat.arrive(Instant::now(), true));
        let _busy = stat.arrive(Instant::now(), true);
        tokio::time::advance(WINDOW).await;
        stat.finish_window(Instant::now());
        assert!(stat.report().len() <= 336, "{}", stat.report().len());
    }
}
