//! The thread that asks NVML each second, and the one that waits for its errors.

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

/// How often it is asked.
const SURVEY_SPAN: Duration = Duration::from_secs(1);
/// Where it cannot be opened, it is tried again after this time, and then after twice as long, up to …
const OPEN_SPAN: Duration = Duration::from_secs(1);
/// … this.
const OPEN_SPAN_MAX: Duration = Duration::from_secs(10);
/// Errors that wait to be looked at.
const XIDS_MAX: usize = 64;

/// What has changed about slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Added(Arc<Slot>),
    Lost(SlotKey, String),
    Back(Arc<Slot>),
    /// A program's own fault on a GPU, which under MPS is that of all clients: its slots.
    Fault(SlotKey),
}

/// Who is told.
pub(crate) type Listener = Box<dyn FnMut(Change) + Send>;

/// Finds slots, and follows them.
pub(crate) struct Watcher {
    pub(crate) config: Config,
    pub(crate) node: Arc<Node>,
    pub(crate) events: Arc<Events>,
    pub(crate) device_memory: Arc<DeviceMemory>,
    pub(crate) listener: Listener,
    /// GPUs that have reported an error that stays, by UUID, and it.
    broken: BTreeMap<String, String>,
    /// What was said already.
    notes: BTreeSet<String>,
}

/// A unit of a survey that is to be a slot.
struct Found<'a> {
    gpu_number: u32,
    gpu: &'a Gpu,
    instance: Option<&'a Instance>,
}

impl Found<'_> {
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

/// GPU instance and compute instance, where the UUID names them, as those of old drivers do: `MIG-GPU-…/1/0`.
fn instances_of(uuid: &str) -> Option<(u32, u32)> {
    let mut parts = uuid.strip_prefix("MIG-GPU-")?.split('/').skip(1);
    let numbers = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(numbers)
}

/// The pipe directory of a slot's daemon.
pub(crate) fn pipe_directory(run: &Path, uuid: &str) -> PathBuf {
    // UUIDs of old drivers have slashes in them.
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

    /// Runs until the agent ends.
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

    /// Asks the library until it fails or the agent ends.
    fn follow(&mut self, stop: &Stop, nvml: &dyn Nvml) {
        let (sender, receiver) = sync_channel(XIDS_MAX);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiter = std::thread::Builder::new().name("nvml-errors".to_owned());
            let wait = || wait_for_errors(nvml, stop, &is_over, &sender);
            if let Err(error) = waiter.spawn_scoped(scope, wait) {
                self.note(format!("errors of GPUs are not told: {error}"));
            }
            self.ask(stop, nvml, &receiver);
            is_over.store(true, Ordering::Relaxed);
        });
    }

    fn ask(&mut self, stop: &Stop, nvml: &dyn Nvml, xids: &Receiver<Xid>) {
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
                // So often that the end of the agent is not waited for.
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

    fn note(&mut self, note: String) {
        // As many as there may be slots: whatever is said more often is not news.
        if self.notes.len() < SLOTS_MAX && self.notes.insert(note.clone()) {
            self.events.tell(EventKind::DeviceError, "", "", note);
        }
    }

    /// NVML as a whole does not answer.
    pub(crate) fn fail(&mut self, why: &str) {
        let mut lost = Vec::new();
        {
            let mut state = self.node.lock();
            if state.nvml_problem.as_deref() != Some(why) {
                state.nvml_problem = Some(why.to_owned());
                let text = format!("no GPU can be found: {why}");
                self.events.tell(EventKind::NvmlUnavailable, "", "", text);
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
        self.events.tell(EventKind::SlotLost, &name, "", reason);
        (self.listener)(Change::Lost(key, reason.to_owned()));
    }

    /// A GPU has reported an error.
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
        let gpu = xid.gpu_uuid.as_deref().unwrap_or("a GPU that is lost");
        let is_harmless = xid.number.is_none_or(is_of_a_program);
        let text = if is_harmless {
            format!("Xid {number} on {gpu}: the fault of a program on it")
        } else {
            format!("Xid {number} on {gpu}")
        };
        self.events.tell(EventKind::DeviceError, "", "", text);
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

    /// Takes what a survey tells.
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
                Ok(gpu) if gpu.is_mig => found.extend(gpu.instances.iter().map(|instance| Found {
                    gpu_number,
                    gpu,
                    instance: Some(instance),
                })),
                Ok(gpu) => found.push(Found {
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
        // One that has been gone is another when it comes back.
        self.broken.retain(|gpu, _| present.contains(gpu.as_str()));
        let mut table = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for own in &found {
            if let Some(key) = self.take(survey, own) {
                seen.insert(key);
                tabulate(&mut table, own.unit(), key);
            }
        }
        let missing: Vec<_> = {
            let state = self.node.lock();
            let is_missing = |own: &&_| !seen.contains(&slot_key(own));
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

    /// A unit that answers: a new slot, a known one, or one that is back. Its key, if it is a slot that is not lost.
    fn take(&mut self, survey: &Survey, found: &Found<'_>) -> Option<SlotKey> {
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
                if let Some(own) = self.node.lock().slot_mut(key) {
                    own.gpu = found.gpu_number;
                    own.memory_used = used;
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
                let text = format!("{} is there again", slot.uuid);
                self.events.tell(EventKind::SlotBack, &slot.name, "", text);
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
                "{} is not used: {SLOTS_MAX} slots are remembered already; start the agent anew",
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
            None => text.push_str(
                "; how many SMs it has is not known: percentages are taken as they are given",
            ),
        }
        self.events.tell(EventKind::SlotAdded, &slot.name, "", text);
        let key = slot.key;
        (self.listener)(Change::Added(slot));
        Some(key)
    }

    fn slot(&self, survey: &Survey, found: &Found<'_>, key: SlotKey) -> Slot {
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
            kind: config.kind,
            sms: unit.sms,
            memory_bytes: unit.memory_bytes,
            compute_capability: found.gpu.capability,
            client_limit,
            seats,
            context_residue: config.context_residue,
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

fn tabulate(table: &mut BTreeMap<u32, ProcessMemory>, unit: &Unit, key: SlotKey) {
    for (pid, memory) in unit.memory(key) {
        let own = table.entry(pid).or_insert(memory);
        if own.bytes < memory.bytes {
            *own = memory;
        }
    }
}

fn wait_for_errors(nvml: &dyn Nvml, stop: &Stop, is_over: &AtomicBool, sender: &SyncSender<Xid>) {
    while !stop.is_set() && !is_over.load(Ordering::Relaxed) {
        let mut told = |xid: Option<Xid>| {
            if let Some(xid) = xid {
                // More than are looked at say nothing new.
                let _full = sender.try_send(xid);
            }
            if stop.is_set() || is_over.load(Ordering::Relaxed) {
                Watch::Off
            } else {
                Watch::On
            }
        };
        if nvml.watch_errors(&mut told).is_err() && stop.wait(SURVEY_SPAN) {
            return;
        }
    }
}

/// Whether NVML answers there, and what it finds: for `gpu-sidecar check`.
pub(crate) fn look(config: &Config, nvml: &dyn Nvml) -> Result<NodeState, String> {
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

    struct Bench {
        watcher: Watcher,
        changes: Arc<Mutex<Vec<Change>>>,
    }

    impl Bench {
        fn new(config: &str) -> Self {
            let changes = Arc::new(Mutex::new(Vec::new()));
            let told = Arc::clone(&changes);
            let config = Config::parse(config).unwrap();
            let listener = Box::new(move |change| told.lock().unwrap().push(change));
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
            self.told()
        }

        fn told(&self) -> Vec<String> {
            let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
            let told = changes.drain(..).map(|change| match change {
                Change::Added(slot) => format!("{} added", slot.name),
                Change::Lost(key, why) => format!("{} lost: {why}", key.0),
                Change::Back(slot) => format!("{} back", slot.name),
                Change::Fault(key) => format!("{} fault", key.0),
            });
            told.collect()
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
    fn slots_are_found_lost_and_found_again() {
        let mut bench = Bench::new("[[slot]]\nindex = 1\nkind = \"exclusive\"");
        let both = || vec![Ok(gpu("GPU-a")), Ok(gpu("GPU-b"))];
        assert_eq!(bench.apply(both()), ["0 added", "1 added"]);
        assert!(bench.apply(both()).is_empty());
        let lost = vec![Ok(gpu("GPU-a")), Err("the GPU is lost".to_owned())];
        assert_eq!(bench.apply(lost.clone()), ["1 lost: the GPU is lost"]);
        assert!(bench.apply(lost).is_empty());
        assert_eq!(bench.apply(both()), ["1 back"]);
        assert_eq!(
            bench.apply(vec![Ok(gpu("GPU-b"))]),
            ["0 lost: the GPU is gone"]
        );
        let state = bench.watcher.node.snapshot();
        assert_eq!(state.slots.len(), 2);
        assert_eq!((state.slots[0].losses, state.slots[1].losses), (1, 1));
        assert_eq!(state.slots[1].slot.kind, SlotKind::Exclusive);
        assert_eq!(
            (state.slots[0].slot.seats, state.slots[1].slot.seats),
            (48, 64)
        );
    }

    #[test]
    fn mig_instances_are_slots_and_their_gpu_is_none() {
        let mut bench = Bench::new("");
        let told = bench.apply(vec![Ok(mig("GPU-a", &["MIG-1", "MIG-GPU-a/2/0"]))]);
        assert_eq!(told, ["0:0 added", "0:1 added"]);
        let slots = bench.watcher.node.snapshot().slots;
        let slot = &slots[1].slot;
        assert_eq!(slot.gpu_uuid(), "GPU-a");
        assert_eq!((slot.client_limit, slot.seats), (20, 20));
        let instance = slot.mig.as_ref().unwrap();
        assert_eq!((instance.number, instance.instances), (1, Some((2, 0))));
        assert_eq!(
            slot.mps_pipe.as_deref(),
            Some(Path::new("/run/weir/mps/MIG-GPU-a_2_0/pipe"))
        );
        // Made anew, it is another.
        let told = bench.apply(vec![Ok(mig("GPU-a", &["MIG-3", "MIG-GPU-a/2/0"]))]);
        assert_eq!(told, ["0:0 added", "0 lost: the MIG instance is gone"]);
        let told = bench.apply(vec![Ok(gpu("GPU-a"))]);
        assert_eq!(
            told,
            [
                "0 added",
                "1 lost: the MIG instance is gone",
                "2 lost: the MIG instance is gone"
            ]
        );
    }

    #[test]
    fn an_error_that_stays_loses_the_gpu_until_it_was_gone() {
        let mut bench = Bench::new("");
        let one = || vec![Ok(gpu("GPU-a"))];
        let _added = bench.apply(one());
        let xid = |number| Xid {
            gpu_uuid: Some("GPU-a".to_owned()),
            number: Some(number),
        };
        bench.watcher.xid(&xid(31));
        assert_eq!(bench.told(), ["0 fault"]);
        bench.watcher.xid(&xid(48));
        assert_eq!(bench.told(), ["0 lost: Xid 48"]);
        assert!(bench.apply(one()).is_empty());
        assert!(
            bench
                .apply(vec![Err("the GPU is lost".to_owned())])
                .is_empty()
        );
        assert_eq!(bench.apply(one()), ["0 back"]);
    }

    #[test]
    fn without_nvml_all_slots_are_lost() {
        let mut bench = Bench::new("");
        bench.watcher.fail("no driver");
        bench.watcher.fail("no driver");
        assert_eq!(bench.watcher.events.past().len(), 1);
        assert_eq!(bench.apply(vec![Ok(gpu("GPU-a"))]), ["0 added"]);
        bench.watcher.fail("no driver");
        assert_eq!(bench.told(), ["0 lost: NVML does not answer: no driver"]);
        assert_eq!(bench.apply(vec![Ok(gpu("GPU-a"))]), ["0 back"]);
    }

    #[test]
    fn memory_is_told_by_process() {
        let mut bench = Bench::new("");
        let mut one = gpu("GPU-a");
        one.unit.processes = vec![(10, 5, true), (11, 7, false)];
        let mut other = gpu("GPU-b");
        other.unit.processes = vec![(10, 9, false)];
        let _added = bench.apply(vec![Ok(one), Ok(other)]);
        let table = bench.watcher.device_memory.table();
        let told: Vec<_> = table
            .iter()
            .map(|(pid, own)| (*pid, own.slot.0, own.bytes, own.is_mps))
            .collect();
        assert_eq!(told, [(10, 1, 9, false), (11, 0, 7, false)]);
        assert_eq!(bench.watcher.node.snapshot().slots[0].memory_used, 12);
    }

    #[test]
    fn a_library_that_fails_is_opened_anew() {
        struct Failing;
        impl Nvml for Failing {
            fn survey(&self) -> Result<Survey, String> {
                Err("driver is gone".to_owned())
            }
            fn watch_errors(
                &self,
                _told: &mut dyn FnMut(Option<Xid>) -> Watch,
            ) -> Result<(), String> {
                Err("driver is gone".to_owned())
            }
        }
        let bench = Bench::new("");
        let node = Arc::clone(&bench.watcher.node);
        let stop = Stop::default();
        let opened = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                bench.watcher.run(&stop, |_| {
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
