//! Access to the cluster through kubectl.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;

/// Interval between polls of a condition.
const PAUSE: Duration = Duration::from_millis(200);

/// Runs kubectl and returns its output.
pub(crate) fn run(arguments: &[&str]) -> anyhow::Result<String> {
    finish(arguments, output(arguments, None)?)
}

/// Runs kubectl with this text as its input and returns its output.
pub(crate) fn run_with(arguments: &[&str], input: &str) -> anyhow::Result<String> {
    finish(arguments, output(arguments, Some(input))?)
}

/// Returns an object or a list; `None` if it does not exist.
pub(crate) fn get(arguments: &[&str]) -> anyhow::Result<Option<Value>> {
    let all = [&["get", "-o", "json", "--ignore-not-found"], arguments].concat();
    let text = run(&all)?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    Ok(Some(
        serde_json::from_str(&text).context("unexpected output of kubectl")?,
    ))
}

/// Returns the items of a list.
pub(crate) fn list(arguments: &[&str]) -> anyhow::Result<Vec<Value>> {
    let all = [&["get", "-o", "json"], arguments].concat();
    let list: Value = serde_json::from_str(&run(&all)?).context("unexpected output of kubectl")?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// Polls until a condition holds; returns the time taken.
pub(crate) async fn until(
    what: &str,
    limit: Duration,
    mut holds: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    loop {
        let answer = holds();
        if matches!(answer, Ok(true)) {
            return Ok(begin.elapsed());
        }
        if begin.elapsed() > limit {
            answer?;
            bail!("not within {limit:?}: {what}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn output(arguments: &[&str], input: Option<&str>) -> anyhow::Result<Output> {
    let mut child = Command::new("kubectl")
        .args(arguments)
        .stdin(if input.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("kubectl cannot be started")?;
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(input.as_bytes())?;
    }
    Ok(child.wait_with_output()?)
}

fn finish(arguments: &[&str], output: Output) -> anyhow::Result<String> {
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("kubectl {}: {}", arguments.join(" "), error.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
