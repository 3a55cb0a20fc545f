//! An activator-ext process at an address of its own, and its cluster: a directory of manifests.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use peers::api::ApiServer;
use peers::revision::Revision;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::{NamedTempFile, TempDir};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};

use crate::PATIENCE;
use crate::client::Client;
use crate::metrics::Metrics;
use crate::proxy::fresh_address;

/// Builder of an activator-ext process.
#[derive(Debug)]
pub struct Builder {
    binary: PathBuf,
    ip: IpAddr,
    environment: BTreeMap<String, String>,
    arguments: Vec<String>,
    has_manifests: bool,
    folder: TempDir,
}

/// An activator-ext process, killed when dropped.
#[derive(Debug)]
pub struct Activator {
    child: Child,
    /// Address on which the activator listens.
    pub ip: IpAddr,
    folder: TempDir,
}

impl Builder {
    /// Returns a builder of an activator run from `binary`, without revisions.
    ///
    /// # Panics
    /// If no temporary folder can be created.
    #[must_use]
    pub fn new(binary: &str) -> Self {
        let ip = fresh_address();
        let folder = TempDir::new().expect("a temporary folder");
        fs::create_dir(folder.path().join("manifests")).expect("a folder for manifests");
        let environment = [
            ("WEIR_BIND", ip.to_string()),
            ("POD_NAME", "weir-activator-0".to_owned()),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value));
        Self {
            binary: binary.into(),
            ip,
            environment: environment.into(),
            arguments: Vec::new(),
            has_manifests: true,
            folder,
        }
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.insert(name.to_owned(), value.to_string());
        self
    }

    /// Appends command-line arguments to the earlier ones.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned());
        self.arguments.extend(arguments);
        self
    }

    /// Adds the manifest of a revision.
    #[must_use]
    pub fn revision(self, revision: &Revision) -> Self {
        write(self.folder.path(), &revision.name, &revision.manifest());
        self
    }

    /// Adds a manifest with this text.
    #[must_use]
    pub fn manifest(self, name: &str, text: &str) -> Self {
        write(self.folder.path(), name, text);
        self
    }

    /// Returns the folder of the activator's certificates, created if missing.
    ///
    /// # Panics
    /// If the folder cannot be created.
    #[must_use]
    pub fn certificates(&self) -> PathBuf {
        let folder = self.folder.path().join("certs");
        fs::create_dir_all(&folder).expect("a folder for certificates");
        folder
    }

    /// Makes it read the Kubernetes API in place of manifests.
    ///
    /// # Panics
    /// If the disk is full.
    #[must_use]
    pub fn kubernetes(mut self, api: &ApiServer) -> Self {
        let path = self.folder.path().join("kubeconfig");
        fs::write(&path, api.kubeconfig()).expect("room for a kubeconfig");
        self.has_manifests = false;
        self.set("KUBECONFIG", path.display())
    }

    /// Makes it look for a Kubernetes API, which is not configured.
    #[must_use]
    pub const fn without_manifests(mut self) -> Self {
        self.has_manifests = false;
        self
    }

    /// Returns the address on which it will listen.
    #[must_use]
    pub const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Starts it, waits for its end, and returns its status and stderr.
    ///
    /// # Panics
    /// If it has not ended after `limit`.
    pub async fn run_to_end(self, limit: Duration) -> (ExitStatus, String) {
        let mut activator = self.spawn();
        let status = timeout(limit, activator.child.wait()).await;
        let status = status
            .unwrap_or_else(|_| panic!("the process has not ended within {limit:?}"))
            .expect("a status");
        (status, activator.stderr())
    }

    /// Starts it and waits until it listens.
    ///
    /// # Panics
    /// If it ends, or does not listen within [`PATIENCE`].
    pub async fn start(self) -> Activator {
        let mut activator = self.spawn();
        let begin = Instant::now();
        while TcpStream::connect(activator.address()).await.is_err() {
            if let Ok(Some(status)) = activator.child.try_wait() {
                panic!("the activator ended with {status}: {}", activator.stderr());
            }
            assert!(begin.elapsed() < PATIENCE, "{}", activator.stderr());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        activator
    }

    fn spawn(self) -> Activator {
        let stderr = fs::File::create(self.folder.path().join("stderr"));
        let stdout = fs::File::create(self.folder.path().join("stdout"));
        let mut command = Command::new(&self.binary);
        command.arg("data");
        if self.has_manifests {
            let manifests = self.folder.path().join("manifests");
            command.arg("--manifests").arg(manifests);
        }
        let child = command
            .args(&self.arguments)
            .env_clear()
            .env("WEIR_CERTIFICATES", self.folder.path().join("certs"))
            .env("WEIR_TRUST_BUNDLES", self.folder.path().join("bundles"))
            .envs(&self.environment)
            .stdin(Stdio::null())
            .stdout(stdout.expect("a file for stdout"))
            .stderr(stderr.expect("a file for stderr"))
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", self.binary.display()));
        Activator {
            child,
            ip: self.ip,
            folder: self.folder,
        }
    }
}

impl Activator {
    /// Returns the address of the activator's main listener.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, 8012)
    }

    /// Connects a client to the main listener.
    pub async fn connect(&self) -> Client {
        Client::connect(self.address()).await
    }

    /// Replaces the manifest of a revision.
    pub fn set_revision(&self, revision: &Revision) {
        write(self.folder.path(), &revision.name, &revision.manifest());
    }

    /// Replaces the text of a manifest.
    pub fn set_manifest(&self, name: &str, text: &str) {
        write(self.folder.path(), name, text);
    }

    /// Returns what the activator has written to stdout so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        fs::read_to_string(self.folder.path().join("stdout")).unwrap_or_default()
    }

    /// Returns what the activator has written to stderr so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }

    /// Scrapes the metrics of the activator from port 9476.
    pub async fn metrics(&self) -> Metrics {
        Metrics::scrape(SocketAddr::new(self.ip, 9476)).await
    }

    /// Waits until this many instances are ready.
    ///
    /// # Panics
    /// If they are not within [`PATIENCE`].
    pub async fn has_instances(&self, count: u32) {
        let is_count = |value| value == f64::from(count);
        self.has("weir_instances", &["state=\"ready\""], is_count)
            .await;
    }

    /// Waits until a metric has a value for which `is_wanted` is true: the sum over all series of this name with all of these
    /// labels, 0 without any.
    ///
    /// # Panics
    /// If it has none within [`PATIENCE`].
    pub async fn has(&self, name: &str, labels: &[&str], is_wanted: impl Fn(f64) -> bool) {
        let begin = Instant::now();
        loop {
            let value = self.metrics().await.value(name, labels).unwrap_or(0.0);
            if is_wanted(value) {
                return;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "{name}{labels:?} is {value}\n{}",
                self.stderr()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns the PID of the activator.
    ///
    /// # Panics
    /// If it has ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id().expect("the activator runs")
    }

    /// Sends SIGTERM to the process.
    ///
    /// # Panics
    /// If it has ended.
    pub fn terminate(&self) {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(Pid::from_raw).expect("a process");
        kill_process(pid, Signal::TERM).expect("the process is there");
    }

    /// Returns the exit code of the activator; `None` if it was ended by a signal, or still runs after `limit`.
    pub async fn exit_code(&mut self, limit: Duration) -> Option<i32> {
        let status = timeout(limit, self.child.wait()).await.ok()?.ok()?;
        status.code()
    }
}

/// Writes a manifest by rename, so that it is never read half-written.
fn write(folder: &Path, name: &str, text: &str) {
    let folder = folder.join("manifests");
    let mut file = NamedTempFile::new_in(&folder).expect("a file");
    file.write_all(text.as_bytes())
        .expect("room for a manifest");
    file.persist(folder.join(format!("{name}.yaml")))
        .expect("a manifest in its place");
}
