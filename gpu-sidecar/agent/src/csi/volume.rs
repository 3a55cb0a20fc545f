//! Volumes: for each a pod's folder, and at the kubelet's target the parts of it that containers see.
//!
//! | in a volume | what | seen by |
//! |---|---|---|
//! | `gate/` | socket and libraries | user containers |
//! | `lease/` | empty: queue-proxy behaves as without it | queue-proxy |
//! | `mps/` | the pipe of the slot's MPS daemon; empty where there is none | user containers of shared slots |
//! | `shm/` | the memory that its clients share; writable | the same |
//! | `softgpu/` | the software GPU, where the node has one | user containers |
//!
//! A volume that cannot be published leaves nothing behind: the kubelet asks again.

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

/// A pod is placed, or refused, within this time.
const PLACED_WITHIN: Duration = Duration::from_secs(10);
/// It is looked at so often.
const LOOK_PERIOD: Duration = Duration::from_millis(10);
/// Bytes of all attributes together, at most: the kubelet's bound on annotations.
const ATTRIBUTES_MAX: usize = 256 * 1024;
/// Where user containers see the pipe of their MPS daemon.
const MPS_MOUNT: &str = "/weir-mps";
/// What was published, in a pod's folder.
const RECORD: &str = "volume.json";
/// The kubelet's names of what it says of the pod.
const POD: &str = "csi.storage.k8s.io/pod.";

/// Publishes volumes.
#[derive(Debug)]
pub(crate) struct Volumes {
    config: CsiConfig,
    kubelet: Kubelet,
    helper: Helper,
    directory: PathBuf,
    node: Arc<Node>,
    pods: Arc<Pods>,
    /// Pods whose volume somebody works on.
    busy: Mutex<HashSet<String>>,
    stop: Stop,
}

/// What a pod's folder says of its volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    id: String,
    target: PathBuf,
}

/// A pod for which a volume is asked.
#[derive(Debug)]
struct Asked {
    uid: String,
    name: String,
    namespace: String,
    annotations: BTreeMap<String, String>,
    revision: Option<String>,
    function: Option<String>,
}

/// Somebody works on a pod's volume, until it is dropped.
struct Turn<'a>(&'a Volumes, String);

impl Drop for Turn<'_> {
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

    /// Makes the folder that pods of shared slots see as `/dev/shm`, for all users as that is.
    ///
    /// # Errors
    /// It cannot be made.
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

    fn turn(&self, uid: &str) -> Result<Turn<'_>, Status> {
        if self.lock().insert(uid.to_owned()) {
            Ok(Turn(self, uid.to_owned()))
        } else {
            Err(Status::aborted(format!(
                "the volume of pod {uid} is being published or taken back"
            )))
        }
    }

    /// Makes a pod's folder and shows it at the target. A volume that is published already is none of the worse for it.
    ///
    /// # Errors
    /// What is asked cannot be used, or the pod is refused: the text says why.
    pub(crate) fn publish(
        &self,
        id: &str,
        target: &str,
        attributes: &HashMap<String, String>,
    ) -> Result<(), Status> {
        let target = self.target(target)?;
        let asked = Asked::read(attributes)?;
        if pod_of(&self.kubelet.directory, &target) != Some(&asked.uid) {
            let text = format!(
                "target_path {} is not of pod {}",
                target.display(),
                asked.uid
            );
            return Err(Status::invalid_argument(text));
        }
        let _turn = self.turn(&asked.uid)?;
        let record = Record {
            id: id.to_owned(),
            target: target.clone(),
        };
        let folder = self.directory.join(&asked.uid);
        if let Some(other) = read_record(&folder)
            && other != record
        {
            return Err(Status::already_exists(format!(
                "pod {}/{} has a volume of this driver already ({}); allowed: one",
                asked.namespace, asked.name, other.id
            )));
        }
        let is_new = !folder.exists();
        if is_new {
            make_folder(&self.directory, &asked, &record)
                .map_err(wrong("the pod's folder cannot be made"))?;
        }
        let outcome = self
            .placed(&asked, &folder)
            .and_then(|pod| self.show(&pod, &folder, &target));
        let refused = outcome.as_ref().err().map(|status| RefusedVolume {
            namespace: asked.namespace.clone(),
            revision: asked.revision.clone(),
            pod: asked.name.clone(),
            text: status.message().to_owned(),
            at: Instant::now(),
        });
        self.pods.lock().set_refused_volume(&asked.uid, refused);
        if outcome.is_err() && is_new {
            // The kubelet may forget it without a word.
            let _left = self.take_away(&folder, &target);
        }
        outcome
    }

    /// Takes a volume back; one that is not there is gone already.
    ///
    /// # Errors
    /// What is asked cannot be used, or the kernel refuses.
    pub(crate) fn unpublish(&self, id: &str, target: &str) -> Result<(), Status> {
        let target = self.target(target)?;
        let Some(uid) = pod_of(&self.kubelet.directory, &target).map(str::to_owned) else {
            let text = format!("target_path {} is of no pod", target.display());
            return Err(Status::invalid_argument(text));
        };
        let _turn = self.turn(&uid)?;
        let folder = self.directory.join(&uid);
        let is_its = read_record(&folder).is_some_and(|record| record.id == id);
        let folder = if is_its { folder } else { PathBuf::new() };
        self.take_away(&folder, &target)
            .map_err(wrong("the volume cannot be taken back"))
    }

    /// Takes away what is left of pods that the kubelet does not know any more: it need not say so where a volume was refused or an
    /// agent ended meanwhile.
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
            let Ok(_turn) = self.turn(&name) else {
                continue;
            };
            let known = self.kubelet.directory.join("pods").join(&name);
            let known = self.kubelet.seen_from_here(&known);
            if matches!(known.try_exists(), Ok(false)) {
                let gone = self.take_away(&folder, &record.target);
                tracing::info!(
                    pod = name,
                    ?gone,
                    "the kubelet has forgotten a pod: its folder is taken away"
                );
            }
        }
    }

    /// Returns the target, if the kubelet may name it.
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

    /// Blocks until the pod is placed.
    fn placed(&self, asked: &Asked, folder: &Path) -> Result<Arc<Pod>, Status> {
        let end = Instant::now() + PLACED_WITHIN;
        loop {
            // What is in the folder is said of this one; the agent may still know one of before by the same name.
            if folder.join("gate").join(protocol::GPU_SOCKET).exists() {
                let view = self.pods.lock();
                if let Some(pod) = view.served.iter().find(|pod| pod.name == asked.uid) {
                    return Ok(Arc::clone(pod));
                }
            }
            if let Ok(why) = fs::read_to_string(folder.join("refused")) {
                return Err(Status::failed_precondition(why.trim_end()));
            }
            if Instant::now() >= end {
                let text = format!(
                    "the agent has not placed pod {}/{} within {} s; the kubelet tries again",
                    asked.namespace,
                    asked.name,
                    PLACED_WITHIN.as_secs()
                );
                return Err(Status::deadline_exceeded(text));
            }
            self.stop.wait(LOOK_PERIOD);
        }
    }

    /// Mounts what a pod's containers see.
    fn show(&self, pod: &Pod, folder: &Path, target: &Path) -> Result<(), Status> {
        let pipe = self.pipe(pod)?;
        let part = |name: &str, source: Option<PathBuf>, is_read_only| Part {
            name: name.to_owned(),
            source,
            is_read_only,
        };
        let shared = self.config.shared_memory.clone();
        let request = Request::Show {
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
            .map_err(wrong("the volume cannot be mounted"))
    }

    /// Returns the pipe directory of the MPS daemon of a pod's slot; `None`: its pods share by time alone.
    ///
    /// # Errors
    /// The daemon does not answer yet: a pod without it would compute on all SMs for its whole life.
    fn pipe(&self, pod: &Pod) -> Result<Option<PathBuf>, Status> {
        let node = self.node.lock();
        let own = node
            .slot(pod.slot)
            .filter(|own| own.slot.kind == SlotKind::Mps);
        let Some((own, pipe)) = own.and_then(|own| Some((own, own.slot.mps_pipe.clone()?))) else {
            return Ok(None);
        };
        match own.mps {
            // Its folder alone is there a little earlier, without the socket.
            MpsState::Up { .. } => Ok(Some(pipe)),
            // It never will.
            MpsState::None | MpsState::Unable { .. } => Ok(None),
            _ => Err(Status::unavailable(format!(
                "slot {}: its MPS daemon is not up yet; the kubelet tries again",
                own.slot.name
            ))),
        }
    }

    /// Takes back what is mounted at a target, and the pod's folder. An empty path is none.
    fn take_away(&self, folder: &Path, target: &Path) -> io::Result<()> {
        let target = target.to_path_buf();
        self.helper.call(&Request::TakeBack { target })?;
        if folder.as_os_str().is_empty() {
            return Ok(());
        }
        // The agent does not look at a name that begins with a dot.
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

fn wrong(what: &'static str) -> impl FnOnce(io::Error) -> Status {
    move |error| Status::internal(format!("{what}: {error}"))
}

/// Returns the UID of the pod to which a target of the kubelet's belongs: `…/pods/UID/volumes/…`.
fn pod_of<'a>(kubelet: &Path, target: &'a Path) -> Option<&'a str> {
    let rest = target.strip_prefix(kubelet.join("pods")).ok()?;
    let uid = rest.components().next()?.as_os_str().to_str()?;
    is_uid(uid).then_some(uid)
}

fn read_record(folder: &Path) -> Option<Record> {
    let text = fs::read(folder.join(RECORD)).ok()?;
    serde_json::from_slice(&text).ok()
}

impl Asked {
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
            let text = "allowed: inline volumes alone (ephemeral)";
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

    /// In the form of the downward API. A string of JSON is one of Go as well.
    fn annotations(&self) -> String {
        let lines = self.annotations.iter().map(|(key, value)| {
            let value = serde_json::Value::from(value.as_str());
            format!("{key}={value}\n")
        });
        lines.collect()
    }

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

/// Makes a pod's folder as a whole.
fn make_folder(directory: &Path, asked: &Asked, record: &Record) -> io::Result<()> {
    let new = directory.join(format!(".{}.new", asked.uid));
    remove_all(&new)?;
    make(&new)?;
    make(&new.join("lease"))?;
    fs::write(new.join(RECORD), serde_json::to_vec(record)?)?;
    fs::write(new.join("pod.toml"), asked.pod_file())?;
    fs::write(new.join("annotations"), asked.annotations())?;
    fs::rename(new, directory.join(&asked.uid))
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
    fn only_annotations_of_weir_reach_the_pods_folder_and_as_they_were() {
        let value = "a \"b\"\n\u{1}é=\\";
        let asked = Asked::read(&attributes(&[
            ("weir.dev/function", value),
            ("other.dev/key", "1"),
            ("revision", "hello-00001"),
        ]));
        let asked = asked.unwrap();
        let text = asked.annotations();
        let (read, bad) = annotations::podinfo::parse(&text);
        assert_eq!(read, [("weir.dev/function", value.to_owned())]);
        assert!(bad.is_empty());
        let file = asked.pod_file();
        assert!(file.contains("revision = \"hello-00001\""), "{file}");
    }

    #[test]
    fn what_the_kubelet_cannot_have_said_is_refused() {
        for (wrong, text) in [
            (vec![("csi.storage.k8s.io/pod.uid", "../x")], "pod.uid"),
            (vec![("csi.storage.k8s.io/ephemeral", "false")], "inline"),
            (vec![("revision", "Not/a label")], "revision"),
            (
                vec![("weir.dev/slo", &*"x".repeat(ATTRIBUTES_MAX))],
                "bytes",
            ),
        ] {
            let why = Asked::read(&attributes(&wrong)).unwrap_err();
            assert!(why.message().contains(text), "{why}");
        }
        let mut none = attributes(&[]);
        none.remove("csi.storage.k8s.io/pod.uid");
        let why = Asked::read(&none).unwrap_err();
        assert!(why.message().contains("podInfoOnMount"), "{why}");
    }

    #[test]
    fn a_target_tells_its_pod() {
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
