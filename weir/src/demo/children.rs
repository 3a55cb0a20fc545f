//! Processes of the demo: a model-server and the queue-proxy in front of it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use model_server::Cost;
use peers::network::Network;
use policy::Span;
use policy::gate::Late;
use tokio::process::Child;
use tokio::time::Instant;

use super::Program;
use super::gpu::SoftGpu;
use super::spawn::Spawn;

/// Knative's fixed ports on which the queue-proxy listens.
const PROXY_PORTS: [u16; 3] = [8012, 8022, 9090];
/// Port of the queue-proxy's own metrics.
pub(crate) const METRICS_PORT: u16 = 9091;
/// Port of a model-server in a network namespace of its own.
const MODEL_PORT: u16 = 8080;
/// Name of the pods' revision, in namespace `default`.
pub(crate) const REVISION: &str = "demo-00001";
/// Headers of the kubelet's probe of a queue-proxy.
const PROBE: [(&str, &str); 2] = [
    ("User-Agent", "kube-probe/demo"),
    ("K-Network-Probe", "queue"),
];
/// Longest time until a started child is ready.
pub(crate) const READY_MAX: Duration = Duration::from_secs(10);

/// Settings of a queue-proxy: Knative's, or Weir's on top of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settings {
    /// Arrival order, with ten waiting requests per concurrent one.
    Stock,
    /// Deadline order for this objective; late requests are shed. The queue depth is the same.
    Weir(Duration),
}

/// Queue depth of Knative's queue-proxy per concurrent request.
const DEPTH: usize = 10;
/// Request timeout of the revision.
const TIMEOUT: Duration = Duration::from_secs(300);

impl Settings {
    /// Returns stock settings, then Weir's for this objective.
    pub(crate) const fn both(slo: Duration) -> [Self; 2] {
        [Self::Stock, Self::Weir(slo)]
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Weir(_) => "weir",
        }
    }

    /// Returns the environment variables of the queue-proxy.
    fn environment(self) -> Vec<(&'static str, String)> {
        match self {
            Self::Stock => Vec::new(),
            Self::Weir(slo) => vec![
                ("WEIR_SLO", format!("{}us", slo.as_micros())),
                ("WEIR_LATE", "shed".to_owned()),
                ("WEIR_QUEUE_DEPTH", DEPTH.to_string()),
            ],
        }
    }

    /// Returns these settings of the queue-proxy for the simulator.
    pub(crate) fn simulated(self) -> simulator::instance::Proxy {
        let (slo, late) = match self {
            Self::Stock => (None, Late::Serve),
            Self::Weir(slo) => (Some(slo), Late::Shed),
        };
        simulator::instance::Proxy {
            depth: DEPTH,
            // The environment variable has whole µs.
            slo: slo.map(|slo| Span::from(Duration::from_micros(micros(slo)))),
            late,
            revision_timeout: TIMEOUT.into(),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Network location of a pod, and its queue-proxy.
#[derive(Debug)]
pub(crate) enum Site {
    /// At an address of this machine, with Weir's queue-proxy.
    Address(IpAddr),
    /// In a network namespace, with the queue-proxy at this path: Knative's listens on fixed ports of every address.
    Network(Network, PathBuf),
}

impl Site {
    const fn ip(&self) -> IpAddr {
        match self {
            Self::Address(ip) => *ip,
            Self::Network(network, _) => IpAddr::V4(network.inside),
        }
    }

    /// Returns the model-server's address: reachable from the pod only, if also from this process.
    fn model(&self) -> anyhow::Result<SocketAddr> {
        match self {
            Self::Address(_) => TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
                .and_then(|listener| listener.local_addr())
                .context("no port is free on 127.0.0.1"),
            Self::Network(network, _) => Ok((network.inside, MODEL_PORT).into()),
        }
    }

    fn within(&self, spawn: Spawn) -> Spawn {
        match self {
            Self::Address(_) => spawn,
            Self::Network(network, _) => spawn.within(network),
        }
    }
}

/// Identity of a pod: its revision and environment.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) revision: String,
    /// Further settings of the pod's queue-proxy, which take precedence.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Further settings of its model-server, which take precedence.
    pub(crate) application: Vec<(&'static str, String)>,
}

/// The running processes of a pod, killed when dropped.
#[derive(Debug)]
pub(crate) struct Children {
    proxy: Child,
    model: Child,
    model_address: SocketAddr,
    /// Declared after the processes: a network is dropped last.
    site: Site,
}

impl Children {
    /// Starts both on an address of this machine and waits until they are ready. The model-server computes on the first GPU.
    pub(crate) async fn start(
        bind: IpAddr,
        cost: Cost,
        gpu: &SoftGpu,
        settings: Settings,
    ) -> anyhow::Result<Self> {
        Self::start_on(Site::Address(bind), cost, gpu, 0, settings).await
    }

    /// Starts both at a site, with the model-server on GPU number `device`, and waits until they are ready.
    pub(crate) async fn start_on(
        site: Site,
        cost: Cost,
        gpu: &SoftGpu,
        device: usize,
        settings: Settings,
    ) -> anyhow::Result<Self> {
        let names = Names {
            revision: REVISION.to_owned(),
            environment: Vec::new(),
            application: Vec::new(),
        };
        Self::start_named(site, cost, gpu, device, settings, &names).await
    }

    /// Starts both at a site, for a pod with this revision and further settings.
    pub(crate) async fn start_named(
        site: Site,
        cost: Cost,
        gpu: &SoftGpu,
        device: usize,
        settings: Settings,
        names: &Names,
    ) -> anyhow::Result<Self> {
        if let Site::Address(ip) = site {
            are_free(ip, &PROXY_PORTS)?;
        }
        let model_address = site.model()?;
        let app_port = model_address.port();
        let model = Spawn::new(Program::ModelServer).environment([
            // All addresses in a network namespace, since the queue-proxy reaches it through loopback.
            (
                "MODEL_BIND",
                match site {
                    Site::Address(_) => model_address.ip().to_string(),
                    Site::Network(..) => Ipv4Addr::UNSPECIFIED.to_string(),
                },
            ),
            ("PORT", app_port.to_string()),
            ("MODEL_GPU", device.to_string()),
        ]);
        let model = model
            .environment(cost.environment())
            .environment(gpu.environment())
            .environment(names.application.clone());
        let model = site.within(model).spawn()?;
        let knative = [
            ("SERVING_NAMESPACE", "default"),
            ("SERVING_CONFIGURATION", "demo"),
            ("SERVING_REVISION", &*names.revision),
            ("QUEUE_SERVING_PORT", "8012"),
            ("QUEUE_SERVING_TLS_PORT", "8112"),
            ("CONTAINER_CONCURRENCY", "1"),
            ("SERVING_POD", "demo-00001-pod"),
            ("SERVING_POD_IP", "127.0.0.1"),
            ("SERVING_LOGGING_CONFIG", ""),
            ("SERVING_LOGGING_LEVEL", "warn"),
            ("WEIR_PODINFO", "/nonexistent"),
        ]
        .map(|(name, value)| (name, value.to_owned()));
        // As Kubernetes completes the probe.
        let probe = format!(
            r#"{{"httpGet":{{"path":"/ready","port":{app_port},"host":"127.0.0.1","scheme":"HTTP"}},"successThreshold":1}}"#
        );
        let proxy = match &site {
            Site::Address(ip) => {
                Spawn::new(Program::QueueProxy).environment([("WEIR_BIND", ip.to_string())])
            }
            Site::Network(_, path) => Spawn::foreign(path),
        };
        let proxy = proxy
            .environment(knative)
            .environment(settings.environment())
            .environment(names.environment.clone())
            .environment([
                ("REVISION_TIMEOUT_SECONDS", TIMEOUT.as_secs().to_string()),
                ("USER_PORT", app_port.to_string()),
                ("SERVING_READINESS_PROBE", probe),
            ]);
        let proxy = site.within(proxy).spawn()?;
        let mut children = Self {
            proxy,
            model,
            model_address,
            site,
        };
        children.ready().await?;
        Ok(children)
    }

    /// Returns the address for requests.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.site.ip(), PROXY_PORTS[0])
    }

    /// Returns the model-server's PID; `None` after its end.
    pub(crate) fn model_pid(&self) -> Option<u32> {
        self.model.id()
    }

    /// Returns an error if one of them has exited.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        for (name, child) in [
            ("queue-proxy", &mut self.proxy),
            ("model-server", &mut self.model),
        ] {
            if let Some(status) = child.try_wait().context("cannot watch a child")? {
                bail!("the {name} has ended: {status}");
            }
        }
        Ok(())
    }

    /// Returns the number of requests that the model-server has completed.
    pub(crate) async fn served(&self) -> anyhow::Result<u64> {
        let body = get(self.model_address, "/served", &[])
            .await
            .context("the model-server does not answer")?;
        body.1
            .parse()
            .context("the model-server's count is not a number")
    }

    /// Returns the sum of execution times in s and their number, as measured by the queue-proxy. Only with Weir's settings.
    pub(crate) async fn executions(&self) -> anyhow::Result<(f64, u64)> {
        let (_, page) = get(
            SocketAddr::new(self.site.ip(), METRICS_PORT),
            "/metrics",
            &[],
        )
        .await
        .context("the queue-proxy's metrics do not answer")?;
        let value = |name: &str| {
            let line = page.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.rsplit(' ').next())
                .with_context(|| format!("the queue-proxy's metrics lack {name}"))
        };
        let sum = value("weir_execution_seconds_sum")?;
        let count = value("weir_execution_seconds_count")?;
        Ok((
            sum.parse()
                .context("the sum of executions is not a number")?,
            count
                .parse()
                .context("the count of executions is not a number")?,
        ))
    }

    /// Kills both and waits for their end, so that their ports are free.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.proxy
            .kill()
            .await
            .context("cannot stop the queue-proxy")?;
        self.model
            .kill()
            .await
            .context("cannot stop the model-server")
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            self.check()?;
            // The kubelet's own probe, which the proxy forwards to the model-server.
            if let Ok((200, _)) = get(self.address(), "/", &PROBE).await {
                return Ok(());
            }
            if begin.elapsed() > READY_MAX {
                bail!("the demo's programs are not ready after {READY_MAX:?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Checks that all of these ports are free. The listeners are closed at once; if another process takes a port meanwhile, the
/// child reports it.
pub(crate) fn are_free(bind: IpAddr, ports: &[u16]) -> anyhow::Result<()> {
    for &port in ports {
        TcpListener::bind((bind, port)).with_context(|| {
            format!("cannot listen on {bind}:{port}; stop the program which does, or choose another address with --bind")
        })?;
    }
    Ok(())
}

pub(crate) async fn get(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
) -> anyhow::Result<(u16, String)> {
    let mut request = http::Request::get(format!("http://{address}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    exchange(request, String::new()).await
}

/// Sends a request with a body, and returns status and body of the answer.
pub(crate) async fn post(
    address: SocketAddr,
    path: &str,
    body: String,
) -> anyhow::Result<(u16, String)> {
    exchange(http::Request::post(format!("http://{address}{path}")), body).await
}

async fn exchange(request: http::request::Builder, body: String) -> anyhow::Result<(u16, String)> {
    let client =
        Client::builder(TokioExecutor::new()).build_http::<http_body_util::Full<bytes::Bytes>>();
    let body = http_body_util::Full::new(bytes::Bytes::from(body));
    let response = client.request(request.body(body)?).await?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
