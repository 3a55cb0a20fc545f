//! Pods: one folder per pod in the directory of pods. The program that runs the containers creates the folder and mounts its
//! `gate/`.
//!
//! | in a pod's folder | written by | contents |
//! |---|---|---|
//! | `annotations` | its creator | the pod's annotations in the form of the downward API; its presence makes the folder a pod |
//! | `pod.toml` | its creator | `namespace`, `revision`, `function`, `uid`, `name`, `slot` (UUID or name), `cgroup`, `mps-pipe-directory` (path of the slot's in its containers); all optional |
//! | `gate/` | the agent | files for user containers: `gpu.sock`, `libweir_preload.so`, `libweir_preload_core.so` |
//! | `lease/` | the agent | for queue-proxy: `queue.sock` |
//! | `refused` | the agent | reason why the pod, or its last change, is refused; absent otherwise |
//! | `slot` | the agent | UUID of its slot, constant for the pod's lifetime, also across restarts of the agent |
//! | `processes` | the token service | its processes |
//!
//! A folder with a name that begins with a dot is ignored: its creator fills and then renames it. Links are not followed. The
//! directory is watched, and scanned each second. A pod that fits on no slot is retried with each scan.
//!
//! | subject | bound |
//! |---|---|
//! | served pods | [`PODS_MAX`] |
//! | scanned entries of the directory | [`ENTRIES_MAX`] |
//! | annotations | 256 KiB, the kubelet's own bound |
//! | `pod.toml` | 16 KiB |

pub(crate) mod folder;
pub(crate) mod placement;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use annotations::values::{dns_label, dns_subdomain};
use annotations::{podinfo, read_strictly};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify;
use serde::Serialize;
use toml::de::DeTable;

use crate::config::reader::{Document, Table};
use crate::config::{absolute, units::show_quantity};
use crate::events::{EventKind, Events};
use crate::identity::is_uid;
use crate::mps::control::timespec;
use crate::node::Node;
use crate::state::{
    Command, PODS_MAX, Pod, PodKey, PodSettings, SendError, ServiceHandle, SlotKey,
};
use crate::stop::Stop;
use folder::{Folder, Stamp};
use placement::{FunctionName, PlacedPod, fits, place};

/// Maximum number of entries of the directory per scan.
pub(crate) const ENTRIES_MAX: usize = 4_096;
/// Maximum size of `pod.toml`, in bytes.
const POD_FILE_MAX: u64 = 16 * 1024;
/// Longest time between two scans of the directory.
const SCAN_SPAN: Duration = Duration::from_secs(1);
/// Shortest time between two scans, regardless of the number of changes.
const SCAN_SPAN_MIN: Duration = Duration::from_millis(20);
/// Maximum number of remembered refused volumes.
const REFUSED_VOLUMES_MAX: usize = 256;
/// Time for which refused volumes are remembered; the kubelet retries within two minutes.
const REFUSED_VOLUME_SPAN: Duration = Duration::from_secs(300);
/// Longest wait for the first survey of NVML before pods are placed.
const NVML_SPAN: Duration = Duration::from_secs(10);

/// Reason for which a pod is refused, as in metrics and the control API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RefusalReason {
    /// Name, annotations or `pod.toml` are invalid.
    Invalid,
    /// A file is unreadable, or the gate cannot be created.
    Unreadable,
    /// The pod fits on no slot.
    NoSlot,
    /// The maximum number of pods is served already.
    TooMany,
}

impl RefusalReason {
    pub(crate) const ALL: [Self; 4] =
        [Self::Invalid, Self::Unreadable, Self::NoSlot, Self::TooMany];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Unreadable => "unreadable",
            Self::NoSlot => "no-slot",
            Self::TooMany => "too-many",
        }
    }
}

/// Refusal of a pod, or of a change of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Refused {
    pub(crate) reason: RefusalReason,
    pub(crate) text: String,
}

/// Refusal of a pod's volume. The pod's folder is removed at once; the kubelet retries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct RefusedVolume {
    pub(crate) namespace: String,
    pub(crate) revision: Option<String>,
    pub(crate) pod: String,
    pub(crate) text: String,
    #[serde(skip)]
    pub(crate) at: Instant,
}

/// Pods as visible to the other parts of the agent.
#[derive(Debug, Default)]
pub(crate) struct PodsView {
    /// Served pods, ordered by name.
    pub(crate) served: Vec<Arc<Pod>>,
    /// Refusals by the name of the pod's folder.
    pub(crate) refused: BTreeMap<String, Refused>,
    /// Refused volumes by the pod's UID; at most [`REFUSED_VOLUMES_MAX`].
    refused_volumes: BTreeMap<String, RefusedVolume>,
    /// Number of refusals of pods and changes, indexed as [`RefusalReason::ALL`].
    pub(crate) refusals: [u64; RefusalReason::ALL.len()],
}

/// [`PodsView`] behind a lock.
#[derive(Debug, Default)]
pub(crate) struct Pods(Mutex<PodsView>);

impl PodsView {
    /// Records the refusal of a pod's volume; `None` after its publication.
    pub(crate) fn set_refused_volume(&mut self, uid: &str, refused: Option<RefusedVolume>) {
        self.refused_volumes.remove(uid);
        let Some(refused) = refused else {
            return;
        };
        self.forget_refused_volumes();
        if self.refused_volumes.len() < REFUSED_VOLUMES_MAX {
            self.refused_volumes.insert(uid.to_owned(), refused);
        }
    }

    /// Returns the refusals within the last [`REFUSED_VOLUME_SPAN`], by the pods' UIDs.
    pub(crate) fn refused_volumes(&mut self) -> &BTreeMap<String, RefusedVolume> {
        self.forget_refused_volumes();
        &self.refused_volumes
    }

    fn forget_refused_volumes(&mut self) {
        self.refused_volumes
            .retain(|_, refused| refused.at.elapsed() < REFUSED_VOLUME_SPAN);
    }
}

impl Pods {
    pub(crate) fn lock(&self) -> MutexGuard<'_, PodsView> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Allocator of pod keys and serial numbers.
#[derive(Debug, Default)]
struct Keys {
    used: u32,
    free: VecDeque<PodKey>,
    serial: u64,
}

impl Keys {
    /// Returns the next key and serial number; `None` when all keys are in use.
    fn take(&mut self) -> Option<(PodKey, u64)> {
        let key = if usize::try_from(self.used).is_ok_and(|used| used < PODS_MAX) {
            self.used += 1;
            PodKey(self.used - 1)
        } else {
            self.free.pop_front()?
        };
        self.serial += 1;
        Some((key, self.serial))
    }
}

/// State of a pod's folder as of the last scan.
#[derive(Debug)]
struct FolderState {
    stamp: Stamp,
    served: Option<Arc<Pod>>,
    refused: Option<Refused>,
}

/// Watches the directory of pods: places new pods, and applies changes and removals.
pub(crate) struct PodWatcher {
    directory: PathBuf,
    preload: Option<PathBuf>,
    node: Arc<Node>,
    pods: Arc<Pods>,
    events: Arc<Events>,
    service: ServiceHandle,
    keys: Keys,
    folders: BTreeMap<String, FolderState>,
    /// Last note recorded for each entry.
    notes: BTreeMap<String, String>,
}

/// Validated contents of a pod's files.
#[derive(Debug)]
struct PodRequest {
    namespace: String,
    function: String,
    revision: String,
    uid: Option<String>,
    cgroup: Option<PathBuf>,
    preferred: Option<String>,
    pod_name: Option<String>,
    mps_mount: Option<PathBuf>,
    settings: PodSettings,
}

impl PodWatcher {
    pub(crate) fn new(
        directory: PathBuf,
        preload: Option<PathBuf>,
        node: Arc<Node>,
        pods: Arc<Pods>,
        events: Arc<Events>,
        service: ServiceHandle,
    ) -> Self {
        Self {
            directory,
            preload,
            node,
            pods,
            events,
            service,
            keys: Keys::default(),
            folders: BTreeMap::new(),
            notes: BTreeMap::new(),
        }
    }

    /// Watches the directory until the agent or the service ends.
    pub(crate) fn run(mut self, stop: &Stop) {
        self.node.wait_surveyed(NVML_SPAN);
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK);
        if let Err(errno) = &watch {
            let text = format!("no inotify: changes are noticed within 1 s, not at once: {errno}");
            self.note(".", &text);
        }
        let watch = watch.ok();
        while !stop.is_set() {
            if self.scan(watch.as_ref()).is_err() {
                return;
            }
            if stop.wait(SCAN_SPAN_MIN) {
                return;
            }
            match &watch {
                Some(watch) => await_change(watch, stop),
                None => {
                    stop.wait(SCAN_SPAN);
                }
            }
        }
    }

    /// Records an event about an entry that is not a pod, unless it is the same as the last one.
    fn note(&mut self, name: &str, text: &str) {
        if self.notes.get(name).map(String::as_str) == Some(text) || self.notes.len() >= ENTRIES_MAX
        {
            return;
        }
        self.notes.insert(name.to_owned(), text.to_owned());
        let text = format!("{}: {text}", self.directory.join(name).display());
        self.events.record(
            EventKind::PodRefused,
            "",
            "",
            text.escape_debug().to_string(),
        );
    }

    /// Scans the directory once.
    fn scan(&mut self, watch: Option<&OwnedFd>) -> Result<(), SendError> {
        let names = match folder::names(&self.directory, ENTRIES_MAX) {
            Ok((names, is_all)) => {
                if !is_all {
                    let text = format!("more than {ENTRIES_MAX} entries: the others are ignored");
                    self.note(".", &text);
                }
                names
            }
            Err(why) => {
                // An unreadable directory removes no pods.
                self.note(".", &why);
                return Ok(());
            }
        };
        if let Some(watch) = watch {
            let _not_watched = inotify::add_watch(watch, &self.directory, WATCHED);
        }
        // FolderState folders are always inspected: the names may be incomplete.
        let mut all = names;
        all.extend(self.folders.keys().cloned());
        all.sort_unstable();
        all.dedup();
        // A note about a removed entry is recorded again when the entry reappears.
        let is_there = |name: &String| name == "." || all.binary_search(name).is_ok();
        self.notes.retain(|name, _| is_there(name));
        for name in all {
            match Folder::open(&self.directory, &name) {
                Ok(Some(folder)) => self.inspect(&name, &folder, watch)?,
                Ok(None) => self.forget(&name)?,
                Err(text) => {
                    self.forget(&name)?;
                    self.note(&name, &text);
                }
            }
        }
        Ok(())
    }

    /// Handles a folder that is no longer a pod.
    fn forget(&mut self, name: &str) -> Result<(), SendError> {
        let Some(state) = self.folders.remove(name) else {
            return Ok(());
        };
        self.pods.lock().refused.remove(name);
        match state.served {
            Some(pod) => self.remove(&pod),
            None => Ok(()),
        }
    }

    /// Removes a served pod and frees its key.
    fn remove(&mut self, pod: &Arc<Pod>) -> Result<(), SendError> {
        // First, so that a reader which misses the pod in the view finds the event.
        let text = "its folder or its annotations were removed";
        self.events
            .record(EventKind::PodRemoved, "", &pod.display(), text);
        self.pods
            .lock()
            .served
            .retain(|own| own.serial != pod.serial);
        self.service.send(Command::PodRemoved(pod.key))?;
        self.keys.free.push_back(pod.key);
        Ok(())
    }

    /// Inspects a pod's folder: adds, changes or refuses the pod where the folder has changed.
    fn inspect(
        &mut self,
        name: &str,
        folder: &Folder,
        watch: Option<&OwnedFd>,
    ) -> Result<(), SendError> {
        let stamp = match folder.stamp() {
            Ok(Some(stamp)) => stamp,
            // Its creator has not finished, or has withdrawn the pod.
            Ok(None) => {
                if self.folders.contains_key(name) {
                    folder.close_gate();
                }
                self.watch(name, watch);
                return self.forget(name);
            }
            Err(text) => {
                self.forget(name)?;
                self.note(name, &text);
                return Ok(());
            }
        };
        if let Some(state) = self.folders.get(name) {
            let is_replaced = state.stamp.folder != stamp.folder;
            if is_replaced {
                // Another folder of the same name is another pod.
                self.forget(name)?;
            } else if state.stamp == stamp
                && state
                    .refused
                    .as_ref()
                    .is_none_or(|refused| refused.reason == RefusalReason::Invalid)
            {
                return Ok(());
            }
        }
        if !self.folders.contains_key(name) {
            self.watch(name, watch);
        }
        let served = self
            .folders
            .get(name)
            .and_then(|state| state.served.clone());
        let outcome = match served {
            None => self.add(name, folder)?.map(Some),
            Some(pod) => self.change(name, folder, &pod)?,
        };
        let served = self
            .folders
            .get(name)
            .and_then(|state| state.served.clone());
        let (served, refused) = match outcome {
            Ok(pod) => (pod.or(served), None),
            Err(refused) => (served, Some(refused)),
        };
        let state = FolderState {
            stamp,
            served,
            refused: refused.clone(),
        };
        let before = self
            .folders
            .insert(name.to_owned(), state)
            .and_then(|state| state.refused);
        self.publish_refusal(name, folder, before.as_ref(), refused);
        Ok(())
    }

    fn watch(&self, name: &str, watch: Option<&OwnedFd>) {
        if let Some(watch) = watch {
            let _not_watched = inotify::add_watch(watch, self.directory.join(name), WATCHED);
        }
    }

    /// Publishes a refusal in the folder, the control API, the metrics and the events; clears it with `None`.
    fn publish_refusal(
        &self,
        name: &str,
        folder: &Folder,
        before: Option<&Refused>,
        refused: Option<Refused>,
    ) {
        let mut pods = self.pods.lock();
        let Some(refused) = refused else {
            pods.refused.remove(name);
            drop(pods);
            folder.clear_refused();
            return;
        };
        if before == Some(&refused) {
            return;
        }
        // A text with other numbers is not a new reason.
        let is_new_reason = before.is_none_or(|before| before.reason != refused.reason);
        if is_new_reason {
            let place = RefusalReason::ALL
                .iter()
                .position(|why| *why == refused.reason);
            if let Some(count) = place.and_then(|place| pods.refusals.get_mut(place)) {
                *count += 1;
            }
        }
        pods.refused.insert(name.to_owned(), refused.clone());
        drop(pods);
        if is_new_reason {
            self.events
                .record(EventKind::PodRefused, "", name, &*refused.text);
        }
        folder.write_refused(&refused.text);
    }

    /// Reads and validates the files of a pod's folder.
    fn read(&self, name: &str, folder: &Folder) -> Result<PodRequest, Refused> {
        let refuse = |reason| move |text| Refused { reason, text };
        dns_subdomain(name)
            .map_err(|why| format!("the folder's name: {why}"))
            .map_err(refuse(RefusalReason::Invalid))?;
        let text = folder
            .read("annotations", podinfo::SIZE_MAX)
            .and_then(|text| text.ok_or_else(|| "annotations: has been removed".to_owned()))
            .map_err(refuse(RefusalReason::Unreadable))?;
        let pod_toml = folder
            .read("pod.toml", POD_FILE_MAX)
            .map_err(refuse(RefusalReason::Unreadable))?;
        let read = read_strictly(&text);
        let toml = pod_file(name, pod_toml.as_deref().unwrap_or(""));
        let mut problems = Vec::new();
        let read = read.map_err(|wrong| problems.extend(wrong)).ok();
        let toml = toml.map_err(|wrong| problems.extend(wrong)).ok();
        let (Some(read), Some(toml)) = (read, toml) else {
            return Err(refuse(RefusalReason::Invalid)(problems.join("\n")));
        };
        let settings = PodSettings::from(&read);
        let function = read.function.or(toml.function);
        Ok(PodRequest {
            function: function.unwrap_or_else(|| toml.revision.clone()),
            namespace: toml.namespace,
            revision: toml.revision,
            uid: toml.uid,
            cgroup: toml.cgroup,
            preferred: toml.slot,
            pod_name: toml.name,
            mps_mount: toml.mps_mount,
            settings,
        })
    }

    /// Returns all served pods but the one with this serial number.
    fn placed_except(&self, serial: u64) -> Vec<Arc<Pod>> {
        let others = self
            .folders
            .values()
            .filter_map(|state| state.served.as_ref());
        others.filter(|pod| pod.serial != serial).cloned().collect()
    }

    /// Places and adds a new pod.
    fn add(&mut self, name: &str, folder: &Folder) -> Result<Result<Arc<Pod>, Refused>, SendError> {
        let request = match self.read(name, folder) {
            Ok(request) => request,
            Err(refused) => return Ok(Err(refused)),
        };
        let slot = match self.slot(folder, &request) {
            Ok(slot) => slot,
            Err(text) => {
                return Ok(Err(Refused {
                    reason: RefusalReason::NoSlot,
                    text,
                }));
            }
        };
        let is_full = self
            .folders
            .values()
            .filter(|state| state.served.is_some())
            .count()
            >= PODS_MAX;
        let keys = (!is_full).then(|| self.keys.take()).flatten();
        let Some((key, serial)) = keys else {
            return Ok(Err(Refused {
                reason: RefusalReason::TooMany,
                text: format!("too many pods: at most {PODS_MAX} are served per node"),
            }));
        };
        let opened = folder.open_gate(self.preload.as_deref());
        let (listener, missing) = match opened {
            Ok(opened) => opened,
            Err(text) => {
                self.keys.free.push_back(key);
                return Ok(Err(Refused {
                    reason: RefusalReason::Unreadable,
                    text,
                }));
            }
        };
        if let Some(missing) = missing {
            self.note(".", &missing);
        }
        let queue = match folder.open_lease() {
            Ok(queue) => queue,
            Err(text) => {
                self.keys.free.push_back(key);
                return Ok(Err(Refused {
                    reason: RefusalReason::Unreadable,
                    text,
                }));
            }
        };
        let pod = Arc::new(Pod {
            key,
            serial,
            name: name.to_owned(),
            namespace: request.namespace,
            function: request.function,
            revision: request.revision,
            uid: request.uid,
            cgroup: request.cgroup,
            pod_name: request.pod_name,
            mps_mount: request.mps_mount,
            settings: request.settings,
            slot: slot.0,
            folder: self.directory.join(name),
        });
        folder.write_slot(&slot.1);
        let slot_name = self.slot_name(slot.0);
        let memory = pod
            .settings
            .gpu_memory
            .map_or_else(|| "no limit".to_owned(), show_quantity);
        let text = format!("placed; memory: {memory}");
        self.events
            .record(EventKind::PodAdded, &slot_name, &pod.display(), text);
        let command = Command::PodAdded {
            pod: Arc::clone(&pod),
            listener,
            queue: Some(queue),
        };
        self.service.send(command)?;
        let mut pods = self.pods.lock();
        pods.served.push(Arc::clone(&pod));
        pods.served.sort_by(|one, other| one.name.cmp(&other.name));
        drop(pods);
        Ok(Ok(pod))
    }

    fn slot_name(&self, key: SlotKey) -> String {
        let node = self.node.lock();
        node.slot(key)
            .map(|own| own.slot.name.clone())
            .unwrap_or_default()
    }

    /// Returns the pod's slot and its UUID: the slot of an earlier agent if it had one, else a new placement.
    fn slot(&self, folder: &Folder, request: &PodRequest) -> Result<(SlotKey, String), String> {
        let node = self.node.snapshot();
        if let Some(uuid) = folder.slot()
            && let Some(own) = node.slots.iter().find(|own| own.slot.uuid == uuid)
        {
            // Its processes may be running on it already, so the placement is not checked again.
            return match &own.lost {
                None => Ok((own.slot.key, uuid)),
                Some(why) => Err(format!("its slot {} is lost: {why}", own.slot.name)),
            };
        }
        let others = self.placed_except(0);
        let placed: Vec<_> = others.iter().map(as_placed).collect();
        let key = place(
            &node,
            &placed,
            FunctionName {
                namespace: &request.namespace,
                function: &request.function,
            },
            &request.settings,
            request.preferred.as_deref(),
        )?;
        let uuid = node.slot(key).map(|own| own.slot.uuid.clone());
        Ok((key, uuid.unwrap_or_default()))
    }

    /// Applies changed files of a pod. `Ok(Ok(None))`: its settings are unchanged.
    fn change(
        &mut self,
        name: &str,
        folder: &Folder,
        pod: &Arc<Pod>,
    ) -> Result<Result<Option<Arc<Pod>>, Refused>, SendError> {
        let request = match self.read(name, folder) {
            Ok(request) => request,
            Err(refused) => return Ok(Err(keeps_settings(refused))),
        };
        let is_same = request.namespace == pod.namespace
            && request.function == pod.function
            && request.revision == pod.revision
            && request.uid == pod.uid
            && request.cgroup == pod.cgroup;
        if !is_same {
            // A changed identity makes it another pod.
            self.remove(pod)?;
            if let Some(state) = self.folders.get_mut(name) {
                state.served = None;
            }
            return Ok(self.add(name, folder)?.map(Some));
        }
        if request.settings == pod.settings {
            return Ok(Ok(None));
        }
        let node = self.node.snapshot();
        let others = self.placed_except(pod.serial);
        let placed: Vec<_> = others.iter().map(as_placed).collect();
        if let Some(own) = node.slot(pod.slot)
            && let Err(why) = fits(own, &placed, &request.settings, node.plan)
        {
            return Ok(Err(keeps_settings(Refused {
                reason: RefusalReason::NoSlot,
                text: format!("slot {}: {why}", own.slot.name),
            })));
        }
        let changed = Arc::new(Pod {
            settings: request.settings,
            ..(**pod).clone()
        });
        let slot_name = self.slot_name(pod.slot);
        let text = "its annotations have changed";
        self.events
            .record(EventKind::PodChanged, &slot_name, &pod.display(), text);
        self.service
            .send(Command::PodChanged(Arc::clone(&changed)))?;
        for own in &mut self.pods.lock().served {
            if own.serial == pod.serial {
                *own = Arc::clone(&changed);
            }
        }
        Ok(Ok(Some(changed)))
    }
}

fn as_placed(pod: &Arc<Pod>) -> PlacedPod<'_> {
    PlacedPod {
        slot: pod.slot,
        function: FunctionName {
            namespace: &pod.namespace,
            function: &pod.function,
        },
        settings: &pod.settings,
    }
}

/// Adds to a refusal that the pod keeps its previous settings.
fn keeps_settings(refused: Refused) -> Refused {
    let Refused { reason, text } = refused;
    Refused {
        reason,
        text: format!("{text}\nThe pod keeps its previous settings."),
    }
}

const WATCHED: inotify::WatchFlags = inotify::WatchFlags::CREATE
    .union(inotify::WatchFlags::DELETE)
    .union(inotify::WatchFlags::CLOSE_WRITE)
    .union(inotify::WatchFlags::MOVED_TO)
    .union(inotify::WatchFlags::MOVED_FROM)
    .union(inotify::WatchFlags::ATTRIB)
    .union(inotify::WatchFlags::ONLYDIR)
    .union(inotify::WatchFlags::DONT_FOLLOW);

/// Blocks until a watched folder changes, for up to [`SCAN_SPAN`].
fn await_change(watch: &OwnedFd, stop: &Stop) {
    let steps = 10;
    for _ in 0..steps {
        let mut fds = [PollFd::new(watch, PollFlags::IN)];
        let is_changed = poll(&mut fds, Some(&timespec(SCAN_SPAN / steps)));
        if is_changed.is_ok_and(|count| count > 0) || stop.is_set() {
            break;
        }
    }
    // The next scan finds what has changed.
    let mut events = [0; 4096];
    while rustix::io::read(watch, &mut events).is_ok_and(|count| count > 0) {}
}

/// Validated contents of `pod.toml`.
#[derive(Debug)]
struct PodFile {
    name: Option<String>,
    mps_mount: Option<PathBuf>,
    namespace: String,
    revision: String,
    function: Option<String>,
    uid: Option<String>,
    slot: Option<String>,
    cgroup: Option<PathBuf>,
}

/// Parses a `pod.toml`, with defaults for the folder `name`; returns at most 32 problems.
fn pod_file(name: &str, text: &str) -> Result<PodFile, Vec<String>> {
    let document = Document::new(text);
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let message = error.message().replace('\n', ", ");
        document.wrong(error.span().unwrap_or(0..0), "", message);
    }
    let table = Table::new(
        &document,
        "",
        0..0,
        errors.is_empty().then_some(root.get_ref()),
    );
    let label = |text: &str| dns_label(text).map(|()| text.to_owned());
    let namespace = table.value("namespace", label);
    let revision = table.value("revision", label);
    let function = table.value("function", label);
    let uid = table.value("uid", |text| {
        let allowed = || "allowed: a UUID, as the pod's metadata.uid".to_owned();
        is_uid(text).then(|| text.to_owned()).ok_or_else(allowed)
    });
    let slot = table.value("slot", |text| Ok(text.to_owned()));
    let cgroup = table.value("cgroup", absolute);
    let pod_name = table.value("name", |text| dns_subdomain(text).map(|()| text.to_owned()));
    let mps_mount = table.value("mps-pipe-directory", absolute);
    table.end();
    let problems = document.problems();
    if problems.is_empty() {
        Ok(PodFile {
            name: pod_name,
            mps_mount,
            namespace: namespace.unwrap_or_else(|| "default".to_owned()),
            // A pod's name may contain dots and be longer than a label.
            revision: revision.unwrap_or_else(|| name.chars().take(63).collect()),
            function,
            uid,
            slot,
            cgroup,
        })
    } else {
        let show = |problem: crate::config::Problem| {
            let key = match problem.key.as_str() {
                "" => String::new(),
                key => format!("{key}: "),
            };
            format!("pod.toml:{}: {key}{}", problem.line, problem.text)
        };
        Err(problems.into_iter().take(32).map(show).collect())
    }
}

/// Returns the folder of the preload libraries: as configured, else that of the executable.
pub(crate) fn preload_folder(configured: Option<&Path>) -> Option<PathBuf> {
    if let Some(folder) = configured {
        return Some(folder.to_path_buf());
    }
    let own = std::env::current_exe().ok()?;
    own.parent().map(Path::to_path_buf)
}

#[cfg(test)]
mod tests;
