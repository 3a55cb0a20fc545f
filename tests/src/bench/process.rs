//! Processes of the proxies: their start, and their use of CPU and memory.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use peers::knative::{KnativeActivator, QUEUE_PROXY_VARIABLE};
use peers::network::Network;
use peers::revision::Revision;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::command::prefixed;
use super::configurations::{self, PORT};
use super::load::{HOST, Protocol};
use super::quota::Quota;
use crate::procfs::resident_bytes;

/// Longest time until a started proxy is ready.
const READY_MAX: Duration = Duration::from_secs(10);
/// Clock ticks a second in `/proc/PID/stat`: fixed for all of Linux's user space.
const TICKS: f64 = 100.0;
const IP: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 9, 1));

/// Kind of a measured proxy.
#[derive(Debug, Clone)]
pub enum Kind {
    /// No proxy: the baseline of all others.
    Direct,
    /// Weir's queue-proxy, with the path of its binary, and whether an objective is set.
    Weir(PathBuf, bool),
    Nginx,
    HaProxy,
    /// Knative's queue-proxy, with the path of its binary.
    Knative(PathBuf),
    /// Weir's activator-ext, in front of a revision with an objective.
    Activator(PathBuf),
    /// Weir's activator-ext in a network namespace, for comparison with Knative's.
    ActivatorInNetwork(PathBuf),
    /// Knative's activator, in a network namespace.
    KnativeActivator(PathBuf),
    Envoy(PathBuf),
}

/// Returns all kinds that can be measured on this machine.
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
    if let Some(binary) = std::env::var_os(QUEUE_PROXY_VARIABLE) {
        kinds.push(Kind::Knative(binary.into()));
    }
    kinds
}

/// Returns whether a program is installed, in `PATH` or `/usr/sbin`.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
        || Path::new("/usr/sbin").join(program).is_file()
}

/// The user container's process, killed when dropped.
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

/// A proxy's process with its configuration, killed when dropped.
#[derive(Debug)]
pub struct Running {
    pub address: SocketAddr,
    /// Time from the start of the process to its first answer.
    pub started_in: Duration,
    has_two_ports: bool,
    child: Option<Child>,
    folder: TempDir,
    network: Option<Network>,
    knative: Option<KnativeActivator>,
}

impl Drop for Running {
    /// Waits for the processes' end, so that the port is free.
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        for pid in tree(child.id()) {
            // A process which has ended meanwhile is no error.
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
            Self::ActivatorInNetwork(_) => "Weir's activator-ext, by veth",
            Self::KnativeActivator(_) => "Knative's activator, by veth",
            Self::Envoy(_) => "Envoy",
        }
    }

    /// Starts the proxy in front of the user container at this port.
    pub async fn start(&self, app: u16, quota: Option<&Quota>) -> anyhow::Result<Running> {
        let mut running = Running {
            address: SocketAddr::new(IP, PORT),
            started_in: Duration::ZERO,
            has_two_ports: matches!(self, Self::Nginx | Self::HaProxy),
            child: None,
            folder: TempDir::new()?,
            network: None,
            knative: None,
        };
        let begin = Instant::now();
        match self {
            Self::Direct => {
                running.address = SocketAddr::from((Ipv4Addr::LOCALHOST, app));
                return Ok(running);
            }
            Self::KnativeActivator(binary) => {
                let knative = KnativeActivator::start(binary.as_os_str(), &revision(None)).await?;
                knative.set_revision(&revision(Some((knative.network.outside, app).into())));
                running.address = knative.address();
                running.knative = Some(knative);
            }
            _ => {
                let mut command = self.command(app, &mut running)?;
                if let Some(quota) = quota {
                    command = quota.within(&command);
                }
                command
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .kill_on_drop(true);
                let child = command.spawn();
                running.child =
                    Some(child.with_context(|| format!("{command:?} cannot be started"))?);
            }
        }
        if let Err(error) = answered(running.address).await {
            let child = running.child.as_mut().map(Child::try_wait).transpose()?;
            // Knative's queue-proxy listens on all interfaces, so another queue-proxy on this machine conflicts with it.
            return match child.flatten() {
                Some(status) => bail!("it ended with {status}; are its ports taken?"),
                None => Err(error),
            };
        }
        running.started_in = begin.elapsed();
        Ok(running)
    }

    /// Returns the command; files and settings that it needs are created in `running`.
    fn command(&self, app: u16, running: &mut Running) -> anyhow::Result<Command> {
        let folder = running.folder.path();
        Ok(match self {
            Self::Direct | Self::KnativeActivator(_) => bail!("it has no command"),
            Self::Weir(binary, deadlines) => {
                let mut command = queue_proxy(binary, app);
                if *deadlines {
                    command
                        .env("WEIR_SLO", "10s")
                        .env("WEIR_CONCURRENCY", "2000");
                }
                command
            }
            Self::Knative(binary) => queue_proxy(binary, app),
            Self::Nginx => {
                let text = configurations::nginx(IP, app, folder);
                configured(folder, Path::new("nginx"), &["-c"], &text)?
            }
            Self::Activator(binary) => {
                write_revision(folder, (Ipv4Addr::LOCALHOST, app).into())?;
                activator_of(binary, IP, folder)
            }
            Self::ActivatorInNetwork(binary) => {
                let network = Network::new(&[])?;
                write_revision(folder, (network.outside, app).into())?;
                running.address.set_ip(network.inside.into());
                let command = activator_of(binary, running.address.ip(), folder);
                let command = prefixed(network.entrance().map(OsStr::new), &command);
                running.network = Some(network);
                command
            }
            Self::Envoy(binary) => {
                let text = configurations::envoy(IP, app);
                let mut command = configured(folder, binary, &["-c"], &text)?;
                command.args([
                    "--concurrency",
                    "1",
                    "--log-level",
                    "off",
                    "--disable-hot-restart",
                ]);
                command
            }
            Self::HaProxy => {
                let text = configurations::haproxy(IP, app);
                configured(folder, Path::new("haproxy"), &["-db", "-f"], &text)?
            }
        })
    }
}

/// Waits for a first answer from an address.
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

fn queue_proxy(binary: &Path, app: u16) -> Command {
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
        ("WEIR_BIND", &IP.to_string()),
    ]);
    command
}

fn configured(
    folder: &Path,
    program: &Path,
    arguments: &[&str],
    text: &str,
) -> anyhow::Result<Command> {
    // Envoy decides by the file extension, and JSON is valid YAML.
    let file = folder.join("configuration.yaml");
    fs::write(&file, text)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .arg(file)
        .env("PATH", format!("{path}:/usr/sbin"));
    Ok(command)
}

/// Returns a revision with at most one pod and a concurrency of 2,000.
fn revision(pod: Option<SocketAddr>) -> Revision {
    let mut revision = Revision::new("bench-00001");
    revision.concurrency = 2_000;
    revision.pods = Vec::from_iter(pod);
    revision
}

fn write_revision(folder: &Path, pod: SocketAddr) -> io::Result<()> {
    fs::write(folder.join("bench.json"), revision(Some(pod)).manifest())
}

/// Returns the command of Weir's activator-ext at an address, with a folder of manifests.
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

impl Running {
    /// Returns the address of the proxy for a protocol: nginx and HAProxy have a port for each.
    pub fn address_of(&self, protocol: Protocol) -> SocketAddr {
        let mut address = self.address;
        if self.has_two_ports && protocol == Protocol::Http2 {
            address.set_port(PORT + 1);
        }
        address
    }

    /// Returns the CPU time of the process and its children so far, in s.
    pub fn cpu_seconds(&self) -> f64 {
        let ticks = |pid: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (_, rest) = stat.rsplit_once(')')?;
            let field = |at: usize| rest.split_whitespace().nth(at)?.parse::<f64>().ok();
            Some(field(11)? + field(12)?)
        };
        self.tree().into_iter().filter_map(ticks).sum::<f64>() / TICKS
    }

    /// Returns the resident memory of the process and its children, in MiB.
    pub fn resident_mebibytes(&self) -> f64 {
        let bytes = self.tree().into_iter().filter_map(resident_bytes);
        bytes.sum::<usize>() as f64 / f64::from(1 << 20)
    }

    fn tree(&self) -> Vec<u32> {
        let knative = self.knative.as_ref().map(|knative| &knative.child);
        tree(self.child.as_ref().or(knative).and_then(Child::id))
    }
}

/// Returns the PIDs of a process and its children.
fn tree(pid: Option<u32>) -> Vec<u32> {
    let Some(pid) = pid else { return Vec::new() };
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    std::iter::once(pid).chain(children).collect()
}

/// Returns a description of this machine for the figures: cores, CPU model and kernel.
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
