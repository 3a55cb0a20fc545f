//! A private node for each test: a software GPU with its stand-ins, and an agent.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use softgpu::StandIns;
use softgpu::observer::Observer;
use softgpu_wire::config::Config;
use softgpu_wire::softgpu_dir;
use tempfile::TempDir;
use testing::{PATIENCE, until};

pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Returns whether a process has ended, as a zombie or entirely.
pub(crate) fn is_gone(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

/// Returns a command of the program under test, without CUDA's environment variables.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-sidecar"));
    for name in [
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_VISIBLE_DEVICES",
        "WEIR_SOFTGPU",
    ] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs `gpu-sidecar check` on a file with this text.
pub(crate) fn check(text: &str, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agent.toml");
    fs::write(&file, text).unwrap();
    program()
        .current_dir(folder.path())
        .args(["check", "agent.toml"])
        .args(arguments)
        .output()
        .unwrap()
}

/// A node with its directory and its agent.
#[derive(Debug)]
pub(crate) struct Node {
    own: TempDir,
    agent: Option<Child>,
    /// Additional lines of the agent's configuration.
    pub(crate) config: String,
}

impl Node {
    /// Creates a node without a running agent, with these GPUs as in `softgpu.toml` and additional lines for the agent's
    /// configuration.
    pub(crate) fn new(gpus: &str, config: &str) -> Self {
        let own = tempfile::tempdir().unwrap();
        // Test executables are in `deps`, next to the examples' directory.
        let test = std::env::current_exe().unwrap();
        let built = test.parent().unwrap().parent().unwrap();
        let programs = built.join("examples/softgpu-programs");
        assert!(
            programs.exists(),
            "{} is missing: `cargo build -p gpu-sidecar --examples` builds it, as does `cargo test -p gpu-sidecar`",
            programs.display()
        );
        let stand_ins = StandIns::with_program(&programs).unwrap();
        let gpus = Config::parse(gpus).unwrap();
        let softgpu = own.path().join("softgpu");
        fs::create_dir(&softgpu).unwrap();
        stand_ins.install(&softgpu, &gpus).unwrap();
        Self {
            own,
            agent: None,
            config: config.to_owned(),
        }
    }

    /// Creates a node with a running agent.
    pub(crate) fn running(gpus: &str, config: &str) -> Self {
        let mut node = Self::new(gpus, config);
        node.start();
        node
    }

    pub(crate) fn softgpu(&self) -> PathBuf {
        self.own.path().join("softgpu")
    }

    pub(crate) fn run(&self) -> PathBuf {
        self.own.path().join("run")
    }

    /// Returns the command of the agent.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.command_of("run", arguments)
    }

    /// Returns the command of a subcommand that reads the agent's configuration.
    pub(crate) fn command_of(&self, subcommand: &str, arguments: &[&str]) -> Command {
        let head = |key: &str, value: String| {
            let key_is_given = self.config.lines().any(|line| line.starts_with(key));
            if key_is_given {
                String::new()
            } else {
                format!("{key} = {value:?}\n")
            }
        };
        let softgpu = self.softgpu();
        let node = [
            head("run-directory", self.run().display().to_string()),
            head("control-address", "127.0.0.1:0".to_owned()),
            head("metrics-address", "127.0.0.1:0".to_owned()),
            head(
                "nvml-library",
                softgpu.join("libnvidia-ml.so.1").display().to_string(),
            ),
            head(
                "mps-control",
                softgpu
                    .join("nvidia-cuda-mps-control")
                    .display()
                    .to_string(),
            ),
            head("preload", softgpu.display().to_string()),
        ];
        let text = format!("[node]\n{}{}", node.concat(), self.config);
        let file = self.own.path().join("agent.toml");
        // Renamed, since another program may be reading the file.
        let new = file.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, &file).unwrap();
        let mut command = program();
        command.arg(subcommand).arg("--config").arg(file);
        command.args(arguments);
        command
    }

    /// Returns the path of a directory of the test.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.own.path().join(name)
    }

    /// Starts the agent and waits until it listens.
    pub(crate) fn start(&mut self) {
        self.start_with(&[]);
    }

    pub(crate) fn start_with(&mut self, arguments: &[&str]) {
        self.start_as(self.command(arguments));
    }

    /// Starts the agent with this command and waits until it listens.
    pub(crate) fn start_as(&mut self, mut command: Command) {
        let _of_before = fs::remove_file(self.run().join("agent.json"));
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.own.path().join("agent.log"))
            .unwrap();
        let child = command.stderr(log).spawn().unwrap();
        self.agent = Some(child);
        until("the agent listens", || {
            let ended = self.agent.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.log());
            self.run().join("agent.json").exists().then_some(())
        });
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.own.path().join("agent.log")).unwrap_or_default()
    }

    /// Signals the agent, waits for its end and returns its exit code; `None` when a signal has ended it.
    pub(crate) fn end(&mut self, how: Signal) -> Option<i32> {
        let mut agent = self.agent.take().unwrap();
        signal(agent.id(), how);
        agent.wait().unwrap().code()
    }

    fn address(&self, of: &str) -> String {
        let text = fs::read_to_string(self.run().join("agent.json")).unwrap();
        let addresses: Value = serde_json::from_str(&text).unwrap();
        addresses[of].as_str().unwrap().to_owned()
    }

    pub(crate) fn control(&self) -> String {
        self.address("control")
    }

    /// Sends a request to the control API and returns status and body.
    pub(crate) fn request(&self, request: &str) -> (u16, String) {
        exchange(&self.control(), request)
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = self.request(&format!("GET {path}"));
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Returns a pod from the control API, if it is served.
    pub(crate) fn instance(&self, id: &str) -> Option<Value> {
        let (status, body) = self.request(&format!("GET /v1/instances/{id}"));
        (status == 200).then(|| serde_json::from_str(&body).unwrap())
    }

    pub(crate) fn metrics(&self) -> String {
        let (status, body) = exchange(&self.address("metrics"), "GET /metrics");
        assert_eq!(status, 200, "{body}");
        body
    }

    /// Returns a slot from the control API, by its index.
    pub(crate) fn slot(&self, at: usize) -> Value {
        self.get("/v1/slots")["slots"][at].clone()
    }

    /// Waits until a slot's daemon answers, and returns its process ID.
    pub(crate) fn daemon(&self, at: usize) -> u32 {
        until("the MPS daemon answers", || {
            let state = self.slot(at)["mps"]["state"].clone();
            let is_up = state["state"] == "up";
            is_up.then(|| u32::try_from(state["pid"].as_u64().unwrap()).unwrap())
        })
    }

    /// Returns the texts of the past events of a kind.
    pub(crate) fn events(&self, kind: &str) -> Vec<String> {
        let mut stream = TcpStream::connect(self.control()).unwrap();
        // Timeout after the last past event.
        stream
            .set_read_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        write!(stream, "GET /v1/events HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
        // The stream does not end; past events arrive at once.
        let mut events = Vec::new();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|count| count > 0) {
            if let Ok(event) = serde_json::from_str::<Value>(&line)
                && event["kind"] == kind
            {
                events.push(event["text"].as_str().unwrap().to_owned());
            }
            line.clear();
        }
        events
    }

    /// Creates a pod's folder with these annotations, by renaming as its creator does.
    pub(crate) fn pod(&self, name: &str, annotations: &str) -> PathBuf {
        let pods = self.run().join("pods");
        let folder = pods.join(name);
        let making = pods.join(format!(".{name}"));
        fs::create_dir_all(&making).unwrap();
        fs::write(making.join("annotations"), annotations).unwrap();
        fs::rename(making, &folder).unwrap();
        folder
    }

    /// Returns a connection to softgpu's server, which keeps the server running.
    pub(crate) fn device(&self) -> OwnedFd {
        let softgpu = self.softgpu();
        softgpu_dir::connect_or_start(&softgpu, &softgpu.join(softgpu_dir::SERVER), |_| {}).unwrap()
    }

    /// Injects an Xid into a GPU.
    pub(crate) fn inject(&self, gpu: u64, xid: u64) {
        let observer = Observer::open(&self.softgpu()).unwrap().unwrap();
        observer.inject(gpu, xid).unwrap();
    }

    /// Returns the daemons' process IDs from their files.
    fn daemons(&self) -> Vec<u32> {
        let Ok(slots) = fs::read_dir(self.run().join("mps")) else {
            return Vec::new();
        };
        let pid = |slot: fs::DirEntry| {
            let file = slot.path().join("pipe/nvidia-cuda-mps-control.pid");
            fs::read_to_string(file).ok()?.trim().parse().ok()
        };
        slots.filter_map(|slot| pid(slot.unwrap())).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut out = std::io::stderr();
            let _written = out.write_all(self.log().as_bytes());
        }
        if let Some(mut agent) = self.agent.take() {
            let _gone = agent.kill();
            let _status = agent.wait();
        }
        for pid in self.daemons() {
            if !is_gone(pid)
                && let Some(pid) = Pid::from_raw(pid.cast_signed())
            {
                let _gone = kill_process(pid, Signal::KILL);
            }
        }
        if let Ok(Some(socket)) = softgpu_dir::connect_in(&self.softgpu())
            && let Ok(peer) = socket_peercred(&socket)
        {
            let _gone = kill_process(peer.pid, Signal::KILL);
        }
    }
}

/// Sends a request, `METHOD /path` with additional header lines, and returns status and body.
pub(crate) fn exchange(address: &str, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (first, more) = request.split_once('\n').unwrap_or((request, ""));
    let more = more.replace('\n', "\r\n");
    let more = if more.is_empty() {
        more
    } else {
        format!("{more}\r\n")
    };
    let head = format!("{first} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{more}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// Returns whether a socket accepts connections.
pub(crate) fn connects(socket: &Path) -> bool {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket as make};
    let own = make(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&own, &SocketAddrUnix::new(socket).unwrap()).is_ok()
}
