use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use peers::revision::Revision;
use tests::app::{App, chunk, ok};
use tests::client::Client;
use tests::{PATIENCE, eventually};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::{activator, at, get};

/// Number of streams of each kind.
const STREAMS: usize = 100;
/// Interval between two events.
const PERIOD: Duration = Duration::from_millis(500);
/// Time for which instances are added and removed.
const LASTING: Duration = Duration::from_secs(60);

/// Starts a pod that echoes through tunnels, and sends events until the client disconnects.
async fn streaming() -> App {
    App::raw(|mut connection| async move {
        while let Some(request) = connection.request().await {
            if request.header("upgrade").is_some() {
                let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
                connection.write(head).await;
                loop {
                    let bytes = connection.read().await;
                    if bytes.is_empty() {
                        return;
                    }
                    connection.write(bytes).await;
                }
            }
            if request.target() == "/events" {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
                connection.write(head).await;
                while connection.try_write(chunk("event\n")).await.is_ok() {
                    tokio::time::sleep(PERIOD).await;
                }
                return;
            }
            connection.write(ok("queue")).await;
        }
    })
    .await
}

/// Sends messages through a tunnel and awaits their echoes until stopped; returns whether all arrived.
async fn tunnel(mut client: Client, beats: Arc<AtomicUsize>, stop: watch::Receiver<bool>) -> bool {
    while !*stop.borrow() {
        if client.try_send("beat").await.is_err() || client.bytes(4).await != b"beat" {
            return false;
        }
        beats.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(PERIOD).await;
    }
    true
}

/// Awaits events until stopped; returns whether all arrived.
async fn events(mut client: Client, beats: Arc<AtomicUsize>, stop: watch::Receiver<bool>) -> bool {
    let event = chunk("event\n");
    while !*stop.borrow() {
        if client.bytes(event.len()).await != event {
            return false;
        }
        beats.fetch_add(1, Ordering::Relaxed);
    }
    true
}

#[tokio::test]
async fn no_stream_is_cut_by_changing_instances_or_sigterm() {
    let stays = [streaming().await, streaming().await];
    let mut revision = Revision::new("f-00001");
    revision.concurrency = 1_000;
    revision.pods = stays.iter().map(at).collect();
    let mut activator = activator()
        .revision(&revision)
        .arguments(&["--quiet", "1"])
        .start()
        .await;
    activator.has_instances(2).await;
    let (stop, stopped) = watch::channel(false);
    let beats = Arc::<AtomicUsize>::default();
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        let mut client = activator.connect().await;
        let upgrade = "\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
        client
            .send(get("f-00001", "/").replace("\r\n\r\n", upgrade))
            .await;
        assert_eq!(client.head().await.status(), 101);
        streams.spawn(tunnel(client, Arc::clone(&beats), stopped.clone()));
        let mut client = activator.connect().await;
        client.send(get("f-00001", "/events")).await;
        assert_eq!(client.head().await.status(), 200);
        streams.spawn(events(client, Arc::clone(&beats), stopped.clone()));
    }
    let go_on = async |rounds: usize| {
        let from = beats.load(Ordering::Relaxed);
        let wanted = from + rounds * 2 * STREAMS;
        eventually("streams continue", || {
            beats.load(Ordering::Relaxed) >= wanted
        })
        .await;
    };
    let begin = Instant::now();
    let mut comes = Vec::new();
    while begin.elapsed() < LASTING {
        // A pod is added; one of those with streams leaves the slice, as a terminating pod does, and keeps its streams.
        comes.push(streaming().await);
        revision.pods.push(at(comes.last().unwrap()));
        activator.set_revision(&revision);
        activator.has_instances(3).await;
        go_on(1).await;
        let leaves = revision.pods.remove(0);
        activator.set_revision(&revision);
        activator.has_instances(2).await;
        go_on(1).await;
        // The pod returns and replaces the added one.
        revision.pods.pop();
        revision.pods.push(leaves);
        activator.set_revision(&revision);
        activator.has_instances(2).await;
        comes.clear();
        go_on(1).await;
    }
    activator.terminate();
    go_on(3).await;
    stop.send(true).unwrap();
    let ended = streams.join_all().await;
    assert!(ended.iter().all(|is_whole| *is_whole));
    assert_eq!(activator.exit_code(PATIENCE).await, Some(0));
}
