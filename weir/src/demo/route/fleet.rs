//! Processes of a run: pods on addresses of their own, and the activator in front of them.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use http::{HeaderMap, HeaderValue};
use model_server::Cost;
use peers::knative::KnativeActivator;
use tokio::time::Instant;

use super::super::children::{Children, READY_MAX, REVISION, Settings, Site};
use super::super::gpu::SoftGpu;
use super::super::replay::Target;
use super::activator::Activator;
use super::setup::{KnativePrograms, Setup};

/// The running processes, killed when dropped.
#[derive(Debug)]
pub(super) struct Fleet {
    pods: Vec<Children>,
    activator: Activator,
}

impl Fleet {
    /// Starts all processes and waits until every instance serves. `slo` is the longest objective.
    pub(super) async fn start(
        bind: IpAddr,
        cost: Cost,
        speeds: &[f64],
        gpu: &SoftGpu,
        setup: Setup,
        slo: Duration,
    ) -> anyhow::Result<Self> {
        let addresses = addresses(bind, speeds.len())?;
        let sites = addresses.into_iter().map(|ip| Ok(Site::Address(ip)));
        let pods = start_pods(sites, cost, speeds, gpu, setup.pods(slo)).await?;
        let revision = setup.revision(slo, pods.iter().map(Children::address).collect());
        let activator = Activator::start(bind, setup.rule(), &revision).await?;
        Self { pods, activator }.ready().await
    }

    /// Starts Knative's programs in network namespaces of their own, and waits until every instance serves.
    pub(super) async fn start_knative(
        programs: &KnativePrograms,
        cost: Cost,
        speeds: &[f64],
        gpu: &SoftGpu,
    ) -> anyhow::Result<Self> {
        let (setup, slo) = (Setup::Knative, Duration::ZERO);
        let empty = setup.revision(slo, Vec::new());
        let activator = KnativeActivator::start(&programs.activator, &empty).await;
        let activator = activator.context("Knative's activator")?;
        let sites = speeds.iter().map(|_| {
            let network = activator.network.behind().context("a pod's network")?;
            Ok(Site::Network(network, programs.queue_proxy.clone().into()))
        });
        let pods = start_pods(sites, cost, speeds, gpu, setup.pods(slo)).await?;
        activator.set_revision(&setup.revision(slo, pods.iter().map(Children::address).collect()));
        let activator = Activator::Knative(Box::new(activator));
        Self { pods, activator }.ready().await
    }

    async fn ready(mut self) -> anyhow::Result<Self> {
        let begin = Instant::now();
        while !self.activator.reaches(self.pods.len()).await {
            self.check()?;
            if begin.elapsed() > READY_MAX {
                bail!("the activator has not reached all instances after {READY_MAX:?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(self)
    }

    /// Returns the destination of requests, with the headers of an ingress.
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
            address: self.activator.address(),
            headers: HeaderMap::from_iter(headers),
        }
    }

    /// Returns an error if one of the programs has exited.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        let status = self.activator.child().try_wait();
        if let Some(status) = status.context("cannot watch a child")? {
            bail!("the activator has ended: {status}");
        }
        self.pods.iter_mut().try_for_each(Children::check)
    }

    /// Returns the PIDs of the instances' model-servers, in the order of the speeds.
    pub(super) fn model_pids(&self) -> Vec<u32> {
        self.pods.iter().filter_map(Children::model_pid).collect()
    }

    /// Returns the number of requests that the model-servers have completed.
    pub(super) async fn served(&self) -> anyhow::Result<u64> {
        let mut served = 0;
        for pod in &self.pods {
            served += pod.served().await?;
        }
        Ok(served)
    }

    /// Returns the sum of the reported concurrencies: see [`Activator::reported`].
    pub(super) async fn reported(&self) -> anyhow::Result<f64> {
        self.activator.reported().await
    }

    /// Kills all processes and waits for their end, so that their ports are free.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        let killed = self.activator.child().kill().await;
        killed.context("cannot stop the activator")?;
        for pod in self.pods {
            pod.stop().await?;
        }
        Ok(())
    }
}

async fn start_pods(
    sites: impl Iterator<Item = anyhow::Result<Site>>,
    cost: Cost,
    speeds: &[f64],
    gpu: &SoftGpu,
    settings: Settings,
) -> anyhow::Result<Vec<Children>> {
    let mut pods = Vec::with_capacity(speeds.len());
    for (device, (site, &speed)) in sites.zip(speeds).enumerate() {
        let cost = slower(cost, speed);
        pods.push(Children::start_on(site?, cost, gpu, device, settings).await?);
    }
    Ok(pods)
}

/// Returns addresses for `count` pods, after the activator's.
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
