//! Knative's own, unmodified activator, in a network namespace.
//!
//! It reads the [API server in memory](crate::api) and reports to the [stub autoscaler](crate::autoscaler), both at the outer end
//! of its network's link.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::api::{ApiServer, Resource};
use crate::autoscaler::Autoscaler;
use crate::network::{Network, NetworkError};
use crate::revision::Revision;

/// Environment variable with the path of Knative's activator, for comparisons.
pub const ACTIVATOR_VARIABLE: &str = "KNATIVE_ACTIVATOR";
/// Environment variable with the path of Knative's queue-proxy, for comparisons.
pub const QUEUE_PROXY_VARIABLE: &str = "KNATIVE_QUEUE_PROXY";

const PORT: u16 = 8012;
const AUTOSCALER_PORT: u16 = 8080;
const AUTOSCALER: &str = "autoscaler.knative-serving.svc.cluster.local";
/// ConfigMaps of the activator's settings, all with Knative's defaults.
const CONFIG_MAPS: [&str; 6] = [
    "config-autoscaler",
    "config-defaults",
    "config-features",
    "config-logging",
    "config-network",
    "config-observability",
];
/// Longest time until Knative's activator is ready.
const READY_MAX: Duration = Duration::from_secs(30);

/// Reason for which Knative's activator does not run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No network namespace could be created.
    #[error("no network of its own: {0}")]
    Network(#[from] NetworkError),
    /// A file cannot be written.
    #[error("cannot write its kubeconfig: {0}")]
    File(#[source] io::Error),
    /// The program cannot be started.
    #[error("{} cannot be started: {reason}", path.display())]
    Spawn {
        /// Path of the program.
        path: PathBuf,
        /// Error of the system.
        #[source]
        reason: io::Error,
    },
    /// The program ended, or is not ready in time.
    #[error("it is not ready: {log}")]
    NotReady {
        /// Last lines of the activator's log.
        log: String,
    },
}

/// Knative's activator, killed when dropped.
#[derive(Debug)]
pub struct KnativeActivator {
    /// Process of the activator.
    pub child: Child,
    /// API server that the activator reads.
    pub api: ApiServer,
    /// Autoscaler that the activator reports to.
    pub autoscaler: Autoscaler,
    /// Network of the activator: pods may be at the outer end, or [behind](Network::behind).
    pub network: Network,
    folder: TempDir,
}

impl KnativeActivator {
    /// Starts it with a revision and waits until it is ready.
    ///
    /// # Errors
    /// [`StartError`]
    pub async fn start(binary: &OsStr, revision: &Revision) -> Result<Self, StartError> {
        let network = Network::new(&[AUTOSCALER])?;
        let api = ApiServer::at(network.outside.into()).await;
        let autoscaler = Autoscaler::at(SocketAddr::from((network.outside, AUTOSCALER_PORT))).await;
        for name in CONFIG_MAPS {
            let map = json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"namespace": "knative-serving", "name": name},
                "data": {},
            });
            api.apply(&Resource::new("v1", "configmaps"), map);
        }
        describe(&api, &network, revision);
        let folder = TempDir::new().map_err(StartError::File)?;
        let kubeconfig = folder.path().join("kubeconfig");
        fs::write(&kubeconfig, api.kubeconfig()).map_err(StartError::File)?;
        let log = fs::File::create(folder.path().join("log")).map_err(StartError::File)?;
        let [ip, arguments @ ..] = network.entrance();
        let child = Command::new(ip)
            .args(arguments)
            .arg(binary)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("KUBECONFIG", &kubeconfig)
            .env("POD_NAME", "activator-0")
            .env("POD_IP", network.inside.to_string())
            .env("SYSTEM_NAMESPACE", "knative-serving")
            .env("CONFIG_LOGGING_NAME", "config-logging")
            .env("CONFIG_OBSERVABILITY_NAME", "config-observability")
            // The API server in memory reports this release.
            .env("KUBERNETES_MIN_VERSION", "v1.33.0")
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(StartError::File)?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(|reason| StartError::Spawn {
                path: binary.into(),
                reason,
            })?;
        let mut activator = Self {
            child,
            api,
            autoscaler,
            network,
            folder,
        };
        let begin = Instant::now();
        while !activator.is_healthy().await {
            let has_ended = !matches!(activator.child.try_wait(), Ok(None));
            if has_ended || begin.elapsed() > READY_MAX {
                return Err(StartError::NotReady {
                    log: activator.log(),
                });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(activator)
    }

    /// Returns the address for requests.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        SocketAddr::new(std::net::IpAddr::V4(self.network.inside), PORT)
    }

    /// Replaces a revision in the activator's API server. The pods must be at the outer end of its network, or behind it.
    pub fn set_revision(&self, revision: &Revision) {
        describe(&self.api, &self.network, revision);
    }

    /// Returns the last lines of its log.
    #[must_use]
    pub fn log(&self) -> String {
        let all = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<_> = all.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Returns whether the activator answers the kubelet's probe with 200.
    async fn is_healthy(&self) -> bool {
        let answer = async {
            let mut stream = TcpStream::connect(self.address()).await?;
            let request = b"GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: kube-probe/1.33\r\nConnection: close\r\n\r\n";
            stream.write_all(request).await?;
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await?;
            Ok::<_, io::Error>(answer)
        };
        matches!(answer.await, Ok(answer) if answer == *b"HTTP/1.1 200")
    }
}

fn describe(api: &ApiServer, network: &Network, revision: &Revision) {
    for (resource, object) in revision.objects() {
        api.apply(&resource, object);
    }
    // As Knative writes it while the activator is in the path: this object makes the activator the only one.
    let public = json!({
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {
            "namespace": "default",
            "name": revision.name,
            "labels": {
                "networking.internal.knative.dev/serviceType": "Public",
                "serving.knative.dev/revision": revision.name,
                "serving.knative.dev/revisionUID": revision.name,
            },
        },
        "subsets": [{
            "addresses": [{"ip": network.inside}],
            "ports": [{"name": "http", "port": PORT}],
        }],
    });
    api.apply(&Resource::new("v1", "endpoints"), public);
}
