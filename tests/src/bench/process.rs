//! The proxies' processes: how they are started, what they take of CPU and memory.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::load::{HOST, Protocol};
use peers::revision::Revision;

/// A proxy that is not ready by then is broken.
const READY_MAX: Duration = Duration::from_secs(10);
/// Clock ticks a second in `/proc/PID/stat`: fixed for all of Linux's user space.
const TICKS: f64 = 100.0;
const PORT: u16 = 8012;

/// What is measured.
#[derive(Debug, Clone)]
pub enum Kind {
    /// No proxy: what all others are compared with.
    Direct,
    /// Weir's queue-proxy, and whether an objective is set.
    Weir(PathBuf, bool),
    Nginx,
    HaProxy,
    /// Knative's queue-proxy.
    Knative(PathBuf),
    /// Weir's activator-ext, in front of a revision with an objective.
    Activator(PathBuf),
    Envoy(PathBuf),
}

/// All that can be measured here.
pub fn available(weir: &Path) -> Vec<Kind> {
    let mut kinds = vec![
        Kind::Direct,
        Kind::Weir(weir.to_owned(), false),
        Kind::Weir(weir.to_owned(), true),
    ];
    if is_installed("nginx") {
        kinds.push(Kind::Nginx);
    }
    if is_installed("haproxy") {
        kinds.push(Kind::HaProxy);
    }
    if let Some(binary) = std::env::var_os("KNATIVE_QUEUE_PROXY") {
        kinds.push(Kind::Knative(binary.into()));
    }
    kinds
}

/// Whether a program is installed.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
        || Path::new("/usr/sbin").join(program).is_file()
}

/// The user container's process. Killed when dropped.
#[derive(Debug)]
pub struct App {
    pub port: u16,
    _child: Child,
}

impl App {
    pub async fn start() -> anyhow::Result<Self> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let child = Command::new(std::env::current_exe()?)
            .args([super::app::ROLE, &port.to_string()])
            .kill_on_drop(true)
            .spawn()?;
        answered(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
        Ok(Self {
            port,
            _child: child,
        })
    }
}

/// A proxy's process, with its configuration. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    pub address: SocketAddr,
    /// From the start of the process to its first answer.
    pub started_in: Duration,
    has_two_ports: bool,
    child: Option<Child>,
    _folder: Option<TempDir>,
}

impl Drop for Running {
    /// The port is free when this returns.
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        for pid in tree(child.id()) {
            // One that has ended meanwhile is what is wanted.
            let pid = i32::try_from(pid)
                .ok()
                .and_then(rustix::process::Pid::from_raw);
            let _killed =
                pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
        }
        while let Ok(None) = child.try_wait() {
            std::thread::yield_now();
        }
    }
}

impl Kind {
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Direct => "no proxy",
            Self::Weir(_, false) => "Weir",
            Self::Weir(_, true) => "Weir, deadlines on",
            Self::Nginx => "nginx",
            Self::HaProxy => "HAProxy",
            Self::Knative(_) => "Knative",
            Self::Activator(_) => "Weir's activator-ext",
            Self::Envoy(_) => "Envoy",
        }
    }

    pub async fn start(&self, app: u16, quota: Option<&Quota>) -> anyhow::Result<Running> {
        let folder = TempDir::new()?;
        let ip = IpAddr::V4(Ipv4Addr::new(127, 0, 9, 1));
        let mut command = match self {
            Self::Direct => {
                return Ok(Running {
                    address: SocketAddr::from((Ipv4Addr::LOCALHOST, app)),
                    started_in: Duration::ZERO,
                    has_two_ports: false,
                    child: None,
                    _folder: None,
                });
            }
            Self::Weir(binary, deadlines) => {
                let mut command = queue_proxy(binary, ip, app);
                if *deadlines {
                    command
                        .env("WEIR_SLO", "10s")
                        .env("WEIR_CONCURRENCY", "2000");
                }
                command
            }
            Self::Knative(binary) => queue_proxy(binary, ip, app),
            Self::Nginx => configured(
                &folder,
                Path::new("nginx"),
                &["-c"],
                &nginx(ip, app, folder.path()),
            )?,
            Self::Activator(binary) => activator(binary, ip, app, folder.path())?,
            Self::Envoy(binary) => {
                let mut command = configured(&folder, binary, &["-c"], &envoy(ip, app))?;
                command.args([
                    "--concurrency",
                    "1",
                    "--log-level",
                    "off",
                    "--disable-hot-restart",
                ]);
                command
            }
            Self::HaProxy => configured(
                &folder,
                Path::new("haproxy"),
                &["-db", "-f"],
                &haproxy(ip, app),
            )?,
        };
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        if let Some(quota) = quota {
            command = quota.within(&command);
        }
        let begin = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("{command:?} cannot be started"))?;
        let address = SocketAddr::new(ip, PORT);
        if let Err(error) = answered(address).await {
            // Knative's own listens on all interfaces: another queue-proxy on this machine is in its way.
            return match child.try_wait()? {
                Some(status) => bail!("it ended with {status}; are its ports taken?"),
                None => Err(error),
            };
        }
        Ok(Running {
            address,
            started_in: begin.elapsed(),
            has_two_ports: matches!(self, Self::Nginx | Self::HaProxy),
            child: Some(child),
            _folder: Some(folder),
        })
    }
}

/// Waits for a first answer.
async fn answered(address: SocketAddr) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        if let Ok(mut stream) = TcpStream::connect(address).await {
            stream
                .write_all(format!("GET /0 HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes())
                .await?;
            let mut answer = [0; 12];
            if stream.read_exact(&mut answer).await.is_ok() && answer == *b"HTTP/1.1 200" {
                return Ok(());
            }
        }
        if begin.elapsed() > READY_MAX {
            bail!("{address} does not answer");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn queue_proxy(binary: &Path, ip: IpAddr, app: u16) -> Command {
    let mut command = Command::new(binary);
    let port = PORT.to_string();
    command.env_clear().envs([
        ("SERVING_NAMESPACE", "default"),
        ("SERVING_CONFIGURATION", "bench"),
        ("SERVING_REVISION", "bench-00001"),
        ("QUEUE_SERVING_PORT", &port),
        ("QUEUE_SERVING_TLS_PORT", "8112"),
        ("CONTAINER_CONCURRENCY", "0"),
        ("REVISION_TIMEOUT_SECONDS", "300"),
        ("SERVING_POD", "bench"),
        ("SERVING_POD_IP", "127.0.0.1"),
        ("SERVING_LOGGING_CONFIG", ""),
        ("SERVING_LOGGING_LEVEL", "error"),
        ("USER_PORT", &app.to_string()),
        ("WEIR_BIND", &ip.to_string()),
    ]);
    command
}

fn configured(
    folder: &TempDir,
    program: &Path,
    arguments: &[&str],
    text: &str,
) -> anyhow::Result<Command> {
    // Envoy looks at the extension, and JSON is YAML.
    let file = folder.path().join("configuration.yaml");
    fs::write(&file, text)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .arg(file)
        .env("PATH", format!("{path}:/usr/sbin"));
    Ok(command)
}

fn nginx(ip: IpAddr, app: u16, folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
  fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream app {{ server 127.0.0.1:{app}; keepalive 1000; keepalive_requests 100000000; }}
  server {{
    listen {ip}:{PORT} backlog=4096; keepalive_requests 100000000;
    location / {{ proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection \"\";
      proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; }}
  }}
  server {{
    listen {ip}:{} http2 backlog=4096; keepalive_requests 100000000;
    location / {{ proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection \"\"; }}
  }}
}}
",
        PORT + 1
    )
}

/// activator-ext before one pod, which takes as many requests as come.
fn activator(binary: &Path, ip: IpAddr, app: u16, folder: &Path) -> anyhow::Result<Command> {
    let mut revision = Revision::new("bench-00001");
    revision.concurrency = 2_000;
    revision.pods = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, app))];
    fs::write(folder.join("bench.json"), revision.manifest())?;
    Ok(activator_of(binary, ip, folder))
}

/// Weir's activator-ext at an address, with a folder of manifests.
#[must_use]
pub fn activator_of(binary: &Path, ip: IpAddr, manifests: &Path) -> Command {
    let mut command = Command::new(binary);
    command
        .env_clear()
        .env("WEIR_BIND", ip.to_string())
        .env("SERVING_LOGGING_LEVEL", "error")
        .args(["data", "--manifests"])
        .arg(manifests);
    command
}

/// One listener for both protocols; upstream the one of the client.
fn envoy(ip: IpAddr, app: u16) -> String {
    let address = |ip: &str, port: u16| serde_json::json!({"socket_address": {"address": ip, "port_value": port}});
    let types = "type.googleapis.com/envoy.extensions";
    serde_json::json!({
        "static_resources": {
            "listeners": [{
                "address": address(&ip.to_string(), PORT),
                "filter_chains": [{"filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": {
                        "@type": format!("{types}.filters.network.http_connection_manager.v3.HttpConnectionManager"),
                        "stat_prefix": "bench",
                        "route_config": {"virtual_hosts": [{
                            "name": "all", "domains": ["*"],
                            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "app"}}],
                        }]},
                        "http_filters": [{
                            "name": "envoy.filters.http.router",
                            "typed_config": {"@type": format!("{types}.filters.http.router.v3.Router")},
                        }],
                    },
                }]}],
            }],
            "clusters": [{
                "name": "app",
                "connect_timeout": "1s",
                "circuit_breakers": {"thresholds": [{"max_connections": 20_000, "max_pending_requests": 20_000, "max_requests": 20_000}]},
                "typed_extension_protocol_options": {
                    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                        "@type": format!("{types}.upstreams.http.v3.HttpProtocolOptions"),
                        "use_downstream_protocol_config": {"http2_protocol_options": {}},
                    },
                },
                "load_assignment": {
                    "cluster_name": "app",
                    "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address("127.0.0.1", app)}}]}],
                },
            }],
        },
    })
    .to_string()
}

fn haproxy(ip: IpAddr, app: u16) -> String {
    format!(
        "global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout client 300s
  timeout server 300s
  timeout connect 1s
  http-reuse always
  option forwardfor
frontend one
  bind {ip}:{PORT}
  default_backend app
frontend two
  bind {ip}:{} proto h2
  default_backend app2
backend app
  server app 127.0.0.1:{app}
backend app2
  server app 127.0.0.1:{app} proto h2
",
        PORT + 1
    )
}

impl Running {
    /// Where it speaks a protocol: nginx and HAProxy have a port for each.
    pub fn address_of(&self, protocol: Protocol) -> SocketAddr {
        let mut address = self.address;
        if self.has_two_ports && protocol == Protocol::Http2 {
            address.set_port(PORT + 1);
        }
        address
    }

    /// CPU time of the process and its children so far.
    pub fn cpu_seconds(&self) -> f64 {
        let ticks = |pid: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (_, rest) = stat.rsplit_once(')')?;
            let field = |at: usize| rest.split_whitespace().nth(at)?.parse::<f64>().ok();
            Some(field(11)? + field(12)?)
        };
        self.tree().into_iter().filter_map(ticks).sum::<f64>() / TICKS
    }

    /// Resident memory of the process and its children, in MiB.
    pub fn resident_mebibytes(&self) -> f64 {
        let kibibytes = self.tree().into_iter().filter_map(resident_kibibytes);
        kibibytes.sum::<f64>() / 1024.0
    }

    fn tree(&self) -> Vec<u32> {
        tree(self.child.as_ref().and_then(Child::id))
    }
}

/// Resident memory of a process, in KiB.
#[must_use]
pub fn resident_kibibytes(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<f64>().ok()
}

/// A process and its children.
fn tree(pid: Option<u32>) -> Vec<u32> {
    let Some(pid) = pid else { return Vec::new() };
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    std::iter::once(pid).chain(children).collect()
}

/// A control group with a CPU quota. Removed when dropped.
#[derive(Debug)]
pub struct Quota {
    folder: PathBuf,
}

impl Quota {
    /// So many per cent of one CPU; `None` where this process may not make control groups.
    pub fn new(percent: u32) -> Option<Self> {
        let name = format!("weir-bench-{}", std::process::id());
        let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let (root, file, text) = if unified {
            (
                "/sys/fs/cgroup",
                "cpu.max",
                format!("{} 100000", percent * 1000),
            )
        } else {
            (
                "/sys/fs/cgroup/cpu",
                "cpu.cfs_quota_us",
                (percent * 1000).to_string(),
            )
        };
        let folder = Path::new(root).join(name);
        fs::create_dir(&folder).ok()?;
        let quota = Self { folder };
        fs::write(quota.folder.join(file), text).ok()?;
        Some(quota)
    }

    /// The same command, which is in the group before it runs, and so are its children.
    fn within(&self, command: &Command) -> Command {
        const JOIN: &str = "echo $$ > \"$0\" && exec \"$@\"";
        let command = command.as_std();
        let mut joined = Command::new("/bin/sh");
        joined
            .args(["-c", JOIN])
            .arg(self.folder.join("cgroup.procs"))
            .arg(command.get_program())
            .args(command.get_args())
            .envs(
                command
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        joined
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // A group with a process in it stays; its name tells whose it is.
        let _removed = fs::remove_dir(&self.folder);
    }
}

/// What the figures are of.
pub fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("an unknown CPU", |(_, model)| model);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{cores} cores of {model}, Linux {}", kernel.trim())
}
