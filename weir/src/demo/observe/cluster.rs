//! A cluster on loopback: an API server in memory, both roles of activator-ext, a pod for each function, a node with shared GPUs,
//! and one whose pods take turns.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use dashboards::catalogue::Program as Target;
use peers::api::{ApiServer, Resource};
use peers::autoscaler::Autoscaler;
use peers::mirroring::Mirroring;
use peers::revision::Revision;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use softgpu_wire::config::GpuConfig;
use tempfile::TempDir;
use tokio::process::Child;
use tokio::time::Instant;

use super::super::Program;
use super::super::children::{Children, METRICS_PORT, Settings, Site, are_free, get};
use super::super::gpu::SoftGpu;
use super::super::shares::{Node, Plan, Rule, Work, pods};
use super::super::spawn::Spawn;
use super::function::{BROKEN, COLD, FUNCTIONS, Function, SHOWN};
use super::leases::LeaseNode;
use super::prometheus::ScrapeTarget;

/// Ports of activator-ext's roles.
const ACTIVATOR_METRICS: u16 = 9476;
const FUNCTIONS_PORT: u16 = 9475;
/// Longest time until all functions are attached and have their instances.
const READY_MAX: Duration = Duration::from_secs(30);
/// Longest time from the last answer until all answers have been counted.
const JUDGED_MAX: Duration = Duration::from_secs(5);
/// Delay of the controller that copies Endpoints.
const MIRROR_LAG: Duration = Duration::from_millis(30);
/// Address of Knative's own activator.
const KNATIVES: &str = "198.51.100.7";
/// Objects of the manifests that role `control` fills: plural, namespace, name.
const FILLED: [(&str, &str, &str); 4] = [
    ("secrets", "weir-system", "weir-ca"),
    ("configmaps", "weir-system", "weir-ca"),
    ("secrets", "weir-system", "weir-certificates"),
    ("secrets", "knative-serving", "weir-certificates"),
];
/// Name of the MPS control program in the software GPU's folder.
const MPS_CONTROL: &str = "nvidia-cuda-mps-control";
/// GPU on which the functions' model-servers compute; the node's pods share GPU 0.
const MODEL_GPU: usize = 1;

/// Addresses of the cluster's programs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addresses {
    /// Role `data`, with `/v1/functions`.
    pub(super) data: SocketAddr,
    /// Metrics of role `control`.
    pub(super) control: SocketAddr,
    /// APIs of the nodes' agents.
    pub(super) agents: [SocketAddr; 2],
}

/// The cluster's running processes, killed when dropped.
#[derive(Debug)]
pub(super) struct Cluster {
    node: Node,
    leases: LeaseNode,
    pods: Vec<(Function, Children)>,
    data: Child,
    control: Child,
    data_ip: IpAddr,
    control_ip: IpAddr,
    api: Arc<ApiServer>,
    _mirroring: Mirroring,
    _autoscaler: Autoscaler,
    _folder: TempDir,
    gpu: SoftGpu,
}

fn resource(plural: &str) -> Resource {
    let api_version = match plural {
        "revisions" => "serving.knative.dev/v1",
        "podautoscalers" => "autoscaling.internal.knative.dev/v1alpha1",
        _ => "v1",
    };
    Resource::new(api_version, plural)
}

impl Cluster {
    /// Starts the cluster on addresses from `bind` on, and waits until every function but [`COLD`] is attached and has its
    /// instance. The programs on the path of requests get the variables of `tracing`.
    pub(super) async fn start(
        bind: IpAddr,
        tracing: Option<&[(&'static str, String); 2]>,
    ) -> anyhow::Result<Self> {
        let tracing = || tracing.cloned().into_iter().flatten();
        let addresses = addresses(bind, 2 + FUNCTIONS.len())?;
        let (data_ip, control_ip) = (addresses[0], addresses[1]);
        are_free(data_ip, &[8012, FUNCTIONS_PORT, ACTIVATOR_METRICS])?;
        are_free(control_ip, &[9443, FUNCTIONS_PORT, ACTIVATOR_METRICS])?;
        let gpu = SoftGpu::of(vec![whole("H100", 2), sliced("A100", "3g.40gb")]).await?;
        let node = Node::start(&gpu, &node_plan()?).await?;
        let leases = LeaseNode::start().await?;
        let api = Arc::new(ApiServer::start().await);
        let mirroring = Mirroring::start(Arc::clone(&api), MIRROR_LAG);
        let folder = tempfile::Builder::new()
            .prefix("weir-demo-")
            .tempdir()
            .context("cannot make a folder for the cluster")?;
        let kubeconfig = folder.path().join("kubeconfig");
        fs::write(&kubeconfig, api.kubeconfig()).context("cannot write a kubeconfig")?;
        api.apply(
            &resource("namespaces"),
            json!({"metadata": {"name": "weir-system"}}),
        );
        for (plural, namespace, name) in FILLED {
            let empty = json!({"metadata": {"namespace": namespace, "name": name}});
            api.apply(&resource(plural), empty);
        }
        let mut pods = Vec::new();
        for (function, ip) in FUNCTIONS.into_iter().zip(&addresses[2..]) {
            let settings = Settings::Weir(Duration::from_millis(function.objective_ms));
            let cost = function.cost();
            let (mut names, gpu, device) = match function.turns {
                None => (function.names(), &gpu, MODEL_GPU),
                // The agent selects the GPU.
                Some(turns) => (leases.names(function, turns), &leases.gpu, 0),
            };
            names.environment.extend(tracing());
            let site = Site::Address(*ip);
            let pod = Children::start_named(site, cost, gpu, device, settings, &names).await?;
            let mut revision = described(function);
            if function.name != COLD {
                revision.pods = vec![pod.address()];
            }
            publish(&api, &revision);
            pods.push((function, pod));
        }
        api.apply(&resource("pods"), data_pod(data_ip));
        let autoscaler = Autoscaler::start().await;
        let kubeconfig = kubeconfig.display().to_string();
        let environment = |ip: IpAddr, pod: &str| {
            [
                ("KUBECONFIG", kubeconfig.clone()),
                ("WEIR_BIND", ip.to_string()),
                ("POD_NAME", pod.to_owned()),
                ("QUEUE_PROXY_IMAGE", "weir.demo/queue-proxy".to_owned()),
                ("SERVING_LOGGING_LEVEL", "error".to_owned()),
            ]
        };
        let url = autoscaler.url();
        let data = Spawn::new(Program::ActivatorExt)
            .arguments(["data", "--autoscaler", &url].map(Into::into))
            .environment(environment(data_ip, "weir-activator-0"))
            .environment(tracing())
            .spawn()?;
        let control = Spawn::new(Program::ActivatorExt)
            .arguments(["control"].map(Into::into))
            .environment(environment(control_ip, "weir-control-0"))
            .spawn()?;
        let mut cluster = Self {
            node,
            leases,
            pods,
            data,
            control,
            data_ip,
            control_ip,
            api,
            _mirroring: mirroring,
            _autoscaler: autoscaler,
            _folder: folder,
            gpu,
        };
        cluster.ready().await?;
        Ok(cluster)
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            self.check()?;
            let count = async |ip: IpAddr, name: &str, end: &str| {
                let page = get(SocketAddr::new(ip, ACTIVATOR_METRICS), "/metrics", &[]).await;
                let page = page.map(|(_, page)| page).unwrap_or_default();
                let lines = page
                    .lines()
                    .filter(|line| line.starts_with(name) && line.ends_with(end));
                lines.count()
            };
            let instances = count(self.data_ip, "weir_instances{", "state=\"ready\"} 1").await;
            let attached = count(self.control_ip, "weir_attached{", "} 1").await;
            if instances + 1 >= FUNCTIONS.len() && attached == FUNCTIONS.len() {
                return Ok(());
            }
            if begin.elapsed() > READY_MAX {
                bail!(
                    "of {} functions {attached} are attached and {instances} have an instance after {READY_MAX:?}",
                    FUNCTIONS.len()
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns an error if one of the programs has exited.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        for (name, child) in [
            ("activator-ext data", &mut self.data),
            ("activator-ext control", &mut self.control),
        ] {
            if let Some(status) = child.try_wait().context("cannot watch a child")? {
                bail!("{name} has ended: {status}");
            }
        }
        Ok(())
    }

    /// Returns the address for clients' requests.
    pub(super) const fn address(&self) -> SocketAddr {
        SocketAddr::new(self.data_ip, 8012)
    }

    /// Returns the addresses of the cluster's programs.
    pub(super) const fn addresses(&self) -> Addresses {
        Addresses {
            data: SocketAddr::new(self.data_ip, FUNCTIONS_PORT),
            control: SocketAddr::new(self.control_ip, ACTIVATOR_METRICS),
            agents: [self.node.control(), self.leases.agent.control()],
        }
    }

    /// Returns the targets for Prometheus to scrape.
    pub(super) fn targets(&self) -> Vec<ScrapeTarget> {
        let target = |program, address, namespace, pod: &str| ScrapeTarget {
            program,
            address,
            namespace,
            pod: pod.to_owned(),
        };
        let own = |ip| SocketAddr::new(ip, ACTIVATOR_METRICS);
        let mut all = vec![
            target(
                Target::ActivatorData,
                own(self.data_ip),
                "knative-serving",
                "weir-activator-0",
            ),
            target(
                Target::ActivatorControl,
                own(self.control_ip),
                "weir-system",
                "weir-control-0",
            ),
            target(
                Target::Agent,
                self.node.metrics(),
                "weir-agent",
                "weir-agent-0",
            ),
            target(
                Target::Agent,
                self.leases.agent.metrics(),
                "weir-agent",
                "weir-agent-1",
            ),
        ];
        for (function, pod) in &self.pods {
            let address = SocketAddr::new(pod.address().ip(), METRICS_PORT);
            all.push(target(
                Target::QueueProxy,
                address,
                "default",
                &function.pod(),
            ));
        }
        all
    }

    /// Returns how many requests of a function activator-ext has counted as in time or missed. Waits briefly for `expected`,
    /// since a request is counted after its answer was sent.
    pub(super) async fn judged(&self, function: &str, expected: u64) -> anyhow::Result<u64> {
        let begin = Instant::now();
        loop {
            let address = SocketAddr::new(self.data_ip, ACTIVATOR_METRICS);
            let (_, page) = get(address, "/metrics", &[])
                .await
                .context("activator-ext's metrics")?;
            let label = format!("function=\"{function}\"");
            let own = page.lines().filter(|line| {
                let is_judged = line.starts_with("weir_function_requests_in_time_total{")
                    || line.starts_with("weir_function_requests_missed_total{");
                is_judged && line.contains(&label)
            });
            let judged = own
                .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
                .sum();
            if judged == expected || begin.elapsed() > JUDGED_MAX {
                return Ok(judged);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Adds the instance of [`COLD`].
    pub(super) fn warm(&self) {
        for (function, pod) in self
            .pods
            .iter()
            .filter(|(function, _)| function.name == COLD)
        {
            let mut revision = described(*function);
            revision.pods = vec![pod.address()];
            for (resource, object) in revision.objects() {
                self.api.apply(&resource, object);
            }
        }
    }

    /// Kills the application of [`BROKEN`].
    pub(super) fn break_application(&self) -> anyhow::Result<()> {
        let pod = self
            .pods
            .iter()
            .find(|(function, _)| function.name == BROKEN);
        let pid = pod.and_then(|(_, pod)| pod.model_pid());
        kill(pid.context("the model-server has ended")?)
    }

    /// Kills the node's agent.
    pub(super) fn kill_agent(&self) -> anyhow::Result<()> {
        kill(self.node.agent_pid().context("the agent has ended")?)
    }

    /// Removes the MPS control program and kills the running daemons.
    pub(super) async fn break_mps(&self) -> anyhow::Result<()> {
        let program = self.gpu.folder().join(MPS_CONTROL);
        fs::remove_file(program).context("cannot remove the MPS control program")?;
        for pid in self.node.mps_daemons().await? {
            kill(pid)?;
        }
        Ok(())
    }
}

fn kill(pid: u32) -> anyhow::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.context("invalid PID")?;
    kill_process(pid, Signal::KILL).context("cannot kill a process")
}

pub(super) fn whole(part: &str, count: u32) -> GpuConfig {
    GpuConfig {
        part: part.to_owned(),
        slices: Vec::new(),
        count,
    }
}

fn sliced(part: &str, slice: &str) -> GpuConfig {
    GpuConfig {
        part: part.to_owned(),
        slices: vec![slice.to_owned()],
        count: 1,
    }
}

/// Returns the plan of the node's pods: one of [`SHOWN`], with a memory limit, and one of another function.
fn node_plan() -> anyhow::Result<Plan> {
    let mut pods = pods("30:60", Work::Kernels)?;
    for (pod, function) in pods.iter_mut().zip([SHOWN, "steady"]) {
        pod.function = Some(function);
        pod.memory = Some("256Mi");
    }
    Ok(Plan {
        pods,
        rule: Rule::Weir,
        seconds: 0.0,
        time: 1,
        part: "H100",
    })
}

fn described(function: Function) -> Revision {
    let mut revision = Revision::new(&function.revision());
    revision.annotations = function.annotations();
    revision
}

/// Creates a revision's objects as Knative does once the revision is ready.
fn publish(api: &ApiServer, revision: &Revision) {
    for (resource, object) in revision.objects() {
        api.apply(&resource, object);
    }
    let name = &revision.name;
    let metadata = json!({"namespace": "default", "name": name});
    let conditions = json!([{"type": "ScaleTargetInitialized", "status": "True"}]);
    let autoscaler = json!({"metadata": metadata, "status": {"conditions": conditions}});
    api.apply(&resource("podautoscalers"), autoscaler);
    let labels = json!({
        "networking.internal.knative.dev/serviceType": "Public",
        "serving.knative.dev/revision": name,
    });
    let metadata = json!({"namespace": "default", "name": name, "labels": labels});
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8012}]);
    let service = json!({"metadata": metadata, "spec": {"ports": ports, "ipFamilies": ["IPv4"]}});
    api.apply(&resource("services"), service);
    let subset =
        json!({"addresses": [{"ip": KNATIVES}], "ports": [{"name": "http", "port": 8012}]});
    api.apply(
        &resource("endpoints"),
        json!({"metadata": metadata, "subsets": [subset]}),
    );
}

fn data_pod(ip: IpAddr) -> serde_json::Value {
    let labels = json!({"app.kubernetes.io/name": "weir-activator"});
    json!({
        "metadata": {"namespace": "knative-serving", "name": "weir-activator-0", "labels": labels},
        "status": {
            "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

fn addresses(bind: IpAddr, count: usize) -> anyhow::Result<Vec<IpAddr>> {
    let IpAddr::V4(bind) = bind else {
        bail!(
            "--bind {bind}: --observe needs an IPv4 address, and {} more behind it",
            count - 1
        );
    };
    let all: Vec<_> = (0..)
        .map_while(|n| u32::from(bind).checked_add(n))
        .take(count)
        .map(|bits| Ipv4Addr::from(bits).into())
        .collect();
    if all.len() < count {
        bail!(
            "--bind {bind}: --observe needs {} more addresses behind it",
            count - 1
        );
    }
    Ok(all)
}
