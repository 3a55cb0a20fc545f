//! The role `control` of activator-ext: its process, and the cluster in which it works.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use peers::api::{ApiServer, Resource};
use peers::mirroring::Mirroring;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::proxy::fresh_address;

/// Address of Knative's own activator.
const KNATIVES: &str = "198.51.100.7";
/// Label with the manager of an EndpointSlice.
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Manager of Weir's own slices.
pub const OWN: &str = "activator-ext.weir.dev";

/// Queue-proxy image in pods of opted-in revisions.
pub const QUEUE_PROXY_IMAGE: &str = "weir.test/queue-proxy@sha256:0";
/// Objects of the manifests that role `control` fills: plural, namespace, name.
const FILLED: [(&str, &str, &str); 4] = [
    ("secrets", "weir-system", "weir-ca"),
    ("configmaps", "weir-system", "weir-ca"),
    ("secrets", "weir-system", "weir-certificates"),
    ("secrets", "knative-serving", "weir-certificates"),
];

/// A cluster: an API server, the controller that copies Endpoints, and objects.
#[derive(Debug)]
pub struct Cluster {
    /// API server of the cluster.
    pub api: Arc<ApiServer>,
    _mirroring: Mirroring,
    folder: TempDir,
}

/// A pod of role `data`, which answers probes and is listed by the API. Dropping it stops the answers, but leaves it listed.
#[derive(Debug)]
pub struct DataPod {
    /// Name of the pod.
    pub name: String,
    /// Address on which the pod answers probes.
    pub ip: IpAddr,
    listener: JoinHandle<()>,
}

/// A process of role `control`, killed when dropped.
#[derive(Debug)]
pub struct Control {
    child: Child,
    /// Name of the pod of the process.
    pub name: String,
    /// Address on which the process listens.
    pub ip: IpAddr,
    folder: TempDir,
}

/// Destination of a revision's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Path {
    /// No endpoint at all.
    Empty,
    /// Knative's activator or pods, as without Weir.
    Knatives,
    /// These pods of role `data`.
    Own(Vec<IpAddr>),
}

/// Returns the API resource of a plural that Weir uses.
///
/// # Panics
/// If Weir does not use it.
#[must_use]
pub fn resource(plural: &str) -> Resource {
    let api_version = match plural {
        "revisions" => "serving.knative.dev/v1",
        "podautoscalers" => "autoscaling.internal.knative.dev/v1alpha1",
        "endpointslices" => "discovery.k8s.io/v1",
        "leases" => "coordination.k8s.io/v1",
        "deployments" | "daemonsets" => "apps/v1",
        "clusterroles" | "clusterrolebindings" | "roles" | "rolebindings" => {
            "rbac.authorization.k8s.io/v1"
        }
        "events" => "events.k8s.io/v1",
        "validatingwebhookconfigurations" | "mutatingwebhookconfigurations" => {
            "admissionregistration.k8s.io/v1"
        }
        "gpufunctions" => "weir.dev/v1alpha1",
        "runtimeclasses" => "node.k8s.io/v1",
        "services" | "endpoints" | "pods" | "configmaps" | "namespaces" | "serviceaccounts"
        | "secrets" | "nodes" => "v1",
        other => panic!("no resource {other}"),
    };
    Resource::new(api_version, plural)
}

impl Cluster {
    /// Starts a cluster without revisions, in which Endpoints are copied after `lag`.
    ///
    /// # Panics
    /// If the disk is full.
    pub async fn start(lag: Duration) -> Self {
        let api = Arc::new(ApiServer::start().await);
        let folder = TempDir::new().expect("a temporary folder");
        std::fs::write(folder.path().join("kubeconfig"), api.kubeconfig())
            .expect("room for a kubeconfig");
        let cluster = Self {
            _mirroring: Mirroring::start(Arc::clone(&api), lag),
            api,
            folder,
        };
        let namespace = json!({"metadata": {"name": "weir-system"}});
        cluster.api.apply(&resource("namespaces"), namespace);
        for (plural, namespace, name) in FILLED {
            let empty = json!({"metadata": {"namespace": namespace, "name": name}});
            cluster.api.apply(&resource(plural), empty);
        }
        cluster
    }

    /// Adds an initialized revision with its public Service, and with an objective if it has opted in.
    pub fn add_revision(&self, name: &str, has_opted_in: bool) {
        let metadata = json!({"namespace": "default", "name": name});
        let mut revision = json!({"metadata": metadata, "spec": {"containerConcurrency": 1}});
        if has_opted_in {
            revision["metadata"]["annotations"] = json!({"weir.dev/slo": "1s"});
        }
        self.api.apply(&resource("revisions"), revision);
        self.set_initialized(name, true);
        let labels = json!({
            "networking.internal.knative.dev/serviceType": "Public",
            "serving.knative.dev/revision": name,
        });
        let metadata = json!({"namespace": "default", "name": name, "labels": labels});
        let ports = json!([
            {"name": "http", "port": 80, "targetPort": 8012},
            {"name": "https", "port": 443, "targetPort": 8112},
        ]);
        let service =
            json!({"metadata": metadata, "spec": {"ports": ports, "ipFamilies": ["IPv4"]}});
        self.api.apply(&resource("services"), service);
        let subset =
            json!({"addresses": [{"ip": KNATIVES}], "ports": [{"name": "http", "port": 8012}]});
        let endpoints = json!({"metadata": metadata, "subsets": [subset]});
        self.api.apply(&resource("endpoints"), endpoints);
    }

    /// Opts a revision in or out.
    pub fn opt(&self, name: &str, is_in: bool) {
        self.change("revisions", "default", name, |revision| {
            revision["metadata"]["annotations"] = if is_in {
                json!({"weir.dev/slo": "1s"})
            } else {
                json!({})
            };
        });
    }

    /// Sets whether Knative has initialized the revision.
    pub fn set_initialized(&self, name: &str, is_initialized: bool) {
        let status = if is_initialized { "True" } else { "Unknown" };
        let conditions = json!([{"type": "ScaleTargetInitialized", "status": status}]);
        let metadata = json!({"namespace": "default", "name": name});
        let autoscaler = json!({"metadata": metadata, "status": {"conditions": conditions}});
        self.api.apply(&resource("podautoscalers"), autoscaler);
    }

    /// Deletes a revision with its dependent objects.
    pub fn delete_revision(&self, name: &str) {
        for plural in ["revisions", "podautoscalers", "services", "endpoints"] {
            self.api.delete(&resource(plural), "default", name);
        }
        let slice = format!("{name}-weir");
        self.api
            .delete(&resource("endpointslices"), "default", &slice);
    }

    /// Changes an object, if it exists.
    pub fn change(
        &self,
        plural: &str,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) {
        if let Some(mut object) = self.api.get(&resource(plural), namespace, name) {
            change(&mut object);
            self.api.apply(&resource(plural), object);
        }
    }

    /// Starts a ready pod of role `data`.
    pub async fn add_pod(&self, name: &str) -> DataPod {
        let ip = fresh_address();
        let pod = DataPod {
            name: name.to_owned(),
            ip,
            listener: answer_probes(ip).await,
        };
        self.set_pod(&pod, true);
        pod
    }

    /// Sets whether Kubernetes considers a pod ready.
    pub fn set_pod(&self, pod: &DataPod, is_ready: bool) {
        let status = if is_ready { "True" } else { "False" };
        let labels = json!({"app.kubernetes.io/name": "weir-activator"});
        let object = json!({
            "metadata": {"namespace": "knative-serving", "name": pod.name, "labels": labels},
            "status": {
                "podIP": pod.ip, "podIPs": [{"ip": pod.ip}],
                "conditions": [{"type": "Ready", "status": status}],
            },
        });
        self.api.apply(&resource("pods"), object);
    }

    /// Deletes a pod from the API.
    pub fn delete_pod(&self, pod: &DataPod) {
        self.api
            .delete(&resource("pods"), "knative-serving", &pod.name);
    }

    /// Returns the current destination of a revision's requests.
    #[must_use]
    pub fn path(&self, name: &str) -> Path {
        let all = self.api.list(&resource("endpointslices"), "default");
        let mut own = Vec::new();
        let its = all
            .iter()
            .filter(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == name);
        for slice in its {
            let addresses = slice["endpoints"].as_array().into_iter().flatten();
            let addresses =
                addresses.filter_map(|it| it["addresses"][0].as_str()?.parse::<IpAddr>().ok());
            if slice["metadata"]["labels"][MANAGED_BY] == OWN {
                own.extend(addresses);
            } else if addresses.count() > 0 {
                return Path::Knatives;
            }
        }
        if own.is_empty() {
            Path::Empty
        } else {
            Path::Own(own)
        }
    }

    /// Starts a process of role `control`, which leads unless it is without CPU for five seconds.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn control(&self, binary: &str, name: &str) -> Control {
        self.control_with(binary, name, &[])
    }

    /// Starts a process of role `control` as [`Self::control`] does, with additional arguments.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn control_with(&self, binary: &str, name: &str, arguments: &[&str]) -> Control {
        self.spawn(binary, name, ["6s", "5s"], arguments)
    }

    /// Starts a process of role `control` with election terms of a tenth of the usual ones: another process leads soon after its
    /// end, or after a second without CPU.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn control_with_short_terms(&self, binary: &str, name: &str) -> Control {
        self.spawn(binary, name, ["1500ms", "1s"], &[])
    }

    fn spawn(
        &self,
        binary: &str,
        name: &str,
        [lease, renewal]: [&str; 2],
        arguments: &[&str],
    ) -> Control {
        let folder = TempDir::new().expect("a temporary folder");
        let file = |name: &str| std::fs::File::create(folder.path().join(name)).expect("a file");
        let ip = fresh_address();
        let child = Command::new(binary)
            .args(["control", "--lease-duration", lease])
            .args(["--renew-deadline", renewal, "--retry-period", "200ms"])
            .args(arguments)
            .env_clear()
            .env("KUBECONFIG", self.kubeconfig())
            .env("WEIR_BIND", ip.to_string())
            .env("POD_NAME", name)
            .env("QUEUE_PROXY_IMAGE", QUEUE_PROXY_IMAGE)
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {binary}: {error}"));
        Control {
            child,
            name: name.to_owned(),
            ip,
            folder,
        }
    }

    /// Returns the path of the kubeconfig for the API server.
    #[must_use]
    pub fn kubeconfig(&self) -> std::path::PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Returns the name of the leading process, if any.
    #[must_use]
    pub fn leader(&self) -> Option<String> {
        let lease = self
            .api
            .get(&resource("leases"), "weir-system", "weir-control")?;
        let holder = lease["spec"]["holderIdentity"].as_str()?;
        Some(holder.to_owned()).filter(|holder| !holder.is_empty())
    }
}

impl DataPod {
    /// Stops answering probes without notice.
    pub fn die(&self) {
        self.listener.abort();
    }

    /// Returns whether the pod still answers probes.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.listener.is_finished()
    }
}

impl Drop for DataPod {
    fn drop(&mut self) {
        self.die();
    }
}

async fn answer_probes(ip: IpAddr) -> JoinHandle<()> {
    let listener = TcpListener::bind(SocketAddr::new(ip, 8012)).await;
    let listener = listener.expect("a free port");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4_096];
            // A connection without a request gets no answer.
            if stream.read(&mut head).await.is_ok_and(|bytes| bytes > 0) {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                let _sent = stream.write_all(answer).await;
            }
        }
    })
}

impl Control {
    /// Kills the process with SIGKILL.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Sends SIGTERM to the process.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        // The process may have ended by itself.
        if let Some(pid) = self.pid() {
            let _sent = kill_process(pid, signal);
        }
    }

    /// Returns the PID of the process; `None` after its end was observed.
    #[must_use]
    pub fn pid(&self) -> Option<Pid> {
        self.child
            .id()
            .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
    }

    /// Returns whether the process has ended.
    ///
    /// # Panics
    /// If the status cannot be queried.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a status").is_some()
    }

    /// Returns the exit code of the process; `None` if it was ended by a signal, or still runs after `limit`.
    pub async fn exit_code(&mut self, limit: Duration) -> Option<i32> {
        let status = timeout(limit, self.child.wait()).await.ok()?.ok()?;
        status.code()
    }

    /// Returns what the process has written to stdout and stderr so far.
    #[must_use]
    pub fn log(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.folder.path().join(name));
        read("stdout").unwrap_or_default() + &read("stderr").unwrap_or_default()
    }
}

/// An address without a listener, for unreachable pods.
pub const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
