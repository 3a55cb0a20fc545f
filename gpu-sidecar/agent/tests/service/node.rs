//! A service under test with its slot and its pods.

use annotations::{Evict, Isolation, SHARE_WHOLE};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use gpu_sidecar::config::TokenSettings;
use gpu_sidecar::events::{EventKind, Events};
use gpu_sidecar::state::{
    Command, DeviceMemory, Figures, Pod, PodFigures, PodKey, PodSettings, ServiceHandle,
    ServiceSettings, Slot, SlotFigures, SlotKey, SlotKind,
};
use rustix::event::{Timespec, poll};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use tempfile::TempDir;
use testing::until;

use crate::puppet::{ChildProcess, Puppet};

/// UUID of slot 0, as processes report it.
pub(crate) const UUID: [u8; 16] = [0; 16];
pub(crate) fn pause(milliseconds: i64) {
    let moment = Timespec {
        tv_sec: 0,
        tv_nsec: milliseconds * 1_000_000,
    };
    poll(&mut [], Some(&moment)).unwrap();
}

/// Polls `condition` until it returns a value, and returns it; panics after [`PATIENCE`].
#[track_caller]
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

pub(crate) fn slot(key: u32) -> Slot {
    Slot {
        key: SlotKey(key),
        name: key.to_string(),
        uuid: format!("GPU-00000000-0000-0000-0000-{key:012x}"),
        product: "NVIDIA H100 80GB HBM3".to_owned(),
        kind: SlotKind::Mps,
        sms: Some(132),
        memory_bytes: 80 << 30,
        compute_capability: Some((9, 0)),
        client_limit: 48,
        seats: 48,
        context_residue: None,
        host_path: key,
        numa_nodes: Vec::new(),
        models_memory: None,
        mps_pipe: Some(PathBuf::from("/run/weir/mps/0/pipe")),
        mig: None,
    }
}

pub(crate) struct Node {
    pub(crate) handle: ServiceHandle,
    settings: ServiceSettings,
    own: TempDir,
    pods: Mutex<Vec<Arc<Pod>>>,
}

impl Node {
    /// Creates a service without slots and pods.
    pub(crate) fn bare() -> Self {
        Self::of(TokenSettings::default())
    }

    /// Creates a service with slot 0 and a running MPS daemon, which records its events in this file.
    pub(crate) fn recorded(path: PathBuf) -> Self {
        let node = Self::started(TokenSettings::default(), Some(path));
        node.send(Command::SlotAdded(Arc::new(slot(0))));
        node.mps(true);
        node
    }

    fn of(tokens: TokenSettings) -> Self {
        Self::started(tokens, None)
    }

    fn started(tokens: TokenSettings, record: Option<PathBuf>) -> Self {
        let settings = ServiceSettings {
            tokens,
            memory: agent_core::MemorySettings::default(),
            events: Arc::new(Events::default()),
            device_memory: Arc::new(DeviceMemory::default()),
            record,
        };
        Self {
            handle: gpu_sidecar::service::start(settings.clone()).unwrap(),
            settings,
            own: tempfile::tempdir().unwrap(),
            pods: Mutex::default(),
        }
    }

    /// Creates a service with slot 0 and a running MPS daemon.
    pub(crate) fn new() -> Self {
        Self::with(TokenSettings::default())
    }

    /// Creates a service with slot 0, a running MPS daemon and these token settings.
    pub(crate) fn with(tokens: TokenSettings) -> Self {
        let node = Self::of(tokens);
        node.send(Command::SlotAdded(Arc::new(slot(0))));
        node.mps(true);
        node
    }

    pub(crate) fn send(&self, command: Command) {
        self.handle.send(command).unwrap();
    }

    pub(crate) fn mps(&self, is_up: bool) {
        let text = "state set by the test".to_owned();
        self.send(Command::MpsState {
            slot: SlotKey(0),
            is_up,
            text,
        });
    }

    /// Adds a pod with this share of the SMs, in percent.
    pub(crate) fn pod(&self, key: u32, percent: u32) -> Arc<Pod> {
        self.pod_with(key, |settings| settings.sm_hundredths = percent * 100)
    }

    pub(crate) fn pod_with(&self, key: u32, change: impl FnOnce(&mut PodSettings)) -> Arc<Pod> {
        let mut settings = PodSettings {
            isolation: Isolation::Shared,
            sm_hundredths: 2_500,
            quota_request_ppm: SHARE_WHOLE / 10,
            quota_limit_ppm: SHARE_WHOLE,
            gpu_memory: None,
            evict: Evict::Never,
            slo: None,
            is_pipeline: false,
            slo_percentile_ppm: 980_000,
            version: String::new(),
        };
        change(&mut settings);
        let folder = self.own.path().join(format!("pod-{key}"));
        std::fs::create_dir_all(&folder).unwrap();
        let pod = Arc::new(Pod {
            key: PodKey(key),
            serial: u64::from(key) + 1,
            name: format!("pod-{key}"),
            namespace: "default".to_owned(),
            function: "f".to_owned(),
            revision: "r".to_owned(),
            uid: None,
            cgroup: None,
            pod_name: None,
            mps_mount: None,
            settings,
            slot: SlotKey(0),
            folder,
        });
        self.add(&pod);
        self.pods.lock().unwrap().push(Arc::clone(&pod));
        pod
    }

    pub(crate) fn add(&self, pod: &Arc<Pod>) {
        let listener = listener(pod);
        self.send(Command::PodAdded {
            queue: None,
            pod: Arc::clone(pod),
            listener,
        });
    }

    pub(crate) fn change(&self, pod: &Arc<Pod>, change: impl FnOnce(&mut PodSettings)) {
        let mut changed = Pod::clone(pod);
        change(&mut changed.settings);
        self.send(Command::PodChanged(Arc::new(changed)));
    }

    /// Connects a puppet to a pod.
    pub(crate) fn connect(&self, pod: &Pod) -> Puppet {
        Puppet::new(&socket(pod))
    }

    /// Connects a puppet to a pod and attaches it.
    pub(crate) fn attached(&self, pod: &Pod) -> Puppet {
        Puppet::attached(&socket(pod))
    }

    /// Starts a child process for connections to a pod.
    pub(crate) fn child_process(&self, pod: &Pod) -> ChildProcess {
        ChildProcess::new(&socket(pod))
    }

    /// Returns figures which include everything sent before. The service publishes after it has handled its messages, so the
    /// second publication from now includes them all.
    pub(crate) fn figures(&self) -> Arc<Figures> {
        let published_after = |at| {
            until("figures", || {
                Some(self.handle.refresh()).filter(|figures| figures.at_ns > at)
            })
        };
        let first = published_after(now_ns());
        published_after(first.at_ns)
    }

    pub(crate) fn of_slot(&self) -> SlotFigures {
        self.figures().slot(SlotKey(0)).unwrap().clone()
    }

    pub(crate) fn of_pod(&self, pod: &Pod) -> PodFigures {
        self.figures().pod(pod.serial).unwrap().clone()
    }

    pub(crate) fn has_event(&self, kind: EventKind, text: &str) -> bool {
        let past = self.settings.events.past();
        past.iter()
            .any(|event| event.kind == kind && event.text.contains(text))
    }

    pub(crate) fn count_events(&self, kind: EventKind) -> usize {
        let past = self.settings.events.past();
        past.iter().filter(|event| event.kind == kind).count()
    }

    pub(crate) fn stop(&self) {
        let _ended = self.handle.send(Command::Stop);
        until("the end", || self.handle.is_ended().then_some(()));
    }

    /// Restarts the service, with the slot and without pods.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.handle = gpu_sidecar::service::start(self.settings.clone()).unwrap();
        self.send(Command::SlotAdded(Arc::new(slot(0))));
        self.mps(true);
    }

    pub(crate) fn add_all(&self) {
        for pod in self.pods.lock().unwrap().iter() {
            self.add(pod);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A live process without a connection is killed after a while, and puppets belong to the test's own process.
        let _ended = self.handle.send(Command::Stop);
        while !self.handle.is_ended() {
            pause(1);
        }
    }
}

pub(crate) fn socket(pod: &Pod) -> PathBuf {
    pod.folder.join("gpu.sock")
}

pub(crate) fn listener(pod: &Pod) -> OwnedFd {
    let path = socket(pod);
    let _none = std::fs::remove_file(&path);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 128).unwrap();
    listener
}
