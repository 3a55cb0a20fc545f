//! Debian's Prometheus on loopback, with a folder of its own: its targets, rules and queries.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use dashboards::catalogue::Program as Target;
use dashboards::rules::{alerts, alerts_file, records, records_yaml};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::fs::statvfs;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Child;
use tokio::time::Instant;

use super::super::Program;
use super::super::children::get;
use super::super::spawn::Spawn;

/// Program name, found through `PATH`.
const PROGRAM: &str = "prometheus";
/// `for` of alerts in this demo; minutes in a cluster.
const HOLD: &str = "20s";
/// Longest time until Prometheus is ready.
const READY_MAX: Duration = Duration::from_secs(20);
/// Largest part of Prometheus' log shown in an error, in bytes.
const LOG_TAIL_MAX: usize = 1_000;

/// A failure of Prometheus: exit code 1, since no option corrects it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct PrometheusError(String);

/// A running Prometheus. Dropping it kills the process and removes its folder.
#[derive(Debug)]
pub(super) struct Prometheus {
    child: Child,
    address: SocketAddr,
    folder: TempDir,
    pub(super) version: String,
}

/// A program for Prometheus to scrape, and its labels.
#[derive(Debug, Clone)]
pub(super) struct ScrapeTarget {
    pub(super) program: Target,
    pub(super) address: SocketAddr,
    pub(super) namespace: &'static str,
    pub(super) pod: String,
}

/// A series of a query's answer: its labels, and its current value.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) labels: Value,
    pub(super) value: f64,
}

/// Past time range of a query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// Length of the range, which ends now, in s.
    pub(super) seconds: f64,
    /// Step between points, in s.
    pub(super) step: f64,
}

/// Series of a range query: labels, and points by seconds since its begin.
pub(super) type Ranges = Vec<(Value, Vec<(f64, f64)>)>;

fn value_of(pair: &Value) -> f64 {
    let text = pair[1].as_str().unwrap_or_default();
    text.parse().unwrap_or(f64::NAN)
}

/// Returns the version of the installed Prometheus.
///
/// # Errors
/// Returns an error if Prometheus is not installed; its text names Debian's package.
pub(super) fn installed() -> anyhow::Result<String> {
    let output = Command::new(PROGRAM)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .with_context(|| {
            format!("--observe needs the program {PROGRAM}: apt-get install prometheus")
        })?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    let version = text.split(' ').skip_while(|word| *word != "version").nth(1);
    let version =
        version.with_context(|| format!("unexpected output of {PROGRAM} --version: {text:?}"))?;
    Ok(version
        .trim_end_matches(',')
        .trim_end_matches("+ds")
        .to_owned())
}

/// Free disk space below which Prometheus is about to fail, in bytes.
const FREE_BYTES_MIN: u64 = 1 << 20;

impl Prometheus {
    /// Starts Prometheus with these targets and Weir's rules, evaluated every two seconds. Alerts that hold for minutes in a
    /// cluster hold for 20 s.
    pub(super) async fn start(version: String, targets: &[ScrapeTarget]) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("weir-prometheus-")
            .tempdir()
            .context("cannot make a folder for Prometheus")?;
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        let mut groups = records();
        for group in &mut groups {
            group.interval = "2s";
        }
        file("weir-recording.yaml", &records_yaml(&groups, ""))?;
        let mut alerts = alerts();
        for alert in &mut alerts {
            if alert.hold.ends_with('m') {
                alert.hold = HOLD;
            }
        }
        file("weir-alerts.yaml", &alerts_file(&alerts))?;
        let (functions, own): (Vec<_>, Vec<_>) = targets
            .iter()
            .partition(|target| target.program == Target::QueueProxy);
        file("own.json", &discovery(&own).to_string())?;
        file("functions.json", &discovery(&functions).to_string())?;
        file(
            "prometheus.yaml",
            "global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 2s }\n\
             rule_files: [weir-recording.yaml, weir-alerts.yaml]\n\
             scrape_configs:\n\
             - job_name: weir\n  honor_labels: true\n  file_sd_configs: [{ files: [own.json] }]\n\
             - job_name: functions\n  file_sd_configs: [{ files: [functions.json] }]\n  \
             metric_relabel_configs: [{ action: labeldrop, regex: 'exported_.*' }]\n",
        )?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .context("no port is free on 127.0.0.1")?;
        let log =
            File::create(folder.path().join("log")).context("cannot write Prometheus' log")?;
        let option = |name: &str, value: String| OsString::from(format!("--{name}={value}"));
        let path = |name: &str| folder.path().join(name).display().to_string();
        let child = Spawn::new(Program::Foreign)
            .arguments([OsString::from(PROGRAM)])
            .arguments([
                option("config.file", path("prometheus.yaml")),
                option("storage.tsdb.path", path("data")),
                option("storage.tsdb.retention.time", "1d".to_owned()),
                option("web.listen-address", address.to_string()),
                option("log.level", "warn".to_owned()),
            ])
            .environment(std::env::var("PATH").ok().map(|path| ("PATH", path)))
            .stderr(Stdio::from(log))
            .spawn()?;
        let mut own = Self {
            child,
            address,
            folder,
            version,
        };
        let begin = Instant::now();
        loop {
            if let Ok((200, _)) = get(address, "/-/ready", &[]).await {
                return Ok(own);
            }
            own.check()?;
            if begin.elapsed() > READY_MAX {
                let text = format!(
                    "Prometheus is not ready after {READY_MAX:?}; {}",
                    own.log_tail()
                );
                return Err(PrometheusError(text).into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until Prometheus has scraped each of `count` targets, so that counters are seen at 0.
    pub(super) async fn scrapes_all(&mut self, count: usize) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.targets().await?.0 < count {
            if begin.elapsed() > READY_MAX {
                let text =
                    format!("Prometheus has not scraped all {count} targets after {READY_MAX:?}");
                return Err(PrometheusError(text).into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Returns the address of Prometheus' HTTP API.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let from = text.ceil_char_boundary(text.len().saturating_sub(LOG_TAIL_MAX));
        format!("its log ends with: {}", text[from..].trim())
    }

    /// Returns an error if Prometheus has exited or its disk is full.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait().context("cannot watch a child")? {
            let text = format!("Prometheus has ended: {status}; {}", self.log_tail());
            return Err(PrometheusError(text).into());
        }
        // It continues without disk space, but loses samples.
        let folder = self.folder.path();
        if let Ok(disk) = statvfs(folder)
            && disk.f_bavail.saturating_mul(disk.f_frsize) < FREE_BYTES_MIN
        {
            let text = format!(
                "the disk of {} is full, so Prometheus cannot keep its samples: set TMPDIR to another",
                folder.display()
            );
            return Err(PrometheusError(text).into());
        }
        Ok(())
    }

    async fn fetch(&mut self, path: &str) -> anyhow::Result<Value> {
        let answer = get(self.address, path, &[]).await;
        let text = match answer {
            Ok((_, text)) => text,
            Err(error) => {
                self.check()?;
                return Err(
                    PrometheusError(format!("Prometheus does not answer: {error:#}")).into(),
                );
            }
        };
        serde_json::from_str(&text)
            .with_context(|| format!("unexpected answer of Prometheus: {text:?}"))
    }

    /// Returns the current series of a query in the order of the answer, or Prometheus' error.
    pub(super) async fn query(
        &mut self,
        expr: &str,
    ) -> anyhow::Result<Result<Vec<Sample>, String>> {
        let encoded = utf8_percent_encode(expr, NON_ALPHANUMERIC);
        let answer = self
            .fetch(&format!("/api/v1/query?query={encoded}"))
            .await?;
        if answer["status"] != "success" {
            return Ok(Err(answer["error"]
                .as_str()
                .unwrap_or("no reason")
                .to_owned()));
        }
        let data = &answer["data"];
        if data["resultType"] == "scalar" {
            return Ok(Ok(vec![Sample {
                labels: json!({}),
                value: value_of(&data["result"]),
            }]));
        }
        let all = data["result"].as_array().into_iter().flatten();
        Ok(Ok(all
            .map(|series| Sample {
                labels: series["metric"].clone(),
                value: value_of(&series["value"]),
            })
            .collect()))
    }

    /// Returns the series of a query over a window until now, or Prometheus' error.
    pub(super) async fn range(
        &mut self,
        expr: &str,
        window: Window,
    ) -> anyhow::Result<Result<Ranges, String>> {
        #[expect(
            clippy::disallowed_methods,
            reason = "Prometheus' time is the wall clock's"
        )]
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let end = now.as_secs_f64();
        let begin = end - window.seconds;
        let encoded = utf8_percent_encode(expr, NON_ALPHANUMERIC);
        let path = format!(
            "/api/v1/query_range?query={encoded}&start={begin}&end={end}&step={}",
            window.step
        );
        let answer = self.fetch(&path).await?;
        if answer["status"] != "success" {
            return Ok(Err(answer["error"]
                .as_str()
                .unwrap_or("no reason")
                .to_owned()));
        }
        let all = answer["data"]["result"].as_array().into_iter().flatten();
        let series = all.map(|series| {
            let points = series["values"].as_array().into_iter().flatten();
            let points = points.map(|pair| {
                let at = pair[0].as_f64().unwrap_or(begin) - begin;
                (at, value_of(pair))
            });
            (series["metric"].clone(), points.collect())
        });
        Ok(Ok(series.collect()))
    }

    /// Returns the numbers of targets which are up and down.
    pub(super) async fn targets(&mut self) -> anyhow::Result<(usize, usize)> {
        let answer = self.fetch("/api/v1/targets?state=active").await?;
        let all = answer["data"]["activeTargets"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let up = all.iter().filter(|target| target["health"] == "up").count();
        Ok((up, all.len() - up))
    }

    /// Returns the names of firing alerts, each once.
    pub(super) async fn firing(&mut self) -> anyhow::Result<Vec<String>> {
        let answer = self.fetch("/api/v1/alerts").await?;
        let all = answer["data"]["alerts"].as_array().into_iter().flatten();
        let mut names: Vec<_> = all
            .filter(|alert| alert["state"] == "firing")
            .filter_map(|alert| Some(alert["labels"]["alertname"].as_str()?.to_owned()))
            .collect();
        names.sort();
        names.dedup();
        Ok(names)
    }
}

/// Returns the file for service discovery, with the labels that PodMonitors set.
fn discovery(targets: &[&ScrapeTarget]) -> Value {
    let each = targets.iter().map(|target| {
        json!({
            "targets": [target.address.to_string()],
            "labels": {
                "job": target.program.job(),
                "namespace": target.namespace,
                "pod": target.pod,
                "node": "demo",
            },
        })
    });
    Value::Array(each.collect())
}
