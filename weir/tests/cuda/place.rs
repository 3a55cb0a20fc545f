//! A software GPU of a test's own, as its users have it: what `weir softgpu path` installs, and processes that use it.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use device::Time;
use rustix::event::{Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, kill_process};
use softgpu_wire::config::Config;
use softgpu_wire::identity::Identity;
use softgpu_wire::ledger::{Line, What};
use softgpu_wire::message::{Kind, Message, ProcessLine, Role, VERSION};
use softgpu_wire::place;
use tempfile::TempDir;

use crate::build::{self, built};
use crate::puppet::Puppet;

/// Whatever is waited for has to come within this time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// A program that hangs is ended after so many seconds; one that only has to share its cores with much else is not.
const PATIENCE_S: &str = "300";

/// Variables that mean something to the stand-ins: a test sets what it needs.
const VARIABLES: [&str; 8] = [
    place::VARIABLE,
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_TEST_LOADER",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
];

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(
            begin.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 2_000_000,
        };
        poll(&mut [], Some(&moment)).unwrap();
    }
}

/// A folder with stand-ins. It ends with its server and its MPS daemon.
#[derive(Debug)]
pub(crate) struct Place {
    folder: PathBuf,
    /// Removed with this, unless the folder is another process's.
    own: Option<TempDir>,
    /// Where an MPS daemon listens, if there is one.
    pub(crate) pipe: PathBuf,
}

impl Place {
    /// One H100.
    pub(crate) fn h100() -> Self {
        Self::new(&["--gpu", "H100"])
    }

    /// As `weir softgpu path` makes it with these arguments.
    pub(crate) fn new(arguments: &[&str]) -> Self {
        let own = tempfile::tempdir().unwrap();
        let mut place = Self::at(own.path().to_path_buf(), arguments);
        place.own = Some(own);
        place
    }

    /// The same, in a folder that is there.
    pub(crate) fn at(folder: PathBuf, arguments: &[&str]) -> Self {
        let place = Self {
            pipe: folder.join("mps"),
            folder,
            own: None,
        };
        let output = place.weir("path", arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(Path::new(said.trim_end()), place.folder());
        place
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// `weir softgpu …` for this folder.
    pub(crate) fn weir(&self, word: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["softgpu", word]).arg("--folder");
        command.arg(self.folder()).args(arguments);
        self.is_for(&mut command);
        command
    }

    /// The command finds this software GPU, and no other.
    pub(crate) fn is_for(&self, command: &mut Command) {
        for name in VARIABLES {
            command.env_remove(name);
        }
        command
            .env(place::VARIABLE, self.folder())
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", self.folder().join("log"))
            .env("LD_LIBRARY_PATH", self.folder())
            .stdin(Stdio::null());
    }

    /// A program, given its time.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", PATIENCE_S]).arg(program);
        self.is_for(&mut command);
        command
    }

    /// A C program with our kernels.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = self.command(built(name));
        command.arg(build::ptx());
        command
    }

    /// What a C program prints, which has to come to `ok`.
    pub(crate) fn succeeds(&self, command: &mut Command) -> String {
        let output = command.output().unwrap();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(0), "{command:?}\n{said}");
        assert!(said.lines().any(|line| line == "ok"), "{command:?}\n{said}");
        // What a program calls and the library lacks is counted: of ours, some ask for what a driver may lack.
        let unsupported = &self.observer().statistics()["unsupported"];
        let mut names = unsupported.as_object().unwrap().keys();
        let is_known =
            names.all(|name| ["cuGetExportTable", "cuMemAllocManaged"].contains(&name.as_str()));
        assert!(is_known, "{command:?}: {unsupported}");
        said
    }

    /// A process that does what it is told.
    pub(crate) fn puppet(&self) -> Puppet {
        self.puppet_with(&[])
    }

    /// The same, with these variables.
    pub(crate) fn puppet_with(&self, variables: &[(&str, &str)]) -> Puppet {
        let mut command = Command::new(built("puppet"));
        self.is_for(&mut command);
        command.arg(build::ptx()).envs(variables.iter().copied());
        Puppet::start(&mut command)
    }

    /// One that has opened the device and loaded our kernels.
    pub(crate) fn ready(&self) -> Puppet {
        self.ready_with(&[])
    }

    /// The same, with these variables.
    pub(crate) fn ready_with(&self, variables: &[(&str, &str)]) -> Puppet {
        let mut puppet = self.puppet_with(variables);
        puppet.does("open");
        puppet.does("load");
        puppet
    }

    /// What its GPUs and slices are called.
    pub(crate) fn identity(&self) -> Identity {
        let text = fs::read_to_string(self.folder().join(place::CONFIG)).unwrap();
        Identity::new(self.folder(), &Config::parse(&text).unwrap()).unwrap()
    }

    /// A connection to the server, which has to run.
    pub(crate) fn observer(&self) -> Observer {
        Observer::open(self.folder()).unwrap()
    }

    /// Starts a server, and says which process it is.
    pub(crate) fn ready_server(&self) -> u32 {
        self.puppet().does("open");
        self.server()
    }

    /// The server's process.
    pub(crate) fn server(&self) -> u32 {
        self.observer().server
    }

    /// Who held what, when, until now.
    pub(crate) fn ledger(&self) -> Ledger {
        self.observer().ask(Kind::Ledger, &[]).unwrap();
        let bytes = fs::read(self.folder().join(place::LEDGER)).unwrap();
        Ledger::new(&softgpu_wire::ledger::read(&bytes).unwrap())
    }

    /// Something goes wrong with the first GPU.
    pub(crate) fn inject(&self, xid: &str) {
        let output = self.weir("inject", &["--xid", xid]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Starts an MPS daemon with these variables, and sees to it that it has come up.
    pub(crate) fn mps(&self, variables: &[(&str, &str)]) {
        let mut command = self.mps_control();
        command.arg("-d").envs(variables.iter().copied());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn mps_control(&self) -> Command {
        self.command(&self.folder().join("nvidia-cuda-mps-control"))
    }

    /// What the daemon answers to a line.
    pub(crate) fn mps_say(&self, line: &str) -> String {
        let mut child = self
            .mps_control()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "{line}").unwrap();
        drop(input);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn mps_pid(&self) -> Option<u32> {
        let file = self.pipe.join("nvidia-cuda-mps-control.pid");
        fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    /// The daemon's process.
    pub(crate) fn daemon(&self) -> u32 {
        self.mps_pid().unwrap()
    }

    fn stop_mps(&self) {
        let Some(pid) = self.mps_pid().filter(|pid| !is_gone(*pid)) else {
            return;
        };
        let mut quitting = self.mps_control();
        let child = quitting.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        if let Ok(mut child) = child {
            if let Some(mut input) = child.stdin.take() {
                let _written = input.write_all(b"quit -t 0\n");
            }
            let _ended = child.wait();
        }
        // It may have been killed meanwhile, or not listen.
        if !is_gone(pid) {
            let _killed = kill_process(as_pid(pid), Signal::KILL);
        }
    }

    /// Whether a server holds the folder's lock.
    fn is_served(&self) -> bool {
        place::lock(self.folder(), false).unwrap().is_none()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.stop_mps();
        if let Some(socket) = place::connect_in(self.folder()).unwrap()
            && let Ok(peer) = socket_peercred(&socket)
        {
            let _killed = kill_process(peer.pid, Signal::KILL);
        }
        if !std::thread::panicking() {
            until("the server has ended", || !self.is_served());
        }
    }
}

/// All that a process has printed.
pub(crate) fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    format!("{out}{err}")
}

fn as_pid(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed()).unwrap()
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(as_pid(pid), signal).unwrap();
}

/// Whether a process is gone, or is a zombie that nobody has waited for.
pub(crate) fn is_gone(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

/// A connection to a server that looks on.
#[derive(Debug)]
pub(crate) struct Observer {
    socket: OwnedFd,
    pub(crate) server: u32,
}

impl Observer {
    /// `None`: no server runs there.
    pub(crate) fn open(folder: &Path) -> Option<Self> {
        let socket = place::connect_in(folder).unwrap()?;
        let server = socket_peercred(&socket).unwrap().pid;
        let observer = Self {
            socket,
            server: server.as_raw_nonzero().get().cast_unsigned(),
        };
        let role = Role::Observer as u64;
        observer.ask(Kind::Hello, &[VERSION, role]).unwrap();
        Some(observer)
    }

    /// The answer; else the error's number.
    pub(crate) fn ask(&self, kind: Kind, words: &[u64]) -> Result<Message, u32> {
        let question = Message::new(kind, words);
        question.send(&self.socket, SendFlags::empty()).unwrap();
        let answer = Message::receive(&self.socket, RecvFlags::empty()).unwrap();
        match answer.error {
            0 => Ok(answer),
            error => Err(error),
        }
    }

    pub(crate) fn statistics(&self) -> serde_json::Value {
        let answer = self.ask(Kind::Statistics, &[]).unwrap();
        serde_json::from_slice(&answer.bytes).unwrap()
    }

    /// Who is on the first unit.
    pub(crate) fn processes(&self) -> Vec<ProcessLine> {
        ProcessLine::decode_all(&self.ask(Kind::Processes, &[0]).unwrap().bytes)
    }

    /// Memory of the first unit that is in use.
    pub(crate) fn used(&self) -> u64 {
        let [free, total, ..] = self.ask(Kind::MemoryInfo, &[0]).unwrap().words;
        total - free
    }
}

/// A stretch of time in which a process had SMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) pid: u32,
    pub(crate) unit: u32,
    pub(crate) from: Time,
    pub(crate) to: Time,
    pub(crate) millisms: u64,
}

/// What a ledger says of SMs.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// By their begin.
    pub(crate) runs: Vec<Run>,
}

impl Ledger {
    fn new(lines: &[Line]) -> Self {
        let mut pids = HashMap::new();
        for line in lines {
            if let What::Process(_) = line.what {
                pids.insert(line.process, u32::try_from(line.amount).unwrap());
            }
        }
        let run = |line: &Line| match line.what {
            What::Sms(unit) => Some(Run {
                pid: pids[&line.process],
                unit,
                from: line.from,
                to: line.to,
                millisms: line.amount,
            }),
            _ => None,
        };
        let mut runs: Vec<_> = lines.iter().filter_map(run).collect();
        runs.sort_by_key(|run| (run.from, run.to));
        Self { runs }
    }

    /// Those that lie within a stretch of time as a whole.
    pub(crate) fn within(&self, from: u64, to: u64) -> Self {
        let is_in = |run: &&Run| run.from.0 >= from && run.to.0 <= to;
        let runs = self.runs.iter().filter(is_in).copied().collect();
        Self { runs }
    }

    pub(crate) fn of(&self, pid: u32) -> Self {
        let runs = self.runs.iter().filter(|run| run.pid == pid).copied();
        Self {
            runs: runs.collect(),
        }
    }

    /// The most thousandths of SMs that were held at any time.
    pub(crate) fn most(&self) -> u64 {
        // What ends at a time makes room for what begins then.
        let mut changes: Vec<_> = Vec::new();
        for run in &self.runs {
            let amount = i64::try_from(run.millisms).unwrap();
            changes.extend([(run.from, 1, amount), (run.to, 0, -amount)]);
        }
        changes.sort_unstable();
        let mut held = 0;
        let mut most = 0;
        for (_, _, amount) in changes {
            held += amount;
            most = most.max(held);
        }
        u64::try_from(most).unwrap()
    }

    /// For how long these and those had SMs at the same time, in ns.
    pub(crate) fn overlap(&self, others: &Self) -> u64 {
        let mut all = 0;
        for one in &self.runs {
            for other in others.runs.iter().filter(|other| other.unit == one.unit) {
                let (from, to) = (one.from.max(other.from), one.to.min(other.to));
                all += to.since(from).0;
            }
        }
        all
    }

    /// Whose runs follow one another: each turn with its begin and end.
    pub(crate) fn turns(&self) -> Vec<Run> {
        let mut turns: Vec<Run> = Vec::new();
        for run in &self.runs {
            match turns.last_mut() {
                Some(turn) if turn.pid == run.pid => turn.to = turn.to.max(run.to),
                _ => turns.push(*run),
            }
        }
        turns
    }

    pub(crate) fn pids(&self) -> BTreeSet<u32> {
        self.runs.iter().map(|run| run.pid).collect()
    }
}
