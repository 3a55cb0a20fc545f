//! Orders to the agent, and the state of a pod's process.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use softgpu_wire::clock;
use tokio::time::Instant;

use super::super::children::{get, post};

/// Longest time until a process has host memory, or has copied ahead.
const SEALED_MAX: Duration = Duration::from_secs(60);
/// Refusal of an eviction during another move, and the longest time for which it is ordered again.
const DRAINING: &str = "draining";
const DRAINING_MAX: Duration = Duration::from_secs(10);

/// A move that was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moved {
    /// Time of the order and of its answer, in ns of CLOCK_MONOTONIC.
    pub(super) span: (u64, u64),
    /// Size of the memory that left or returned, in bytes, scaled.
    pub(super) bytes: u64,
    /// Part of it that was copied, in bytes, scaled.
    pub(super) copied_bytes: u64,
}

/// Orders a move, and waits for its end. Returns the reason of a refusal otherwise.
///
/// # Errors
/// Fails when the agent does not answer, or not as it should.
pub(super) async fn order(
    control: SocketAddr,
    pod: &str,
    verb: &str,
) -> anyhow::Result<Result<Moved, String>> {
    let path = format!("/v1/instances/{pod}:{verb}?wait=true");
    let begin = clock::now().0;
    let (status, text) = post(control, &path, String::new())
        .await
        .context("the agent does not answer")?;
    let end = clock::now().0;
    let answer: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    if status == 409 {
        return Ok(Err(answer["reason"]
            .as_str()
            .unwrap_or_default()
            .to_owned()));
    }
    let number = |key: &str| answer[key].as_u64();
    let (Some(bytes), Some(copied_bytes), 200) = (number("bytes"), number("copied_bytes"), status)
    else {
        bail!("the agent answers an order with {status}: {text}");
    };
    Ok(Ok(Moved {
        span: (begin, end),
        bytes,
        copied_bytes,
    }))
}

/// Orders an eviction as [`order`] does, again while a restore before it is about to end: requests are answered before that.
pub(super) async fn evict(control: SocketAddr, pod: &str) -> anyhow::Result<Result<Moved, String>> {
    let begin = Instant::now();
    loop {
        match order(control, pod, "evict").await? {
            Err(reason) if reason == DRAINING && begin.elapsed() < DRAINING_MAX => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            other => return Ok(other),
        }
    }
}

/// Orders an eviction which must succeed.
pub(super) async fn evicted(control: SocketAddr, pod: &str) -> anyhow::Result<Moved> {
    match evict(control, pod).await? {
        Ok(moved) => Ok(moved),
        Err(reason) => bail!("{pod} cannot evict: {reason}"),
    }
}

/// Returns what the agent reports of the pod's one process.
pub(super) async fn process(control: SocketAddr, pod: &str) -> anyhow::Result<Value> {
    let (_, text) = get(control, &format!("/v1/instances/{pod}"), &[])
        .await
        .context("the agent does not answer")?;
    let pod: Value = serde_json::from_str(&text)?;
    Ok(pod["processes"][0].clone())
}

/// Waits until the process of a pod has copied ahead.
pub(super) async fn is_sealed(control: SocketAddr, pod: &str) -> anyhow::Result<()> {
    until(control, pod, "is sealed", |own| own["is_sealed"] == true).await
}

async fn until(
    control: SocketAddr,
    pod: &str,
    what: &str,
    holds: impl Fn(&Value) -> bool,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        let own = process(control, pod).await?;
        if own["pid"].is_number() && holds(&own) {
            return Ok(());
        }
        if begin.elapsed() > SEALED_MAX {
            bail!("no process of {pod} {what} after {SEALED_MAX:?}: {own}");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
