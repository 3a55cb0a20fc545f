//! The thread that polls NVML each second, and the thread that waits for its errors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::{
    FAILURES_MAX, Gpu, Instance, Nvml, Survey, Unit, Watch, Xid, client_limit, is_of_a_program,
};
use crate::config::{Config, EXCLUSIVE_SEATS};
use crate::events::{EventKind, Events};
use crate::node::{MpsState, Node, NodeState, SLOTS_MAX};
use crate::state::{DeviceMemory, MigInstance, ProcessMemory, Slot, SlotKey, SlotKind};
use crate::stop::Stop;

/// Interval of the surveys.
const SURVEY_SPAN: Duration = Duration::from_secs(1);
/// Delay before the first retry to open the library; it doubles with each failure, up to [`OPEN_SPAN_MAX`].
const OPEN_SPAN: Duration = Duration::from_secs(1);
/// Longest delay between retries to open the library.
const OPEN_SPAN_MAX: Duration = Duration::from_secs(10);
/// Capacity of the queue of errors.
const XIDS_MAX: usize = 64;

/// A change of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// A slot was found.
    Added(Arc<Slot>),
    /// A slot is lost, for this reason.
    Lost(SlotKey, String),
    /// A lost slot is usable again.
    Back(Arc<Slot>),
    /// Device memory of the processes on an exclusive slot, in bytes, by process ID; where it is not configured what a context takes.
    Memory(SlotKey, Vec<(u32, u64)>),
    /// A program's fault on the GPU of this slot, which under MPS affects all clients.
    Fault(SlotKey),
}

/// Callback for changes of slots.
pub(crate) type Listener = Box<dyn FnMut(Change) + Send>;

/// Discovers slots and watches their state.
pub(crate) struct Watcher {
    pub(crate) config: Config,
    pub(crate) node: Arc<Node>,
    pub(crate) events: Arc<Events>,
    pub(crate) device_memory: Arc<DeviceMemory>,
    pub(crate) listener: Listener,
    /// GPUs with a permanent error, by UUID, and the error.
    broken: BTreeMap<String, String>,
    /// Notes recorded as events already.
    notes: BTreeSet<String>,
}

/// A unit of a survey that becomes a slot.
struct FoundUnit<'a> {
    gpu_number: u32,
    gpu: &'a Gpu,
    instance: Option<&'a Instance>,
}

impl FoundUnit<'_> {
    fn unit(&self) -> &Unit {
        self.instance.map_or(&self.gpu.unit, |own| &own.unit)
    }

    fn name(&self) -> String {
        match self.instance {
            None => self.gpu_number.to_string(),
            Some(instance) => format!("{}:{}", self.gpu_number, instance.number),
        }
    }
}

/// Returns the IDs of the GPU instance and the compute instance, where the UUID contains them, as with old drivers:
/// `MIG-GPU-…/1/0`.
fn instances_of(uuid: &str) -> Option<(u32, u32)> {
    let mut parts = uuid.strip_prefix("MIG-GPU-")?.split('/').skip(1);
    let numbers = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(numbers)
}

/// Returns the pipe directory of a slot's daemon.
pub(crate) fn pipe_directory(run: &Path, uuid: &str) -> PathBuf {
    // UUIDs of MIG instances of old drivers contain slashes.
    run.join("mps").join(uuid.replace('/', "_")).join("pipe")
}

impl Watcher {
    pub(crate) fn new(
        config: Config,
        node: Arc<Node>,
        events: Arc<Events>,
        device_memory: Arc<DeviceMemory>,
        listener: Listener,
    ) -> Self {
        Self {
            config,
            node,
            events,
            device_memory,
            listener,
            broken: BTreeMap::new(),
            notes: BTreeSet::new(),
        }
    }

    /// Watches slots until the agent ends, and opens the library again after each failure.
    pub(crate) fn run(
        mut self,
        stop: &Stop,
        open: impl Fn(&Path) -> Result<Box<dyn Nvml>, String>,
    ) {
        let mut span = OPEN_SPAN;
        while !stop.is_set() {
            match open(&self.config.node.nvml_library) {
                Ok(nvml) => {
                    span = OPEN_SPAN;
                    self.follow(stop, &*nvml);
                }
                Err(why) => self.fail(&why),
            }
            if stop.wait(span) {
                return;
            }
            span = (span * 2).min(OPEN_SPAN_MAX);
        }
    }

    /// Watches slots with an open library until it fails or the agent ends.
    fn follow(&mut self, stop: &Stop, nvml: &dyn Nvml) {
        let (sender, receiver) = sync_channel(XIDS_MAX);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiter = std::thread::Builder::new().name("nvml-errors".to_owned());
            let wait = || wait_for_errors(nvml, stop, &is_over, &sender);
            if let Err(error) = waiter.spawn_scoped(scope, wait) {
                self.note(format!("GPU errors are not reported: {error}"));
            }
            self.poll(stop, nvml, &receiver);
            is_over.store(true, Ordering::Relaxed);
        });
    }

    /// Surveys the slots each second, and at once after a GPU error, until the agent ends or [`FAILURES_MAX`] surveys in a row
    /// have failed; then all slots are marked as lost.
    fn poll(&mut self, stop: &Stop, nvml: &dyn Nvml, xids: &Receiver<Xid>) {
        let mut failures = 0;
        loop {
            match nvml.survey() {
                Ok(survey) => {
                    failures = 0;
                    self.apply(&survey);
                }
                Err(why) => {
                    failures += 1;
                    if failures >= FAILURES_MAX {
                        self.fail(&why);
                        return;
                    }
                }
            }
            let next = Instant::now() + SURVEY_SPAN;
            loop {
                // In short steps, so that the end of the agent is noticed in time.
                let left = next.saturating_duration_since(Instant::now());
                match xids.recv_timeout(left.min(Duration::from_millis(100))) {
                    Ok(xid) => {
                        self.xid(&xid);
                        break;
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        let _stopped = stop.wait(left.min(Duration::from_millis(100)));
                    }
                }
                if stop.is_set() {
                    return;
                }
                if Instant::now() >= next {
                    break;
                }
            }
        }
    }

    /// Records a note as an event, once.
    fn note(&mut self, note: String) {
        // As many notes as there may be slots; repeated notes are ignored.
        if self.notes.len() < SLOTS_MAX && self.notes.insert(note.clone()) {
            self.events.record(EventKind::DeviceError, "", "", note);
        }
    }

    /// Marks all slots as lost, since NVML as a whole does not answer.
    pub(crate) fn fail(&mut self, why: &str) {
        let mut lost = Vec::new();
        {
            let mut state = self.node.lock();
            if state.nvml_problem.as_deref() != Some(why) {
                state.nvml_problem = Some(why.to_owned());
                let text = format!("no GPU can be found: {why}");
                self.events.record(EventKind::NvmlUnavailable, "", "", text);
            }
            for own in &state.slots {
                if own.lost.is_none() {
                    lost.push((own.slot.key, format!("NVML does not answer: {why}")));
                }
            }
        }
        for (key, reason) in lost {
            self.lose(key, &reason);
        }
        self.device_memory.set(BTreeMap::new());
        self.node.set_surveyed();
    }

    /// Marks a slot as lost and notifies the listener, unless it is lost already.
    fn lose(&mut self, key: SlotKey, reason: &str) {
        let name = {
            let mut state = self.node.lock();
            let Some(own) = state.slot_mut(key) else {
                return;
            };
            let is_news = own.lost.is_none();
            own.lost = Some(reason.to_owned());
            if !is_news {
                return;
            }
            own.losses += 1;
            own.memory_used = 0;
            own.slot.name.clone()
        };
        self.events.record(EventKind::SlotLost, &name, "", reason);
        (self.listener)(Change::Lost(key, reason.to_owned()));
    }

    /// Handles an error reported by a GPU.
    pub(crate) fn xid(&mut self, xid: &Xid) {
        let number = xid
            .number
            .map_or_else(|| "unknown".to_owned(), |xid| xid.to_string());
        let slots: Vec<_> = {
            let state = self.node.lock();
            let is_of = |own: &&_| xid.gpu_uuid.as_deref() == Some(gpu_uuid(own));
            let of = state.slots.iter().filter(is_of);
            of.map(|own| own.slot.key).collect()
        };
        let gpu = xid.gpu_uuid.as_deref().unwrap_or("a lost GPU");
        let is_harmless = xid.number.is_none_or(is_of_a_program);
        let text = if is_harmless {
            format!("Xid {number} on {gpu}: the fault of a program on it")
        } else {
            format!("Xid {number} on {gpu}")
        };
        self.events.record(EventKind::DeviceError, "", "", text);
        if is_harmless {
            for slot in slots {
                (self.listener)(Change::Fault(slot));
            }
        } else if let Some(gpu) = &xid.gpu_uuid {
            let reason = format!("Xid {number}");
            self.broken.insert(gpu.clone(), reason.clone());
            for slot in slots {
                self.lose(slot, &reason);
            }
        }
    }

    /// Applies a survey: adds, restores and loses slots, and updates the memory table.
    pub(crate) fn apply(&mut self, survey: &Survey) {
        for note in &survey.notes {
            self.note(note.clone());
        }
        {
            let mut state = self.node.lock();
            state.driver = Some(survey.driver.clone());
            state.nvml_problem = None;
        }
        let mut found = Vec::new();
        let mut unanswered = BTreeMap::new();
        for own in &survey.gpus {
            let gpu_number = own.number;
            match &own.gpu {
                Ok(gpu) if gpu.is_mig => {
                    found.extend(gpu.instances.iter().map(|instance| FoundUnit {
                        gpu_number,
                        gpu,
                        instance: Some(instance),
                    }))
                }
                Ok(gpu) => found.push(FoundUnit {
                    gpu_number,
                    gpu,
                    instance: None,
                }),
                Err(why) => {
                    unanswered.insert(gpu_number, why.as_str());
                }
            }
        }
        let present: BTreeSet<_> = survey
            .gpus
            .iter()
            .filter_map(|own| own.gpu.as_ref().ok())
            .map(|gpu| gpu.unit.uuid.as_str())
            .collect();
        // A GPU that has disappeared counts as another one when it reappears.
        self.broken.retain(|gpu, _| present.contains(gpu.as_str()));
        let mut table = BTreeMap::new();
        let mut present_keys = BTreeSet::new();
        for own in &found {
            if let Some(key) = self.apply_unit(survey, own) {
                present_keys.insert(key);
                tabulate(&mut table, own.unit(), key);
            }
        }
        let missing: Vec<_> = {
            let state = self.node.lock();
            let is_missing = |own: &&_| !present_keys.contains(&slot_key(own));
            let missing = state.slots.iter().filter(is_missing);
            missing
                .map(|own| {
                    let reason = match unanswered.get(&own.gpu) {
                        Some(why) => (*why).to_owned(),
                        None if own.slot.mig.is_some() => "the MIG instance is gone".to_owned(),
                        None if present.contains(own.slot.uuid.as_str()) => {
                            "MIG was turned on".to_owned()
                        }
                        None => "the GPU is gone".to_owned(),
                    };
                    (own.slot.key, reason)
                })
                .collect()
        };
        for (key, reason) in missing {
            self.lose(key, &reason);
        }
        self.device_memory.set(table);
        self.node.set_surveyed();
    }

    /// Handles a unit that answers: a new slot, a known one, or one that is back. Returns its key, unless its GPU is broken and
    /// the slot is new.
    fn apply_unit(&mut self, survey: &Survey, found: &FoundUnit<'_>) -> Option<SlotKey> {
        let unit = found.unit();
        let known = {
            let state = self.node.lock();
            let known = state.slots.iter().find(|own| own.slot.uuid == unit.uuid);
            known.map(|own| (own.slot.key, own.lost.is_some()))
        };
        let broken = self.broken.get(&found.gpu.unit.uuid).cloned();
        let used = unit.processes.iter().map(|process| process.1).sum();
        match (known, broken) {
            (Some((key, _)), Some(reason)) => {
                self.lose(key, &reason);
                return Some(key);
            }
            (None, Some(_)) => return None,
            (Some((key, false)), None) => {
                let mut is_measured = false;
                if let Some(own) = self.node.lock().slot_mut(key) {
                    own.gpu = found.gpu_number;
                    own.memory_used = used;
                    is_measured = own.slot.context_residue.is_none();
                }
                if is_measured && !unit.processes.is_empty() {
                    let processes = unit.processes.iter();
                    let listed = processes.map(|&(pid, bytes, _)| (pid, bytes)).collect();
                    (self.listener)(Change::Memory(key, listed));
                }
                return Some(key);
            }
            (Some((key, true)), None) => {
                let slot = Arc::new(self.slot(survey, found, key));
                {
                    let mut state = self.node.lock();
                    let own = state.slot_mut(key)?;
                    own.lost = None;
                    own.gpu = found.gpu_number;
                    own.memory_used = used;
                    own.slot = Arc::clone(&slot);
                    if slot.kind == SlotKind::Mps {
                        own.mps = MpsState::Starting;
                    }
                }
                let text = format!("{} is usable again", slot.uuid);
                self.events
                    .record(EventKind::SlotBack, &slot.name, "", text);
                (self.listener)(Change::Back(slot));
                return Some(key);
            }
            (None, None) => {}
        }
        let added = {
            let mut state = self.node.lock();
            let added = state.add(found.gpu_number, |key| self.slot(survey, found, key));
            if let Some(own) = added.as_ref().and_then(|slot| state.slot_mut(slot.key)) {
                own.memory_used = used;
            }
            added
        };
        let Some(slot) = added else {
            self.note(format!(
                "{} is not used: {SLOTS_MAX} slots are remembered already; restart the agent",
                unit.uuid
            ));
            return None;
        };
        let mut text = format!(
            "{} ({}), {}, {} MiB",
            slot.uuid,
            slot.product,
            slot.kind.name(),
            slot.memory_bytes >> 20
        );
        match slot.sms {
            Some(sms) => text.push_str(&format!(", {sms} SMs")),
            None => text
                .push_str("; the number of SMs is unknown: percentages are used as they are given"),
        }
        self.events
            .record(EventKind::SlotAdded, &slot.name, "", text);
        let key = slot.key;
        (self.listener)(Change::Added(slot));
        Some(key)
    }

    /// Returns the slot of a unit, as configured.
    fn slot(&self, survey: &Survey, found: &FoundUnit<'_>, key: SlotKey) -> Slot {
        let unit = found.unit();
        let instance = found.instance;
        let number = instance.map(|instance| instance.number);
        let config = self.config.slot(&unit.uuid, found.gpu_number, number);
        let slices = instance.map(|instance| instance.slices.unwrap_or(1));
        let client_limit = client_limit(&survey.driver, found.gpu.capability, slices);
        let seats = match config.kind {
            SlotKind::Mps => config.seats.unwrap_or(client_limit).min(client_limit),
            SlotKind::Exclusive => config.seats.unwrap_or(EXCLUSIVE_SEATS),
        };
        Slot {
            key,
            name: found.name(),
            uuid: unit.uuid.clone(),
            product: found.gpu.product.clone(),
            host_path: found.gpu.host_path,
            numa_nodes: found.gpu.numa_nodes.clone(),
            kind: config.kind,
            sms: unit.sms,
            memory_bytes: unit.memory_bytes,
            compute_capability: found.gpu.capability,
            client_limit,
            seats,
            context_residue: config.context_residue,
            models_memory: config.memory,
            mps_pipe: (config.kind == SlotKind::Mps)
                .then(|| pipe_directory(&self.config.node.run_directory, &unit.uuid)),
            mig: instance.map(|instance| MigInstance {
                parent_uuid: found.gpu.unit.uuid.clone(),
                number: instance.number,
                instances: instances_of(&unit.uuid),
                slices: instance.slices,
            }),
        }
    }
}

fn gpu_uuid(own: &crate::node::SlotState) -> &str {
    own.slot.gpu_uuid()
}

fn slot_key(own: &crate::node::SlotState) -> SlotKey {
    own.slot.key
}

/// Adds the processes of a unit to the table; a process on several units is listed with the one on which it has most memory.
fn tabulate(table: &mut BTreeMap<u32, ProcessMemory>, unit: &Unit, key: SlotKey) {
    for (pid, memory) in unit.memory(key) {
        let own = table.entry(pid).or_insert(memory);
        if own.bytes < memory.bytes {
            *own = memory;
        }
    }
}

/// Forwards GPU errors to the surveying thread until the agent or the survey ends.
fn wait_for_errors(nvml: &dyn Nvml, stop: &Stop, is_over: &AtomicBool, sender: &SyncSender<Xid>) {
    while !stop.is_set() && !is_over.load(Ordering::Relaxed) {
        let mut report = |xid: Option<Xid>| {
            if let Some(xid) = xid {
                // The queue is full of errors to handle; a further one adds nothing.
                let _full = sender.try_send(xid);
            }
            if stop.is_set() || is_over.load(Ordering::Relaxed) {
                Watch::Off
            } else {
                Watch::On
            }
        };
        if nvml.watch_errors(&mut report).is_err() && stop.wait(SURVEY_SPAN) {
            return;
        }
    }
}

/// Queries NVML once and returns the slots found, for `gpu-sidecar check`.
///
/// # Errors
/// Returns the reason why NVML does not answer.
pub(crate) fn survey_once(config: &Config, nvml: &dyn Nvml) -> Result<NodeState, String> {
    let node = Arc::new(Node::default());
    let survey = nvml.survey()?;
    let mut watcher = Watcher::new(
        config.clone(),
        Arc::clone(&node),
        Arc::default(),
        Arc::default(),
        Box::new(|_| {}),
    );
    watcher.apply(&survey);
    Ok(node.snapshot())
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::nvml::{Driver, GpuSurvey};

    struct Fixture {
        watcher: Watcher,
        changes: Arc<Mutex<Vec<Change>>>,
    }

    impl Fixture {
        fn new(config: &str) -> Self {
            let changes = Arc::new(Mutex::new(Vec::new()));
            let recorded = Arc::clone(&changes);
            let config = Config::parse(config).unwrap();
            let listener = Box::new(move |change| recorded.lock().unwrap().push(change));
            let watcher = Watcher::new(
                config,
                Arc::default(),
                Arc::default(),
                Arc::default(),
                listener,
            );
            Self { watcher, changes }
        }

        fn apply(&mut self, gpus: Vec<Result<Gpu, String>>) -> Vec<String> {
            let gpus = (0..)
                .zip(gpus)
                .map(|(number, gpu)| GpuSurvey { number, gpu });
            let survey = Survey {
                driver: Driver {
                    version: "580.1".to_owned(),
                    cuda: Some((13, 0)),
                },
                gpus: gpus.collect(),
                notes: Vec::new(),
            };
            self.watcher.apply(&survey);
            self.changes()
        }

        fn changes(&self) -> Vec<String> {
            let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
            let described = changes.drain(..).map(|change| match change {
                Change::Added(slot) => format!("{} added", slot.name),
                Change::Lost(key, why) => format!("{} lost: {why}", key.0),
                Change::Back(slot) => format!("{} back", slot.name),
                Change::Memory(key, listed) => format!("{} lists {listed:?}", key.0),
                Change::Fault(key) => format!("{} fault", key.0),
            });
            described.collect()
        }
    }

    fn unit(uuid: &str, processes: &[(u32, u64, bool)]) -> Unit {
        Unit {
            uuid: uuid.to_owned(),
            memory_bytes: 80 << 30,
            sms: Some(132),
            processes: processes.to_vec(),
        }
    }

    fn gpu(uuid: &str) -> Gpu {
        Gpu {
            unit: unit(uuid, &[]),
            product: "H100".to_owned(),
            host_path: 0,
            numa_nodes: Vec::new(),
            capability: Some((9, 0)),
            is_mig: false,
            instances: Vec::new(),
        }
    }

    fn mig(uuid: &str, instances: &[&str]) -> Gpu {
        let instances = (0..).zip(instances).map(|(number, uuid)| Instance {
            number,
            slices: Some(3),
            unit: unit(uuid, &[]),
        });
        Gpu {
            is_mig: true,
            instances: instances.collect(),
            ..gpu(uuid)
        }
    }

    #[test]
    fn slots_are_added_lost_and_restored() {
        let mut fixture = Fixture::new("[[slot]]\nindex = 1\nkind = \"exclusive\"");
        let both = || vec![Ok(gpu("GPU-a")), Ok(gpu("GPU-b"))];
        assert_eq!(fixture.apply(both()), ["0 added", "1 added"]);
        assert!(fixture.apply(both()).is_empty());
        let lost = vec![Ok(gpu("GPU-a")), Err("the GPU is lost".to_owned())];
        assert_eq!(fixture.apply(lost.clone()), ["1 lost: the GPU is lost"]);
        assert!(fixture.apply(lost).is_empty());
        assert_eq!(fixture.apply(both()), ["1 back"]);
        assert_eq!(
            fixture.apply(vec![Ok(gpu("GPU-b"))]),
            ["0 lost: the GPU is gone"]
        );
        let state = fixture.watcher.node.snapshot();
        assert_eq!(state.slots.len(), 2);
        assert_eq!((state.slots[0].losses, state.slots[1].losses), (1, 1));
        assert_eq!(state.slots[1].slot.kind, SlotKind::Exclusive);
        assert_eq!(
            (state.slots[0].slot.seats, state.slots[1].slot.seats),
            (48, 64)
        );
    }

    #[test]
    fn mig_instances_are_slots_and_their_gpu_is_not() {
        let mut fixture = Fixture::new("");
        let changes = fixture.apply(vec![Ok(mig("GPU-a", &["MIG-1", "MIG-GPU-a/2/0"]))]);
        assert_eq!(changes, ["0:0 added", "0:1 added"]);
        let slots = fixture.watcher.node.snapshot().slots;
        let slot = &slots[1].slot;
        assert_eq!(slot.gpu_uuid(), "GPU-a");
        assert_eq!((slot.client_limit, slot.seats), (20, 20));
        let instance = slot.mig.as_ref().unwrap();
        assert_eq!((instance.number, instance.instances), (1, Some((2, 0))));
        assert_eq!(
            slot.mps_pipe.as_deref(),
            Some(Path::new("/run/weir/mps/MIG-GPU-a_2_0/pipe"))
        );
        // A recreated instance is another slot.
        let changes = fixture.apply(vec![Ok(mig("GPU-a", &["MIG-3", "MIG-GPU-a/2/0"]))]);
        assert_eq!(changes, ["0:0 added", "0 lost: the MIG instance is gone"]);
        let changes = fixture.apply(vec![Ok(gpu("GPU-a"))]);
        assert_eq!(
            changes,
            [
                "0 added",
                "1 lost: the MIG instance is gone",
                "2 lost: the MIG instance is gone"
            ]
        );
    }

    #[test]
    fn a_permanent_error_loses_the_gpu_until_it_reappears() {
        let mut fixture = Fixture::new("");
        let one = || vec![Ok(gpu("GPU-a"))];
        let _added = fixture.apply(one());
        let xid = |number| Xid {
            gpu_uuid: Some("GPU-a".to_owned()),
            number: Some(number),
        };
        fixture.watcher.xid(&xid(31));
        assert_eq!(fixture.changes(), ["0 fault"]);
        fixture.watcher.xid(&xid(48));
        assert_eq!(fixture.changes(), ["0 lost: Xid 48"]);
        assert!(fixture.apply(one()).is_empty());
        assert!(
            fixture
                .apply(vec![Err("the GPU is lost".to_owned())])
                .is_empty()
        );
        assert_eq!(fixture.apply(one()), ["0 back"]);
    }

    #[test]
    fn all_slots_are_lost_while_nvml_does_not_answer() {
        let mut fixture = Fixture::new("");
        fixture.watcher.fail("no driver");
        fixture.watcher.fail("no driver");
        assert_eq!(fixture.watcher.events.past().len(), 1);
        assert_eq!(fixture.apply(vec![Ok(gpu("GPU-a"))]), ["0 added"]);
        fixture.watcher.fail("no driver");
        assert_eq!(
            fixture.changes(),
            ["0 lost: NVML does not answer: no driver"]
        );
        assert_eq!(fixture.apply(vec![Ok(gpu("GPU-a"))]), ["0 back"]);
    }

    #[test]
    fn memory_is_listed_by_process() {
        let mut fixture = Fixture::new("");
        let mut one = gpu("GPU-a");
        one.unit.processes = vec![(10, 5, true), (11, 7, false)];
        let mut other = gpu("GPU-b");
        other.unit.processes = vec![(10, 9, false)];
        let _added = fixture.apply(vec![Ok(one), Ok(other)]);
        let table = fixture.watcher.device_memory.table();
        let rows: Vec<_> = table
            .iter()
            .map(|(pid, own)| (*pid, own.slot.0, own.bytes, own.is_mps))
            .collect();
        assert_eq!(rows, [(10, 1, 9, false), (11, 0, 7, false)]);
        assert_eq!(fixture.watcher.node.snapshot().slots[0].memory_used, 12);
    }

    #[test]
    fn a_failing_library_is_opened_again() {
        struct Failing;
        impl Nvml for Failing {
            fn survey(&self) -> Result<Survey, String> {
                Err("driver is gone".to_owned())
            }
            fn watch_errors(
                &self,
                _report: &mut dyn FnMut(Option<Xid>) -> Watch,
            ) -> Result<(), String> {
                Err("driver is gone".to_owned())
            }
        }
        let fixture = Fixture::new("");
        let node = Arc::clone(&fixture.watcher.node);
        let stop = Stop::default();
        let opened = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                fixture.watcher.run(&stop, |_| {
                    if opened.fetch_add(1, Ordering::Relaxed) > 0 {
                        stop.set();
                    }
                    Ok(Box::new(Failing))
                });
            });
        });
        assert_eq!(
            node.snapshot().nvml_problem.as_deref(),
            Some("driver is gone")
        );
    }
}
