//! The role `control` of activator-ext: the process, and the cluster in which it works.

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

/// Where Knative's own activator is: requests to it go Knative's way.
const KNATIVES: &str = "198.51.100.7";
/// Names a slice's keeper.
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Weir's own slices.
pub const OWN: &str = "activator-ext.weir.dev";

/// The image that pods of opted-in revisions get.
pub const QUEUE_PROXY_IMAGE: &str = "weir.test/queue-proxy@sha256:0";
/// Objects of the manifests that role `control` fills.
const FILLED: [(&str, &str, &str); 4] = [
    ("secrets", "weir-system", "weir-ca"),
    ("configmaps", "weir-system", "weir-ca"),
    ("secrets", "weir-system", "weir-certificates"),
    ("secrets", "knative-serving", "weir-certificates"),
];

/// A cluster: an API server, the controller that copies Endpoints, and objects.
#[derive(Debug)]
pub struct Cluster {
    /// The API server.
    pub api: Arc<ApiServer>,
    _mirroring: Mirroring,
    folder: TempDir,
}

/// A pod of role `data`: it answers probes, and is listed by the API. Gone when dropped, but still listed.
#[derive(Debug)]
pub struct DataPod {
    /// Its name.
    pub name: String,
    /// Its address.
    pub ip: IpAddr,
    listener: JoinHandle<()>,
}

/// A process of role `control`. Killed when dropped.
#[derive(Debug)]
pub struct Control {
    child: Child,
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub ip: IpAddr,
    folder: TempDir,
}

/// Where the requests of a revision go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Path {
    /// Nowhere.
    Empty,
    /// To Knative's activator or pods, as by Knative alone.
    Knatives,
    /// To these pods of role `data`.
    Own(Vec<IpAddr>),
}

/// Returns the resource of this name that Weir has to do with.
///
/// # Panics
/// If it has nothing to do with it.
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
    /// A cluster without revisions, in which Endpoints are copied so much later.
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

    /// A revision that has been brought up, with its public Service; with an objective if it has opted in.
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

    /// Opts a revision in, or out.
    pub fn opt(&self, name: &str, is_in: bool) {
        self.change("revisions", "default", name, |revision| {
            revision["metadata"]["annotations"] = if is_in {
                json!({"weir.dev/slo": "1s"})
            } else {
                json!({})
            };
        });
    }

    /// Says whether Knative has brought the revision up.
    pub fn set_initialized(&self, name: &str, is_initialized: bool) {
        let status = if is_initialized { "True" } else { "Unknown" };
        let conditions = json!([{"type": "ScaleTargetInitialized", "status": status}]);
        let metadata = json!({"namespace": "default", "name": name});
        let autoscaler = json!({"metadata": metadata, "status": {"conditions": conditions}});
        self.api.apply(&resource("podautoscalers"), autoscaler);
    }

    /// Deletes a revision, and what goes with it.
    pub fn delete_revision(&self, name: &str) {
        for plural in ["revisions", "podautoscalers", "services", "endpoints"] {
            self.api.delete(&resource(plural), "default", name);
        }
        let slice = format!("{name}-weir");
        self.api
            .delete(&resource("endpointslices"), "default", &slice);
    }

    /// Changes an object, if it is there.
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

    /// Starts a pod of role `data`, ready.
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

    /// Says whether Kubernetes takes a pod for ready.
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

    /// Takes a pod out of the API.
    pub fn delete_pod(&self, pod: &DataPod) {
        self.api
            .delete(&resource("pods"), "knative-serving", &pod.name);
    }

    /// Where the requests of a revision go.
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

    /// Starts a process of role `control`, which leads as long as it is not without a processor for five seconds.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn control(&self, binary: &str, name: &str) -> Control {
        self.control_with(binary, name, &[])
    }

    /// The same, with more arguments.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn control_with(&self, binary: &str, name: &str, arguments: &[&str]) -> Control {
        self.spawn(binary, name, ["6s", "5s"], arguments)
    }

    /// Starts a process of role `control` whose terms at the election are a tenth of the usual ones: another leads soon after its
    /// end, or when it was without a processor for a second.
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

    /// The file that names the API server.
    #[must_use]
    pub fn kubeconfig(&self) -> std::path::PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// The name of the process that leads.
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
    /// Ends it without a word: it answers nothing any more.
    pub fn die(&self) {
        self.listener.abort();
    }

    /// Whether it answers.
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
    let listener = listener.expect("a port of an address that nobody has");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4_096];
            // One that does not ask gets no answer.
            if stream.read(&mut head).await.is_ok_and(|bytes| bytes > 0) {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                let _sent = stream.write_all(answer).await;
            }
        }
    })
}

impl Control {
    /// Ends it without a word.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        // It may have ended by itself.
        if let Some(pid) = self.pid() {
            let _sent = kill_process(pid, signal);
        }
    }

    /// Its process; `None`: it has ended, and that was seen.
    #[must_use]
    pub fn pid(&self) -> Option<Pid> {
        self.child
            .id()
            .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
    }

    /// Whether it has ended.
    ///
    /// # Panics
    /// If the system has no status of it.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a status").is_some()
    }

    /// Its exit code; `None`: it was ended by a signal, or runs on after `limit`.
    pub async fn exit_code(&mut self, limit: Duration) -> Option<i32> {
        let status = timeout(limit, self.child.wait()).await.ok()?.ok()?;
        status.code()
    }

    /// What it wrote so far.
    #[must_use]
    pub fn log(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.folder.path().join(name));
        read("stdout").unwrap_or_default() + &read("stderr").unwrap_or_default()
    }
}

/// The address of nobody, for pods that are not to be found.
pub const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
