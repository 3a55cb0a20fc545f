//! `weir demo --observe`: runs functions on real programs under a real Prometheus, and sends every query of the dashboards and
//! rules.
//!
//! Some functions miss their objectives for known causes; these are compared with the first cause in "Why missed" of
//! `weir-function`.

mod cluster;
mod function;
mod leases;
pub(super) mod live;
mod pages;
mod prometheus;
mod queries;
mod report;
mod screenshots;
mod traces;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::output::print;
use cluster::Cluster;
pub(crate) use prometheus::PrometheusError;
use prometheus::{Prometheus, Window};
use report::Report;
use traces::Receiver;
pub(crate) use traces::TracesError;

/// Default duration of the load before queries are sent, in s: a rate needs two scrapes, and each cause a few requests.
const SECONDS: f64 = 45.0;
/// Longest time until an expected alert fires.
const ALERT_MAX: Duration = Duration::from_secs(90);

/// Options of `--observe` and `--live`.
#[derive(Debug, Args)]
pub(crate) struct ObserveOptions {
    /// Run functions under a real Prometheus (the program `prometheus` of Debian's package), and send every query of Weir's
    /// dashboards and rules; exit code 1 if one fails or is empty.
    #[arg(long)]
    observe: bool,
    /// Run these functions without Prometheus, and show their state on a page in the browser, until interrupted or for --seconds.
    #[arg(long, conflicts_with = "observe")]
    live: bool,
    /// With --observe: keep Prometheus running for this many seconds, and print its address.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    hold: Option<u64>,
    /// With --observe: screenshots of these pages, 375 and 1,440 pixels wide, by the program `chromium` of Debian's package.
    #[arg(long, value_name = "DIR")]
    screenshots: Option<PathBuf>,
    /// With --observe: write the spans of all requests into this file, as OTLP JSON lines, and draw the worst request.
    #[arg(long, value_name = "FILE")]
    traces: Option<PathBuf>,
    /// With --observe: break a part of Weir, and wait until its alert fires. Alerts that hold for minutes hold for 20 s here.
    #[arg(long, value_enum, value_name = "PART")]
    r#break: Option<BreakTarget>,
}

/// Part of Weir to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BreakTarget {
    /// The node's agent is killed.
    Agent,
    /// The MPS daemons of the node's slots are killed, and their control program is removed.
    Mps,
    /// A function is sent far more requests than its queue holds.
    Queue,
}

impl BreakTarget {
    /// Returns the alert expected to fire.
    const fn alert(self) -> &'static str {
        match self {
            Self::Agent => "WeirAgentDown",
            Self::Mps => "WeirMpsDown",
            Self::Queue => "WeirQueueFull",
        }
    }
}

impl ObserveOptions {
    pub(crate) const fn is_set(&self) -> bool {
        self.observe
    }

    pub(crate) const fn is_live(&self) -> bool {
        self.live
    }

    /// Returns the given options that require `--observe`.
    pub(crate) fn given(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            (self.hold.is_some(), "--hold"),
            (self.r#break.is_some(), "--break"),
            (self.screenshots.is_some(), "--screenshots"),
            (self.traces.is_some(), "--traces"),
        ];
        let given = given.into_iter().filter(|(is_given, _)| *is_given);
        given.map(|(_, name)| name)
    }
}

/// Runs the demo. Returns exit code 1 if a query failed or was empty, a cause was not named, or the alert of the broken part did
/// not fire.
pub(super) async fn run(
    options: &ObserveOptions,
    html: Option<&Path>,
    bind: std::net::IpAddr,
    seconds: Option<f64>,
    is_json: bool,
) -> anyhow::Result<ExitCode> {
    let begin = Instant::now();
    let version = prometheus::installed()?;
    if let Some(folder) = html {
        pages::check("--html", folder)?;
    }
    if let Some(folder) = &options.screenshots {
        screenshots::check()?;
        pages::check("--screenshots", folder)?;
    }
    if let Some(file) = &options.traces {
        ensure!(!file.is_dir(), "--traces {}: is a folder", file.display());
        pages::check_parent("--traces", file)?;
    }
    let receiver = match &options.traces {
        Some(file) => Some(Receiver::start(file).await?),
        None => None,
    };
    let tracing = receiver.as_ref().map(Receiver::environment);
    let mut cluster = Cluster::start(bind, tracing.as_ref()).await?;
    let mut prometheus = Prometheus::start(version, &cluster.targets()).await?;
    prometheus.scrapes_all(cluster.targets().len()).await?;
    let scraped = Instant::now();
    let end = scraped + Duration::from_secs_f64(seconds.unwrap_or(SECONDS));
    let calls = function::FUNCTIONS.map(|function| {
        tokio::spawn(function::call(
            function,
            cluster.address(),
            end,
            function.burst,
        ))
    });
    // Two scrapes of the initial counts before the causes begin.
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.warm();
    cluster.break_application()?;
    let mut answered = Vec::new();
    for call in calls {
        let (own, lost) = call.await?;
        ensure!(lost == 0, "{lost} requests had no answer at all");
        answered.push(own);
        cluster.check()?;
    }
    let requests: u64 = answered.iter().sum();
    // Cross-check: each answered request was either in time or missed for one reason.
    for (function, answered) in function::FUNCTIONS.iter().zip(answered) {
        let judged = cluster.judged(function.name, answered).await?;
        ensure!(
            judged == answered,
            "{}: {answered} requests were answered, and {judged} judged",
            function.name
        );
    }
    let worst = match &receiver {
        Some(receiver) => {
            let worst = receiver.worst(usize::try_from(requests)?).await;
            Some(worst.map_err(|error| TracesError(format!("{error:#}")))?)
        }
        None => None,
    };
    // Wait for a scrape with the last counts.
    tokio::time::sleep(Duration::from_secs(2)).await;
    prometheus.check()?;
    let sent = queries::send(&mut prometheus).await?;
    let causes = queries::causes(&mut prometheus).await?;
    let targets = prometheus.targets().await?;
    let fired = match options.r#break {
        Some(broken) => fires(broken, &cluster, &mut prometheus).await?,
        None => true,
    };
    let is_drawn = html.is_some() || options.screenshots.is_some();
    if is_drawn {
        let window = Window {
            seconds: scraped.elapsed().as_secs_f64(),
            step: 1.0,
        };
        let temporary = TempDir::new().context("cannot make a folder for pages")?;
        let folder = html.unwrap_or_else(|| temporary.path());
        pages::write(&mut prometheus, folder, window).await?;
        if let Some(pictures) = &options.screenshots {
            screenshots::take(folder, pictures).await?;
        }
    }
    let firing = prometheus.firing().await?;
    let mut report = Report::new(
        sent,
        targets,
        causes,
        firing,
        prometheus.version.clone(),
        begin.elapsed().as_secs_f64(),
    );
    report.worst = worst;
    let text = if is_json {
        serde_json::to_string(&report)?
    } else {
        report.text()
    };
    print(&text)?;
    if let Some(hold) = options.hold {
        print(&format!(
            "\nPrometheus: http://{}/ for {hold} s",
            prometheus.address()
        ))?;
        tokio::time::sleep(Duration::from_secs(hold)).await;
    }
    Ok(if report.is_good() && fired {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Breaks a part and waits for its alert. Returns whether it fired.
async fn fires(
    broken: BreakTarget,
    cluster: &Cluster,
    prometheus: &mut Prometheus,
) -> anyhow::Result<bool> {
    let end = Instant::now() + ALERT_MAX;
    match broken {
        BreakTarget::Agent => cluster.kill_agent()?,
        BreakTarget::Mps => cluster.break_mps().await?,
        BreakTarget::Queue => {}
    }
    let flooded = function::FUNCTIONS
        .into_iter()
        .find(|own| own.name == function::SHOWN);
    let flood = flooded
        .filter(|_| broken == BreakTarget::Queue)
        .map(|own| tokio::spawn(function::call(own, cluster.address(), end, 20 * own.depth)));
    while Instant::now() < end {
        if prometheus
            .firing()
            .await?
            .iter()
            .any(|name| name == broken.alert())
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    if let Some(flood) = flood {
        flood.abort();
    }
    let firing = prometheus.firing().await?;
    Ok(firing.iter().any(|name| name == broken.alert()))
}
