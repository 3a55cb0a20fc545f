//! The manifests on a real API server, given by `WEIR_APISERVER` and `WEIR_ETCD` (programs `kube-apiserver`, 1.30 or newer, and
//! `etcd`): it accepts every object, and the policies refuse what they must.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "reports skipped checks")]

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::AuthInfo;
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Client, Config};
use rcgen::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::proxy::fresh_address;
use tokio::time::{Instant, sleep, timeout};

/// Longest time until a started server answers and applies written objects.
const PATIENCE: Duration = Duration::from_secs(60);
const CONTROL: &str = "system:serviceaccount:weir-system:weir-control";
const ADMIN_TOKEN: &str = "admin";
const MANIFEST: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../manifests/rendered/softgpu.yaml"
);

/// etcd and an API server, in a temporary folder. Killed when dropped.
struct Server {
    children: Vec<Child>,
    folder: TempDir,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _gone = child.kill();
            let _status = child.wait();
        }
    }
}

impl Server {
    async fn start(apiserver: &Path, etcd: &Path) -> Self {
        let ip = fresh_address();
        let mut server = Self {
            children: Vec::new(),
            folder: TempDir::new().unwrap(),
            address: SocketAddr::new(ip, 6443),
        };
        server.etcd(etcd, ip);
        server.apiserver(apiserver, ip);
        let client = server.client(None);
        let begin = Instant::now();
        while client.apiserver_version().await.is_err() {
            assert!(begin.elapsed() < PATIENCE, "{}", server.log());
            sleep(Duration::from_millis(100)).await;
        }
        server
    }

    fn spawn(&mut self, name: &str, command: &mut Command) {
        let log = fs::File::create(self.folder.path().join(name)).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.children.push(command.stderr(log).spawn().unwrap());
    }

    fn etcd(&mut self, program: &Path, ip: IpAddr) {
        let (clients, peers) = (format!("http://{ip}:2379"), format!("http://{ip}:2380"));
        let mut command = Command::new(program);
        command
            .arg("--data-dir")
            .arg(self.folder.path().join("data"))
            .args(["--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")]);
        self.spawn("etcd.log", &mut command);
    }

    fn apiserver(&mut self, program: &Path, ip: IpAddr) {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let key = KeyPair::generate().unwrap();
        fs::write(path("accounts.key"), key.serialize_pem()).unwrap();
        fs::write(path("accounts.pub"), key.public_key_pem()).unwrap();
        let token = format!("{ADMIN_TOKEN},admin,admin,system:masters\n");
        fs::write(path("tokens.csv"), token).unwrap();
        let mut command = Command::new(program);
        command
            .arg(format!("--etcd-servers=http://{ip}:2379"))
            .arg(format!("--bind-address={ip}"))
            .arg(format!("--secure-port={}", self.address.port()))
            .arg(format!("--cert-dir={}", path("certificates")))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(format!(
                "--service-account-key-file={}",
                path("accounts.pub")
            ))
            .arg(format!(
                "--service-account-signing-key-file={}",
                path("accounts.key")
            ))
            .arg(format!("--token-auth-file={}", path("tokens.csv")))
            .arg("--authorization-mode=RBAC")
            .arg("--allow-privileged=true")
            .arg("--service-cluster-ip-range=10.96.0.0/24")
            // Loopback addresses are refused here; the address is not used.
            .arg("--advertise-address=198.51.100.1")
            .arg("--endpoint-reconciler-type=none")
            // No controller creates service accounts here.
            .arg("--disable-admission-plugins=ServiceAccount");
        self.spawn("apiserver.log", &mut command);
    }

    fn log(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.folder.path().join(name));
        ["etcd.log", "apiserver.log"]
            .map(|name| read(name).unwrap_or_default())
            .concat()
    }

    /// Returns an administrator's client, which impersonates `user` if given.
    fn client(&self, user: Option<&str>) -> Client {
        let url = format!("https://{}", self.address);
        let mut config = Config::new(url.parse().unwrap());
        // The server's certificate is self-signed.
        config.accept_invalid_certs = true;
        config.auth_info = AuthInfo {
            token: Some(ADMIN_TOKEN.to_owned().into()),
            impersonate: user.map(str::to_owned),
            ..AuthInfo::default()
        };
        Client::try_from(config).unwrap()
    }
}

/// Returns the API of this object's kind, in its namespace.
async fn api_of(client: &Client, object: &Value) -> kube::Result<Api<DynamicObject>> {
    let (group, version) = match object["apiVersion"].as_str().unwrap().split_once('/') {
        Some(parts) => parts,
        None => ("", object["apiVersion"].as_str().unwrap()),
    };
    let kind = GroupVersionKind::gvk(group, version, object["kind"].as_str().unwrap());
    let (resource, capabilities) = pinned_kind(client, &kind).await?;
    Ok(
        match (capabilities.scope, &object["metadata"]["namespace"]) {
            (Scope::Namespaced, Value::String(namespace)) => {
                Api::namespaced_with(client.clone(), namespace, &resource)
            }
            _ => Api::all_with(client.clone(), &resource),
        },
    )
}

/// Applies an object as `kubectl apply --server-side --validate=strict` does.
async fn apply(client: &Client, object: &Value) -> kube::Result<DynamicObject> {
    let api = api_of(client, object).await?;
    let parameters = PatchParams::apply("test").validation_strict();
    let name = object["metadata"]["name"].as_str().unwrap();
    api.patch(name, &parameters, &Patch::Apply(object)).await
}

async fn merge(api: &Api<DynamicObject>, name: &str, patch: &Value) -> kube::Result<DynamicObject> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
}

/// Polls until a condition holds. The server applies written objects with a delay.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let in_time = timeout(PATIENCE, waiting).await.is_ok();
    assert!(in_time, "not within {PATIENCE:?}: {what}");
}

/// Returns whether the server has refused a request with this text.
fn is_refused<T>(result: &kube::Result<T>, words: &str) -> bool {
    matches!(result, Err(kube::Error::Api(status)) if status.message.contains(words))
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: kube::Result<T>, words: &str) {
    assert!(is_refused(&result, words), "{words}: {result:?}");
}

fn programs() -> Option<(PathBuf, PathBuf)> {
    let named = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
    let both = named("WEIR_APISERVER").zip(named("WEIR_ETCD"));
    if both.is_none() {
        eprintln!("WEIR_APISERVER and WEIR_ETCD are not set: no check ran on a real API server");
    }
    both
}

#[tokio::test]
async fn an_api_server_accepts_the_manifests_and_enforces_the_policies() {
    let Some((apiserver, etcd)) = programs() else {
        return;
    };
    let server = Server::start(&apiserver, &etcd).await;
    let admin = server.client(None);
    let control = server.client(Some(CONTROL));
    for name in ["knative-serving", "functions"] {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        apply(&admin, &namespace).await.unwrap();
    }
    let mut objects: Vec<Value> =
        serde_saphyr::from_multiple(&fs::read_to_string(MANIFEST).unwrap()).unwrap();
    assert!(objects.len() > 20);
    // Namespaces first, as kubectl orders them.
    objects.sort_by_key(|object| object["kind"] != "Namespace");
    // The second time is an upgrade, which changes nothing.
    let mut versions = Vec::new();
    for _ in 0..2 {
        for object in &objects {
            let applied = apply(&admin, object).await;
            let applied = applied.unwrap_or_else(|error| panic!("{error}: {object}"));
            versions.push(applied.metadata.resource_version);
        }
    }
    let (first, second) = versions.split_at(objects.len());
    for (object, (first, second)) in objects.iter().zip(first.iter().zip(second)) {
        // The server itself updates the status of a definition.
        let is_settled = first == second || object["kind"] == "CustomResourceDefinition";
        assert!(is_settled, "applying it again changes {object}");
    }
    slices(&admin, &control).await;
    endpoints(&admin, &control).await;
    nodes(&admin, &control).await;
    volumes(&admin).await;
    functions(&admin, &control).await;
    finalizers(&admin, &control).await;
}

fn slice(name: &str, service: &str, manager: &str, port: (&str, u16)) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "namespace": "functions", "name": name,
            "labels": {"kubernetes.io/service-name": service, "endpointslice.kubernetes.io/managed-by": manager},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": service, "uid": "1"}],
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.7"]}],
        "ports": [{"name": port.0, "port": port.1, "protocol": "TCP"}],
    })
}

async fn create(client: &Client, object: &Value) -> kube::Result<DynamicObject> {
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let api = api_of(client, &serde_json::to_value(&object).unwrap()).await?;
    api.create(&PostParams::default(), &object).await
}

async fn slices(admin: &Client, control: &Client) {
    const OURS: &str = "activator-ext.weir.dev";
    const HTTP: (&str, u16) = ("http", 8012);
    eventually("the policies are in effect", async || {
        let stray = slice("stray", "hello", OURS, HTTP);
        is_refused(&create(control, &stray).await, "<service>-weir")
    })
    .await;
    let own = slice("hello-weir", "hello", OURS, HTTP);
    create(control, &own).await.unwrap();
    create(
        control,
        &slice("hello-weir-ipv6", "hello", OURS, ("https", 8112)),
    )
    .await
    .unwrap();
    let not_labelled = slice("other-weir", "other", "somebody", HTTP);
    refused(create(control, &not_labelled).await, "managed-by");
    let other_port = slice("port-weir", "port", OURS, ("http", 9090));
    refused(create(control, &other_port).await, "the ports of");
    let mut ownerless = slice("free-weir", "free", OURS, HTTP);
    ownerless["metadata"]["ownerReferences"] = json!([]);
    refused(create(control, &ownerless).await, "owned by its Service");
    // No other user, not even a cluster administrator, may create slices as Weir's.
    let forged = slice("forged-weir", "forged", OURS, HTTP);
    refused(create(admin, &forged).await, "weir-control alone");
    let api = api_of(admin, &own).await.unwrap();
    let taken =
        json!({"metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "somebody"}}});
    refused(
        merge(&api, "hello-weir", &taken).await,
        "weir-control alone",
    );
    // Slices of other managers are not restricted.
    create(admin, &slice("theirs", "hello", "somebody", ("x", 1)))
        .await
        .unwrap();
    let api = api_of(control, &own).await.unwrap();
    refused(
        api.delete("theirs", &DeleteParams::default()).await,
        "managed-by",
    );
    api.delete("hello-weir", &DeleteParams::default())
        .await
        .unwrap();
    // The last resort of the documentation, without role control.
    let api = api_of(admin, &own).await.unwrap();
    api.delete("hello-weir-ipv6", &DeleteParams::default())
        .await
        .unwrap();
}

async fn endpoints(admin: &Client, control: &Client) {
    let endpoints = |name: &str, kind: &str| {
        json!({
            "apiVersion": "v1", "kind": "Endpoints",
            "metadata": {
                "namespace": "functions", "name": name,
                "labels": {"networking.internal.knative.dev/serviceType": kind},
            },
            "subsets": [{"addresses": [{"ip": "10.0.0.8"}], "ports": [{"name": "http", "port": 8012}]}],
        })
    };
    for (name, kind) in [("public", "Public"), ("private", "Private")] {
        create(admin, &endpoints(name, kind)).await.unwrap();
    }
    let api = api_of(control, &endpoints("public", "")).await.unwrap();
    let change = async |name: &str, patch: Value| merge(&api, name, &patch).await;
    let label = |key: &str, value: Value| json!({"metadata": {"labels": {key: value}}});
    let skip = "endpointslice.kubernetes.io/skip-mirror";
    change("public", label(skip, json!("true"))).await.unwrap();
    change("public", label(skip, Value::Null)).await.unwrap();
    refused(
        change("private", label(skip, json!("true"))).await,
        "Knative's public Services",
    );
    refused(
        change("public", label("x", json!("y"))).await,
        "only the label",
    );
    refused(
        change("public", json!({"subsets": []})).await,
        "nothing but one label",
    );
    refused(
        change("public", json!({"metadata": {"annotations": {"x": "y"}}})).await,
        "nothing but one label",
    );
}

async fn nodes(admin: &Client, control: &Client) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}});
    create(admin, &node).await.unwrap();
    // As a kubelet does at its start.
    let of_kubelet = json!({"status": {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}}});
    let api = api_of(admin, &node).await.unwrap();
    api.patch_status("node", &PatchParams::default(), &Patch::Merge(of_kubelet))
        .await
        .unwrap();
    let api = api_of(control, &node).await.unwrap();
    let status = async |patch: Value| {
        api.patch_status("node", &PatchParams::default(), &Patch::Merge(patch))
            .await
    };
    let capacity = json!({"status": {"capacity": {"weir.dev/seats": "4"}}});
    status(capacity).await.unwrap();
    let other = json!({"status": {"capacity": {"nvidia.com/gpu": "4"}}});
    refused(status(other).await, "resources of weir.dev");
    let conditions = json!({"status": {"addresses": [{"type": "Hostname", "address": "x"}]}});
    refused(status(conditions).await, "nothing of nodes but capacity");
    let label = json!({"metadata": {"labels": {"x": "y"}}});
    // It has no such right at all.
    refused(merge(&api, "node", &label).await, "forbidden");
}

async fn volumes(admin: &Client) {
    let pod = |name: &str, volumes: usize, limits: Value| {
        let volumes = (0..volumes)
            .map(|number| json!({"name": format!("v{number}"), "csi": {"driver": "csi.weir.dev"}}))
            .collect::<Vec<_>>();
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "functions", "name": name},
            "spec": {
                "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}],
                "volumes": volumes,
            },
        })
    };
    let one = json!({"weir.dev/seats": "1"});
    refused(
        create(admin, &pod("past-the-scheduler", 1, json!({}))).await,
        "requests weir.dev/seats",
    );
    refused(
        create(admin, &pod("none", 1, json!({"weir.dev/seats": "0"}))).await,
        "requests weir.dev/seats",
    );
    refused(
        create(admin, &pod("twice", 2, one.clone())).await,
        "one volume",
    );
    create(admin, &pod("good", 1, one)).await.unwrap();
    create(admin, &pod("other", 0, json!({}))).await.unwrap();
}

async fn functions(admin: &Client, control: &Client) {
    let function = json!({
        "apiVersion": "weir.dev/v1alpha1", "kind": "GpuFunction",
        "metadata": {"namespace": "functions", "name": "hello"},
    });
    eventually("GpuFunctions are known", async || {
        api_of(control, &function).await.is_ok()
    })
    .await;
    create(control, &function).await.unwrap();
    let status = |ready: &str| {
        json!({
            "apiVersion": "weir.dev/v1alpha1", "kind": "GpuFunction",
            "status": {"conditions": [{
                "type": "Ready", "status": ready, "reason": "Serving", "message": "",
                "lastTransitionTime": "2026-11-24T00:00:00Z",
            }]},
        })
    };
    let write = async |client: &Client, ready: &str| {
        let api = api_of(client, &function).await.unwrap();
        let parameters = PatchParams::apply("weir-control").force();
        api.patch_status("hello", &parameters, &Patch::Apply(status(ready)))
            .await
    };
    write(control, "True").await.unwrap();
    refused(write(admin, "False").await, "weir-control alone");
    refused(write(control, "Perhaps").await, "Unsupported value");
    let mine = json!({"metadata": {"labels": {"team": "a"}}});
    let api = api_of(admin, &function).await.unwrap();
    merge(&api, "hello", &mine).await.unwrap();
}

/// Deleted objects stay until role control removes their finalizer.
async fn finalizers(admin: &Client, control: &Client) {
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "weir-control"}});
    let api = api_of(admin, &role).await.unwrap();
    api.delete("weir-control", &DeleteParams::default())
        .await
        .unwrap();
    let kept = api.get("weir-control").await.unwrap();
    assert!(kept.metadata.deletion_timestamp.is_some());
    let own = api_of(control, &role).await.unwrap();
    let patch = json!({"metadata": {"finalizers": null}});
    own.patch(
        "weir-control",
        &PatchParams::default(),
        &Patch::Merge(patch),
    )
    .await
    .unwrap();
    assert!(api.get_opt("weir-control").await.unwrap().is_none());
}
