//! A folder with a stand-in for softgpu's server, and the program's processes in it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, connect, shutdown, socket_with,
};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use softgpu_wire::message::{Kind, Message, MessageError, ProcessLine};
use softgpu_wire::place;

/// Whatever is waited for has to come within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(
            begin.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        poll(
            &mut [],
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 2_000_000,
            }),
        )
        .unwrap();
    }
}

/// Waits until there is something to read.
fn readable(socket: &OwnedFd) {
    let patience = Timespec {
        tv_sec: PATIENCE.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    assert_ne!(
        poll(&mut fds, Some(&patience)).unwrap(),
        0,
        "nothing came within {PATIENCE:?}"
    );
}

#[derive(Debug, Default)]
struct Told {
    servers: Vec<OwnedFd>,
    started: u64,
    lines: Vec<ProcessLine>,
    terminated: Vec<u64>,
    is_silent: bool,
}

/// Stands in for softgpu's server.
#[derive(Debug)]
pub(crate) struct Device {
    told: Arc<Mutex<Told>>,
    _lock: OwnedFd,
}

impl Device {
    fn start(folder: &std::path::Path) -> Self {
        let lock = place::lock(folder, false).unwrap().unwrap();
        let listener = place::listen_in(folder).unwrap();
        let told = Arc::new(Mutex::new(Told::default()));
        let shared = Arc::clone(&told);
        std::thread::spawn(move || {
            while let Ok(socket) = accept_with(&listener, SocketFlags::CLOEXEC) {
                let told = Arc::clone(&shared);
                std::thread::spawn(move || serve(&socket, &told));
            }
        });
        Self { told, _lock: lock }
    }

    /// Whom `MpsClients` names from now on.
    pub(crate) fn set_lines(&self, lines: &[ProcessLine]) {
        self.told.lock().unwrap().lines = lines.to_vec();
    }

    /// Whom it was asked to end.
    pub(crate) fn terminated(&self) -> Vec<u64> {
        self.told.lock().unwrap().terminated.clone()
    }

    /// From now on, questions have no answers.
    pub(crate) fn fall_silent(&self) {
        self.told.lock().unwrap().is_silent = true;
    }

    /// It ends, as far as its clients see.
    pub(crate) fn hang_up(&self) {
        for server in &self.told.lock().unwrap().servers {
            let _gone = shutdown(server, Shutdown::Both);
        }
    }

    /// Clients have met a fault.
    pub(crate) fn fault(&self, pids: &[u32]) {
        let told = self.told.lock().unwrap();
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
            .send(told.servers.last().unwrap(), SendFlags::empty())
            .unwrap();
    }
}

fn serve(socket: &OwnedFd, told: &Mutex<Told>) {
    while let Ok(message) = Message::receive(socket, RecvFlags::empty()) {
        let mut told = told.lock().unwrap();
        if told.is_silent {
            continue;
        }
        let answer = match message.kind {
            Kind::Hello => Message::new(Kind::Hello, &[1]),
            Kind::MpsServer => {
                told.servers.push(socket.try_clone().unwrap());
                told.started += 1;
                Message::new(Kind::MpsServer, &[40 + told.started])
            }
            Kind::MpsClients => {
                let lines = told.lines.iter().flat_map(ProcessLine::encode).collect();
                Message::new(Kind::MpsClients, &[]).with_bytes(lines)
            }
            Kind::MpsTerminate => {
                told.terminated.push(message.words[0]);
                Message::new(Kind::MpsTerminate, &[])
            }
            kind => Message::refusal(kind, 801),
        };
        if answer.send(socket, SendFlags::empty()).is_err() {
            break;
        }
    }
}

/// A folder of its own for each test.
#[derive(Debug)]
pub(crate) struct Place {
    folder: tempfile::TempDir,
    pub(crate) pipe: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) device: Option<Device>,
}

impl Place {
    /// With a stand-in for softgpu's server.
    pub(crate) fn new() -> Self {
        let mut place = Self::without_device();
        place.device = Some(Device::start(place.folder.path()));
        place
    }

    /// Without, and without a program to start one.
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

    /// Writes `softgpu.toml`.
    pub(crate) fn configure(&self, text: &str) {
        std::fs::write(self.folder.path().join(place::CONFIG), text).unwrap();
    }

    /// Lengthens the path of the pipe directory.
    pub(crate) fn with_long_path(mut self) -> Self {
        self.pipe = self.folder.path().join("long".repeat(40)).join("pipe");
        self
    }

    /// The program, with its directories.
    pub(crate) fn program(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvidia-cuda-mps-control"));
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", &self.log)
            .env(place::VARIABLE, self.folder.path())
            .env_remove("CUDA_VISIBLE_DEVICES")
            .stdin(Stdio::null());
        command
    }

    /// Starts the daemon in the background.
    pub(crate) fn start(&self, arguments: &[&str]) -> Output {
        self.program().arg("-d").args(arguments).output().unwrap()
    }

    /// Starts the daemon, which has to come up.
    pub(crate) fn daemon(&self, arguments: &[&str]) {
        let output = self.start(arguments);
        assert!(output.status.success(), "{output:?}");
        assert!(
            output.stdout.is_empty() && output.stderr.is_empty(),
            "{output:?}"
        );
    }

    /// Has the front end read these lines.
    pub(crate) fn front(&self, lines: &[u8]) -> Output {
        let mut child = self.front_child();
        // One that finds no daemon does not read.
        let _written = child.stdin.take().unwrap().write_all(lines);
        child.wait_with_output().unwrap()
    }

    /// A front end that can be written to.
    pub(crate) fn front_child(&self) -> Child {
        let mut command = self.program();
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// What a command prints.
    pub(crate) fn say(&self, line: &str) -> String {
        let output = self.front(format!("{line}\n").as_bytes());
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The number that a command prints.
    pub(crate) fn number(&self, line: &str) -> u32 {
        let said = self.say(line);
        said.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{line}: {said}"))
    }

    /// The daemon, as its file says.
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

    /// A client that has asked to be let in.
    pub(crate) fn client(&self) -> Client {
        let socket = self.connect();
        Message::new(Kind::MpsEnter, &[1])
            .send(&socket, SendFlags::empty())
            .unwrap();
        Client { socket }
    }

    /// A process that is a client, of a user.
    pub(crate) fn process(&self, uid: Option<u32>) -> Process {
        self.process_that_says(uid, "")
    }

    /// A process that is a client, or a front end that says something.
    pub(crate) fn process_that_says(&self, uid: Option<u32>, line: &str) -> Process {
        let mut program = std::env::current_exe().unwrap();
        if uid.is_some() {
            // Where the test's executable lies, another user may not look.
            let copy = self.folder.path().join("client");
            // Another process writes it: a file that this one has open for writing is for a moment open in every child
            // that another test just starts, and cannot be run as long.
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

    /// What is in a log.
    pub(crate) fn logged(&self, name: &str) -> String {
        std::fs::read_to_string(self.log.join(name)).unwrap()
    }
}

impl Drop for Place {
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
    /// What the daemon says; `None`: it has ended the connection.
    pub(crate) fn answer(&self) -> Option<Message> {
        readable(&self.socket);
        match Message::receive(&self.socket, RecvFlags::empty()) {
            Ok(message) => Some(message),
            Err(MessageError::Closed) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The daemon lets it in.
    pub(crate) fn entered(self) -> Self {
        let answer = self.answer().unwrap();
        assert_eq!((answer.kind, answer.error), (Kind::MpsEnter, 0));
        self
    }

    /// The daemon does not let it in.
    pub(crate) fn refused(&self) -> u32 {
        self.answer().unwrap().error
    }

    /// Whether nothing has come so far.
    pub(crate) fn waits(&self) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&now)).unwrap() == 0
    }
}

/// The test that is a client's process.
const CLIENT: &str = "a_client_of_its_own_process";
const IS_CLIENT: &str = "SOFTGPU_TEST_CLIENT";

/// What a process of [`Place::process`] does.
pub(crate) fn be_client() {
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

/// A process that is a client.
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

    /// Waits until it says this.
    pub(crate) fn says(&mut self, text: &str) {
        let mut line = String::new();
        while line.trim() != text {
            line.clear();
            assert_ne!(
                self.output.read_line(&mut line).unwrap(),
                0,
                "it has not said: {text}"
            );
        }
    }

    /// It ends by itself.
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

/// Whether a process is gone, or is a zombie that nobody has waited for.
pub(crate) fn is_gone(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    test_kill_process(as_pid(pid)).is_err() || state.contains(") Z ")
}
