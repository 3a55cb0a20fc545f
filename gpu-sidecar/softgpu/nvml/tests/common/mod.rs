//! A software GPU for tests: a folder with a configuration, and in it a server that answers what a test tells it to.
//!
//! The library reads its folder from the environment, so each test runs in a process of its own: the test starts itself once
//! more, with the folder.
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
use softgpu_wire::place;

/// Set in the process in which a test does what it does.
const CHILD: &str = "WEIR_SOFTGPU_TEST_CHILD";

/// Runs `does` in a process of its own, with a folder with this configuration.
pub(crate) fn in_folder(test: &str, config: &str, does: impl FnOnce(&Path)) {
    if std::env::var_os(CHILD).is_some() {
        let folder = std::env::var_os(place::VARIABLE).unwrap();
        does(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(place::CONFIG), config).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(place::VARIABLE, folder.path())
        .env(CHILD, "1")
        .status()
        .unwrap();
    assert!(status.success());
}

/// The library under test: it lies beside the test's executable.
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

/// What the server says.
#[derive(Debug, Default)]
pub(crate) struct Says {
    /// Device memory in use, by unit.
    pub(crate) used: BTreeMap<u32, u64>,
    /// How busy units are, in millionths: SMs, memory.
    pub(crate) busy: BTreeMap<u32, [u64; 2]>,
    pub(crate) processes: Vec<ProcessLine>,
    pub(crate) lost: BTreeSet<usize>,
    /// It answers with the configuration of another.
    pub(crate) config: Option<Config>,
    watchers: Vec<OwnedFd>,
    connections: Vec<OwnedFd>,
}

/// A server that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    says: Arc<Mutex<Says>>,
    listener: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(folder: &Path) -> Self {
        let listener = Arc::new(place::listen_in(folder).unwrap());
        let text = std::fs::read_to_string(folder.join(place::CONFIG)).unwrap();
        let config = Config::parse(&text).unwrap();
        let identity = Arc::new(Identity::new(folder, &config).unwrap());
        let says = Arc::new(Mutex::new(Says::default()));
        let thread = std::thread::spawn({
            let (listener, says) = (Arc::clone(&listener), Arc::clone(&says));
            move || {
                while let Ok(socket) = accept(&*listener) {
                    let copy = socket.try_clone().unwrap();
                    says.lock().unwrap().connections.push(copy);
                    let (says, identity) = (Arc::clone(&says), Arc::clone(&identity));
                    let config = config.clone();
                    std::thread::spawn(move || serve(&socket, &says, &identity, &config));
                }
            }
        });
        Self {
            says,
            listener,
            thread: Some(thread),
        }
    }

    pub(crate) fn says(&self) -> MutexGuard<'_, Says> {
        self.says.lock().unwrap()
    }

    /// Something goes wrong with a GPU.
    pub(crate) fn inject(&self, gpu: usize, xid: u64) {
        let mut says = self.says();
        if xid == 79 {
            says.lost.insert(gpu);
        }
        let message = Message::new(Kind::Inject, &[gpu as u64, xid, 1]);
        for watcher in &says.watchers {
            let _gone = message.send(watcher, SendFlags::empty());
        }
    }

    /// How many watch.
    pub(crate) fn watchers(&self) -> usize {
        self.says().watchers.len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        shutdown(&*self.listener, Shutdown::Both).unwrap();
        for connection in &self.says().connections {
            let _gone = shutdown(connection, Shutdown::Both);
        }
        self.thread.take().unwrap().join().unwrap();
    }
}

fn serve(socket: &OwnedFd, says: &Mutex<Says>, identity: &Identity, config: &Config) {
    while let Ok(request) = Message::receive(socket, RecvFlags::empty()) {
        let mut says = says.lock().unwrap();
        let number = u32::try_from(request.words[0]).unwrap();
        let unit = identity.units.iter().find(|unit| unit.number == number);
        let is_lost = unit.is_some_and(|unit| says.lost.contains(&unit.gpu));
        let answer = match request.kind {
            Kind::Hello => {
                assert_eq!(request.words[..2], [VERSION, Role::Observer as u64]);
                let config = says.config.as_ref().unwrap_or(config);
                Message::new(Kind::Hello, &[1]).with_bytes(config.text().into_bytes())
            }
            Kind::Watch => {
                says.watchers.push(socket.try_clone().unwrap());
                Message::new(Kind::Watch, &[])
            }
            kind if is_lost => Message::refusal(kind, 46),
            Kind::MemoryInfo => {
                let total = unit.unwrap().memory;
                let used = says.used.get(&number).copied().unwrap_or_default();
                Message::new(Kind::MemoryInfo, &[total - used, total, 0])
            }
            Kind::Utilisation => {
                let busy = says.busy.get(&number).copied().unwrap_or_default();
                Message::new(Kind::Utilisation, &busy)
            }
            Kind::Processes => {
                let own = says.processes.iter().filter(|line| line.unit == number);
                let lines: Vec<_> = own.flat_map(ProcessLine::encode).collect();
                Message::new(Kind::Processes, &[]).with_bytes(lines)
            }
            kind => panic!("{kind:?} was not to be asked"),
        };
        if answer.send(socket, SendFlags::empty()).is_err() {
            return;
        }
    }
}
