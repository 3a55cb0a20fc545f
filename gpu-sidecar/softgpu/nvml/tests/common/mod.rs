//! A software GPU for tests: a folder with a configuration, and a server with state that the test controls.
//!
//! The library reads its folder from the environment, so each test runs in a process of its own: the test runs its own
//! executable again, with the folder.
#![allow(dead_code, reason = "not every test needs all of it")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use nvml_wrapper::Nvml;
use rustix::net::{RecvFlags, SendFlags, Shutdown, accept, shutdown};
use softgpu_wire::config::Config;
use softgpu_wire::identity::Identity;
use softgpu_wire::message::{Kind, Message, ProcessLine, Role, VERSION};
use softgpu_wire::softgpu_dir;

/// Set in the process that runs a test's body.
const CHILD: &str = "WEIR_SOFTGPU_TEST_CHILD";

/// Runs `body` in a process of its own, with a folder that has this configuration.
pub(crate) fn in_folder(test: &str, config: &str, body: impl FnOnce(&Path)) {
    if std::env::var_os(CHILD).is_some() {
        let folder = std::env::var_os(softgpu_dir::VARIABLE).unwrap();
        body(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(softgpu_dir::CONFIG), config).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(softgpu_dir::VARIABLE, folder.path())
        .env(CHILD, "1")
        .status()
        .unwrap();
    assert!(status.success());
}

/// Returns the path of the library under test, beside the test's executable.
pub(crate) fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.with_file_name("libsoftgpu_nvml.so")
}

pub(crate) fn nvml() -> Nvml {
    let library = library();
    Nvml::builder()
        .lib_path(library.as_os_str())
        .init()
        .unwrap()
}

/// State that the server reports.
#[derive(Debug, Default)]
pub(crate) struct ServerState {
    /// Device memory in use in bytes, by unit.
    pub(crate) used: BTreeMap<u32, u64>,
    /// Utilization of SMs and memory in millionths, by unit.
    pub(crate) busy: BTreeMap<u32, [u64; 2]>,
    pub(crate) processes: Vec<ProcessLine>,
    pub(crate) lost: BTreeSet<usize>,
    /// Configuration to report instead of the folder's own.
    pub(crate) config: Option<Config>,
    watchers: Vec<OwnedFd>,
    connections: Vec<OwnedFd>,
}

/// A server that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    state: Arc<Mutex<ServerState>>,
    listener: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(folder: &Path) -> Self {
        let listener = Arc::new(softgpu_dir::listen_in(folder).unwrap());
        let text = std::fs::read_to_string(folder.join(softgpu_dir::CONFIG)).unwrap();
        let config = Config::parse(&text).unwrap();
        let identity = Arc::new(Identity::new(folder, &config).unwrap());
        let state = Arc::new(Mutex::new(ServerState::default()));
        let thread = std::thread::spawn({
            let (listener, state) = (Arc::clone(&listener), Arc::clone(&state));
            move || {
                while let Ok(socket) = accept(&*listener) {
                    let copy = socket.try_clone().unwrap();
                    state.lock().unwrap().connections.push(copy);
                    let (state, identity) = (Arc::clone(&state), Arc::clone(&identity));
                    let config = config.clone();
                    std::thread::spawn(move || serve(&socket, &state, &identity, &config));
                }
            }
        });
        Self {
            state,
            listener,
            thread: Some(thread),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap()
    }

    /// Injects an error into a GPU; Xid 79 makes it lost.
    pub(crate) fn inject(&self, gpu: usize, xid: u64) {
        let mut state = self.state();
        if xid == 79 {
            state.lost.insert(gpu);
        }
        let message = Message::new(Kind::Inject, &[gpu as u64, xid, 1]);
        for watcher in &state.watchers {
            let _gone = message.send(watcher, SendFlags::empty());
        }
    }

    /// Returns the number of subscriptions to errors.
    pub(crate) fn watchers(&self) -> usize {
        self.state().watchers.len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        shutdown(&*self.listener, Shutdown::Both).unwrap();
        for connection in &self.state().connections {
            let _gone = shutdown(connection, Shutdown::Both);
        }
        self.thread.take().unwrap().join().unwrap();
    }
}

fn serve(socket: &OwnedFd, state: &Mutex<ServerState>, identity: &Identity, config: &Config) {
    while let Ok(request) = Message::receive(socket, RecvFlags::empty()) {
        let mut state = state.lock().unwrap();
        let number = u32::try_from(request.words[0]).unwrap();
        let unit = identity.units.iter().find(|unit| unit.number == number);
        let is_lost = unit.is_some_and(|unit| state.lost.contains(&unit.gpu));
        let answer = match request.kind {
            Kind::Hello => {
                assert_eq!(request.words[..2], [VERSION, Role::Observer as u64]);
                let config = state.config.as_ref().unwrap_or(config);
                Message::new(Kind::Hello, &[1]).with_bytes(config.text().into_bytes())
            }
            Kind::Watch => {
                state.watchers.push(socket.try_clone().unwrap());
                Message::new(Kind::Watch, &[])
            }
            kind if is_lost => Message::refusal(kind, 46),
            Kind::MemoryInfo => {
                let total = unit.unwrap().memory;
                let used = state.used.get(&number).copied().unwrap_or_default();
                Message::new(Kind::MemoryInfo, &[total - used, total, 0])
            }
            Kind::Utilisation => {
                let busy = state.busy.get(&number).copied().unwrap_or_default();
                Message::new(Kind::Utilisation, &busy)
            }
            Kind::Processes => {
                let own = state.processes.iter().filter(|line| line.unit == number);
                let lines: Vec<_> = own.flat_map(ProcessLine::encode).collect();
                Message::new(Kind::Processes, &[]).with_bytes(lines)
            }
            kind => panic!("unexpected request {kind:?}"),
        };
        if answer.send(socket, SendFlags::empty()).is_err() {
            return;
        }
    }
}
