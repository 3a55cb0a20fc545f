//! A folder with a stand-in for softgpu's server, and the processes under test.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, connect, shutdown, socket_with,
};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use softgpu_wire::message::{Kind, Message, MessageError, ProcessLine};
use softgpu_wire::softgpu_dir;
use testing::PATIENCE;

/// Blocks until the socket is readable.
fn readable(socket: &OwnedFd) {
    let patience = Timespec {
        tv_sec: PATIENCE.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    assert_ne!(
        poll(&mut fds, Some(&patience)).unwrap(),
        0,
        "timed out after {PATIENCE:?}: no message"
    );
}

#[derive(Debug, Default)]
struct DeviceState {
    servers: Vec<OwnedFd>,
    started: u64,
    lines: Vec<ProcessLine>,
    terminated: Vec<u64>,
    is_silent: bool,
}

/// Stand-in for softgpu's server.
#[derive(Debug)]
pub(crate) struct Device {
    state: Arc<Mutex<DeviceState>>,
    _lock: OwnedFd,
}

impl Device {
    fn start(folder: &std::path::Path) -> Self {
        let lock = softgpu_dir::lock(folder, false).unwrap().unwrap();
        let listener = softgpu_dir::listen_in(folder).unwrap();
        let state = Arc::new(Mutex::new(DeviceState::default()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            while let Ok(socket) = accept_with(&listener, SocketFlags::CLOEXEC) {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || serve(&socket, &state));
            }
        });
        Self { state, _lock: lock }
    }

    /// Sets the processes that `MpsClients` lists.
    pub(crate) fn set_lines(&self, lines: &[ProcessLine]) {
        self.state.lock().unwrap().lines = lines.to_vec();
    }

    /// Returns the PIDs it was requested to terminate.
    pub(crate) fn terminated(&self) -> Vec<u64> {
        self.state.lock().unwrap().terminated.clone()
    }

    /// Makes the stand-in ignore all further requests.
    pub(crate) fn fall_silent(&self) {
        self.state.lock().unwrap().is_silent = true;
    }

    /// Closes the connections of MPS servers.
    pub(crate) fn hang_up(&self) {
        for server in &self.state.lock().unwrap().servers {
            let _gone = shutdown(server, Shutdown::Both);
        }
    }

    /// Reports a fault of clients to the MPS server.
    pub(crate) fn fault(&self, pids: &[u32]) {
        let state = self.state.lock().unwrap();
        let line = |pid: &u32| {
            ProcessLine {
                pid: *pid,
                ..ProcessLine::default()
            }
            .encode()
        };
        let lines: Vec<_> = pids.iter().flat_map(line).collect();
        let message = Message::new(Kind::Fault, &[0, 700]).with_bytes(lines);
        message
            .send(state.servers.last().unwrap(), SendFlags::empty())
            .unwrap();
    }
}

fn serve(socket: &OwnedFd, state: &Mutex<DeviceState>) {
    while let Ok(message) = Message::receive(socket, RecvFlags::empty()) {
        let mut state = state.lock().unwrap();
        if state.is_silent {
            continue;
        }
        let answer = match message.kind {
            Kind::Hello => Message::new(Kind::Hello, &[1]),
            Kind::MpsServer => {
                state.servers.push(socket.try_clone().unwrap());
                state.started += 1;
                Message::new(Kind::MpsServer, &[40 + state.started])
            }
            Kind::MpsClients => {
                let lines = state.lines.iter().flat_map(ProcessLine::encode).collect();
                Message::new(Kind::MpsClients, &[]).with_bytes(lines)
            }
            Kind::MpsTerminate => {
                state.terminated.push(message.words[0]);
                Message::new(Kind::MpsTerminate, &[])
            }
            kind => Message::refusal(kind, 801),
        };
        if answer.send(socket, SendFlags::empty()).is_err() {
            break;
        }
    }
}

/// A folder for one test, with a pipe and a log directory.
#[derive(Debug)]
pub(crate) struct SoftGpuDir {
    folder: tempfile::TempDir,
    pub(crate) pipe: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) device: Option<Device>,
}

impl SoftGpuDir {
    /// Creates a folder with a stand-in for softgpu's server.
    pub(crate) fn new() -> Self {
        let mut dir = Self::without_device();
        dir.device = Some(Device::start(dir.folder.path()));
        dir
    }

    /// Creates a folder without the stand-in, and without a program to start one.
    pub(crate) fn without_device() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), all).unwrap();
        Self {
            pipe: folder.path().join("pipe"),
            log: folder.path().join("log"),
            folder,
            device: None,
        }
    }

    pub(crate) fn device(&self) -> &Device {
        self.device.as_ref().unwrap()
    }

    /// Writes `softgpu.toml` in the folder.
    pub(crate) fn configure(&self, text: &str) {
        std::fs::write(self.folder.path().join(softgpu_dir::CONFIG), text).unwrap();
    }

    /// Lengthens the path of the pipe directory.
    pub(crate) fn with_long_path(mut self) -> Self {
        self.pipe = self.folder.path().join("long".repeat(40)).join("pipe");
        self
    }

    /// Returns a command for the program, with its directories set.
    pub(crate) fn program(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvidia-cuda-mps-control"));
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", &self.log)
            .env(softgpu_dir::VARIABLE, self.folder.path())
            .env_remove("CUDA_VISIBLE_DEVICES")
            .stdin(Stdio::null());
        command
    }

    /// Runs the program with `-d` and further arguments.
    pub(crate) fn start(&self, arguments: &[&str]) -> Output {
        self.program().arg("-d").args(arguments).output().unwrap()
    }

    /// Starts the daemon in the background, and asserts success.
    pub(crate) fn daemon(&self, arguments: &[&str]) {
        let output = self.start(arguments);
        assert!(output.status.success(), "{output:?}");
        assert!(
            output.stdout.is_empty() && output.stderr.is_empty(),
            "{output:?}"
        );
    }

    /// Runs the front end with these lines as input.
    pub(crate) fn front(&self, lines: &[u8]) -> Output {
        let mut child = self.front_child();
        // Without a daemon, the front end does not read its input.
        let _written = child.stdin.take().unwrap().write_all(lines);
        child.wait_with_output().unwrap()
    }

    /// Starts a front end with open standard input.
    pub(crate) fn front_child(&self) -> Child {
        let mut command = self.program();
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Returns the output of a command.
    pub(crate) fn run(&self, line: &str) -> String {
        let output = self.front(format!("{line}\n").as_bytes());
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the number that a command prints.
    pub(crate) fn number(&self, line: &str) -> u32 {
        let said = self.run(line);
        said.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{line}: {said}"))
    }

    /// Returns the daemon's PID from its file.
    pub(crate) fn daemon_pid(&self) -> u32 {
        let file = self.pipe.join("nvidia-cuda-mps-control.pid");
        std::fs::read_to_string(file)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }

    /// Connects to the daemon.
    pub(crate) fn connect(&self) -> OwnedFd {
        let folder = open(&self.pipe, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let path = format!("/proc/self/fd/{}/control", folder.as_raw_fd());
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path.as_str()).unwrap()).unwrap();
        socket
    }

    /// Connects a client that has requested admission.
    pub(crate) fn client(&self) -> Client {
        let socket = self.connect();
        Message::new(Kind::MpsEnter, &[1])
            .send(&socket, SendFlags::empty())
            .unwrap();
        Client { socket }
    }

    /// Starts a client process of a user.
    pub(crate) fn process(&self, uid: Option<u32>) -> Process {
        self.process_running(uid, "")
    }

    /// Starts a process of a user that requests admission, or runs a command if `line` is not empty.
    pub(crate) fn process_running(&self, uid: Option<u32>, line: &str) -> Process {
        let mut program = std::env::current_exe().unwrap();
        if uid.is_some() {
            // Another user may not access the folder of the test's executable.
            let copy = self.folder.path().join("client");
            // Another process writes the copy: a file open for writing in this one would briefly be open in every child
            // that a concurrent test forks, and could not be executed.
            let mut install = Command::new("install");
            let copied = install.args(["-m", "755"]).args([&program, &copy]).status();
            assert!(copied.unwrap().success());
            program = copy;
        }
        let mut command = Command::new(program);
        command
            .arg0("a client")
            .args(["--exact", "--nocapture", CLIENT])
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .env(IS_CLIENT, line)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().unwrap();
        Process {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// Returns the contents of a log.
    pub(crate) fn logged(&self, name: &str) -> String {
        std::fs::read_to_string(self.log.join(name)).unwrap()
    }
}

impl Drop for SoftGpuDir {
    fn drop(&mut self) {
        let Ok(mut child) = self
            .program()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
        else {
            return;
        };
        if let Some(mut input) = child.stdin.take() {
            let _written = input.write_all(b"quit -t 0\n");
        }
        let _ended = child.wait();
    }
}

/// A connection of this process.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: OwnedFd,
}

impl Client {
    /// Receives the daemon's message; returns `None` if the daemon has closed the connection.
    pub(crate) fn answer(&self) -> Option<Message> {
        readable(&self.socket);
        match Message::receive(&self.socket, RecvFlags::empty()) {
            Ok(message) => Some(message),
            Err(MessageError::Closed) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Asserts that the daemon admits the client.
    pub(crate) fn entered(self) -> Self {
        let answer = self.answer().unwrap();
        assert_eq!((answer.kind, answer.error), (Kind::MpsEnter, 0));
        self
    }

    /// Returns the error with which the daemon refuses the client.
    pub(crate) fn refused(&self) -> u32 {
        self.answer().unwrap().error
    }

    /// Returns whether no message has arrived.
    pub(crate) fn waits(&self) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&now)).unwrap() == 0
    }
}

/// Name of the test that runs as a client process.
const CLIENT: &str = "a_client_of_its_own_process";
const IS_CLIENT: &str = "SOFTGPU_TEST_CLIENT";

/// Body of a process of [`SoftGpuDir::process`].
pub(crate) fn run_client() {
    let Ok(line) = std::env::var(IS_CLIENT) else {
        return;
    };
    let pipe = PathBuf::from(std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").unwrap());
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(pipe.join("control")).unwrap()).unwrap();
    let kind = if line.is_empty() {
        Kind::MpsEnter
    } else {
        Kind::MpsCommand
    };
    let question = Message::new(kind, &[]).with_bytes(line.into_bytes());
    question.send(&socket, SendFlags::empty()).unwrap();
    let mut output = std::io::stdout();
    writeln!(output, "\nasked").unwrap();
    let answer = Message::receive(&socket, RecvFlags::empty()).unwrap();
    let text = String::from_utf8_lossy(&answer.bytes).into_owned();
    writeln!(output, "answer {}", answer.error).unwrap();
    if kind == Kind::MpsCommand {
        writeln!(output, "{text}").unwrap();
    }
    let mut input = std::io::stdin();
    let mut fds = [
        PollFd::new(&socket, PollFlags::IN),
        PollFd::new(&input, PollFlags::IN),
    ];
    poll(&mut fds, None).unwrap();
    if !fds[0].revents().is_empty() {
        writeln!(output, "closed").unwrap();
    }
    let _ended = input.read_to_end(&mut Vec::new());
}

/// A client in a process of its own.
#[derive(Debug)]
pub(crate) struct Process {
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    child: Child,
}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Blocks until the process prints this line.
    pub(crate) fn expect_line(&mut self, text: &str) {
        let mut line = String::new();
        while line.trim() != text {
            line.clear();
            assert_ne!(
                self.output.read_line(&mut line).unwrap(),
                0,
                "the process ended without printing {text}"
            );
        }
    }

    /// Lets the process end by closing its input.
    pub(crate) fn leave(mut self) {
        self.input = None;
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

fn as_pid(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed()).unwrap()
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    kill_process(as_pid(pid), signal).unwrap();
}

/// Returns whether a process is gone, or is a zombie.
pub(crate) fn is_gone(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    test_kill_process(as_pid(pid)).is_err() || state.contains(") Z ")
}
