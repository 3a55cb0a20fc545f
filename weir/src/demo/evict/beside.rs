//! A model that returns for requests while others return all the time to the GPU behind the same PCIe switch (Torpor, Table 3).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::super::agent::{Environment, NodeAgent};
use super::super::gpu::{Lag, SoftGpu};
use super::order;
use super::server::{ModelPlan, Server, ServerPlan};
use super::{ANNOTATIONS, AWAY, HOST_MEMORY_MAX, NO_MEMORY, NODE, Requests, SLOTS};

/// Part of both GPUs, and the rate of the switch's uplink in bytes per second: two transfers get 1/1.6 of the link's rate each, which is Torpor's
/// fit of its Table 3.
const PART: &str = "V100";
const UPLINK: u64 = 2 * 9_460_000_000 * 10 / 16;
/// The model that is measured, and the one of its neighbours.
const MODEL: &str = "bert-qa";
const NEIGHBOUR: &str = "resnet-152";
/// Latencies in ms which Torpor's Table 3 states: alone, and beside the neighbour.
const PAPER_ALONE_MS: u32 = 149;
const PAPER_BESIDE_MS: u32 = 240;
/// Pods, with their limits of memory, scaled: one, which leaves no room for another on its GPU; two neighbours on the other, so that one of them is on its way at any time.
const POD: (&str, &str) = ("model", "330Mi");
const NEIGHBOURS: [(&str, &str); 2] = [("neighbour-0", "190Mi"), ("neighbour-1", "190Mi")];
/// Number of measured requests of each kind, after one from which the order of use is learnt.
const REQUESTS: usize = 3;
/// Latencies of requests whose model is away, alone and beside neighbours. Medians, in ns.
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) model: &'static str,
    pub(super) neighbour: &'static str,
    pub(super) alone_ns: u64,
    pub(super) beside_ns: u64,
    pub(super) paper_alone_ms: u32,
    pub(super) paper_beside_ms: u32,
    /// Number of returns of the neighbours meanwhile.
    pub(super) neighbour_returns: u32,
    /// Number of requests with a wrong answer or none.
    pub(super) failed: u32,
    /// Lag of the software GPUs.
    pub(super) lag_us: Lag,
}

/// Measures requests to a model that is evicted before each of them.
pub(super) async fn measure() -> anyhow::Result<Beside> {
    let gpu = SoftGpu::behind_a_switch(PART, 2, UPLINK).await?;
    let pods = [&[POD][..], &NEIGHBOURS].concat();
    let published: Vec<(&str, String)> = pods
        .iter()
        .map(|(pod, memory)| {
            let annotations = format!("{ANNOTATIONS}weir.dev/gpu-memory=\"{memory}\"\n");
            (*pod, annotations)
        })
        .collect();
    let configuration = format!("{SLOTS}[memory]\nstream-restores = true\n");
    let mut agent = NodeAgent::start(&gpu, NODE, &configuration, &published).await?;
    let names: Vec<&str> = pods.iter().map(|(pod, _)| *pod).collect();
    let environments = agent.served(&names).await?;
    let start = async |pod: &str, environment: &Environment, model: &str| {
        let model = ModelPlan::named(model);
        let plan = ServerPlan {
            model: &model,
            touch: "order",
            change: "0",
        };
        Server::start(&gpu, &agent, pod, environment, plan).await
    };
    let control = agent.control();
    let mut requests = Requests::default();
    let [own, first, second] = &environments[..] else {
        anyhow::bail!("the agent serves {} pods of 3", environments.len());
    };
    let [(first_pod, _), (second_pod, _)] = NEIGHBOURS;
    let (mut server, first, second) = tokio::try_join!(
        start(POD.0, own, MODEL),
        start(first_pod, first, NEIGHBOUR),
        start(second_pod, second, NEIGHBOUR),
    )?;
    let alone_ns = median(control, &mut server, &mut requests).await?;
    let neighbours = [(first_pod, first), (second_pod, second)];
    let neighbours = neighbours.map(|(pod, server)| Neighbour::start(control, pod, server));
    let beside_ns = median(control, &mut server, &mut requests).await?;
    let (mut returns, mut failed) = (0, requests.failed);
    for neighbour in neighbours {
        let own = neighbour.stop().await?;
        returns += own.count;
        failed += own.requests.failed;
    }
    anyhow::ensure!(returns > 0, "no neighbour has left its GPU");
    server.stop().await?;
    agent.check()?;
    let lag_us = gpu.device()?.lag_us;
    agent.stop().await?;
    Ok(Beside {
        model: MODEL,
        neighbour: NEIGHBOUR,
        alone_ns,
        beside_ns,
        paper_alone_ms: PAPER_ALONE_MS,
        paper_beside_ms: PAPER_BESIDE_MS,
        neighbour_returns: returns,
        failed,
        lag_us,
    })
}

/// Returns the median latency of requests before each of which the model leaves, in ns.
async fn median(
    control: SocketAddr,
    server: &mut Server,
    requests: &mut Requests,
) -> anyhow::Result<u64> {
    let mut latencies = Vec::new();
    for number in 0..=REQUESTS {
        let begin = Instant::now();
        while let Err(reason) = order::evict(control, POD.0).await? {
            anyhow::ensure!(
                reason == NO_MEMORY && begin.elapsed() < HOST_MEMORY_MAX,
                "{MODEL} cannot evict: {reason}"
            );
            requests.send(server).await?;
        }
        sleep(AWAY).await;
        let (from, to) = requests.send(server).await?;
        if number > 0 {
            latencies.push(to - from);
        }
    }
    latencies.sort_unstable();
    Ok(latencies[latencies.len() / 2])
}

/// A model which leaves and returns all the time.
struct Neighbour {
    is_over: Arc<AtomicBool>,
    task: JoinHandle<anyhow::Result<Returns>>,
}

/// Number of returns of a neighbour, and its requests.
#[derive(Debug, Default)]
struct Returns {
    count: u32,
    requests: Requests,
}

impl Neighbour {
    fn start(control: SocketAddr, pod: &'static str, server: Server) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let task = tokio::spawn(async move {
            let (mut own, mut server) = (Returns::default(), server);
            while !over.load(Ordering::Relaxed) {
                let has_left = order::evict(control, pod).await?.is_ok();
                own.requests.send(&mut server).await?;
                own.count += u32::from(has_left);
            }
            server.stop().await?;
            Ok(own)
        });
        Self { is_over, task }
    }

    async fn stop(self) -> anyhow::Result<Returns> {
        self.is_over.store(true, Ordering::Relaxed);
        self.task.await.context("a neighbour has panicked")?
    }
}
