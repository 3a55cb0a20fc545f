//! Pods: one folder for each in the directory of pods. Whoever runs containers makes the folder and mounts its `gate/`.
//!
//! | in a pod's folder | written by | what |
//! |---|---|---|
//! | `annotations` | its maker | the pod's annotations in the form of the downward API; what makes a folder a pod |
//! | `pod.toml` | its maker | `namespace`, `revision`, `function`, `uid`, `name`, `slot` (UUID or name), `cgroup`, `mps-pipe-directory` (where its containers see the slot's); all optional |
//! | `gate/` | the agent | what user containers see: `gpu.sock`, `libweir_preload.so`, `libweir_preload_core.so` |
//! | `refused` | the agent | why the pod, or its last change, is refused; gone when it is not |
//! | `slot` | the agent | the UUID of its slot, which is its for life, also over the agent's |
//! | `processes` | the token service | its own |
//!
//! A folder whose name begins with a dot is not looked at: its maker fills it and renames it. Links are not followed.
//! The directory is watched, and looked through each second. A pod that fits on no slot is tried again each time.
//!
//! | what | bound |
//! |---|---|
//! | pods that are served | [`PODS_MAX`] |
//! | entries of the directory that are looked at | [`ENTRIES_MAX`] |
//! | annotations | 256 KiB, the kubelet's own bound |
//! | `pod.toml` | 16 KiB |

pub(crate) mod folder;
pub(crate) mod place;

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
use place::{Placed, fits, place};

/// Entries of the directory that are looked at.
pub(crate) const ENTRIES_MAX: usize = 4_096;
/// Bytes of `pod.toml`, at most.
const POD_FILE_MAX: u64 = 16 * 1024;
/// The directory is looked through so often in any case …
const SCAN_SPAN: Duration = Duration::from_secs(1);
/// … and not more often than this, whatever happens in it.
const SCAN_SPAN_MIN: Duration = Duration::from_millis(20);
/// Refused volumes that are remembered, at most …
const REFUSED_VOLUMES_MAX: usize = 256;
/// … and for how long: the kubelet asks again within two minutes.
const REFUSED_VOLUME_SPAN: Duration = Duration::from_secs(300);
/// NVML is waited for this long before pods are placed.
const NVML_SPAN: Duration = Duration::from_secs(10);

/// Why a pod is refused, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RefusedWhy {
    /// Name, annotations or `pod.toml` cannot be used.
    Invalid,
    /// A file cannot be read, or the gate not be made.
    Unreadable,
    /// It fits on no slot.
    NoSlot,
    /// So many are served that no more are.
    TooMany,
}

impl RefusedWhy {
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

/// A pod is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Refused {
    pub(crate) reason: RefusedWhy,
    pub(crate) text: String,
}

/// A volume that was refused to a pod. Its folder is gone at once; the kubelet asks again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct RefusedVolume {
    pub(crate) namespace: String,
    pub(crate) revision: Option<String>,
    pub(crate) pod: String,
    pub(crate) text: String,
    #[serde(skip)]
    pub(crate) at: Instant,
}

/// What the others know of pods.
#[derive(Debug, Default)]
pub(crate) struct PodsView {
    /// In the order of their names.
    pub(crate) served: Vec<Arc<Pod>>,
    /// By the folder's name.
    pub(crate) refused: BTreeMap<String, Refused>,
    /// By the pod's UID; at most [`REFUSED_VOLUMES_MAX`].
    refused_volumes: BTreeMap<String, RefusedVolume>,
    /// Times pods and changes of pods were refused, by [`RefusedWhy::ALL`].
    pub(crate) refusals: [u64; RefusedWhy::ALL.len()],
}

/// The same, shared.
#[derive(Debug, Default)]
pub(crate) struct Pods(Mutex<PodsView>);

impl PodsView {
    /// Notes that a volume was refused to a pod, or (`None`) that it was published.
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

    /// Returns the volumes that were refused within the last [`REFUSED_VOLUME_SPAN`], by the pods' UIDs.
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

/// Numbers for pods.
#[derive(Debug, Default)]
struct Keys {
    used: u32,
    free: VecDeque<PodKey>,
    serial: u64,
}

impl Keys {
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

/// What is known of a folder.
#[derive(Debug)]
struct Known {
    stamp: Stamp,
    served: Option<Arc<Pod>>,
    refused: Option<Refused>,
}

/// Finds pods, and follows them.
pub(crate) struct Keeper {
    directory: PathBuf,
    preload: Option<PathBuf>,
    node: Arc<Node>,
    pods: Arc<Pods>,
    events: Arc<Events>,
    service: ServiceHandle,
    keys: Keys,
    known: BTreeMap<String, Known>,
    notes: BTreeMap<String, String>,
}

/// A pod's files, read and checked.
#[derive(Debug)]
struct Asked {
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

impl Keeper {
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
            known: BTreeMap::new(),
            notes: BTreeMap::new(),
        }
    }

    /// Runs until the agent or the service ends.
    pub(crate) fn run(mut self, stop: &Stop) {
        self.node.wait_surveyed(NVML_SPAN);
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK);
        if let Err(errno) = &watch {
            let text = format!("changes are seen within 1 s, not at once: {errno}");
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

    /// Tells something about an entry that is no pod, unless it was told already.
    fn note(&mut self, name: &str, text: &str) {
        if self.notes.get(name).map(String::as_str) == Some(text) || self.notes.len() >= ENTRIES_MAX
        {
            return;
        }
        self.notes.insert(name.to_owned(), text.to_owned());
        let text = format!("{}: {text}", self.directory.join(name).display());
        self.events.tell(
            EventKind::PodRefused,
            "",
            "",
            text.escape_debug().to_string(),
        );
    }

    /// Looks through the directory once.
    fn scan(&mut self, watch: Option<&OwnedFd>) -> Result<(), SendError> {
        let names = match folder::names(&self.directory, ENTRIES_MAX) {
            Ok((names, is_all)) => {
                if !is_all {
                    let text =
                        format!("more than {ENTRIES_MAX} entries: the others are not looked at");
                    self.note(".", &text);
                }
                names
            }
            Err(why) => {
                // Nobody is taken for gone because of that.
                self.note(".", &why);
                return Ok(());
            }
        };
        if let Some(watch) = watch {
            let _not_watched = inotify::add_watch(watch, &self.directory, WATCHED);
        }
        // Of those that are known, each: they need not be among those that were looked at.
        let mut all = names;
        all.extend(self.known.keys().cloned());
        all.sort_unstable();
        all.dedup();
        // What was said of an entry that is gone is news when it comes again.
        let is_there = |name: &String| name == "." || all.binary_search(name).is_ok();
        self.notes.retain(|name, _| is_there(name));
        for name in all {
            match Folder::open(&self.directory, &name) {
                Ok(Some(folder)) => self.look(&name, &folder, watch)?,
                Ok(None) => self.forget(&name)?,
                Err(text) => {
                    self.forget(&name)?;
                    self.note(&name, &text);
                }
            }
        }
        Ok(())
    }

    /// A folder is no pod any more.
    fn forget(&mut self, name: &str) -> Result<(), SendError> {
        let Some(known) = self.known.remove(name) else {
            return Ok(());
        };
        self.pods.lock().refused.remove(name);
        match known.served {
            Some(pod) => self.remove(&pod),
            None => Ok(()),
        }
    }

    fn remove(&mut self, pod: &Arc<Pod>) -> Result<(), SendError> {
        self.pods
            .lock()
            .served
            .retain(|own| own.serial != pod.serial);
        let text = "its folder or its annotations are gone";
        self.events
            .tell(EventKind::PodRemoved, "", &pod.display(), text);
        self.service.send(Command::PodRemoved(pod.key))?;
        self.keys.free.push_back(pod.key);
        Ok(())
    }

    fn look(
        &mut self,
        name: &str,
        folder: &Folder,
        watch: Option<&OwnedFd>,
    ) -> Result<(), SendError> {
        let stamp = match folder.stamp() {
            Ok(Some(stamp)) => stamp,
            // Its maker is not done, or has taken it back.
            Ok(None) => {
                if self.known.contains_key(name) {
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
        if let Some(known) = self.known.get(name) {
            let is_anew = known.stamp.folder != stamp.folder;
            if is_anew {
                // Another folder of the same name is another pod.
                self.forget(name)?;
            } else if known.stamp == stamp
                && known
                    .refused
                    .as_ref()
                    .is_none_or(|refused| refused.reason == RefusedWhy::Invalid)
            {
                return Ok(());
            }
        }
        if !self.known.contains_key(name) {
            self.watch(name, watch);
        }
        let served = self.known.get(name).and_then(|known| known.served.clone());
        let outcome = match served {
            None => self.add(name, folder)?.map(Some),
            Some(pod) => self.change(name, folder, &pod)?,
        };
        let served = self.known.get(name).and_then(|known| known.served.clone());
        let (served, refused) = match outcome {
            Ok(pod) => (pod.or(served), None),
            Err(refused) => (served, Some(refused)),
        };
        let known = Known {
            stamp,
            served,
            refused: refused.clone(),
        };
        let before = self
            .known
            .insert(name.to_owned(), known)
            .and_then(|known| known.refused);
        self.say_refused(name, folder, before.as_ref(), refused);
        Ok(())
    }

    fn watch(&self, name: &str, watch: Option<&OwnedFd>) {
        if let Some(watch) = watch {
            let _not_watched = inotify::add_watch(watch, self.directory.join(name), WATCHED);
        }
    }

    fn say_refused(
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
        // Numbers that change with every pod that comes are no other reason.
        let is_news = before.is_none_or(|before| before.reason != refused.reason);
        if is_news {
            let place = RefusedWhy::ALL
                .iter()
                .position(|why| *why == refused.reason);
            if let Some(count) = place.and_then(|place| pods.refusals.get_mut(place)) {
                *count += 1;
            }
        }
        pods.refused.insert(name.to_owned(), refused.clone());
        drop(pods);
        if is_news {
            self.events
                .tell(EventKind::PodRefused, "", name, &*refused.text);
        }
        folder.write_refused(&refused.text);
    }

    fn read(&self, name: &str, folder: &Folder) -> Result<Asked, Refused> {
        let refuse = |reason| move |text| Refused { reason, text };
        dns_subdomain(name)
            .map_err(|why| format!("the folder's name: {why}"))
            .map_err(refuse(RefusedWhy::Invalid))?;
        let text = folder
            .read("annotations", podinfo::SIZE_MAX)
            .and_then(|text| text.ok_or_else(|| "annotations: is gone".to_owned()))
            .map_err(refuse(RefusedWhy::Unreadable))?;
        let told = folder
            .read("pod.toml", POD_FILE_MAX)
            .map_err(refuse(RefusedWhy::Unreadable))?;
        let read = read_strictly(&text);
        let toml = pod_file(name, told.as_deref().unwrap_or(""));
        let mut problems = Vec::new();
        let read = read.map_err(|wrong| problems.extend(wrong)).ok();
        let toml = toml.map_err(|wrong| problems.extend(wrong)).ok();
        let (Some(read), Some(toml)) = (read, toml) else {
            return Err(refuse(RefusedWhy::Invalid)(problems.join("\n")));
        };
        let settings = PodSettings::from(&read);
        let function = read.function.or(toml.function);
        Ok(Asked {
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

    fn placed_but(&self, serial: u64) -> Vec<Arc<Pod>> {
        let others = self
            .known
            .values()
            .filter_map(|known| known.served.as_ref());
        others.filter(|pod| pod.serial != serial).cloned().collect()
    }

    /// A pod that is new.
    fn add(&mut self, name: &str, folder: &Folder) -> Result<Result<Arc<Pod>, Refused>, SendError> {
        let asked = match self.read(name, folder) {
            Ok(asked) => asked,
            Err(refused) => return Ok(Err(refused)),
        };
        let slot = match self.slot(folder, &asked) {
            Ok(slot) => slot,
            Err(text) => {
                return Ok(Err(Refused {
                    reason: RefusedWhy::NoSlot,
                    text,
                }));
            }
        };
        let is_full = self
            .known
            .values()
            .filter(|known| known.served.is_some())
            .count()
            >= PODS_MAX;
        let keys = (!is_full).then(|| self.keys.take()).flatten();
        let Some((key, serial)) = keys else {
            return Ok(Err(Refused {
                reason: RefusedWhy::TooMany,
                text: format!("{PODS_MAX} pods are served on this node, and no more are"),
            }));
        };
        let opened = folder.open_gate(self.preload.as_deref());
        let (listener, missing) = match opened {
            Ok(opened) => opened,
            Err(text) => {
                self.keys.free.push_back(key);
                return Ok(Err(Refused {
                    reason: RefusedWhy::Unreadable,
                    text,
                }));
            }
        };
        if let Some(missing) = missing {
            self.note(".", &missing);
        }
        let pod = Arc::new(Pod {
            key,
            serial,
            name: name.to_owned(),
            namespace: asked.namespace,
            function: asked.function,
            revision: asked.revision,
            uid: asked.uid,
            cgroup: asked.cgroup,
            pod_name: asked.pod_name,
            mps_mount: asked.mps_mount,
            settings: asked.settings,
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
            .tell(EventKind::PodAdded, &slot_name, &pod.display(), text);
        let command = Command::PodAdded {
            pod: Arc::clone(&pod),
            listener,
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

    /// Its slot and the slot's UUID: that of before, if it had one.
    fn slot(&self, folder: &Folder, asked: &Asked) -> Result<(SlotKey, String), String> {
        let node = self.node.snapshot();
        if let Some(uuid) = folder.slot()
            && let Some(own) = node.slots.iter().find(|own| own.slot.uuid == uuid)
        {
            // Its processes may be there already: what fits is not asked again.
            return match &own.lost {
                None => Ok((own.slot.key, uuid)),
                Some(why) => Err(format!("its slot {} is lost: {why}", own.slot.name)),
            };
        }
        let others = self.placed_but(0);
        let placed: Vec<_> = others.iter().map(placed_of).collect();
        let key = place(&node, &placed, &asked.settings, asked.preferred.as_deref())?;
        let uuid = node.slot(key).map(|own| own.slot.uuid.clone());
        Ok((key, uuid.unwrap_or_default()))
    }

    /// A pod whose files have changed. `Ok(Ok(None))`: nothing of what holds has.
    fn change(
        &mut self,
        name: &str,
        folder: &Folder,
        pod: &Arc<Pod>,
    ) -> Result<Result<Option<Arc<Pod>>, Refused>, SendError> {
        let asked = match self.read(name, folder) {
            Ok(asked) => asked,
            Err(refused) => return Ok(Err(kept(refused))),
        };
        let is_same = asked.namespace == pod.namespace
            && asked.function == pod.function
            && asked.revision == pod.revision
            && asked.uid == pod.uid
            && asked.cgroup == pod.cgroup;
        if !is_same {
            // Who it is cannot change: it is another.
            self.remove(pod)?;
            if let Some(known) = self.known.get_mut(name) {
                known.served = None;
            }
            return Ok(self.add(name, folder)?.map(Some));
        }
        if asked.settings == pod.settings {
            return Ok(Ok(None));
        }
        let node = self.node.snapshot();
        let others = self.placed_but(pod.serial);
        let placed: Vec<_> = others.iter().map(placed_of).collect();
        if let Some(own) = node.slot(pod.slot)
            && let Err(why) = fits(own, &placed, &asked.settings, node.plan)
        {
            return Ok(Err(kept(Refused {
                reason: RefusedWhy::NoSlot,
                text: format!("slot {}: {why}", own.slot.name),
            })));
        }
        let changed = Arc::new(Pod {
            settings: asked.settings,
            ..(**pod).clone()
        });
        let slot_name = self.slot_name(pod.slot);
        let text = "its annotations have changed";
        self.events
            .tell(EventKind::PodChanged, &slot_name, &pod.display(), text);
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

fn placed_of(pod: &Arc<Pod>) -> Placed<'_> {
    Placed {
        slot: pod.slot,
        settings: &pod.settings,
    }
}

/// A change that is refused leaves the pod as it was.
fn kept(refused: Refused) -> Refused {
    let Refused { reason, text } = refused;
    Refused {
        reason,
        text: format!("{text}\nThe pod goes on as it was before this change."),
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

/// Waits until something changes in a watched folder, for up to [`SCAN_SPAN`].
fn await_change(watch: &OwnedFd, stop: &Stop) {
    let steps = 10;
    for _ in 0..steps {
        let mut fds = [PollFd::new(watch, PollFlags::IN)];
        let is_changed = poll(&mut fds, Some(&timespec(SCAN_SPAN / steps)));
        if is_changed.is_ok_and(|count| count > 0) || stop.is_set() {
            break;
        }
    }
    // What changed is found by looking.
    let mut events = [0; 4096];
    while rustix::io::read(watch, &mut events).is_ok_and(|count| count > 0) {}
}

/// What `pod.toml` says.
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
            // A pod's name may have dots, and be longer than a label.
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

/// The folder of the preload libraries: as configured, else that of the executable.
pub(crate) fn preload_folder(configured: Option<&Path>) -> Option<PathBuf> {
    if let Some(folder) = configured {
        return Some(folder.to_path_buf());
    }
    let own = std::env::current_exe().ok()?;
    own.parent().map(Path::to_path_buf)
}

#[cfg(test)]
mod tests;
