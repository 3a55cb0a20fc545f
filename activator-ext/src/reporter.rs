//! Reports to the autoscaler: every second one on each revision with requests, and at once one on the first request of
//! a revision without an instance.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use proxy::autoscaler::{StatMessage, WireStatMessage, WireStatMessages};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{Instant, MissedTickBehavior};

use crate::autoscaler::Reports;
use crate::registry::Registry;
use crate::stat::WINDOW;
use crate::view::RevisionName;

/// Sends reports on revisions to the autoscaler.
#[derive(Debug)]
pub(crate) struct Reporter {
    /// Name by which the autoscaler distinguishes this process.
    pod: String,
    start: Instant,
    /// Channel to the connection; `None`: there is no autoscaler.
    reports: Option<mpsc::Sender<WireStatMessages>>,
    counts: Arc<Reports>,
}

impl Reporter {
    /// Returns a reporter for the process `pod`, which sends to `reports`.
    #[must_use]
    pub(crate) fn new(
        pod: String,
        reports: Option<mpsc::Sender<WireStatMessages>>,
        counts: Arc<Reports>,
    ) -> Arc<Self> {
        Arc::new(Self {
            pod,
            start: Instant::now(),
            reports,
            counts,
        })
    }

    /// Reports the first request of a revision without an instance at once.
    pub(crate) fn report_first(&self, revision: &RevisionName) {
        self.send(vec![self.message(revision, 1.0, 1.0)]);
    }

    /// Reports every second; never returns.
    pub(crate) async fn run(self: Arc<Self>, registry: Arc<Registry>) {
        let mut tick = tokio::time::interval_at(self.start + WINDOW, WINDOW);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let now = Instant::now();
            let messages = registry.served().into_iter().filter_map(|served| {
                let window = served.stat.finish_window(now, served.function.ready())?;
                let name = &served.revision.name;
                Some(self.message(name, window.concurrency, window.arrivals))
            });
            let messages: Vec<_> = messages.collect();
            if !messages.is_empty() {
                self.send(messages);
            }
        }
    }

    fn message(&self, revision: &RevisionName, concurrency: f64, count: f64) -> WireStatMessage {
        WireStatMessage {
            namespace: revision.namespace.clone(),
            name: revision.name.clone(),
            stat: Some(StatMessage {
                pod_name: self.pod.clone(),
                average_concurrent_requests: concurrency,
                request_count: count,
                process_uptime: self.start.elapsed().as_secs_f64(),
                ..StatMessage::default()
            }),
        }
    }

    fn send(&self, messages: Vec<WireStatMessage>) {
        let Some(reports) = &self.reports else {
            return;
        };
        match reports.try_send(WireStatMessages { messages }) {
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(_)) => {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
