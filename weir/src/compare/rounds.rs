//! Starts a queue-proxy with each setting in front of the server and sends rounds of load through them alternately.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::HeaderValue;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::time::Instant;

use super::client::{Answer, Outcome, Sender};
use super::load::{Load, Planned};
use super::verdict::{Counts, Round, Server};
use super::{Arguments, SLO_DEFAULT};
use crate::demo::Program;
use crate::demo::spawn::Spawn;
use crate::proxy::Late;

/// Longest time until a started proxy listens.
const READY_MAX: Duration = Duration::from_secs(10);
/// Longest warm-up, in time of the first round's requests: uncounted, and the proxy learns service times from it.
const WARM_UP: Duration = Duration::from_secs(2);
/// Longest wait for the server's answer to the first request.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(30);

/// A queue-proxy in front of the server, killed when dropped.
#[derive(Debug)]
struct Proxy {
    name: &'static str,
    process: Child,
    requests: SocketAddr,
    metrics: SocketAddr,
    sender: Sender,
}

#[derive(Deserialize)]
struct Listening {
    requests: String,
    metrics: String,
}

/// Sums of the proxy's execution-time metric.
#[derive(Debug, Clone, Copy, Default)]
struct Executions {
    seconds: f64,
    count: f64,
}

/// Measurements of all rounds.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) rounds: Vec<Round>,
    /// Outcomes of the first round's requests sent to the server without a proxy.
    pub(super) direct: Counts,
    /// Answers of each round: with stock settings, with Weir's.
    pub(super) answers: Vec<[Vec<Answer>; 2]>,
}

/// Sends the first request and returns its outcome, so that an unreachable server is reported before any measurement.
pub(super) async fn first_answer(arguments: &Arguments, load: &Load) -> anyhow::Result<Outcome> {
    let target = &arguments.target;
    let sender = Sender::new(target.address, host(arguments)?, SLO_DEFAULT);
    let Some(request) = load.rounds.iter().flatten().next() else {
        bail!("the load has no requests");
    };
    let answer = tokio::time::timeout(FIRST_ANSWER_MAX, sender.ask(request)).await;
    answer
        .with_context(|| {
            format!(
                "--target {}: no answer to the first request within {FIRST_ANSWER_MAX:?}",
                target.authority
            )
        })?
        .with_context(|| format!("--target {}: the server does not answer", target.authority))
}

fn host(arguments: &Arguments) -> anyhow::Result<HeaderValue> {
    Ok(HeaderValue::from_str(&arguments.target.authority)?)
}

/// Runs all rounds. The settings alternate, and so does which of them is first, so that drift over time affects both equally.
/// Calls `answered` with the name of the settings and the round after each answer.
pub(super) async fn run(
    arguments: &Arguments,
    load: &Load,
    mut answered: impl FnMut(&'static str, usize),
) -> anyhow::Result<Trial> {
    let mut proxies = [
        Proxy::start(arguments, None).await?,
        Proxy::start(arguments, Some(arguments.slo())).await?,
    ];
    // Sent directly first: wakes the server and shows whether it needs a queue at all.
    let sender = Sender::new(arguments.target.address, host(arguments)?, arguments.slo());
    let direct = Counts::of(&sender.replay(&load.rounds[0], || {}).await);
    let warm_up: Vec<Planned> = load.rounds[0]
        .iter()
        .take_while(|own| own.at <= WARM_UP)
        .cloned()
        .collect();
    for proxy in &mut proxies {
        proxy.sender.replay(&warm_up, || {}).await;
        proxy.check()?;
    }
    let mut trial = Trial {
        direct,
        rounds: Vec::new(),
        answers: Vec::new(),
    };
    for (number, requests) in load.rounds.iter().enumerate() {
        let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
        let mut answers = [Vec::new(), Vec::new()];
        let mut server = Server::default();
        for at in order {
            let proxy = &mut proxies[at];
            let name = proxy.name;
            let before = proxy.executions().await?;
            let begin = Instant::now();
            answers[at] = proxy
                .sender
                .replay(requests, || answered(name, number))
                .await;
            let passed = begin.elapsed().max(load.length).as_secs_f64();
            proxy.check()?;
            if let (Some(before), Some(after)) = (before, proxy.executions().await?) {
                let seconds = after.seconds - before.seconds;
                let count = after.count - before.count;
                let at_once = f64::from(arguments.concurrency);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a count"
                )]
                let executions = count.max(0.0) as u64;
                server = Server {
                    executions,
                    execution_ms: (count > 0.0).then(|| seconds / count * 1e3),
                    busy: (seconds / passed / at_once).clamp(0.0, 1.0),
                };
            }
        }
        trial.rounds.push(Round {
            stock: Counts::of(&answers[0]),
            weir: Counts::of(&answers[1]),
            server,
        });
        trial.answers.push(answers);
    }
    Ok(trial)
}

impl Proxy {
    /// Starts a proxy with Weir's settings for an objective, or with Knative's if `slo` is `None`.
    async fn start(arguments: &Arguments, slo: Option<Duration>) -> anyhow::Result<Self> {
        let name = if slo.is_some() { "weir" } else { "stock" };
        let mut own = vec![
            "--target".to_owned(),
            arguments.target.address.to_string(),
            "--concurrency".to_owned(),
            arguments.concurrency.to_string(),
            "--listen".to_owned(),
            "127.0.0.1:0".to_owned(),
            "--metrics".to_owned(),
            "127.0.0.1:0".to_owned(),
            "--json".to_owned(),
        ];
        if let Some(depth) = arguments.queue_depth {
            own.extend(["--queue-depth".to_owned(), depth.to_string()]);
        }
        if let Some(slo) = slo {
            let late = match arguments.late {
                Late::Shed => "shed",
                Late::Serve => "serve",
            };
            own.extend(["--slo".to_owned(), format!("{}us", slo.as_micros())]);
            own.extend(["--late".to_owned(), late.to_owned()]);
        }
        let spawn = Spawn::new(Program::Proxy).stdout(Stdio::piped());
        let mut process = spawn.arguments(own.into_iter().map(Into::into)).spawn()?;
        let stdout = process
            .stdout
            .take()
            .context("the queue-proxy's standard output is not piped")?;
        let mut line = String::new();
        let mut stdout = BufReader::new(stdout);
        let read = tokio::time::timeout(READY_MAX, stdout.read_line(&mut line)).await;
        let is_read = read.is_ok_and(|read| read.is_ok_and(|bytes| bytes > 0));
        if !is_read {
            bail!("the queue-proxy does not listen after {READY_MAX:?}");
        }
        let listening: Listening = serde_json::from_str(&line).with_context(|| {
            format!(
                "unexpected output of the queue-proxy: {:?}",
                line.trim_end()
            )
        })?;
        let address = |url: &str| -> anyhow::Result<SocketAddr> {
            let rest = url
                .trim_start_matches("http://")
                .trim_end_matches("/metrics");
            rest.parse()
                .with_context(|| format!("{url}: invalid address"))
        };
        let requests = address(&listening.requests)?;
        Ok(Self {
            name,
            process,
            requests,
            metrics: address(&listening.metrics)?,
            sender: Sender::new(requests, host(arguments)?, arguments.slo()),
        })
    }

    /// Returns an error if the proxy has exited.
    fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.process.try_wait().context("cannot watch a child")? {
            bail!(
                "the queue-proxy at {} with settings {} has ended: {status}",
                self.requests,
                self.name
            );
        }
        Ok(())
    }

    /// Returns the proxy's sums of execution times; `None` with Knative's settings, which export none.
    async fn executions(&self) -> anyhow::Result<Option<Executions>> {
        if self.name == "stock" {
            return Ok(None);
        }
        let (_, page) = crate::demo::get(self.metrics, "/metrics", &[])
            .await
            .context("the queue-proxy's metrics do not answer")?;
        let sum = |name: &str| -> f64 {
            let lines = page.lines().filter(|line| {
                let rest = line.strip_prefix(name);
                rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            });
            lines
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        Ok(Some(Executions {
            seconds: sum("weir_execution_seconds_sum"),
            count: sum("weir_execution_seconds_count"),
        }))
    }
}
