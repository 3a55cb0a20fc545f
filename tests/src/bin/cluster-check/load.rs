//! An open loop of requests through the gateway, each on a connection of its own, so that each follows the routing at its time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tests::message::{Kind, read_body, read_head};
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};

/// Request rate, per second.
pub(crate) const RATE: u32 = 50;
/// A request to model-server, which takes as long as the function's `MODEL_FIXED_US`.
const BODY: &str = r#"{"input": 1, "output": 1}"#;
/// Time after which a request without an answer has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Destination of requests: the gateway, and the function's host name.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) gateway: SocketAddr,
    pub(crate) host: String,
}

/// Result of a request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) begun: Instant,
    pub(crate) took: Duration,
    /// The body, or the reason of the failure.
    pub(crate) result: Result<String, String>,
}

/// A load that runs until it is stopped.
#[derive(Debug)]
pub(crate) struct Load {
    is_over: Arc<AtomicBool>,
    task: JoinHandle<Vec<Answer>>,
}

/// All answers of a load.
#[derive(Debug, Default)]
pub(crate) struct Outcome(pub(crate) Vec<Answer>);

impl Target {
    /// Sends one request and reads its answer.
    pub(crate) async fn request(&self) -> Answer {
        let begun = Instant::now();
        let result = timeout(PATIENCE, self.exchange()).await;
        let result = result
            .unwrap_or_else(|_| bail_out())
            .map_err(|error| format!("{error:#}"));
        Answer {
            begun,
            took: begun.elapsed(),
            result,
        }
    }

    async fn exchange(&self) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(self.gateway)
            .await
            .context("no connection")?;
        let head = format!(
            "POST /infer HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{BODY}",
            self.host,
            BODY.len()
        );
        stream
            .write_all(head.as_bytes())
            .await
            .context("not sent")?;
        let mut reader = BufReader::new(stream);
        let head = read_head(&mut reader).await.context("no answer")?;
        let mut message = head.context("the connection was closed without an answer")?;
        read_body(&mut reader, &mut message, Kind::Response)
            .await
            .context("incomplete answer")?;
        let body = String::from_utf8_lossy(&message.body).into_owned();
        if message.status() != 200 {
            bail!("{}: {}", message.start, body.trim());
        }
        Ok(body)
    }

    /// Starts to send [`RATE`] requests a second.
    pub(crate) fn load(&self) -> Load {
        self.load_of(RATE)
    }

    /// Starts to send this many requests a second, at least one.
    pub(crate) fn load_of(&self, rate: u32) -> Load {
        let is_over = Arc::new(AtomicBool::new(false));
        let (target, over) = (self.clone(), Arc::clone(&is_over));
        let task = tokio::spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_secs(1) / rate);
            let mut running = JoinSet::new();
            let mut answers = Vec::new();
            while !over.load(Ordering::Relaxed) {
                tick.tick().await;
                let target = target.clone();
                running.spawn(async move { target.request().await });
                while let Some(Ok(answer)) = running.try_join_next() {
                    answers.push(answer);
                }
            }
            answers.extend(running.join_all().await);
            answers
        });
        Load { is_over, task }
    }
}

fn bail_out() -> anyhow::Result<String> {
    bail!("no answer within {PATIENCE:?}")
}

impl Load {
    /// Stops the load and waits for requests in flight.
    pub(crate) async fn stop(self) -> Outcome {
        self.is_over.store(true, Ordering::Relaxed);
        Outcome(self.task.await.unwrap_or_default())
    }
}

impl Outcome {
    /// Returns the answers of failed requests.
    pub(crate) fn failed(&self) -> impl Iterator<Item = &Answer> {
        self.0.iter().filter(|answer| answer.result.is_err())
    }

    /// Returns the number of failed requests that began after a time.
    pub(crate) fn failed_after(&self, time: Instant) -> usize {
        self.failed().filter(|answer| answer.begun > time).count()
    }

    /// Returns the error of the first failed request.
    pub(crate) fn first_failure(&self) -> Option<&str> {
        let first = self.failed().next()?;
        first.result.as_ref().err().map(String::as_str)
    }
}
