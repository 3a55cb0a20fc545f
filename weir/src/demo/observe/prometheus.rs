//! Debian's Prometheus on loopback, with a folder of its own: what it scrapes, which rules it evaluates, what it answers.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use dashboards::catalogue::Program as Target;
use dashboards::rules::{alerts, alerts_file, records, records_yaml};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Child;
use tokio::time::Instant;

use super::super::Program;
use super::super::children::get;
use super::super::spawn::Spawn;

/// The program, as `PATH` finds it.
const PROGRAM: &str = "prometheus";
/// For how long an alert's expression has to hold here, where it is minutes in a cluster.
const HOLD: &str = "20s";
/// It answers within this time.
const READY_MAX: Duration = Duration::from_secs(20);
/// What is shown of its last words, in bytes.
const WORDS_MAX: usize = 1_000;

/// A running Prometheus. It is killed, and its folder removed, when this is dropped.
#[derive(Debug)]
pub(super) struct Prometheus {
    child: Child,
    address: SocketAddr,
    folder: TempDir,
    pub(super) version: String,
}

/// Something to scrape.
#[derive(Debug, Clone)]
pub(super) struct ScrapeTarget {
    pub(super) program: Target,
    pub(super) address: SocketAddr,
    pub(super) namespace: &'static str,
    pub(super) pod: String,
}

/// A series of an answer: its labels, and its value now.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) labels: Value,
}

/// Returns the version of the installed Prometheus.
///
/// # Errors
/// There is none; the text names Debian's package.
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
    let version = version.with_context(|| format!("{PROGRAM} --version says {text:?}"))?;
    Ok(version
        .trim_end_matches(',')
        .trim_end_matches("+ds")
        .to_owned())
}

impl Prometheus {
    /// Starts it with these targets and Weir's rules, which are evaluated each other second. Alerts that hold for minutes in a cluster
    /// hold for 20 s.
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
        file("targets.json", &discovery(targets).to_string())?;
        file(
            "prometheus.yaml",
            "global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 2s }\n\
             rule_files: [weir-recording.yaml, weir-alerts.yaml]\n\
             scrape_configs:\n\
             - job_name: weir\n  honor_labels: true\n  file_sd_configs: [{ files: [targets.json] }]\n",
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
                bail!(
                    "Prometheus is not ready after {READY_MAX:?}; {}",
                    own.words()
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until it has scraped each of so many targets, so that counters are seen at 0.
    pub(super) async fn scrapes_all(&mut self, count: usize) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.targets().await?.0 < count {
            if begin.elapsed() > READY_MAX {
                bail!("Prometheus has not scraped all {count} targets after {READY_MAX:?}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Where it listens.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    fn words(&self) -> String {
        let text = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let from = text.ceil_char_boundary(text.len().saturating_sub(WORDS_MAX));
        format!("it says: {}", text[from..].trim())
    }

    /// Whether it still runs.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait().context("cannot watch a child")? {
            bail!("Prometheus has ended: {status}; {}", self.words());
        }
        Ok(())
    }

    async fn ask(&mut self, path: &str) -> anyhow::Result<Value> {
        let answer = get(self.address, path, &[]).await;
        let text = match answer {
            Ok((_, text)) => text,
            Err(error) => {
                self.check()?;
                return Err(error.context("Prometheus does not answer"));
            }
        };
        serde_json::from_str(&text).with_context(|| format!("Prometheus answers {text:?}"))
    }

    /// Returns the series that a query has now, in the order of the answer, or what Prometheus says against it.
    pub(super) async fn query(
        &mut self,
        expr: &str,
    ) -> anyhow::Result<Result<Vec<Sample>, String>> {
        let encoded = utf8_percent_encode(expr, NON_ALPHANUMERIC);
        let answer = self.ask(&format!("/api/v1/query?query={encoded}")).await?;
        if answer["status"] != "success" {
            return Ok(Err(answer["error"]
                .as_str()
                .unwrap_or("no reason")
                .to_owned()));
        }
        let data = &answer["data"];
        if data["resultType"] == "scalar" {
            return Ok(Ok(vec![Sample { labels: json!({}) }]));
        }
        let all = data["result"].as_array().into_iter().flatten();
        Ok(Ok(all
            .map(|series| Sample {
                labels: series["metric"].clone(),
            })
            .collect()))
    }

    /// Returns how many targets are up, and down.
    pub(super) async fn targets(&mut self) -> anyhow::Result<(usize, usize)> {
        let answer = self.ask("/api/v1/targets?state=active").await?;
        let all = answer["data"]["activeTargets"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let up = all.iter().filter(|target| target["health"] == "up").count();
        Ok((up, all.len() - up))
    }

    /// Returns the names of alerts that fire, each once.
    pub(super) async fn firing(&mut self) -> anyhow::Result<Vec<String>> {
        let answer = self.ask("/api/v1/alerts").await?;
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

/// Discovery by file, with the labels that PodMonitors set.
fn discovery(targets: &[ScrapeTarget]) -> Value {
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
