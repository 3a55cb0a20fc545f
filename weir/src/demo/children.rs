//! The demo's processes: a model-server and the queue-proxy in front of it.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum as _;
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use model_server::Cost;
use policy::Span;
use policy::gate::Late;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::Program;
use super::gpu::SoftGpu;

/// Knative's fixed ports, which the queue-proxy listens on.
const PROXY_PORTS: [u16; 3] = [8012, 8022, 9090];
/// Where it tells Weir's metrics.
const METRICS_PORT: u16 = 9091;
/// The revision that the pods are of, in namespace `default`.
pub(crate) const REVISION: &str = "demo-00001";
/// A child that is not ready by then is broken.
pub(crate) const READY_MAX: Duration = Duration::from_secs(10);

/// How a queue-proxy is set: as Knative does, or as Weir does on top of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settings {
    /// Arrival order, ten places for each one at the user container.
    Stock,
    /// A revision's objective, and late requests shed. The same queue depth.
    Weir(Duration),
}

/// Knative's queue holds ten for each one at the user container.
const DEPTH: usize = 10;
/// The revision's request timeout.
const TIMEOUT: Duration = Duration::from_secs(300);

impl Settings {
    /// Stock first, then Weir's for this objective.
    pub(crate) const fn both(slo: Duration) -> [Self; 2] {
        [Self::Stock, Self::Weir(slo)]
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Weir(_) => "weir",
        }
    }

    /// By these the queue-proxy is told.
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

    /// The same in virtual time.
    pub(crate) fn simulated(self) -> simulator::instance::Proxy {
        let (slo, late) = match self {
            Self::Stock => (None, Late::Serve),
            Self::Weir(slo) => (Some(slo), Late::Shed),
        };
        simulator::instance::Proxy {
            depth: DEPTH,
            // Told in whole µs.
            slo: slo.map(|slo| Span::from(Duration::from_micros(micros(slo)))),
            late,
            revision_timeout: TIMEOUT.into(),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The running processes. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Children {
    bind: IpAddr,
    app_port: u16,
    proxy: Child,
    model: Child,
}

impl Children {
    /// Starts both and waits until they are ready. The model-server computes on the first GPU.
    pub(crate) async fn start(
        bind: IpAddr,
        cost: Cost,
        gpu: &SoftGpu,
        settings: Settings,
    ) -> anyhow::Result<Self> {
        Self::start_on(bind, cost, gpu, 0, settings).await
    }

    /// The same on the GPU of this number.
    pub(crate) async fn start_on(
        bind: IpAddr,
        cost: Cost,
        gpu: &SoftGpu,
        device: usize,
        settings: Settings,
    ) -> anyhow::Result<Self> {
        are_free(bind, &PROXY_PORTS)?;
        let app_port = TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .context("no port is free on 127.0.0.1")?
            .port();
        let model = spawn(
            Program::ModelServer,
            [
                ("PORT", app_port.to_string()),
                ("MODEL_GPU", device.to_string()),
            ]
            .into_iter()
            .chain(cost.environment())
            .chain(gpu.environment()),
        )?;
        let knative = [
            ("SERVING_NAMESPACE", "default"),
            ("SERVING_CONFIGURATION", "demo"),
            ("SERVING_REVISION", REVISION),
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
        let probe =
            format!(r#"{{"httpGet":{{"path":"/ready","port":{app_port}}},"successThreshold":1}}"#);
        let proxy = spawn(
            Program::QueueProxy,
            knative.into_iter().chain(settings.environment()).chain([
                ("REVISION_TIMEOUT_SECONDS", TIMEOUT.as_secs().to_string()),
                ("USER_PORT", app_port.to_string()),
                ("WEIR_BIND", bind.to_string()),
                ("SERVING_READINESS_PROBE", probe),
            ]),
        )?;
        let mut children = Self {
            bind,
            app_port,
            proxy,
            model,
        };
        children.ready().await?;
        Ok(children)
    }

    /// Where requests go.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.bind, PROXY_PORTS[0])
    }

    /// The model-server's process.
    pub(crate) fn model_pid(&self) -> Option<u32> {
        self.model.id()
    }

    /// Both still run.
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

    /// How many requests the model-server has served to the end.
    pub(crate) async fn served(&self) -> anyhow::Result<u64> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.app_port));
        let body = get(address, "/served", None)
            .await
            .context("the model-server does not answer")?;
        body.1
            .parse()
            .context("the model-server's count is no number")
    }

    /// How long requests were at the user container, by the queue-proxy's own measure: the sum in s, and how many. Only Weir's
    /// settings have it.
    pub(crate) async fn executions(&self) -> anyhow::Result<(f64, u64)> {
        let (_, page) = get(SocketAddr::new(self.bind, METRICS_PORT), "/metrics", None)
            .await
            .context("the queue-proxy's metrics do not answer")?;
        let value = |name: &str| {
            let line = page.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.rsplit(' ').next())
                .with_context(|| format!("the queue-proxy's metrics say nothing of {name}"))
        };
        let sum = value("weir_execution_seconds_sum")?;
        let count = value("weir_execution_seconds_count")?;
        Ok((
            sum.parse().context("the sum of executions is no number")?,
            count
                .parse()
                .context("the count of executions is no number")?,
        ))
    }

    /// Ends both and waits until they are gone, so that their ports are free.
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
            // The kubelet's own probe: the proxy asks the model-server.
            if let Ok((200, _)) = get(self.address(), "/", Some("queue")).await {
                return Ok(());
            }
            if begin.elapsed() > READY_MAX {
                bail!("the demo's programs are not ready after {READY_MAX:?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Makes sure that all of these ports can be listened on. The listeners are closed at once; a child reports if somebody is
/// faster.
pub(crate) fn are_free(bind: IpAddr, ports: &[u16]) -> anyhow::Result<()> {
    for &port in ports {
        TcpListener::bind((bind, port)).with_context(|| {
            format!("cannot listen on {bind}:{port}; stop what does, or choose another address with --bind")
        })?;
    }
    Ok(())
}

/// Starts a program of this same binary: what runs is what was built.
pub(crate) fn spawn(
    program: Program,
    environment: impl IntoIterator<Item = (&'static str, String)>,
) -> anyhow::Result<Child> {
    Spawn::new(program).environment(environment).spawn()
}

/// The same, with what else it may need.
#[derive(Debug)]
pub(crate) struct Spawn {
    program: Program,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    stdin: Stdio,
    stdout: Stdio,
    stderr: Stdio,
}

impl Spawn {
    /// Without input and output, its errors where this program's go.
    pub(crate) fn new(program: Program) -> Self {
        Self {
            program,
            arguments: Vec::new(),
            environment: Vec::new(),
            stdin: Stdio::null(),
            stdout: Stdio::null(),
            stderr: Stdio::inherit(),
        }
    }

    pub(crate) fn arguments(mut self, arguments: impl IntoIterator<Item = OsString>) -> Self {
        self.arguments.extend(arguments);
        self
    }

    pub(crate) fn environment(
        mut self,
        variables: impl IntoIterator<Item = (impl Into<String>, String)>,
    ) -> Self {
        let each = variables.into_iter();
        self.environment
            .extend(each.map(|(name, value)| (name.into(), value)));
        self
    }

    pub(crate) fn stdin(mut self, stdin: Stdio) -> Self {
        self.stdin = stdin;
        self
    }

    pub(crate) fn stdout(mut self, stdout: Stdio) -> Self {
        self.stdout = stdout;
        self
    }

    pub(crate) fn stderr(mut self, stderr: Stdio) -> Self {
        self.stderr = stderr;
        self
    }

    /// Starts it: killed when the handle is dropped, and when this thread ends, as by the end of the process. Not to be
    /// called by a thread that ends before.
    pub(crate) fn spawn(self) -> anyhow::Result<Child> {
        let own = std::env::current_exe().context("cannot find the running program")?;
        let name = self
            .program
            .to_possible_value()
            .context("every program has a name")?;
        Command::new(own)
            .arg("child")
            .arg(name.get_name())
            .args(["--parent", &std::process::id().to_string(), "--"])
            .args(self.arguments)
            .env_clear()
            .envs(self.environment)
            .stdin(self.stdin)
            .stdout(self.stdout)
            .stderr(self.stderr)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start the {}", name.get_name()))
    }
}

pub(crate) async fn get(
    address: SocketAddr,
    path: &str,
    probe: Option<&str>,
) -> anyhow::Result<(u16, String)> {
    let client =
        Client::builder(TokioExecutor::new()).build_http::<http_body_util::Empty<bytes::Bytes>>();
    let mut request = http::Request::get(format!("http://{address}{path}"));
    if let Some(probe) = probe {
        request = request
            .header("User-Agent", "kube-probe/demo")
            .header("K-Network-Probe", probe);
    }
    let response = client
        .request(request.body(http_body_util::Empty::new())?)
        .await?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
