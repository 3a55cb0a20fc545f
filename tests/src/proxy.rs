//! A queue-proxy process at an address of its own.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use peers::autoscaler::Stat;
use prost::Message as _;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};

use crate::PATIENCE;
use crate::client::Client;
use crate::metrics::Metrics;
use crate::procfs;

/// Environment variable with a binary to test instead of Weir's own.
pub const BINARY_VARIABLE: &str = "WEIR_CONTRACT_BINARY";
const PORT: u16 = 8012;

/// Returns whether Weir's own queue-proxy is tested, whose messages and resource use are checked besides the contract.
#[must_use]
pub fn is_own() -> bool {
    std::env::var_os(BINARY_VARIABLE).is_none()
}

/// Builder of a queue-proxy process, initially with Knative's environment variables.
#[derive(Debug)]
pub struct Builder {
    binary: PathBuf,
    ip: IpAddr,
    environment: BTreeMap<String, String>,
    folder: TempDir,
    stdout: Option<io::PipeWriter>,
}

/// A queue-proxy process, killed when dropped.
#[derive(Debug)]
pub struct Proxy {
    child: Child,
    /// Address on which the proxy listens.
    pub ip: IpAddr,
    /// Port of the proxy's main listener.
    pub port: u16,
    folder: TempDir,
}

impl Builder {
    /// Returns a builder of a proxy run from `own`, or from the binary in [`BINARY_VARIABLE`], in front of `user_port`.
    ///
    /// # Panics
    /// If no temporary folder can be created.
    #[must_use]
    pub fn new(own: &str, user_port: u16) -> Self {
        let ip = fresh_address();
        let environment = [
            ("SERVING_NAMESPACE", "default"),
            ("SERVING_SERVICE", "service"),
            ("SERVING_CONFIGURATION", "configuration"),
            ("SERVING_REVISION", "revision-00001"),
            ("QUEUE_SERVING_PORT", "8012"),
            ("QUEUE_SERVING_TLS_PORT", "8112"),
            ("CONTAINER_CONCURRENCY", "0"),
            ("REVISION_TIMEOUT_SECONDS", "300"),
            ("REVISION_RESPONSE_START_TIMEOUT_SECONDS", "0"),
            ("REVISION_IDLE_TIMEOUT_SECONDS", "0"),
            ("SERVING_POD", "revision-00001-deployment-5d8f-x2v7q"),
            ("SERVING_POD_IP", "10.0.0.7"),
            ("SERVING_LOGGING_CONFIG", ""),
            ("SERVING_LOGGING_LEVEL", ""),
            ("SYSTEM_NAMESPACE", "knative-serving"),
            ("SERVING_READINESS_PROBE", ""),
            ("HOST_IP", "10.0.0.1"),
            ("ENABLE_HTTP2_AUTO_DETECTION", "false"),
            ("ENABLE_HTTP_FULL_DUPLEX", "false"),
            ("ROOT_CA", ""),
            ("ENABLE_MULTI_CONTAINER_PROBES", "false"),
            ("OBSERVABILITY_CONFIG", "{}"),
        ];
        let mut environment: BTreeMap<String, String> = environment
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        environment.insert("USER_PORT".to_owned(), user_port.to_string());
        environment.insert("WEIR_BIND".to_owned(), ip.to_string());
        Self {
            binary: std::env::var_os(BINARY_VARIABLE).map_or_else(|| own.into(), Into::into),
            ip,
            environment,
            folder: TempDir::new().expect("a temporary folder"),
            stdout: None,
        }
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.insert(name.to_owned(), value.to_string());
        self
    }

    /// Removes an environment variable.
    #[must_use]
    pub fn unset(mut self, name: &str) -> Self {
        self.environment.remove(name);
        self
    }

    /// Sets the environment variable `CONTAINER_CONCURRENCY`.
    #[must_use]
    pub fn concurrency(self, n: u32) -> Self {
        self.set("CONTAINER_CONCURRENCY", n)
    }

    /// Makes it listen at this address.
    #[must_use]
    pub fn bind(mut self, ip: IpAddr) -> Self {
        self.ip = ip;
        self.set("WEIR_BIND", ip)
    }

    /// Returns the address on which it will listen.
    #[must_use]
    pub const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Returns the folder of the proxy's certificates, created if missing. For another binary this is Knative's fixed folder,
    /// which requires a file system of its own (`contract-report` creates one).
    ///
    /// # Panics
    /// If the folder cannot be created.
    #[must_use]
    pub fn certificates(&self) -> PathBuf {
        let folder = if std::env::var_os(BINARY_VARIABLE).is_some() {
            "/var/lib/knative/certs".into()
        } else {
            self.folder.path().join("certs")
        };
        fs::create_dir_all(&folder).expect("a folder for certificates");
        folder
    }

    /// Starts it, waits for its end, and returns its status and stderr.
    ///
    /// # Panics
    /// If it has not ended after `limit`.
    pub async fn run_to_end(self, limit: Duration) -> (ExitStatus, String) {
        let mut proxy = self.spawn();
        let status = timeout(limit, proxy.child.wait()).await;
        let status = status
            .unwrap_or_else(|_| panic!("the process has not ended within {limit:?}"))
            .expect("a status");
        (status, proxy.stderr())
    }

    /// Starts it and waits until it listens.
    ///
    /// # Panics
    /// If it ends, or does not listen within [`PATIENCE`].
    pub async fn start(self) -> Proxy {
        let mut proxy = self.spawn();
        let begin = Instant::now();
        while !proxy.listens().await {
            if let Ok(Some(status)) = proxy.child.try_wait() {
                panic!("the proxy ended with {status}: {}", proxy.stderr());
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "the proxy does not listen within {PATIENCE:?}: {}",
                proxy.stderr()
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        proxy
    }

    /// Starts it as [`Self::start`] does, with an unread pipe as standard output.
    ///
    /// # Panics
    /// If it ends, or does not listen within [`PATIENCE`].
    pub async fn start_with_pipe(mut self) -> (Proxy, io::PipeReader) {
        let (reader, writer) = io::pipe().expect("a pipe");
        self.stdout = Some(writer);
        (self.start().await, reader)
    }

    fn spawn(self) -> Proxy {
        let stderr =
            fs::File::create(self.folder.path().join("stderr")).expect("a file for stderr");
        let stdout: Stdio = match self.stdout {
            Some(pipe) => pipe.into(),
            None => fs::File::create(self.folder.path().join("stdout"))
                .expect("a file for stdout")
                .into(),
        };
        let child = Command::new(&self.binary)
            .env_clear()
            .env("WEIR_CERTIFICATES", self.folder.path().join("certs"))
            .envs(&self.environment)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", self.binary.display()));
        let port = self
            .environment
            .get("QUEUE_SERVING_PORT")
            .and_then(|port| port.parse().ok());
        Proxy {
            child,
            ip: self.ip,
            port: port.unwrap_or(PORT),
            folder: self.folder,
        }
    }
}

impl Proxy {
    /// Returns the address of the proxy's main listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }

    /// Returns the address of the proxy with another port.
    #[must_use]
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }

    /// Returns whether all of the proxy's ports accept connections.
    async fn listens(&self) -> bool {
        for port in [self.port, 8022, 9090] {
            if TcpStream::connect(self.at(port)).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Connects a client to the main listener.
    pub async fn connect(&self) -> Client {
        Client::connect(self.address()).await
    }

    /// Returns what the proxy has written to stderr so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }

    /// Returns what the proxy has written to stdout so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        fs::read_to_string(self.folder.path().join("stdout")).unwrap_or_default()
    }

    /// Returns the lines on stdout so far that are JSON objects with this key.
    #[must_use]
    pub fn json_lines(&self, key: &str) -> Vec<serde_json::Value> {
        self.stdout()
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .filter(|line: &serde_json::Value| line.get(key).is_some())
            .collect()
    }

    /// Scrapes the metrics of the proxy from port 9091.
    pub async fn metrics(&self) -> Metrics {
        Metrics::scrape(self.at(9091)).await
    }

    /// Waits until the proxy fails probes because it drains.
    ///
    /// # Panics
    /// If it does not within [`PATIENCE`].
    pub async fn drains(&self) {
        const PROBE: &str = "K-Network-Probe: probe\r\nK-Network-Hash: h\r\n";
        let begin = Instant::now();
        while self.connect().await.get_with("/", PROBE).await.status() != 503 {
            assert!(
                begin.elapsed() < PATIENCE,
                "the proxy does not drain within {PATIENCE:?}"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Returns the resident memory of the proxy in bytes.
    ///
    /// # Panics
    /// If it has ended.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        procfs::resident_bytes(self.pid()).expect("the proxy runs")
    }

    /// Returns the numbers of open files and of threads of the proxy.
    ///
    /// # Panics
    /// If it has ended.
    #[must_use]
    pub fn files_and_threads(&self) -> (usize, usize) {
        procfs::files_and_threads(self.pid()).expect("the proxy runs")
    }

    /// Returns the PID of the proxy.
    ///
    /// # Panics
    /// If it has ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id().expect("the proxy runs")
    }

    /// Sends SIGTERM to the process.
    ///
    /// # Panics
    /// If it has ended.
    pub fn terminate(&self) {
        let pid = i32::try_from(self.pid())
            .ok()
            .and_then(Pid::from_raw)
            .expect("a pid");
        kill_process(pid, Signal::TERM).expect("the process takes the signal");
    }

    /// Waits for the end of the proxy and returns the exit code.
    ///
    /// # Panics
    /// If it has not ended after `limit`.
    pub async fn exit_code(&mut self, limit: Duration) -> Option<i32> {
        let status = timeout(limit, self.child.wait())
            .await
            .unwrap_or_else(|_| panic!("the process has not ended within {limit:?}"));
        status.expect("a status").code()
    }

    /// Returns whether the proxy still runs.
    ///
    /// # Panics
    /// If the status cannot be queried.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a status").is_none()
    }

    /// Scrapes the stat for the autoscaler.
    ///
    /// # Panics
    /// If its format is not the autoscaler's.
    pub async fn stat(&self) -> Stat {
        let response = Client::connect(self.at(9090)).await.get("/metrics").await;
        assert_eq!(response.status(), 200);
        assert_eq!(
            response.header("content-type"),
            Some("application/protobuf")
        );
        assert!(response.body.len() <= 336);
        Stat::decode(&response.body[..]).expect("a Stat message")
    }
}

impl Drop for Proxy {
    /// Waits until the proxy's ports are free: a binary that listens on all interfaces may be started again.
    fn drop(&mut self) {
        if self.child.start_kill().is_ok() {
            while let Ok(None) = self.child.try_wait() {
                std::thread::yield_now();
            }
        }
    }
}

/// Returns an address of 127.0.0.0/8 that no other test uses, in this process or another.
#[must_use]
pub fn fresh_address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let (more, last) = (n / 254 % 2, n % 254 + 1);
    let byte = |n: u32| u8::try_from(n).expect("below 256");
    // 127.0.x.y is left to developers and demos.
    IpAddr::V4(Ipv4Addr::new(
        127,
        high % 100 + 1 + byte(more) * 100,
        low,
        byte(last),
    ))
}
