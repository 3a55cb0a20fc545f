//! A node with its pods, as stock and under leases.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use model_server::Model;
use policy::pool::leases::Rule;
use softgpu::ledger::{Ledger, Selection};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::{Instant, timeout};

use super::super::Program;
use super::super::agent::{NodeAgent, PodFiles, device_environment, log_file, log_tail};
use super::super::children::{get, post};
use super::super::gpu::{Device, SoftGpu};
use super::super::spawn::Spawn;
use super::load::{Outcome, send};
use super::measure::{Computation, Measurement, Server, measure};
use super::plan::{Function, Plan};

/// Part of the GPUs, and the rate of each switch's uplink in bytes per second: two transfers get 1/1.6 of the link's rate each (Torpor, Table 3).
const PART: &str = "V100";
const UPLINK: u64 = 2 * 9_460_000_000 * 10 / 16;
/// Memory of a GPU, and what a context takes of it, in bytes before scaling (M2.10).
const MEMORY: u64 = 32_000_000_000;
const RESIDUE: u64 = 300_000_000;
/// Port of the queue-proxies, each of which has an address of its own.
const PORT: u16 = 8012;
/// Number of pods that start at the same time.
const STARTS: usize = 16;
/// Requests to each pod before those that are measured, under leases.
const WARM_UP_ROUNDS: u32 = 3;
/// Number of them at a time for each GPU.
const WARM_UP_REQUESTS: usize = 2;
/// Longest time until a server has loaded its model.
const LOADED_MAX: Duration = Duration::from_secs(120);
/// Longest time of a request in its pod, before it is slowed.
const TIMEOUT_SECONDS: u32 = 20;

/// A pod: a queue-proxy and a model-server, killed when dropped.
#[derive(Debug)]
struct Pod {
    _proxy: Child,
    model: Child,
    address: SocketAddr,
}

/// A node whose pods are ready.
#[derive(Debug)]
pub(super) struct Station {
    name: &'static str,
    gpu: SoftGpu,
    agent: Option<NodeAgent>,
    /// Pods by function and instance.
    pods: BTreeMap<(usize, usize), Pod>,
    hosted: usize,
}

/// Moves of models, as the agent counts them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moves {
    pub(super) restores: u64,
    pub(super) restored_bytes: u64,
    pub(super) copied_out_bytes: u64,
    /// Sums of the times of evictions and restores, in ns.
    pub(super) evict_ns: u64,
    pub(super) restore_ns: u64,
    /// Evictions by reason, in the order of [`REASONS`].
    pub(super) evictions: [u64; REASONS.len()],
    /// Requests which were to be forwarded to a sibling, and those of them that came back.
    pub(super) siblings: (u64, u64),
}

/// Reasons of evictions in the result.
pub(super) const REASONS: [&str; 6] = ["duplicate", "light", "heavy", "lru", "moved", "class"];

/// Outcome of a run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) name: &'static str,
    pub(super) hosted: usize,
    /// Outcomes in the order of arrival.
    pub(super) outcomes: Vec<Outcome>,
    pub(super) moves: Moves,
    pub(super) device: Device,
    /// What the device's ledger shows.
    pub(super) measured: Measurement,
}

impl Station {
    /// Starts the node as stock: each function has one instance in the memory of a GPU for good, first come until that is full.
    pub(super) async fn stock(plan: &Plan) -> anyhow::Result<Self> {
        let gpu = SoftGpu::in_pairs(PART, plan.gpus, UPLINK, plan.slow).await?;
        let mut left = vec![MEMORY; plan.gpus as usize];
        let mut hosted = Vec::new();
        for (number, function) in plan.functions.iter().enumerate() {
            let place = function.gpus[0] as usize;
            if let Some(rest) = left[place].checked_sub(function.footprint) {
                left[place] = rest;
                hosted.push((number, 0));
            }
        }
        let hosted_count = hosted.len();
        let pods = start_all(plan, &gpu, None, &hosted).await?;
        Ok(Self {
            name: "stock",
            gpu,
            agent: None,
            pods,
            hosted: hosted_count,
        })
    }

    /// Starts the node with an agent, which grants leases to all instances by a rule.
    pub(super) async fn leased(plan: &Plan, rule: Rule) -> anyhow::Result<Self> {
        let gpu = SoftGpu::in_pairs(PART, plan.gpus, UPLINK, plan.slow).await?;
        let scale = u64::from(gpu.scale().bytes);
        let all: Vec<(usize, usize)> = (0..plan.functions.len())
            .flat_map(|function| {
                (0..plan.instances as usize).map(move |instance| (function, instance))
            })
            .collect();
        let files: Vec<PodFiles> = all
            .iter()
            .map(|&(number, instance)| pod_files(&plan.functions[number], number, instance))
            .collect();
        let configuration = format!(
            "[slots]\nkind = \"exclusive\"\nseats = 1024\nmemory = \"{}\"\n\
             [slots.context-residue]\nexclusive = \"{}\"\n\
             [memory]\nstream-restores = true\n[pool]\nrule = \"{}\"\n",
            plan.models_memory / scale,
            RESIDUE / scale,
            rule.name()
        );
        let of_node = "host-memory = \"6Gi\"\npinned-memory = \"6Gi\"\n";
        let mut agent = NodeAgent::start_with(&gpu, of_node, &configuration, &files).await?;
        agent.placed(files.len()).await?;
        let pods = start_all(plan, &gpu, Some(&mut agent), &all).await?;
        Ok(Self {
            name: rule.name(),
            gpu,
            agent: Some(agent),
            pods,
            hosted: plan.functions.len(),
        })
    }

    /// Sends the requests of the plan, and ends the node.
    pub(super) async fn measured(mut self, plan: &Plan) -> anyhow::Result<Run> {
        self.warm_up(plan.gpus).await?;
        let before = self.moves().await?;
        let (begin, outcomes) = send(plan, |function, instance| {
            // Stock has one instance.
            let instance = if self.agent.is_some() { instance } else { 0 };
            Some(self.pods.get(&(function, instance))?.address)
        })
        .await;
        let after = self.moves().await?;
        let end = softgpu_wire::clock::now().0;
        let device = self.gpu.device()?;
        let servers = self.servers(plan)?;
        if let Some(agent) = &mut self.agent {
            agent.check()?;
        }
        self.pods.clear();
        if let Some(agent) = self.agent.take() {
            agent.stop().await?;
        }
        self.gpu.write_ledger()?;
        let measured = evaluate(&self.gpu, plan, (begin, end), &servers, &outcomes)?;
        let mut moves = after;
        moves.siblings.0 -= before.siblings.0;
        moves.siblings.1 -= before.siblings.1;
        moves.restores -= before.restores;
        moves.restored_bytes -= before.restored_bytes;
        moves.copied_out_bytes -= before.copied_out_bytes;
        moves.evict_ns -= before.evict_ns;
        moves.restore_ns -= before.restore_ns;
        for (after, before) in moves.evictions.iter_mut().zip(before.evictions) {
            *after -= before;
        }
        Ok(Run {
            name: self.name,
            hosted: self.hosted,
            outcomes,
            moves,
            device,
            measured,
        })
    }

    /// Sends requests to each pod, some at a time for each GPU: so that each function has computed, and the agent and the queue-proxies
    /// know how long requests and loads take, as they do where functions have been served before.
    async fn warm_up(&self, gpus: u32) -> anyhow::Result<()> {
        // Without an agent there is nothing to learn.
        let rounds = if self.agent.is_some() {
            WARM_UP_ROUNDS
        } else {
            1
        };
        let addresses = self.pods.values().map(|pod| pod.address);
        let mut requests = tokio::task::JoinSet::new();
        for address in (0..rounds).flat_map(|_| addresses.clone()) {
            let body = r#"{"input":1,"output":1,"seed":1}"#.to_owned();
            requests.spawn(async move { post(address, "/infer", body).await });
            if requests.len() >= WARM_UP_REQUESTS * gpus as usize
                && let Some(answered) = requests.join_next().await
            {
                is_served(answered?)?;
            }
        }
        while let Some(answered) = requests.join_next().await {
            is_served(answered?)?;
        }
        Ok(())
    }

    /// Returns the servers by PID.
    fn servers(&self, plan: &Plan) -> anyhow::Result<BTreeMap<u32, Server>> {
        let servers = self.pods.iter().map(|(&(function, instance), pod)| {
            let pid = pod.model.id().context("a model-server has ended")?;
            let about = &plan.functions[function];
            let model = Model::named(about.model).context("a model is not known")?;
            let server = Server {
                function,
                gpu: about.gpus[instance],
                bytes: model.weights_bytes / u64::from(self.gpu.scale().bytes),
            };
            Ok((pid, server))
        });
        servers.collect()
    }

    /// Returns the moves of models so far.
    async fn moves(&self) -> anyhow::Result<Moves> {
        let Some(agent) = &self.agent else {
            return Ok(Moves::default());
        };
        let reply = agent.instances().await?;
        let mut moves = Moves::default();
        for instance in reply["instances"].as_array().into_iter().flatten() {
            let own = &instance["moves"];
            let number = |name: &str| own[name].as_u64().unwrap_or(0);
            let siblings = &instance["lease"]["siblings"];
            moves.siblings.0 += siblings["named"].as_u64().unwrap_or(0);
            moves.siblings.1 += siblings["returned"].as_u64().unwrap_or(0);
            moves.restores += number("restores");
            moves.restored_bytes += number("restored_bytes");
            moves.copied_out_bytes += number("evicted_copied_bytes");
            moves.evict_ns += own["evict_times"]["sum_ns"].as_u64().unwrap_or(0);
            moves.restore_ns += own["restore_times"]["sum_ns"].as_u64().unwrap_or(0);
            for (sum, reason) in moves.evictions.iter_mut().zip(REASONS) {
                *sum += own["evicted_for"][reason].as_u64().unwrap_or(0);
            }
        }
        Ok(moves)
    }
}

/// Evaluates the ledger of a run between two times of CLOCK_MONOTONIC, in ns.
fn evaluate(
    gpu: &SoftGpu,
    plan: &Plan,
    (begin, end): (u64, u64),
    servers: &BTreeMap<u32, Server>,
    outcomes: &[Outcome],
) -> anyhow::Result<Measurement> {
    let first = Ledger::begin(gpu.folder())?.context("the software GPU's ledger is empty")?;
    let since = |at: u64| at.saturating_sub(first.0);
    // From its begin on: what a process holds at first is its context.
    let ledger = Ledger::read(gpu.folder(), &Selection::default())?;
    let arrivals = plan.arrivals.iter().zip(outcomes);
    let requests: Vec<Computation> = arrivals
        .filter_map(|(arrival, outcome)| match outcome {
            Outcome::Right(_, computed) => Some(Computation {
                function: arrival.function,
                due: since(begin) + u64::try_from(arrival.at.as_nanos()).unwrap_or(u64::MAX),
                read: since(computed.read_ns),
                answered: since(computed.answered_ns),
                pid: computed.pid,
            }),
            Outcome::Wrong | Outcome::Refused | Outcome::Lost => None,
        })
        .collect();
    let span = (since(begin), since(end));
    Ok(measure(&ledger, span, plan.gpus, servers, &requests))
}

/// Checks the answer of a pod to its first requests.
fn is_served(answer: anyhow::Result<(u16, String)>) -> anyhow::Result<()> {
    let (status, text) = answer?;
    anyhow::ensure!(status == 200, "a pod answers {status} at first: {text}");
    Ok(())
}

fn pod_files(function: &Function, number: usize, instance: usize) -> PodFiles {
    PodFiles {
        name: pod_name(function, instance),
        annotations: format!(
            "weir.dev/isolation=\"tenant\"\nweir.dev/slo=\"{}ms\"\n",
            function.objective.as_millis()
        ),
        about: format!(
            "namespace = \"demo\"\nrevision = \"{0}-00001\"\nfunction = \"{0}\"\nslot = \"{1}\"\n\
             uid = \"00000000-0000-4000-8000-{2:08x}{3:04x}\"\n",
            function.name, function.gpus[instance], number, instance
        ),
    }
}

fn pod_name(function: &Function, instance: usize) -> String {
    format!("{}-{instance}", function.name)
}

/// Starts the pods, some at a time, and waits until they are ready.
async fn start_all(
    plan: &Plan,
    gpu: &SoftGpu,
    mut agent: Option<&mut NodeAgent>,
    pods: &[(usize, usize)],
) -> anyhow::Result<BTreeMap<(usize, usize), Pod>> {
    let mut started = BTreeMap::new();
    for some in pods.chunks(STARTS) {
        if let Some(agent) = agent.as_deref_mut() {
            agent.check()?;
        }
        let agent = agent.as_deref();
        let mut starting = Vec::new();
        for &(number, instance) in some {
            let at = number * plan.instances as usize + instance;
            let pod = Starting::begin(gpu, agent, &plan.functions[number], instance, at)?;
            starting.push(((number, instance), pod));
        }
        for (key, pod) in starting {
            started.insert(key, pod.ready(agent).await?);
        }
    }
    Ok(started)
}

/// A pod whose model-server is starting.
#[derive(Debug)]
struct Starting<'a> {
    function: &'a Function,
    name: String,
    ip: IpAddr,
    model: Child,
    log: PathBuf,
    timeout_seconds: u32,
}

impl<'a> Starting<'a> {
    /// Starts the model-server of a pod.
    fn begin(
        gpu: &SoftGpu,
        agent: Option<&NodeAgent>,
        function: &'a Function,
        instance: usize,
        number: usize,
    ) -> anyhow::Result<Self> {
        let name = pod_name(function, instance);
        let number = u32::try_from(number).unwrap_or(0);
        // 127.0.8.1 and the following ones.
        let ip = IpAddr::V4(Ipv4Addr::from_bits(0x7f00_0801 + number));
        let scale = gpu.scale();
        let log = gpu.folder().join(format!("{name}.log"));
        let mut model = Spawn::new(Program::ModelServer)
            .environment(device_environment(gpu))
            .environment([
                ("PORT", "0".to_owned()),
                ("MODEL_NAME", function.model.to_owned()),
                ("MODEL_VERIFY", "true".to_owned()),
                ("MODEL_TOUCH", "order".to_owned()),
                ("MODEL_CHECK", "all".to_owned()),
                ("WEIR_BYTES_SCALE", scale.bytes.to_string()),
                ("WEIR_TIME_SCALE", scale.time.to_string()),
            ])
            .stdout(Stdio::piped())
            .stderr(log_file(&log)?);
        match agent {
            Some(agent) => {
                // The agent selects the GPU.
                let library = agent.preload(&name).display().to_string();
                model = model.environment([("LD_PRELOAD", library)]);
            }
            None => {
                model = model.environment([("MODEL_GPU", function.gpus[instance].to_string())]);
            }
        }
        Ok(Self {
            function,
            name,
            ip,
            model: model.spawn()?,
            log,
            timeout_seconds: TIMEOUT_SECONDS * scale.time,
        })
    }

    /// Starts the queue-proxy once the model-server listens, and waits until the model is loaded.
    async fn ready(mut self, agent: Option<&NodeAgent>) -> anyhow::Result<Pod> {
        let output = self.model.stdout.take().context("it has no output")?;
        let mut lines = BufReader::new(output).lines();
        let line = timeout(LOADED_MAX, lines.next_line()).await;
        let line = line.context("a model-server does not listen")??;
        let address = line.as_deref().and_then(|line| line.rsplit(' ').next());
        let Some(target) = address.and_then(|text| text.parse::<SocketAddr>().ok()) else {
            bail!("a model-server has ended; {}", log_tail(&self.log));
        };
        let environment = self.queue_environment(agent, target.port());
        let pod = Pod {
            _proxy: Spawn::new(Program::QueueProxy)
                .environment(environment)
                .spawn()?,
            model: self.model,
            address: SocketAddr::new(self.ip, PORT),
        };
        let begin = Instant::now();
        loop {
            let is_loaded = matches!(get(target, "/ready", &[]).await, Ok((200, _)));
            if is_loaded && TcpStream::connect(pod.address).await.is_ok() {
                return Ok(pod);
            }
            if begin.elapsed() > LOADED_MAX {
                bail!(
                    "{} is not ready after {LOADED_MAX:?}; {}",
                    self.name,
                    log_tail(&self.log)
                );
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn queue_environment(
        &self,
        agent: Option<&NodeAgent>,
        port: u16,
    ) -> Vec<(&'static str, String)> {
        let ip = self.ip.to_string();
        let revision = format!("{}-00001", self.function.name);
        let mut environment: Vec<(&'static str, String)> = [
            ("SERVING_NAMESPACE", "demo"),
            ("SERVING_CONFIGURATION", &self.function.name),
            ("SERVING_REVISION", &revision),
            ("QUEUE_SERVING_PORT", "8012"),
            ("QUEUE_SERVING_TLS_PORT", "8112"),
            ("CONTAINER_CONCURRENCY", "1"),
            ("SERVING_POD", &self.name),
            ("SERVING_POD_IP", &ip),
            ("SERVING_LOGGING_CONFIG", ""),
            ("SERVING_LOGGING_LEVEL", "error"),
            ("WEIR_PODINFO", "/nonexistent"),
            ("WEIR_BIND", &ip),
            ("USER_PORT", &port.to_string()),
            (
                "REVISION_TIMEOUT_SECONDS",
                &self.timeout_seconds.to_string(),
            ),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .into();
        if let Some(agent) = agent {
            let objective = self.function.objective.as_millis();
            environment.push(("WEIR_SLO", format!("{objective}ms")));
            let socket = agent.queue_socket(&self.name).display().to_string();
            environment.push(("WEIR_QUEUE_SOCKET", socket));
        }
        environment
    }
}
