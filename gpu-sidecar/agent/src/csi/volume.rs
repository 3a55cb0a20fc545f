//! Volumes: for each, a pod's folder, and mounted at the kubelet's target the parts of it for the containers.
//!
//! | in a volume | contents | used by |
//! |---|---|---|
//! | `gate/` | socket and libraries | user containers |
//! | `lease/` | socket over which leases pass | queue-proxy |
//! | `mps/` | pipe of the slot's MPS daemon; empty where there is none | user containers on shared slots |
//! | `shm/` | memory shared by the daemon's clients; writable | user containers on shared slots |
//! | `softgpu/` | software GPU, where the node has one | user containers |
//!
//! A volume that cannot be published leaves nothing behind: the kubelet retries.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use annotations::values::dns_label;
use rustix::fs::{AtFlags, CWD, Mode, chmodat};
use serde::{Deserialize, Serialize};
use tonic::Status;

use super::helper::{Helper, Part, Request};
use super::kubelet::Kubelet;
use super::make_folder as make;
use crate::config::CsiConfig;
use crate::identity::is_uid;
use crate::node::{MpsState, Node};
use crate::pods::{Pods, RefusedVolume};
use crate::state::{Pod, SlotKind};
use crate::stop::Stop;

/// Time within which a pod has to be placed or refused.
const PLACED_WITHIN: Duration = Duration::from_secs(10);
/// Interval of the checks whether a pod is placed.
const POLL_PERIOD: Duration = Duration::from_millis(10);
/// Maximum total size of the volume attributes, in bytes: the kubelet's bound on annotations.
const ATTRIBUTES_MAX: usize = 256 * 1024;
/// Path of the MPS pipe directory in user containers.
const MPS_MOUNT: &str = "/weir-mps";
/// File in a pod's folder with its published volume.
const RECORD: &str = "volume.json";
/// Prefix of the kubelet's attributes about the pod.
const POD: &str = "csi.storage.k8s.io/pod.";

/// Publisher of pods' volumes.
#[derive(Debug)]
pub(crate) struct Volumes {
    config: CsiConfig,
    kubelet: Kubelet,
    helper: Helper,
    directory: PathBuf,
    node: Arc<Node>,
    pods: Arc<Pods>,
    /// UIDs of pods with a volume that is being published or removed.
    busy: Mutex<HashSet<String>>,
    stop: Stop,
}

/// Contents of `volume.json`: the volume published for a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    id: String,
    target: PathBuf,
}

/// Validated attributes of a request for a pod's volume.
#[derive(Debug)]
struct VolumeRequest {
    uid: String,
    name: String,
    namespace: String,
    annotations: BTreeMap<String, String>,
    revision: Option<String>,
    function: Option<String>,
}

/// Exclusive access to a pod's volume, until it is dropped.
struct VolumeLock<'a>(&'a Volumes, String);

impl Drop for VolumeLock<'_> {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl Volumes {
    pub(crate) fn new(
        config: CsiConfig,
        kubelet: Kubelet,
        directory: PathBuf,
        node: Arc<Node>,
        pods: Arc<Pods>,
    ) -> Self {
        Self {
            helper: Helper::new(config.host_process),
            config,
            kubelet,
            directory,
            node,
            pods,
            busy: Mutex::default(),
            stop: Stop::default(),
        }
    }

    /// Creates the folder that pods of shared slots have as `/dev/shm`, writable for all users with the sticky bit.
    ///
    /// # Errors
    /// Returns an error when it cannot be created.
    pub(crate) fn open_shared_memory(&self) -> io::Result<()> {
        let folder = &self.config.shared_memory;
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", folder.display()))
        };
        make(folder).map_err(named)?;
        let mode = Mode::from_raw_mode(0o1777);
        chmodat(CWD, folder, mode, AtFlags::empty()).map_err(|errno| named(errno.into()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks a pod's volume; returns `aborted` while it is locked already.
    fn lock_volume(&self, uid: &str) -> Result<VolumeLock<'_>, Status> {
        if self.lock().insert(uid.to_owned()) {
            Ok(VolumeLock(self, uid.to_owned()))
        } else {
            Err(Status::aborted(format!(
                "the volume of pod {uid} is being published or removed"
            )))
        }
    }

    /// Creates a pod's folder and mounts it at the target. Idempotent for a published volume.
    ///
    /// # Errors
    /// Returns a status with the reason when the request is invalid or the pod is refused.
    pub(crate) fn publish(
        &self,
        id: &str,
        target: &str,
        attributes: &HashMap<String, String>,
    ) -> Result<(), Status> {
        let target = self.target(target)?;
        let request = VolumeRequest::read(attributes)?;
        if pod_of(&self.kubelet.directory, &target) != Some(&request.uid) {
            let text = format!(
                "target_path {} does not belong to pod {}",
                target.display(),
                request.uid
            );
            return Err(Status::invalid_argument(text));
        }
        let _lock = self.lock_volume(&request.uid)?;
        let record = Record {
            id: id.to_owned(),
            target: target.clone(),
        };
        let folder = self.directory.join(&request.uid);
        if let Some(other) = read_record(&folder)
            && other != record
        {
            return Err(Status::already_exists(format!(
                "pod {}/{} already has a volume of this driver ({}); allowed: one",
                request.namespace, request.name, other.id
            )));
        }
        let is_new = !folder.exists();
        if is_new {
            make_folder(&self.directory, &request, &record)
                .map_err(internal("cannot create the pod's folder"))?;
        }
        let outcome = self
            .placed(&request, &folder)
            .and_then(|pod| self.mount(&pod, &folder, &target));
        let refused = outcome.as_ref().err().map(|status| RefusedVolume {
            namespace: request.namespace.clone(),
            revision: request.revision.clone(),
            pod: request.name.clone(),
            text: status.message().to_owned(),
            at: Instant::now(),
        });
        self.pods.lock().set_refused_volume(&request.uid, refused);
        if outcome.is_err() && is_new {
            // The kubelet may drop the volume without another request.
            let _left = self.remove_volume(&folder, &target);
        }
        outcome
    }

    /// Removes a volume. Idempotent for a removed volume.
    ///
    /// # Errors
    /// Returns a status when the request is invalid or the kernel refuses.
    pub(crate) fn unpublish(&self, id: &str, target: &str) -> Result<(), Status> {
        let target = self.target(target)?;
        let Some(uid) = pod_of(&self.kubelet.directory, &target).map(str::to_owned) else {
            let text = format!("target_path {} belongs to no pod", target.display());
            return Err(Status::invalid_argument(text));
        };
        let _lock = self.lock_volume(&uid)?;
        let folder = self.directory.join(&uid);
        let is_its = read_record(&folder).is_some_and(|record| record.id == id);
        let folder = if is_its { folder } else { PathBuf::new() };
        self.remove_volume(&folder, &target)
            .map_err(internal("cannot remove the volume"))
    }

    /// Removes the remains of pods unknown to the kubelet, which does not unpublish where a volume was refused or the agent was
    /// down.
    pub(crate) fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let folder = entry.path();
            let Some(record) = read_record(&folder).filter(|_| is_uid(&name)) else {
                continue;
            };
            let Ok(_lock) = self.lock_volume(&name) else {
                continue;
            };
            let known = self.kubelet.directory.join("pods").join(&name);
            let known = self.kubelet.local_path(&known);
            if matches!(known.try_exists(), Ok(false)) {
                let gone = self.remove_volume(&folder, &record.target);
                tracing::info!(
                    pod = name,
                    ?gone,
                    "removed the folder of a pod that the kubelet no longer has"
                );
            }
        }
    }

    /// Returns the target path, if it is below the kubelet's directory.
    fn target(&self, target: &str) -> Result<PathBuf, Status> {
        let path = PathBuf::from(target);
        let is_plain = path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if is_plain && path.is_absolute() && path.starts_with(&self.kubelet.directory) {
            return Ok(path);
        }
        Err(Status::invalid_argument(format!(
            "target_path {target:?}: allowed: a path below {}",
            self.kubelet.directory.display()
        )))
    }

    /// Blocks until the pod is placed or refused, at most for [`PLACED_WITHIN`].
    fn placed(&self, request: &VolumeRequest, folder: &Path) -> Result<Arc<Pod>, Status> {
        let end = Instant::now() + PLACED_WITHIN;
        loop {
            // The files in the folder are of this pod; the agent may still list an earlier one of the same name.
            if folder.join("gate").join(protocol::GPU_SOCKET).exists() {
                let view = self.pods.lock();
                if let Some(pod) = view.served.iter().find(|pod| pod.name == request.uid) {
                    return Ok(Arc::clone(pod));
                }
            }
            if let Ok(why) = fs::read_to_string(folder.join("refused")) {
                return Err(Status::failed_precondition(why.trim_end()));
            }
            if Instant::now() >= end {
                let text = format!(
                    "the agent has not placed pod {}/{} within {} s; the kubelet retries",
                    request.namespace,
                    request.name,
                    PLACED_WITHIN.as_secs()
                );
                return Err(Status::deadline_exceeded(text));
            }
            self.stop.wait(POLL_PERIOD);
        }
    }

    /// Creates the pod's volume at `target` and mounts its parts there. `folder` is the pod's folder.
    fn mount(&self, pod: &Pod, folder: &Path, target: &Path) -> Result<(), Status> {
        let pipe = self.pipe(pod)?;
        let part = |name: &str, source: Option<PathBuf>, is_read_only| Part {
            name: name.to_owned(),
            source,
            is_read_only,
        };
        let shared = self.config.shared_memory.clone();
        let request = Request::Publish {
            target: target.to_path_buf(),
            parts: vec![
                part("gate", Some(folder.join("gate")), true),
                part("lease", Some(folder.join("lease")), true),
                part("mps", pipe, true),
                part("shm", Some(shared), false),
                part("softgpu", self.config.software_gpu.clone(), true),
            ],
        };
        self.helper
            .call(&request)
            .map_err(internal("cannot mount the volume"))
    }

    /// Returns the pipe directory of the MPS daemon of a pod's slot; `None` when the slot has no daemon.
    ///
    /// # Errors
    /// Returns `unavailable` while the daemon does not answer yet: a pod without it would compute on all SMs for its whole
    /// lifetime.
    fn pipe(&self, pod: &Pod) -> Result<Option<PathBuf>, Status> {
        let node = self.node.lock();
        let own = node
            .slot(pod.slot)
            .filter(|own| own.slot.kind == SlotKind::Mps);
        let Some((own, pipe)) = own.and_then(|own| Some((own, own.slot.mps_pipe.clone()?))) else {
            return Ok(None);
        };
        match own.mps {
            // The folder alone exists earlier, without the socket.
            MpsState::Up { .. } => Ok(Some(pipe)),
            // The slot has no daemon.
            MpsState::None | MpsState::Unable { .. } => Ok(None),
            _ => Err(Status::unavailable(format!(
                "slot {}: its MPS daemon is not up yet; the kubelet retries",
                own.slot.name
            ))),
        }
    }

    /// Unmounts a target and removes the pod's folder; an empty folder path is skipped.
    fn remove_volume(&self, folder: &Path, target: &Path) -> io::Result<()> {
        let target = target.to_path_buf();
        self.helper.call(&Request::Unpublish { target })?;
        if folder.as_os_str().is_empty() {
            return Ok(());
        }
        // The agent ignores names that begin with a dot.
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let leaving = self.directory.join(format!(".{name}.gone"));
        remove_all(&leaving)?;
        match fs::rename(folder, &leaving) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        remove_all(&leaving)
    }
}

fn remove_all(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn internal(what: &'static str) -> impl FnOnce(io::Error) -> Status {
    move |error| Status::internal(format!("{what}: {error}"))
}

/// Returns the UID of the pod of a kubelet's target: `…/pods/UID/volumes/…`.
fn pod_of<'a>(kubelet: &Path, target: &'a Path) -> Option<&'a str> {
    let rest = target.strip_prefix(kubelet.join("pods")).ok()?;
    let uid = rest.components().next()?.as_os_str().to_str()?;
    is_uid(uid).then_some(uid)
}

fn read_record(folder: &Path) -> Option<Record> {
    let text = fs::read(folder.join(RECORD)).ok()?;
    serde_json::from_slice(&text).ok()
}

impl VolumeRequest {
    fn read(attributes: &HashMap<String, String>) -> Result<Self, Status> {
        let size: usize = attributes
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        if size > ATTRIBUTES_MAX {
            let text = format!("volumeAttributes: {size} bytes; allowed: {ATTRIBUTES_MAX}");
            return Err(Status::invalid_argument(text));
        }
        let of_pod = |name: &str| {
            let value = attributes.get(&format!("{POD}{name}"));
            value.cloned().ok_or_else(|| {
                Status::invalid_argument(format!(
                    "{POD}{name} is missing: the CSIDriver needs podInfoOnMount: true"
                ))
            })
        };
        let uid = of_pod("uid")?;
        if !is_uid(&uid) {
            let text = format!("{POD}uid {uid:?}: allowed: a UUID");
            return Err(Status::invalid_argument(text));
        }
        if attributes
            .get("csi.storage.k8s.io/ephemeral")
            .is_some_and(|value| value != "true")
        {
            let text = "allowed: inline volumes only (ephemeral)";
            return Err(Status::invalid_argument(text));
        }
        let label = |key: &str| {
            let value = attributes.get(key).filter(|value| !value.is_empty());
            match value.map(|value| (value, dns_label(value))) {
                None => Ok(None),
                Some((value, Ok(()))) => Ok(Some(value.clone())),
                Some((_, Err(why))) => Err(Status::invalid_argument(format!("{key}: {why}"))),
            }
        };
        let weirs = attributes
            .iter()
            .filter(|(key, _)| key.starts_with(annotations::PREFIX));
        Ok(Self {
            uid,
            name: of_pod("name")?,
            namespace: of_pod("namespace")?,
            annotations: weirs
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            revision: label("revision")?,
            function: label("function")?,
        })
    }

    /// Returns the annotations in the form of the downward API. A JSON string is a valid Go string.
    fn annotations(&self) -> String {
        let lines = self.annotations.iter().map(|(key, value)| {
            let value = serde_json::Value::from(value.as_str());
            format!("{key}={value}\n")
        });
        lines.collect()
    }

    /// Returns the text of `pod.toml`.
    fn pod_file(&self) -> String {
        let mut table = toml::Table::new();
        let mut put = |key: &str, value: Option<&str>| {
            if let Some(value) = value {
                table.insert(key.to_owned(), value.into());
            }
        };
        put("name", Some(&self.name));
        put("namespace", Some(&self.namespace));
        put("revision", self.revision.as_deref());
        put("function", self.function.as_deref());
        put("uid", Some(&self.uid));
        put("mps-pipe-directory", Some(MPS_MOUNT));
        table.to_string()
    }
}

/// Creates a pod's folder atomically.
fn make_folder(directory: &Path, request: &VolumeRequest, record: &Record) -> io::Result<()> {
    let new = directory.join(format!(".{}.new", request.uid));
    remove_all(&new)?;
    make(&new)?;
    make(&new.join("lease"))?;
    fs::write(new.join(RECORD), serde_json::to_vec(record)?)?;
    fs::write(new.join("pod.toml"), request.pod_file())?;
    fs::write(new.join("annotations"), request.annotations())?;
    fs::rename(new, directory.join(&request.uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0f9a8d74-9cb7-44dd-b98e-09fd62def2f4";

    fn attributes(more: &[(&str, &str)]) -> HashMap<String, String> {
        let all = [
            ("csi.storage.k8s.io/pod.name", "hello-1"),
            ("csi.storage.k8s.io/pod.namespace", "default"),
            ("csi.storage.k8s.io/pod.uid", UID),
            ("csi.storage.k8s.io/ephemeral", "true"),
        ];
        let all = all.iter().chain(more);
        all.map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn only_annotations_of_weir_reach_the_pods_folder_unchanged() {
        let value = "a \"b\"\n\u{1}é=\\";
        let request = VolumeRequest::read(&attributes(&[
            ("weir.dev/function", value),
            ("other.dev/key", "1"),
            ("revision", "hello-00001"),
        ]));
        let request = request.unwrap();
        let text = request.annotations();
        let (read, bad) = annotations::podinfo::parse(&text);
        assert_eq!(read, [("weir.dev/function", value.to_owned())]);
        assert!(bad.is_empty());
        let file = request.pod_file();
        assert!(file.contains("revision = \"hello-00001\""), "{file}");
    }

    #[test]
    fn invalid_attributes_are_refused() {
        for (internal, text) in [
            (vec![("csi.storage.k8s.io/pod.uid", "../x")], "pod.uid"),
            (vec![("csi.storage.k8s.io/ephemeral", "false")], "inline"),
            (vec![("revision", "Not/a label")], "revision"),
            (
                vec![("weir.dev/slo", &*"x".repeat(ATTRIBUTES_MAX))],
                "bytes",
            ),
        ] {
            let why = VolumeRequest::read(&attributes(&internal)).unwrap_err();
            assert!(why.message().contains(text), "{why}");
        }
        let mut none = attributes(&[]);
        none.remove("csi.storage.k8s.io/pod.uid");
        let why = VolumeRequest::read(&none).unwrap_err();
        assert!(why.message().contains("podInfoOnMount"), "{why}");
    }

    #[test]
    fn a_target_contains_the_uid_of_its_pod() {
        let kubelet = Path::new("/var/lib/kubelet");
        let of = |rest: &str| {
            let target = kubelet.join(rest);
            pod_of(kubelet, &target).map(str::to_owned)
        };
        let own = format!("pods/{UID}/volumes/kubernetes.io~csi/weir/mount");
        assert_eq!(of(&own).as_deref(), Some(UID));
        assert_eq!(of("plugins/kubernetes.io/csi"), None);
        assert_eq!(of("pods/none/volumes"), None);
    }
}
