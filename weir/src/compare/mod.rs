//! `weir compare`: measures whether Weir would help a server.
//!
//! Sends the same open-loop load to the server through the queue-proxy with Knative's settings and with Weir's, in alternating
//! rounds. Latencies count from the due time of a request.

mod client;
mod load;
mod page;
mod rounds;
mod text;
mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use clap::Args;
use http::{HeaderMap, Method, StatusCode};
use serde::Serialize;

use self::client::{Answer, Outcome};
use self::load::{Load, Template};
use self::rounds::Trial;
use self::verdict::{Circumstances, Expectation, Round, Verdict};
use crate::demo::percentile;
use crate::output::{Destination, print};
use crate::proxy::{Late, Target, raise_open_files, slo, target};
use crate::runtime::until_interrupted;
use crate::terminal::{Color, Painter, width};

/// Latency objective of requests without one of their own.
const SLO_DEFAULT: Duration = Duration::from_millis(200);
/// Largest request body, in bytes.
const BODY_MAX: u64 = 16 << 20;

/// Arguments of `weir compare`.
#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Would Weir help this server?\n  \
                  weir compare --target http://localhost:8080/infer --rate 40 --slo 200ms\n\
                  The rate should be near what the server can do: at half of that requests hardly wait, and any order will do."
)]
pub(crate) struct Arguments {
    /// The server and the requested path, such as localhost:8080 or http://localhost:8080/infer.
    #[arg(long, value_name = "URL", value_parser = target)]
    target: Target,
    /// Requests a second, as a Poisson process.
    #[arg(long, value_name = "R", value_parser = rate, required_unless_present_any = ["trace", "requests"], conflicts_with_all = ["trace", "requests"])]
    rate: Option<f64>,
    /// Arrival times from a trace in one of the formats of weir simulate, from its begin.
    #[arg(long, value_name = "FILE", conflicts_with = "requests")]
    trace: Option<PathBuf>,
    /// Requests and their times: JSON lines with at_s and optionally method, path, headers, body, slo_ms.
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// The latency objective, such as 200ms or 1.5s [default: 200ms].
    #[arg(long, value_name = "TIME", value_parser = slo)]
    slo: Option<Duration>,
    /// Seconds of load with each setting, 2 to 3600; a longer file is cut.
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    seconds: f64,
    /// Number of rounds, 3 to 50.
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u8).range(3..=50))]
    rounds: u8,
    /// Requests at the server at once, 1 to 1000, as containerConcurrency: what it can serve in parallel.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    concurrency: u32,
    /// Waiting requests, at most, 1 to 10000 [default: 10 for each at the server].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    queue_depth: Option<u32>,
    /// With Weir, the treatment of requests that can no longer be in time.
    #[arg(long, value_enum, default_value = "shed", value_name = "WHAT")]
    late: Late,
    /// Method of the requests [default: GET, or POST with --body].
    #[arg(long, value_name = "METHOD")]
    method: Option<Method>,
    /// A header of the requests, such as "X-Model: resnet"; may be given several times.
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// Body of the requests: a text, or @FILE.
    #[arg(long, value_name = "TEXT|@FILE")]
    body: Option<String>,
    /// Seed of the random arrivals [default: 1].
    #[arg(long, value_name = "N", conflicts_with = "requests", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seed: Option<u64>,
    /// Exit with code 1 unless Weir is `better`, is `not-worse`, or has at least this percent in time, such as 90, at the
    /// lower end of its interval.
    #[arg(long, value_name = "WHAT", value_parser = expectation)]
    expect: Option<Expectation>,
    /// Write a page with plots.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON object; docs/compare.md has its keys.
    #[arg(long)]
    json: bool,
    /// When to color the result.
    #[arg(
        long,
        value_enum,
        default_value = "auto",
        value_name = "WHEN",
        conflicts_with = "json"
    )]
    color: Color,
}

/// Complete result, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    verdict: &'a Verdict,
    target: &'a str,
    slo_ms: f64,
    seconds: f64,
    concurrency: u32,
    late: &'static str,
    rounds: &'a [Round],
    client: Client,
    /// Whether the verdict meets `--expect`; `None` without that option.
    #[serde(skip_serializing_if = "Option::is_none")]
    as_expected: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Client {
    sent_late_p99_ms: f64,
}

/// Runs `weir compare`. Returns exit code 1 if the verdict does not meet `--expect`.
///
/// # Errors
/// Every error is a usage error: exit code 2.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let load = arguments.load()?;
    let html = arguments.html.as_deref().map(Destination::new);
    let html = html.transpose()?;
    until_interrupted(compare(arguments, load, html))
}

async fn compare(
    arguments: Arguments,
    load: Load,
    html: Option<Destination>,
) -> anyhow::Result<ExitCode> {
    let first = rounds::first_answer(&arguments, &load).await?;
    raise_open_files();
    let refused = match first {
        Outcome::Failed(status) => Some(status),
        Outcome::Served(status) if status.is_client_error() => Some(status),
        Outcome::Refused | Outcome::Shed => Some(StatusCode::SERVICE_UNAVAILABLE),
        Outcome::Served(_) | Outcome::Lost => None,
    };
    if let Some(status) = refused {
        bail!(
            "--target {}: the server answers the first request with {status}: one that it can answer is needed (--method, --header, --body, the \
             path)",
            arguments.target.authority
        );
    }
    let progress = text::Progress::new(&load, !arguments.json);
    let trial = rounds::run(&arguments, &load, |name, round| {
        progress.advance(name, round)
    })
    .await?;
    progress.finish();
    let circumstances = circumstances(&arguments, &trial);
    let verdict = verdict::verdict(&trial.rounds, circumstances)?;
    let as_expected = arguments.expect.map(|expected| verdict.meets(expected));
    if let Some(html) = html {
        html.write(&page::html(&arguments, &load, &trial, &verdict))?;
    }
    let text = if arguments.json {
        serde_json::to_string(&Report {
            verdict: &verdict,
            target: &arguments.target.authority,
            slo_ms: arguments.slo().as_secs_f64() * 1e3,
            seconds: load.length.as_secs_f64() * trial.rounds.len() as f64,
            concurrency: arguments.concurrency,
            late: match arguments.late {
                Late::Shed => "shed",
                Late::Serve => "serve",
            },
            rounds: &trial.rounds,
            client: Client {
                sent_late_p99_ms: circumstances.sent_late.as_secs_f64() * 1e3,
            },
            as_expected,
        })?
    } else {
        let painter = Painter::stdout(arguments.color);
        text::of(&arguments, &load, &trial, &verdict, width(), painter)
    };
    print(&text)?;
    Ok(ExitCode::from(u8::from(as_expected == Some(false))))
}

/// Returns the sorted latencies of all requests which the server answered, and the number of all requests sent.
fn latencies(trial: &Trial, settings: usize) -> (Vec<Duration>, usize) {
    let all = || trial.answers.iter().flat_map(|round| &round[settings]);
    let served = all().filter(|answer| matches!(answer.outcome, Outcome::Served(_)));
    let mut latencies: Vec<Duration> = served.map(|answer| answer.latency).collect();
    latencies.sort_unstable();
    (latencies, all().count())
}

fn circumstances(arguments: &Arguments, trial: &Trial) -> Circumstances {
    let all = || trial.answers.iter().flatten().flatten();
    let mut late: Vec<Duration> = all().map(|answer: &Answer| answer.sent_late).collect();
    late.sort_unstable();
    let served = |answer: &&Answer| matches!(answer.outcome, Outcome::Served(_));
    let refused = |answer: &&Answer| matches!(answer.outcome, Outcome::Served(status) if status.is_client_error());
    let (answers, errors) = (all().filter(served).count(), all().filter(refused).count());
    Circumstances {
        slo: arguments.slo(),
        concurrency: arguments.concurrency,
        direct: trial.direct,
        sent_late: percentile(&late, 99, late.len()).unwrap_or_default(),
        client_errors: verdict::part(errors as u64, answers as u64),
    }
}

impl Arguments {
    fn slo(&self) -> Duration {
        self.slo.unwrap_or(SLO_DEFAULT)
    }

    fn load(&self) -> anyhow::Result<Load> {
        let template = self.template()?;
        let (seconds, rounds) = (self.seconds, usize::from(self.rounds));
        let seed = self.seed.unwrap_or(1);
        if let Some(path) = &self.requests {
            return load::of_requests(path, seconds, rounds, &template);
        }
        let template = Arc::new(template);
        if let Some(path) = &self.trace {
            return load::of_trace(path, seconds, rounds, seed, &template);
        }
        let rate = self
            .rate
            .context("--rate, --trace or --requests is needed")?;
        load::at_rate(rate, seconds, rounds, seed, &template)
    }

    fn template(&self) -> anyhow::Result<Template> {
        let mut headers = HeaderMap::new();
        for header in &self.header {
            let (name, value) = header
                .split_once(':')
                .with_context(|| format!("--header {header:?}: NAME: VALUE is needed"))?;
            let (name, value) =
                load::header(name, value).with_context(|| format!("--header {header:?}"))?;
            headers.append(name, value);
        }
        let body = match self
            .body
            .as_deref()
            .map(|body| body.strip_prefix('@').ok_or(body))
        {
            None => Bytes::new(),
            Some(Err(text)) => Bytes::copy_from_slice(text.as_bytes()),
            Some(Ok(path)) => {
                let size = std::fs::metadata(path)
                    .with_context(|| format!("--body @{path}"))?
                    .len();
                ensure!(
                    size <= BODY_MAX,
                    "--body @{path}: at most {BODY_MAX} bytes are sent"
                );
                std::fs::read(path)
                    .with_context(|| format!("--body @{path}"))?
                    .into()
            }
        };
        let method = match &self.method {
            Some(method) => method.clone(),
            None if self.body.is_some() => Method::POST,
            None => Method::GET,
        };
        Ok(Template {
            method,
            path: self.target.path.parse()?,
            headers,
            body,
        })
    }
}

fn number(text: &str, least: f64, most: f64) -> Option<f64> {
    let number: Option<f64> = text.parse().ok();
    number.filter(|number| (least..=most).contains(number))
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, 0.1, 20_000.0).ok_or_else(|| "a number from 0.1 to 20000 is needed".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 2.0, 3_600.0).ok_or_else(|| "a number from 2 to 3600 is needed".to_owned())
}

fn expectation(text: &str) -> Result<Expectation, String> {
    match text {
        "better" => Ok(Expectation::Better),
        "not-worse" => Ok(Expectation::NotWorse),
        text => number(text.trim_end_matches('%').trim_end(), 0.0, 100.0)
            .map(|percent| Expectation::AtLeast(percent / 100.0))
            .ok_or_else(|| "better, not-worse, or a number from 0 to 100 is needed".to_owned()),
    }
}
