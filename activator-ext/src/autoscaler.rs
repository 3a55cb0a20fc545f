//! The WebSocket to the autoscaler (knative-serving `pkg/websocket`, `pkg/activator/stat_reporter.go`).
//!
//! One connection: a handshake within 3 s, a ping every 3.3 s, closed if nothing is heard for 10 s, tried again after
//! 100 ms and then 1.3 times as long each time, 5 s at most. Without it reports are kept for 5 s, and then dropped.

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
/// A report is of use for so long.
const KEPT: Duration = Duration::from_secs(5);
/// Reports that wait to be taken, at most.
pub(crate) const QUEUED_MAX: usize = 1_024;

/// What became of reports since the start.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Written to the connection.
    pub(crate) sent: AtomicU64,
    /// Too old when there was a connection again, or more than are kept.
    pub(crate) dropped: AtomicU64,
    /// Connections that could not be had, or broke.
    pub(crate) failures: AtomicU64,
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
enum ReportError {
    #[error(transparent)]
    Socket(#[from] tungstenite::Error),
    #[error("the autoscaler did not answer the handshake within {HANDSHAKE_MAX:?}")]
    Handshake,
    #[error("nothing was heard of the autoscaler for {SILENCE_MAX:?}")]
    Silence,
    #[error("the autoscaler closed the connection")]
    Closed,
}

/// Sends what comes through `reports` to the autoscaler at `url`, until there is no more.
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
            // The channel is emptied meanwhile, so that no sender waits for room.
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

/// Keeps reports until there are no more.
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

/// Serves one connection. Ok: there are no more reports.
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

/// An autoscaler that takes nothing is one that is gone.
async fn send(socket: &mut Socket, bytes: Bytes, counts: &Reports) -> Result<(), ReportError> {
    let sent = socket.send(Message::Binary(bytes));
    let sent = tokio::time::timeout(SILENCE_MAX, sent).await;
    sent.map_err(|_| ReportError::Silence)??;
    counts.sent.fetch_add(1, Ordering::Relaxed);
    Ok(())
}
