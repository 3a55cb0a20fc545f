//! Hindrances which keep a pod from using its tokens: it is stopped and continued, throttled by a cgroup, or requests tokens
//! without launching.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, bail};
use protocol::message::{FromAgent, FromProcess, MESSAGE_MAX};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, recvmsg, send, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};

/// Period of a cgroup's CPU limit, as the kubelet sets it, in µs.
const PERIOD_US: u64 = 100_000;
/// Longest wait for the agent's answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A cause for which a pod does not use its tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Hindrance {
    /// The pod repeatedly runs for the time `runs`, and is then stopped by a signal for the time `stands`.
    Stopped { runs: Duration, stands: Duration },
    /// The pod shares a cgroup with a busy program; the cgroup has this share of a CPU.
    Throttled { cpus: f64 },
    /// The pod repeatedly connects, requests a token, never launches, and hangs up after this time.
    Asks { holds: Duration },
}

/// A hindrance in effect on a program; dropping it ends the effect.
#[derive(Debug)]
#[expect(
    dead_code,
    reason = "the fields end the hindrance when they are dropped"
)]
pub(crate) enum ActiveHindrance {
    Signals(Loop),
    Cgroup(Cgroup),
    Asks(Loop),
}

/// Connection details of a pod's socket.
#[derive(Debug, Clone)]
pub(crate) struct PodSocket {
    pub(crate) path: PathBuf,
    pub(crate) multiprocessors: u32,
}

impl Hindrance {
    /// Applies the hindrance to the program with this PID.
    pub(crate) fn begin(self, pid: u32, pod_socket: &PodSocket) -> anyhow::Result<ActiveHindrance> {
        match self {
            Self::Stopped { runs, stands } => {
                let program = Pid::from_raw(i32::try_from(pid)?).context("invalid PID")?;
                Ok(ActiveHindrance::Signals(Loop::start(move |ended| {
                    while !ended.is_set() {
                        ended.wait(runs);
                        if kill_process(program, Signal::STOP).is_err() {
                            return;
                        }
                        ended.wait(stands);
                        let _gone = kill_process(program, Signal::CONT);
                    }
                })?))
            }
            Self::Throttled { cpus } => Cgroup::new(pid, cpus).map(ActiveHindrance::Cgroup),
            Self::Asks { holds } => {
                let pod_socket = pod_socket.clone();
                // The first request is made here, so that an error is reported.
                let first = asks(&pod_socket)?;
                Ok(ActiveHindrance::Asks(Loop::start(move |ended| {
                    let mut connection = Some(first);
                    while !ended.is_set() {
                        ended.wait(holds);
                        drop(connection.take());
                        connection = asks(&pod_socket).ok();
                    }
                })?))
            }
        }
    }
}

/// Flag which ends a thread.
#[derive(Debug, Default)]
struct StopFlag {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl StopFlag {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_set(&self) -> bool {
        *self.lock()
    }

    fn set(&self) {
        *self.lock() = true;
        self.changed.notify_all();
    }

    /// Blocks for this span, or until the flag is set.
    fn wait(&self, span: Duration) {
        let is_set = self.lock();
        let _guard = self
            .changed
            .wait_timeout_while(is_set, span, |is_set| !*is_set);
    }
}

/// A background thread, stopped and joined on drop.
#[derive(Debug)]
pub(crate) struct Loop {
    ended: Arc<StopFlag>,
    thread: Option<JoinHandle<()>>,
}

impl Loop {
    fn start(body: impl FnOnce(&StopFlag) + Send + 'static) -> anyhow::Result<Self> {
        let ended = Arc::new(StopFlag::default());
        let own = Arc::clone(&ended);
        let thread = std::thread::Builder::new()
            .name("hindrance".to_owned())
            .spawn(move || body(&own))
            .context("cannot start a thread")?;
        Ok(Self {
            ended,
            thread: Some(thread),
        })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.ended.set();
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// A cgroup with a CPU limit, and the busy program in it.
#[derive(Debug)]
pub(crate) struct Cgroup {
    folder: PathBuf,
    busy: Child,
}

impl Cgroup {
    fn new(pid: u32, cpus: f64) -> anyhow::Result<Self> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "0 to 1 of a tenth of a second in µs"
        )]
        let quota = (cpus * PERIOD_US as f64).round() as u64;
        let (v1, v2) = (Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup"));
        let is_v2 = v2.join("cgroup.controllers").exists();
        let name = format!("weir-demo-{}-{pid}", std::process::id());
        let folder = if is_v2 { v2.join(name) } else { v1.join(name) };
        let needs = || {
            format!(
                "{}: a pod with cpu= needs root and a cgroup file system with the controller cpu",
                folder.display()
            )
        };
        fs::create_dir(&folder).with_context(needs)?;
        let busy = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .stdin(Stdio::null())
            .spawn();
        let own = Self {
            folder: folder.clone(),
            busy: busy.context("cannot start sh")?,
        };
        let limits = if is_v2 {
            vec![("cpu.max", format!("{quota} {PERIOD_US}"))]
        } else {
            vec![
                ("cpu.cfs_period_us", PERIOD_US.to_string()),
                ("cpu.cfs_quota_us", quota.to_string()),
            ]
        };
        for (file, value) in limits {
            fs::write(folder.join(file), value).with_context(needs)?;
        }
        for pid in [pid, own.busy.id()] {
            fs::write(folder.join("cgroup.procs"), pid.to_string()).with_context(needs)?;
        }
        Ok(own)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _killed = self.busy.kill();
        let _status = self.busy.wait();
        // The hindered program is moved out, so that it can end without the limit.
        if let Some(parent) = self.folder.parent() {
            let members = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
            for pid in members.lines() {
                let _moved = fs::write(parent.join("cgroup.procs"), pid);
            }
        }
        let _removed = fs::remove_dir(&self.folder);
    }
}

/// Connects as the pod and requests a token.
fn asks(pod_socket: &PodSocket) -> anyhow::Result<OwnedFd> {
    let connection = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    connect(&connection, &SocketAddrUnix::new(&pod_socket.path)?)
        .context("cannot connect to the agent")?;
    send_message(
        &connection,
        &FromProcess::Hello {
            version: protocol::VERSION,
            residency: protocol::page::Residency::None,
            host_bytes: 0,
            pinned_bytes: 0,
            pid: std::process::id(),
            again: false,
            open: false,
            busy_ns: 0,
            ungated_ns: 0,
            bytes_used: 0,
            program: "asks".to_owned(),
        },
    )?;
    let FromAgent::Welcome {
        visible_devices, ..
    } = receive_message(&connection)?
    else {
        bail!("the agent does not serve the program");
    };
    let uuid = uuid(&visible_devices)
        .with_context(|| format!("{visible_devices:?} is not a GPU's UUID"))?;
    send_message(
        &connection,
        &FromProcess::Attach {
            uuid,
            multiprocessors: pod_socket.multiprocessors,
            mps: true,
            context_bytes: 0,
            busy_ns: 0,
        },
    )?;
    match receive_message(&connection)? {
        FromAgent::Pages => {}
        FromAgent::Refused { text, .. } => bail!("the agent refuses the program: {text}"),
        other => bail!("unexpected answer of the agent: {other:?}"),
    }
    send_message(&connection, &FromProcess::Ask { epoch: 1 })?;
    Ok(connection)
}

fn send_message(connection: &OwnedFd, message: &FromProcess) -> anyhow::Result<()> {
    send(connection, message.write().finish(), SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_message(connection: &OwnedFd) -> anyhow::Result<FromAgent> {
    let mut ready = [PollFd::new(connection, PollFlags::IN)];
    let limit = Timespec::try_from(ANSWER_MAX)?;
    if poll(&mut ready, Some(&limit))? == 0 {
        bail!("the agent does not answer within {ANSWER_MAX:?}");
    }
    let mut bytes = [0; MESSAGE_MAX];
    // The received files of the pages are closed unread.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    let received = recvmsg(
        connection.as_fd(),
        &mut parts,
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let message = bytes.get(..received.bytes).unwrap_or_default();
    FromAgent::read(message).context("the agent's answer")
}

/// Parses a device's UUID from its text (`GPU-…`) to the driver's bytes.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let hexadecimal: String = text
        .strip_prefix("GPU-")?
        .chars()
        .filter(|character| *character != '-')
        .collect();
    if hexadecimal.len() != 32 || !hexadecimal.is_ascii() {
        return None;
    }
    let mut uuid = [0; 16];
    for (at, byte) in uuid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hexadecimal.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(uuid)
}
