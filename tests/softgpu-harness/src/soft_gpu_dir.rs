//! A test's own software GPU: a folder installed by `weir softgpu path`, and processes that use it.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use device::Time;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, kill_process};
use softgpu_wire::config::Config;
use softgpu_wire::identity::Identity;
use softgpu_wire::ledger::{Line, LineKind};
use softgpu_wire::message::{Kind, Message, ProcessLine, Role, VERSION};
use softgpu_wire::softgpu_dir;
use tempfile::TempDir;
use testing::until;

use crate::programs::{self, built};
use crate::puppet::Puppet;

/// Seconds after which a hanging program is ended; long enough for one that shares its cores with much else.
const PATIENCE_S: &str = "300";

/// Variables that the stand-ins read, removed from a command's environment so that a test sets what it needs.
const VARIABLES: [&str; 9] = [
    softgpu_dir::VARIABLE,
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_TEST_LOADER",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "WEIR_SOFTGPU_CALLS",
];

/// A folder with stand-ins. Dropping it ends its server and its MPS daemon.
#[derive(Debug)]
pub struct SoftGpuDir {
    folder: PathBuf,
    /// Removes the folder when dropped; `None` if the folder belongs to another process.
    own: Option<TempDir>,
    /// Folder in which an MPS daemon listens, if there is one.
    pub pipe: PathBuf,
}

impl SoftGpuDir {
    /// Installs one H100 in a new folder.
    pub fn h100() -> Self {
        Self::new(&["--gpu", "H100"])
    }

    /// Installs the stand-ins with these arguments of `weir softgpu path` into a new folder.
    pub fn new(arguments: &[&str]) -> Self {
        let own = tempfile::tempdir().unwrap();
        let mut softgpu = Self::at(own.path().to_path_buf(), arguments);
        softgpu.own = Some(own);
        softgpu
    }

    /// Installs the stand-ins with these arguments into an existing folder.
    pub fn at(folder: PathBuf, arguments: &[&str]) -> Self {
        let softgpu = Self {
            pipe: folder.join("mps"),
            folder,
            own: None,
        };
        let output = softgpu.weir("path", arguments).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(Path::new(printed.trim_end()), softgpu.folder());
        softgpu
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the command `weir softgpu …` for this folder.
    pub fn weir(&self, word: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(crate::weir());
        command.args(["softgpu", word]).arg("--folder");
        command.arg(self.folder()).args(arguments);
        self.is_for(&mut command);
        command
    }

    /// Makes the command find this software GPU, and no other.
    pub fn is_for(&self, command: &mut Command) {
        for name in VARIABLES {
            command.env_remove(name);
        }
        command
            .env(softgpu_dir::VARIABLE, self.folder())
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", self.folder().join("log"))
            .env("LD_LIBRARY_PATH", self.folder())
            .stdin(Stdio::null());
    }

    /// Returns the command of a program, with a time limit.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", PATIENCE_S]).arg(program);
        self.is_for(&mut command);
        command
    }

    /// Returns the command of a C program of `tests/cuda`, with Weir's kernels.
    pub fn program(&self, name: &str) -> Command {
        let mut command = self.command(built(name));
        command.arg(programs::ptx());
        command
    }

    /// Runs a C program, which must print `ok`, and returns its output.
    pub fn succeeds(&self, command: &mut Command) -> String {
        let output = command.output().unwrap();
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(0), "{command:?}\n{printed}");
        assert!(
            printed.lines().any(|line| line == "ok"),
            "{command:?}\n{printed}"
        );
        // Calls of functions that the library lacks are counted: these programs may only try those which a driver may lack.
        let unsupported = &self.observer().statistics()["unsupported"];
        let mut names = unsupported.as_object().unwrap().keys();
        let is_known =
            names.all(|name| ["cuGetExportTable", "cuMemAllocManaged"].contains(&name.as_str()));
        assert!(is_known, "{command:?}: {unsupported}");
        printed
    }

    /// Starts a puppet without further variables.
    pub fn puppet(&self) -> Puppet {
        self.puppet_with(&[])
    }

    /// Starts a puppet with these variables.
    pub fn puppet_with(&self, variables: &[(&str, &str)]) -> Puppet {
        let mut command = Command::new(built("puppet"));
        self.is_for(&mut command);
        command.arg(programs::ptx()).envs(variables.iter().copied());
        Puppet::start(&mut command)
    }

    /// Starts a puppet with the device opened and Weir's kernels loaded.
    pub fn ready(&self) -> Puppet {
        self.ready_with(&[])
    }

    /// Starts such a puppet with these variables.
    pub fn ready_with(&self, variables: &[(&str, &str)]) -> Puppet {
        let mut puppet = self.puppet_with(variables);
        puppet.run("open");
        puppet.run("load");
        puppet
    }

    /// Returns the names and UUIDs of its GPUs and slices.
    pub fn identity(&self) -> Identity {
        let text = fs::read_to_string(self.folder().join(softgpu_dir::CONFIG)).unwrap();
        Identity::new(self.folder(), &Config::parse(&text).unwrap()).unwrap()
    }

    /// Connects to the server, which must run.
    pub fn observer(&self) -> Observer {
        Observer::open(self.folder()).unwrap()
    }

    /// Starts a server and returns its PID.
    pub fn ready_server(&self) -> u32 {
        self.puppet().run("open");
        self.server()
    }

    /// Returns the server's PID.
    pub fn server(&self) -> u32 {
        self.observer().server
    }

    /// Returns the SM use of all processes so far.
    pub fn ledger(&self) -> Ledger {
        self.observer().request(Kind::Ledger, &[]).unwrap();
        let bytes = fs::read(self.folder().join(softgpu_dir::LEDGER)).unwrap();
        Ledger::new(&softgpu_wire::ledger::read(&bytes).unwrap())
    }

    /// Injects this Xid into the first GPU.
    pub fn inject(&self, xid: &str) {
        let output = self.weir("inject", &["--xid", xid]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Starts an MPS daemon with these variables and asserts that it is up.
    pub fn mps(&self, variables: &[(&str, &str)]) {
        let mut command = self.mps_control();
        command.arg("-d").envs(variables.iter().copied());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn mps_control(&self) -> Command {
        self.command(&self.folder().join("nvidia-cuda-mps-control"))
    }

    /// Sends a line to the MPS daemon and returns its answer.
    pub fn mps_command(&self, line: &str) -> String {
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

    /// Returns the daemon's PID.
    pub fn daemon(&self) -> u32 {
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
        // The daemon may have been killed meanwhile, or not listen.
        if !is_gone(pid) {
            let _killed = kill_process(as_pid(pid), Signal::KILL);
        }
    }

    /// Returns whether a server holds the folder's lock.
    fn is_served(&self) -> bool {
        softgpu_dir::lock(self.folder(), false).unwrap().is_none()
    }
}

impl Drop for SoftGpuDir {
    fn drop(&mut self) {
        self.stop_mps();
        if let Some(socket) = softgpu_dir::connect_in(self.folder()).unwrap()
            && let Ok(peer) = socket_peercred(&socket)
        {
            let _killed = kill_process(peer.pid, Signal::KILL);
        }
        if !std::thread::panicking() {
            until("the server has ended", || !self.is_served());
        }
    }
}

/// Returns a process's standard output and error.
pub fn text(output: &Output) -> String {
    let [out, err] =
        [&output.stdout, &output.stderr].map(|printed| String::from_utf8_lossy(printed));
    format!("{out}{err}")
}

fn as_pid(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed()).unwrap()
}

pub fn signal(pid: u32, signal: Signal) {
    kill_process(as_pid(pid), signal).unwrap();
}

/// Returns whether a process has ended, as a zombie at most.
pub fn is_gone(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

/// An observing connection to a server.
#[derive(Debug)]
pub struct Observer {
    socket: OwnedFd,
    pub server: u32,
}

impl Observer {
    /// Connects to the server of a folder; `None` if none runs.
    pub fn open(folder: &Path) -> Option<Self> {
        let socket = softgpu_dir::connect_in(folder).unwrap()?;
        let server = socket_peercred(&socket).unwrap().pid;
        let observer = Self {
            socket,
            server: server.as_raw_nonzero().get().cast_unsigned(),
        };
        let role = Role::Observer as u64;
        observer.request(Kind::Hello, &[VERSION, role]).unwrap();
        Some(observer)
    }

    /// Sends a request and returns the answer, or the number of its error.
    pub fn request(&self, kind: Kind, words: &[u64]) -> Result<Message, u32> {
        let question = Message::new(kind, words);
        question.send(&self.socket, SendFlags::empty()).unwrap();
        let answer = Message::receive(&self.socket, RecvFlags::empty()).unwrap();
        match answer.error {
            0 => Ok(answer),
            error => Err(error),
        }
    }

    pub fn statistics(&self) -> serde_json::Value {
        let answer = self.request(Kind::Statistics, &[]).unwrap();
        serde_json::from_slice(&answer.bytes).unwrap()
    }

    /// Returns the processes on the first unit.
    pub fn processes(&self) -> Vec<ProcessLine> {
        ProcessLine::decode_all(&self.request(Kind::Processes, &[0]).unwrap().bytes)
    }

    /// Returns the used memory of the first unit, in bytes.
    pub fn used(&self) -> u64 {
        let [free, total, ..] = self.request(Kind::MemoryInfo, &[0]).unwrap().words;
        total - free
    }
}

/// A stretch of time in which a process held SMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub pid: u32,
    pub unit: u32,
    pub from: Time,
    pub to: Time,
    pub millisms: u64,
}

/// SM use by the server's ledger.
#[derive(Debug)]
pub struct Ledger {
    /// Stretches, sorted by their begin.
    pub runs: Vec<Run>,
}

impl Ledger {
    fn new(lines: &[Line]) -> Self {
        let mut pids = HashMap::new();
        for line in lines {
            if let LineKind::Process(_) = line.kind {
                pids.insert(line.process, u32::try_from(line.amount).unwrap());
            }
        }
        let run = |line: &Line| match line.kind {
            LineKind::Sms(unit) => Some(Run {
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

    /// Returns the stretches entirely within these times, in ns.
    pub fn within(&self, from: u64, to: u64) -> Self {
        let is_in = |run: &&Run| run.from.0 >= from && run.to.0 <= to;
        let runs = self.runs.iter().filter(is_in).copied().collect();
        Self { runs }
    }

    pub fn of(&self, pid: u32) -> Self {
        let runs = self.runs.iter().filter(|run| run.pid == pid).copied();
        Self {
            runs: runs.collect(),
        }
    }

    /// Returns the largest number of SMs held at any time, in thousandths.
    pub fn most(&self) -> u64 {
        // At equal times ends sort before begins, as they free the SMs.
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

    /// Returns for how long both ledgers held SMs of the same unit at the same time, in ns.
    pub fn overlap(&self, others: &Self) -> u64 {
        let mut all = 0;
        for one in &self.runs {
            for other in others.runs.iter().filter(|other| other.unit == one.unit) {
                let (from, to) = (one.from.max(other.from), one.to.min(other.to));
                all += to.since(from).0;
            }
        }
        all
    }

    /// Returns the turns of processes on the SMs: consecutive stretches in which the same process holds them, merged.
    pub fn turns(&self) -> Vec<Run> {
        let mut turns: Vec<Run> = Vec::new();
        for run in &self.runs {
            match turns.last_mut() {
                Some(turn) if turn.pid == run.pid => turn.to = turn.to.max(run.to),
                _ => turns.push(*run),
            }
        }
        turns
    }

    pub fn pids(&self) -> BTreeSet<u32> {
        self.runs.iter().map(|run| run.pid).collect()
    }
}
