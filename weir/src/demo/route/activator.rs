//! The activator of a run, and the autoscaler it reports to.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use peers::autoscaler::Autoscaler;
use peers::knative::KnativeActivator;
use peers::revision::Revision;
use policy::routing::Rule;
use tempfile::TempDir;
use tokio::process::Child;
use tokio::time::Instant;

use super::super::Program;
use super::super::children::{REVISION, are_free, get};
use super::super::spawn::Spawn;

/// Port of requests, and the activator's other ports.
const PORTS: [u16; 4] = [8012, 8013, 9475, METRICS_PORT];
const METRICS_PORT: u16 = 9476;
/// Reports come every second: within this time after the last answer there is a report without it.
const REPORTED_WITHIN: Duration = Duration::from_secs(3);

/// An activator, and the autoscaler it reports to.
#[derive(Debug)]
pub(super) enum Activator {
    Own(Box<OwnActivator>),
    Knative(Box<KnativeActivator>),
}

/// Weir's activator, with its manifests and its autoscaler.
#[derive(Debug)]
pub(super) struct OwnActivator {
    child: Child,
    address: SocketAddr,
    autoscaler: Autoscaler,
    /// Folder of the activator's manifests, removed when dropped.
    _manifests: TempDir,
}

impl Activator {
    /// Starts Weir's activator in front of a revision, with this rule of routing.
    pub(super) async fn start(
        bind: IpAddr,
        rule: Rule,
        revision: &Revision,
    ) -> anyhow::Result<Self> {
        are_free(bind, &PORTS)?;
        let manifests = tempfile::Builder::new()
            .prefix("weir-demo-")
            .tempdir()
            .context("cannot make a folder for manifests")?;
        let path = manifests.path().join("demo.yaml");
        std::fs::write(path, revision.manifest()).context("the demo's manifests")?;
        let autoscaler = Autoscaler::start().await;
        let arguments = [
            "data",
            "--manifests",
            &manifests.path().display().to_string(),
            "--rule",
            rule.name(),
            "--autoscaler",
            &autoscaler.url(),
        ]
        .map(Into::into);
        let child = Spawn::new(Program::ActivatorExt)
            .arguments(arguments)
            .environment([
                ("WEIR_BIND", bind.to_string()),
                ("POD_NAME", "activator-ext-demo".to_owned()),
                ("SERVING_LOGGING_LEVEL", "warn".to_owned()),
            ])
            .spawn()?;
        Ok(Self::Own(Box::new(OwnActivator {
            child,
            address: SocketAddr::new(bind, PORTS[0]),
            autoscaler,
            _manifests: manifests,
        })))
    }

    /// Returns the address for requests.
    pub(super) const fn address(&self) -> SocketAddr {
        match self {
            Self::Own(own) => own.address,
            Self::Knative(knative) => knative.address(),
        }
    }

    /// Returns whether the activator routes requests to all of `instances`: whether Weir's exports this number of ready ones, or
    /// whether a request through Knative's is answered 200. An unreachable activator reaches none.
    pub(super) async fn reaches(&self, instances: usize) -> bool {
        match self {
            Self::Own(own) => {
                let wanted = format!("state=\"ready\"}} {instances}");
                let metrics = SocketAddr::new(own.address.ip(), METRICS_PORT);
                let is_there =
                    |line: &str| line.starts_with("weir_instances{") && line.ends_with(&wanted);
                let page = get(metrics, "/metrics", &[]).await;
                page.is_ok_and(|(_, page)| page.lines().any(is_there))
            }
            // It exports no number; all instances are in the same object as the first.
            Self::Knative(knative) => {
                let host = format!("{REVISION}.default.svc.cluster.local");
                let answer = get(knative.address(), "/ready", &[("Host", &host)]).await;
                answer.is_ok_and(|(status, _)| status == 200)
            }
        }
    }

    pub(super) const fn child(&mut self) -> &mut Child {
        match self {
            Self::Own(own) => &mut own.child,
            Self::Knative(knative) => &mut knative.child,
        }
    }

    /// Returns the sum of the mean concurrencies reported to the autoscaler each second, in request-seconds. To be called when
    /// all requests are answered.
    pub(super) async fn reported(&self) -> anyhow::Result<f64> {
        let autoscaler = match self {
            Self::Own(own) => &own.autoscaler,
            Self::Knative(knative) => &knative.autoscaler,
        };
        let begin = Instant::now();
        let had = autoscaler.received().len();
        loop {
            let received = autoscaler.received();
            // The second new report contains no request; Knative's activator does not send that one.
            if received.len() >= had + 2 || begin.elapsed() > REPORTED_WITHIN {
                ensure!(!received.is_empty(), "the activator has reported nothing");
                let stats = received.iter().filter_map(|message| message.stat.as_ref());
                return Ok(stats.map(|stat| stat.average_concurrent_requests).sum());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
