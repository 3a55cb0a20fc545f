//! The WebSocket to the autoscaler (knative-serving `pkg/websocket`, `pkg/activator/stat_reporter.go`).
//!
//! There is one connection: its handshake takes at most 3 s, a ping is sent every 3.3 s, and it is closed after 10 s of
//! silence. The back-off before the next attempt is 100 ms, and grows by a factor of 1.3 up to 5 s. Without a
//! connection reports are kept for 5 s, and then dropped.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use prost::Message as _;
use proxy::autoscaler::WireStatMessages;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

const HANDSHAKE_MAX: Duration = Duration::from_secs(3);
const PING_PERIOD: Duration = Duration::from_millis(3_300);
const SILENCE_MAX: Duration = Duration::from_secs(10);
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_GROWTH: f64 = 1.3;
const BACK_OFF_MAX: Duration = Duration::from_secs(5);
/// Time for which an unsent report is kept.
const KEPT: Duration = Duration::from_secs(5);
/// Largest number of unsent reports.
pub(crate) const QUEUED_MAX: usize = 1_024;

/// Counts of reports and connections since the start.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Number of reports written to a connection.
    pub(crate) sent: AtomicU64,
    /// Number of reports dropped since they were too old, or more than [`QUEUED_MAX`].
    pub(crate) dropped: AtomicU64,
    /// Number of connections that failed or broke.
    pub(crate) failures: AtomicU64,
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// The reason why a connection has ended.
#[derive(Debug, thiserror::Error)]
enum ReportError {
    #[error(transparent)]
    Socket(#[from] tungstenite::Error),
    #[error("the autoscaler did not answer the handshake within {HANDSHAKE_MAX:?}")]
    Handshake,
    #[error("the autoscaler was silent for {SILENCE_MAX:?}")]
    Silence,
    #[error("the autoscaler closed the connection")]
    Closed,
}

/// Sends the reports that arrive by `reports` to the autoscaler at `url`. Returns once the channel is closed.
pub(crate) async fn run(
    url: String,
    mut reports: mpsc::Receiver<WireStatMessages>,
    counts: &Reports,
) {
    let mut kept: VecDeque<(Instant, Bytes)> = VecDeque::new();
    let mut back_off = BACK_OFF_MIN;
    let mut failures = 0_u64;
    loop {
        let connect = async {
            let connected = tokio::time::timeout(HANDSHAKE_MAX, connect_async(url.as_str())).await;
            let (socket, _response) = connected.map_err(|_| ReportError::Handshake)??;
            Ok::<_, ReportError>(socket)
        };
        let connected = tokio::select! {
            connected = connect => connected,
            // The channel is drained meanwhile, so that no sender waits for capacity.
            () = keep_all(&mut reports, &mut kept, counts) => return,
        };
        let error = match connected {
            Ok(socket) => {
                tracing::info!(url, "connected to the autoscaler");
                (back_off, failures) = (BACK_OFF_MIN, 0);
                match report(socket, &mut reports, &mut kept, counts).await {
                    Ok(()) => return,
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        counts.failures.fetch_add(1, Ordering::Relaxed);
        failures += 1;
        if failures.is_power_of_two() {
            tracing::warn!(%error, url, failures, "no connection to the autoscaler");
        }
        tokio::select! {
            () = tokio::time::sleep(back_off) => {}
            () = keep_all(&mut reports, &mut kept, counts) => return,
        }
        back_off = back_off.mul_f64(BACK_OFF_GROWTH).min(BACK_OFF_MAX);
    }
}

/// Keeps the reports that arrive, until the channel is closed.
async fn keep_all(
    reports: &mut mpsc::Receiver<WireStatMessages>,
    kept: &mut VecDeque<(Instant, Bytes)>,
    counts: &Reports,
) {
    while let Some(report) = reports.recv().await {
        let now = Instant::now();
        kept.push_back((now, report.encode_to_vec().into()));
        drop_old(kept, now, counts);
    }
}

fn drop_old(kept: &mut VecDeque<(Instant, Bytes)>, now: Instant, counts: &Reports) {
    while kept.len() > QUEUED_MAX
        || kept
            .front()
            .is_some_and(|(at, _)| now.saturating_duration_since(*at) > KEPT)
    {
        kept.pop_front();
        counts.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Serves one connection. Returns `Ok` once the channel of reports is closed.
async fn report(
    mut socket: Socket,
    reports: &mut mpsc::Receiver<WireStatMessages>,
    kept: &mut VecDeque<(Instant, Bytes)>,
    counts: &Reports,
) -> Result<(), ReportError> {
    drop_old(kept, Instant::now(), counts);
    while let Some((at, bytes)) = kept.pop_front() {
        if let Err(error) = send(&mut socket, bytes.clone(), counts).await {
            kept.push_front((at, bytes));
            return Err(error);
        }
    }
    let mut ping = tokio::time::interval(PING_PERIOD);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    loop {
        tokio::select! {
            report = reports.recv() => {
                let Some(report) = report else {
                    let _closed = socket.close(None).await;
                    return Ok(());
                };
                let bytes = Bytes::from(report.encode_to_vec());
                if let Err(error) = send(&mut socket, bytes.clone(), counts).await {
                    kept.push_back((Instant::now(), bytes));
                    return Err(error);
                }
            }
            message = socket.next() => {
                heard = Instant::now();
                match message {
                    Some(Ok(Message::Close(_))) | None => return Err(ReportError::Closed),
                    Some(message) => drop(message?),
                }
            }
            _tick = ping.tick() => {
                let sent = socket.send(Message::Ping(Bytes::new()));
                let sent = tokio::time::timeout(SILENCE_MAX, sent).await;
                sent.map_err(|_| ReportError::Silence)??;
            }
            () = tokio::time::sleep_until(heard + SILENCE_MAX) => return Err(ReportError::Silence),
        }
    }
}

/// Sends one report. Fails with [`ReportError::Silence`] if the autoscaler does not read it within [`SILENCE_MAX`].
async fn send(socket: &mut Socket, bytes: Bytes, counts: &Reports) -> Result<(), ReportError> {
    let sent = socket.send(Message::Binary(bytes));
    let sent = tokio::time::timeout(SILENCE_MAX, sent).await;
    sent.map_err(|_| ReportError::Silence)??;
    counts.sent.fetch_add(1, Ordering::Relaxed);
    Ok(())
}
