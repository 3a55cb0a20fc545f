//! The agent as the kubelet's CSI driver of inline volumes, mounted in a private mount namespace of the test.
#![expect(clippy::print_stderr, reason = "reports skipped tests")]

use std::collections::HashMap;
use std::fs;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bytes::{Buf as _, BufMut as _, Bytes};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rustix::process::Signal;
use tokio::net::UnixStream;

use crate::H100;
use crate::node::{Node, signal};
use testing::until;

const UID: &str = "0f9a8d74-9cb7-44dd-b98e-09fd62def2f4";

#[derive(Clone, PartialEq, Eq, Message)]
struct Publish {
    #[prost(string, tag = "1")]
    volume_id: String,
    #[prost(string, tag = "4")]
    target_path: String,
    #[prost(map = "string, string", tag = "8")]
    volume_context: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Unpublish {
    #[prost(string, tag = "1")]
    volume_id: String,
    #[prost(string, tag = "2")]
    target_path: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Info {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    endpoint: String,
    #[prost(string, repeated, tag = "4")]
    versions: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Nothing {}

/// Performs a unary gRPC call; returns the response, or status code and message.
#[tokio::main(flavor = "current_thread")]
async fn call<A: Message + Default>(
    socket: &Path,
    path: &str,
    message: &impl Message,
) -> Result<A, (i32, String)> {
    // An agent which has just been started removes the socket of its predecessor, and listens a moment later.
    let stream = until("the agent listens", || StdUnixStream::connect(socket).ok());
    stream.set_nonblocking(true).unwrap();
    let stream = TokioIo::new(UnixStream::from_std(stream).unwrap());
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream)
            .await
            .unwrap();
    tokio::spawn(connection);
    let mut body = vec![0];
    body.put_u32(u32::try_from(message.encoded_len()).unwrap());
    message.encode(&mut body).unwrap();
    let request = http::Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let head = response.headers().clone();
    let body = response.into_body().collect().await.unwrap();
    let trailers = body.trailers().cloned().unwrap_or(head);
    let text = |name: &str| {
        let value = trailers.get(name).map(|value| value.to_str().unwrap());
        value.unwrap_or_default().to_owned()
    };
    let status: i32 = text("grpc-status").parse().unwrap();
    if status != 0 {
        return Err((status, text("grpc-message").replace("%20", " ")));
    }
    let mut bytes = body.to_bytes();
    bytes.advance(5);
    Ok(A::decode(bytes).unwrap())
}

/// A node with an agent that publishes volumes, and the process that holds the mount namespace.
struct Kubelet {
    node: Node,
    holder: Child,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _gone = self.holder.kill();
        let _waited = self.holder.wait();
    }
}

impl Kubelet {
    /// Starts the node; `None` when the user has no permission to mount.
    fn new() -> Option<Self> {
        let may_mount = Command::new("unshare")
            .args(["--mount", "true"])
            .output()
            .is_ok_and(|output| output.status.success());
        if !may_mount {
            eprintln!("skipped: mounting volumes requires root");
            return None;
        }
        let mut node = Node::new(H100, "");
        let shared = node.folder("shm");
        fs::create_dir(&shared).unwrap();
        let holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sleep", "infinity"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        node.config = format!(
            "[csi]\nhost-process = {}\nkubelet-directory = {:?}\nnode = \"node-1\"\nshared-memory = {shared:?}\nsoftware-gpu = {:?}\n",
            holder.id(),
            node.folder("kubelet"),
            node.softgpu(),
        );
        let own = fs::read_link("/proc/self/ns/mnt").unwrap();
        until("the holder has its own mount namespace", || {
            let its = fs::read_link(format!("/proc/{}/ns/mnt", holder.id())).ok()?;
            let program = fs::read_to_string(format!("/proc/{}/comm", holder.id())).ok()?;
            (its != own && program == "sleep\n").then_some(())
        });
        let mut kubelet = Self { node, holder };
        kubelet.start();
        Some(kubelet)
    }

    fn start(&mut self) {
        self.node.start();
        until("slots are found", || {
            let slots = self.node.get("/v1/slots")["slots"].clone();
            (!slots.as_array()?.is_empty()).then_some(())
        });
        self.node.daemon(0);
    }

    fn socket(&self) -> PathBuf {
        self.node.folder("kubelet/plugins/csi.weir.dev/csi.sock")
    }

    fn target(&self, uid: &str) -> PathBuf {
        self.node
            .folder("kubelet/pods")
            .join(uid)
            .join("volumes/kubernetes.io~csi/weir/mount")
    }

    /// Returns the path by which this process reaches a path of the holder's mount namespace.
    fn inside(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(path.strip_prefix("/").unwrap())
    }

    fn publish(
        &self,
        id: &str,
        uid: &str,
        annotations: &[(&str, &str)],
    ) -> Result<(), (i32, String)> {
        self.publish_at(id, uid, &self.target(uid), annotations)
    }

    fn publish_at(
        &self,
        id: &str,
        uid: &str,
        target: &Path,
        annotations: &[(&str, &str)],
    ) -> Result<(), (i32, String)> {
        // The kubelet creates the parent folder.
        let _there = fs::create_dir_all(target.parent().unwrap());
        let of_pod = [("name", "hello-1"), ("namespace", "default"), ("uid", uid)];
        let mut context: HashMap<_, _> = of_pod
            .iter()
            .map(|(key, value)| (format!("csi.storage.k8s.io/pod.{key}"), (*value).to_owned()))
            .collect();
        let own = annotations.iter();
        context.extend(own.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        let request = Publish {
            volume_id: id.to_owned(),
            target_path: target.display().to_string(),
            volume_context: context,
        };
        call::<Nothing>(&self.socket(), "/csi.v1.Node/NodePublishVolume", &request).map(drop)
    }

    fn unpublish(&self, id: &str, uid: &str) -> Result<(), (i32, String)> {
        let request = Unpublish {
            volume_id: id.to_owned(),
            target_path: self.target(uid).display().to_string(),
        };
        call::<Nothing>(&self.socket(), "/csi.v1.Node/NodeUnpublishVolume", &request).map(drop)
    }
}

const SHARED: [(&str, &str); 4] = [
    ("weir.dev/isolation", "shared"),
    ("weir.dev/quota-request", "0.3"),
    ("weir.dev/gpu-memory", "1Gi"),
    ("revision", "hello-00001"),
];

#[test]
fn the_kubelet_discovers_the_driver_and_its_socket() {
    let Some(mut kubelet) = Kubelet::new() else {
        return;
    };
    let registration = kubelet
        .node
        .folder("kubelet/plugins_registry/csi.weir.dev-reg.sock");
    let path = "/pluginregistration.Registration/GetInfo";
    let info: Info = call(&registration, path, &Nothing {}).unwrap();
    assert_eq!((&*info.kind, &*info.name), ("CSIPlugin", "csi.weir.dev"));
    assert_eq!(info.endpoint, kubelet.socket().display().to_string());
    assert_eq!(info.versions, ["1.0.0"]);
    // `node_id` is the first field too.
    let node: Info = call(&kubelet.socket(), "/csi.v1.Node/NodeGetInfo", &Nothing {}).unwrap();
    assert_eq!(node.kind, "node-1");
    let unknown = call::<Nothing>(
        &kubelet.socket(),
        "/csi.v1.Controller/CreateVolume",
        &Nothing {},
    );
    assert_eq!(unknown.unwrap_err().0, 12, "UNIMPLEMENTED");
    // A stopped driver leaves no socket to call.
    assert_eq!(kubelet.node.end(Signal::TERM), Some(0));
    assert!(!registration.exists() && !kubelet.socket().exists());
}

#[test]
fn a_volume_contains_the_pods_files_and_mounts() {
    let Some(mut kubelet) = Kubelet::new() else {
        return;
    };
    kubelet.publish("csi-1", UID, &SHARED).unwrap();
    let pod = kubelet.node.instance(UID).expect("the pod is served");
    assert_eq!(pod["revision"], "hello-00001", "{pod}");
    let volume = kubelet.inside(&kubelet.target(UID));
    assert!(volume.join("gate/gpu.sock").exists());
    assert!(volume.join("mps/control").exists());
    assert!(volume.join("softgpu/libcuda.so.1").exists());
    assert!(volume.join("lease/queue.sock").exists());
    for sealed in ["", "gate", "lease", "mps", "softgpu"] {
        let error = fs::write(volume.join(sealed).join("new"), "").unwrap_err();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::ReadOnlyFilesystem,
            "{sealed}"
        );
    }
    fs::write(volume.join("shm/new"), "").unwrap();
    // The kubelet repeats requests, also to an agent that has been replaced.
    kubelet.publish("csi-1", UID, &SHARED).unwrap();
    kubelet.node.end(Signal::KILL);
    kubelet.start();
    assert!(
        kubelet
            .inside(&kubelet.target(UID))
            .join("gate/gpu.sock")
            .exists()
    );
    kubelet.publish("csi-1", UID, &SHARED).unwrap();
    let another = kubelet.publish("csi-2", UID, &SHARED).unwrap_err();
    assert_eq!(another.0, 6, "ALREADY_EXISTS: {another:?}");
    for _ in 0..2 {
        kubelet.unpublish("csi-1", UID).unwrap();
        assert!(!kubelet.inside(&kubelet.target(UID)).exists());
        assert!(!kubelet.node.run().join("pods").join(UID).exists());
    }
    until("the pod is removed", || {
        kubelet.node.instance(UID).is_none().then_some(())
    });
}

#[test]
fn a_refusal_has_the_agents_reason_and_leaves_nothing() {
    let Some(kubelet) = Kubelet::new() else {
        return;
    };
    for (annotation, text) in [
        (("weir.dev/gpu-memory", "900Gi"), "slot 0"),
        (("weir.dev/late", "never"), "weir.dev/late"),
    ] {
        let (status, why) = kubelet.publish("csi-1", UID, &[annotation]).unwrap_err();
        assert_eq!(status, 9, "FAILED_PRECONDITION: {why}");
        assert!(why.contains(text), "{why}");
        assert!(!kubelet.inside(&kubelet.target(UID)).exists());
        assert!(!kubelet.node.run().join("pods").join(UID).exists());
        // The control API reports it for a while.
        let refused = kubelet.node.get("/v1/instances")["refused"].clone();
        let refused: Vec<_> = refused.as_array().unwrap().iter().collect();
        assert_eq!(refused.len(), 1, "{refused:?}");
        for (key, value) in [
            ("id", UID),
            ("namespace", "default"),
            ("pod", "hello-1"),
            ("reason", "volume"),
        ] {
            assert_eq!(refused[0][key], value);
        }
        assert!(refused[0]["text"].as_str().unwrap().contains(text));
    }
    kubelet.publish("csi-1", UID, &SHARED).unwrap();
    let refused = kubelet.node.get("/v1/instances")["refused"].clone();
    assert_eq!(refused, serde_json::json!([]));
    kubelet.unpublish("csi-1", UID).unwrap();
    let elsewhere = kubelet.publish_at("csi-1", UID, &kubelet.node.folder("x/y"), &[]);
    assert_eq!(elsewhere.unwrap_err().0, 3, "INVALID_ARGUMENT");
    let other = "1f9a8d74-9cb7-44dd-b98e-09fd62def2f4";
    let others = kubelet.publish_at("csi-1", UID, &kubelet.target(other), &[]);
    assert_eq!(others.unwrap_err().0, 3, "INVALID_ARGUMENT");
}

#[test]
fn a_volume_of_a_shared_slot_waits_for_the_slots_mps_daemon() {
    let Some(mut kubelet) = Kubelet::new() else {
        return;
    };
    // As at boot, when an agent starts before the program that keeps the daemons.
    kubelet.node.end(Signal::TERM);
    let daemons = kubelet.node.run().join("mps");
    for entry in fs::read_dir(&daemons).unwrap() {
        let pid = fs::read_to_string(
            entry
                .unwrap()
                .path()
                .join("pipe/nvidia-cuda-mps-control.pid"),
        );
        signal(pid.unwrap().trim().parse().unwrap(), Signal::KILL);
    }
    fs::remove_dir_all(&daemons).unwrap();
    kubelet.node.start_with(&["--external-mps"]);
    let (status, why) = until("the pod is placed", || {
        let refused = kubelet.publish("csi-1", UID, &SHARED).unwrap_err();
        refused
            .1
            .starts_with("slot 0: its MPS daemon")
            .then_some(refused)
    });
    assert_eq!(status, 14, "UNAVAILABLE: {why}");
    assert!(!kubelet.inside(&kubelet.target(UID)).exists());
    let mut mps = kubelet
        .node
        .command_of("mps", &[])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the volume is published", || {
        kubelet.publish("csi-1", UID, &SHARED).ok()
    });
    let pipe = kubelet.inside(&kubelet.target(UID)).join("mps");
    assert!(pipe.join("control").exists(), "{}", pipe.display());
    kubelet.unpublish("csi-1", UID).unwrap();
    signal(mps.id(), Signal::TERM);
    assert!(mps.wait().unwrap().success());
}

#[test]
fn the_remains_of_a_deleted_pod_are_removed() {
    let Some(mut kubelet) = Kubelet::new() else {
        return;
    };
    kubelet.publish("csi-1", UID, &SHARED).unwrap();
    kubelet.node.end(Signal::KILL);
    // As the kubelet does after unmounting everything.
    let target = kubelet.target(UID);
    let status = Command::new("nsenter")
        .arg(format!("--mount=/proc/{}/ns/mnt", kubelet.holder.id()))
        .args(["umount", "--lazy"])
        .arg(&target)
        .status()
        .unwrap();
    assert!(status.success());
    fs::remove_dir_all(kubelet.node.folder("kubelet/pods").join(UID)).unwrap();
    kubelet.start();
    let folder = kubelet.node.run().join("pods").join(UID);
    until("its folder is gone", || (!folder.exists()).then_some(()));
}
