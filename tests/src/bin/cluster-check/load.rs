//! An open loop of requests through the gateway, each on a connection of its own, so that every one takes the way that is then
//! said.

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

/// Requests a second.
pub(crate) const RATE: u32 = 50;
/// A request of model-server: it takes as long as the function's `MODEL_FIXED_US` says.
const BODY: &str = r#"{"input": 1, "output": 1}"#;
/// A request that has no answer by then has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where requests go.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) gateway: SocketAddr,
    pub(crate) host: String,
}

/// What became of a request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) begun: Instant,
    pub(crate) took: Duration,
    /// The body, or why there is none.
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
            .context("half an answer")?;
        let body = String::from_utf8_lossy(&message.body).into_owned();
        if message.status() != 200 {
            bail!("{}: {}", message.start, body.trim());
        }
        Ok(body)
    }

    /// Begins to send [`RATE`] requests a second.
    pub(crate) fn load(&self) -> Load {
        let is_over = Arc::new(AtomicBool::new(false));
        let (target, over) = (self.clone(), Arc::clone(&is_over));
        let task = tokio::spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_secs(1) / RATE);
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
    /// Ends it, and waits for what is under way.
    pub(crate) async fn stop(self) -> Outcome {
        self.is_over.store(true, Ordering::Relaxed);
        Outcome(self.task.await.unwrap_or_default())
    }
}

impl Outcome {
    /// Requests that failed.
    pub(crate) fn failed(&self) -> impl Iterator<Item = &Answer> {
        self.0.iter().filter(|answer| answer.result.is_err())
    }

    /// Requests that failed of those that began after a time.
    pub(crate) fn failed_after(&self, time: Instant) -> usize {
        self.failed().filter(|answer| answer.begun > time).count()
    }

    /// What the first that failed said.
    pub(crate) fn first_failure(&self) -> Option<&str> {
        let first = self.failed().next()?;
        first.result.as_ref().err().map(String::as_str)
    }
}
