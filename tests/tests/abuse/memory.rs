use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tests::client::Client;
use tests::eventually;

use crate::Watched;

const CONNECTIONS: usize = 8_000;

/// Raises the limit of open files of this process, and of those it starts, to the hard limit.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let enough = limit
        .maximum
        .is_none_or(|maximum| maximum >= CONNECTIONS as u64 + 1_000);
    assert!(
        enough,
        "8,000 connections need a hard limit of 9,000 open files (ulimit -Hn)"
    );
}

async fn connections(watched: &Watched, bytes: &str) -> Vec<Client> {
    let mut clients = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let mut client = watched.proxy.connect().await;
        client.send(bytes).await;
        clients.push(client);
    }
    eventually("all are accepted", || watched.proxy.files() >= CONNECTIONS).await;
    clients
}

#[tokio::test]
async fn eight_thousand_idle_connections_are_cheap_and_leave_nothing() {
    raise_file_limit();
    for watched in Watched::each(10).await {
        for (bytes, each_max) in [
            ("", 8 << 10),
            ("GET / HTTP/1.1\r\nHost: t.default.svc.x\r\nX: ", 40 << 10),
            ("GET / HTTP/1.1\r\nHost: t.default.svc.x\r\n\r\n", 40 << 10),
        ] {
            let clients = connections(&watched, bytes).await;
            let grown = watched
                .proxy
                .resident_bytes()
                .saturating_sub(watched.before);
            assert!(
                grown / CONNECTIONS <= each_max,
                "{bytes:?}: {} each",
                grown / CONNECTIONS
            );
            // Other clients are served meanwhile.
            let begin = Instant::now();
            while watched.proxy.connect().await.get("/").await.status() != 200 {
                assert!(
                    begin.elapsed() < Duration::from_secs(20),
                    "no request is served"
                );
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            drop(clients);
            eventually("all are closed", || watched.proxy.files() < 100).await;
        }
        watched.end_well().await;
    }
}

#[tokio::test]
async fn memory_of_large_heads_is_released() {
    for watched in Watched::each(1).await {
        let line = format!("X-Forwarded-For: {}\r\n", ",".repeat(1_000_000));
        let mut clients = Vec::new();
        for _ in 0..60 {
            let mut client = watched.proxy.connect().await;
            client
                .send(format!(
                    "GET / HTTP/1.1\r\nHost: t.default.svc.x\r\n{line}\r\n"
                ))
                .await;
            clients.push(client);
        }
        for client in &mut clients {
            // Most requests find the queue full.
            let status = client.response().await.status();
            assert!([200, 502, 503].contains(&status), "{status}");
        }
        drop(clients);
        watched.end_well().await;
    }
}

#[tokio::test]
async fn callers_of_the_other_ports_leave_nothing() {
    let ports = [[8022, 9090], [9475, 9476]];
    for (watched, ports) in Watched::each(0).await.into_iter().zip(ports) {
        let mut clients = Vec::new();
        for n in 0..1_000 {
            let address = SocketAddr::new(watched.proxy.address().ip(), ports[n % 2]);
            let mut client = Client::connect(address).await;
            client
                .send("GET /wait-for-drain HTTP/1.1\r\nHost: t.default.svc.x\r\n\r\n")
                .await;
            clients.push(client);
        }
        for client in &mut clients {
            let status = client.response().await.status();
            assert!([200, 404].contains(&status), "{status}");
        }
        let mut junk =
            Client::connect(SocketAddr::new(watched.proxy.address().ip(), ports[1])).await;
        junk.send([0xFF; 4096]).await;
        junk.rest().await;
        drop(clients);
        watched.end_well().await;
    }
}
