//! The processes of a run: pods on addresses of their own, the activator in front of them, and what it reports to.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use http::{HeaderMap, HeaderValue};
use model_server::Cost;
use peers::autoscaler::Autoscaler;
use policy::routing::Rule;
use tempfile::TempDir;
use tokio::process::Child;
use tokio::time::Instant;

use super::super::Program;
use super::super::children::{Children, READY_MAX, REVISION, Settings, Spawn, are_free, get};
use super::super::gpu::SoftGpu;
use super::super::replay::Target;

/// The activator's ports.
const PORTS: [u16; 4] = [8012, 8013, 9475, 9476];
const METRICS_PORT: u16 = 9476;
/// Requests that wait in Knative's activator, at most.
const KNATIVE_DEPTH: usize = 10_000;
/// Reports come every second: so long after the last answer there is one of which it is no part.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);

/// How a run differs from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setup {
    /// Requests wait in the activator in order of arrival, and go to instances by Knative's rules; stock queue-proxies.
    Stock,
    /// A request goes at once to any instance, and waits there in order of deadline.
    QueueProxies,
    /// Requests wait in the activator in order of deadline.
    Weir,
}

impl Setup {
    pub(super) const ALL: [Self; 3] = [Self::Stock, Self::QueueProxies, Self::Weir];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::QueueProxies => "queue-proxies",
            Self::Weir => "weir",
        }
    }

    const fn rule(self) -> Rule {
        match self {
            Self::Stock => Rule::Knative,
            Self::QueueProxies => Rule::Random,
            Self::Weir => Rule::LateBinding,
        }
    }

    /// The revision's annotations. One at least is needed, or its requests would be left to Knative's own activator.
    fn annotations(self, slo: Duration) -> Vec<(&'static str, String)> {
        match self {
            Self::Stock => vec![
                ("weir.dev/late", "serve".to_owned()),
                ("weir.dev/queue-depth", KNATIVE_DEPTH.to_string()),
            ],
            Self::QueueProxies | Self::Weir => vec![
                ("weir.dev/slo", format!("{}us", slo.as_micros())),
                ("weir.dev/late", "shed".to_owned()),
            ],
        }
    }

    const fn pods(self, slo: Duration) -> Settings {
        match self {
            Self::Stock => Settings::Stock,
            Self::QueueProxies | Self::Weir => Settings::Weir(slo),
        }
    }
}

/// The running processes. Killed when dropped.
#[derive(Debug)]
pub(super) struct Fleet {
    pods: Vec<Children>,
    activator: Child,
    bind: IpAddr,
    autoscaler: Autoscaler,
    /// Its manifests; removed when dropped.
    _manifests: TempDir,
}

impl Fleet {
    /// Starts all of it and waits until every instance serves. `slo`: the longest objective.
    pub(super) async fn start(
        bind: IpAddr,
        cost: Cost,
        speeds: &[f64],
        gpu: &SoftGpu,
        setup: Setup,
        slo: Duration,
    ) -> anyhow::Result<Self> {
        are_free(bind, &PORTS)?;
        let mut pods = Vec::with_capacity(speeds.len());
        let addresses = addresses(bind, speeds.len())?;
        for (device, (&speed, &address)) in speeds.iter().zip(&addresses).enumerate() {
            let settings = setup.pods(slo);
            pods.push(
                Children::start_on(address, slower(cost, speed), gpu, device, settings).await?,
            );
        }
        let manifests = tempfile::Builder::new()
            .prefix("weir-demo-")
            .tempdir()
            .context("cannot make a folder for manifests")?;
        let text = manifest(&setup.annotations(slo), &addresses);
        std::fs::write(manifests.path().join("demo.yaml"), text).context("the demo's manifests")?;
        let autoscaler = Autoscaler::start().await;
        let arguments = [
            "data",
            "--manifests",
            &manifests.path().display().to_string(),
            "--rule",
            setup.rule().name(),
            "--autoscaler",
            &autoscaler.url(),
        ]
        .map(Into::into);
        let activator = Spawn::new(Program::ActivatorExt)
            .arguments(arguments)
            .environment([
                ("WEIR_BIND", bind.to_string()),
                ("POD_NAME", "activator-ext-demo".to_owned()),
                ("SERVING_LOGGING_LEVEL", "warn".to_owned()),
            ])
            .spawn()?;
        let mut fleet = Self {
            pods,
            activator,
            bind,
            autoscaler,
            _manifests: manifests,
        };
        fleet.ready().await?;
        Ok(fleet)
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        let wanted = format!("state=\"ready\"}} {}", self.pods.len());
        loop {
            self.check()?;
            let page = get(SocketAddr::new(self.bind, METRICS_PORT), "/metrics", None).await;
            let is_there =
                |line: &str| line.starts_with("weir_instances{") && line.ends_with(&wanted);
            if page.is_ok_and(|(_, page)| page.lines().any(is_there)) {
                return Ok(());
            }
            if begin.elapsed() > READY_MAX {
                bail!("the activator has not reached all instances after {READY_MAX:?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Where requests go, and what they name, as an ingress sends them.
    pub(super) fn target(&self) -> Target {
        let headers = [
            ("knative-serving-namespace", "default"),
            ("knative-serving-revision", REVISION),
        ];
        let headers = headers.map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        Target {
            address: SocketAddr::new(self.bind, PORTS[0]),
            headers: HeaderMap::from_iter(headers),
        }
    }

    /// All still run.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.activator.try_wait().context("cannot watch a child")? {
            bail!("the activator has ended: {status}");
        }
        self.pods.iter_mut().try_for_each(Children::check)
    }

    /// The instances' model-servers, in order of the speeds.
    pub(super) fn model_pids(&self) -> Vec<u32> {
        self.pods.iter().filter_map(Children::model_pid).collect()
    }

    /// How many requests the model-servers have served to the end.
    pub(super) async fn served(&self) -> anyhow::Result<u64> {
        let mut served = 0;
        for pod in &self.pods {
            served += pod.served().await?;
        }
        Ok(served)
    }

    /// Returns the sum of what was reported to the autoscaler as mean concurrency of a second, in seconds of requests. To be
    /// called when all requests are answered.
    pub(super) async fn reported(&self) -> anyhow::Result<f64> {
        let begin = Instant::now();
        let had = self.autoscaler.received().len();
        loop {
            let received = self.autoscaler.received();
            // The second one has no request in it.
            if received.len() >= had + 2 {
                let stats = received.iter().filter_map(|message| message.stat.as_ref());
                return Ok(stats.map(|stat| stat.average_concurrent_requests).sum());
            }
            ensure!(
                begin.elapsed() < REPORTED_WITHIN,
                "the activator has reported nothing for {REPORTED_WITHIN:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends all and waits until they are gone, so that their ports are free.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.activator
            .kill()
            .await
            .context("cannot stop the activator")?;
        for pod in self.pods {
            pod.stop().await?;
        }
        Ok(())
    }
}

/// The addresses of so many pods: those behind the activator's.
pub(super) fn addresses(bind: IpAddr, count: usize) -> anyhow::Result<Vec<IpAddr>> {
    let needed = "--scenario route needs an IPv4 address, and one more behind it for each instance";
    let IpAddr::V4(bind) = bind else {
        bail!("--bind {bind}: {needed}");
    };
    let behind = (1..).map_while(|n| u32::from(bind).checked_add(n));
    let addresses: Vec<_> = behind
        .take(count)
        .map(|bits| Ipv4Addr::from(bits).into())
        .collect();
    ensure!(addresses.len() == count, "--bind {bind}: {needed}");
    Ok(addresses)
}

fn slower(cost: Cost, speed: f64) -> Cost {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "ns of a request, far below 2^53"
    )]
    let slower = |ns: u64| (ns as f64 / speed).round() as u64;
    Cost {
        fixed_ns: slower(cost.fixed_ns),
        per_input_ns: slower(cost.per_input_ns),
        per_output_ns: slower(cost.per_output_ns),
    }
}

/// The revision and its pods, as Kubernetes would write them.
fn manifest(annotations: &[(&str, String)], pods: &[IpAddr]) -> String {
    let annotations: serde_json::Map<_, _> = annotations
        .iter()
        .map(|(key, value)| ((*key).to_owned(), value.as_str().into()))
        .collect();
    let endpoints = pods
        .iter()
        .map(|pod| serde_json::json!({"addresses": [pod], "conditions": {"ready": true}}));
    let revision = serde_json::json!({
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Revision",
        "metadata": {
            "namespace": "default",
            "name": REVISION,
            "labels": {"serving.knative.dev/configuration": "demo"},
            "annotations": annotations,
        },
        "spec": {"containerConcurrency": 1, "timeoutSeconds": 300},
    });
    let slice = serde_json::json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default",
            "name": format!("{REVISION}-private-demo"),
            "labels": {"kubernetes.io/service-name": format!("{REVISION}-private")},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": PORTS[0]}],
        "endpoints": endpoints.collect::<Vec<_>>(),
    });
    // JSON is YAML.
    format!("{revision}\n---\n{slice}\n")
}
