//! A process that does what a test says, and nothing else.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use agent_pages::{View, open_facts, open_orders};
use protocol::message::{FromAgent, FromProcess, MESSAGE_MAX};
use protocol::page::{Facts, Orders};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
    send, sendmsg, socket_with, socketpair,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::node::{UUID, now_ns, until};

const VARIABLE: &str = "WEIR_TEST_CHILD";

/// A connection, and its pages.
#[derive(Debug)]
pub(crate) struct Puppet {
    connection: OwnedFd,
    pages: Option<(View<Orders>, View<Facts>)>,
    /// The last even epoch that was given back.
    given_back: u64,
}

fn dial(path: &Path) -> OwnedFd {
    let connection = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    connect(&connection, &SocketAddrUnix::new(path).unwrap()).unwrap();
    connection
}

fn receive(socket: &OwnedFd, milliseconds: i64) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    let patience = Timespec {
        tv_sec: milliseconds / 1_000,
        tv_nsec: milliseconds % 1_000 * 1_000_000,
    };
    if poll(&mut fds, Some(&patience)).unwrap() == 0 {
        return None;
    }
    let mut bytes = vec![0; MESSAGE_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let read = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_or(0, |received| received.bytes);
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    bytes.truncate(read);
    Some((bytes, files))
}

impl Puppet {
    /// One of the test's own process.
    pub(crate) fn new(socket: &Path) -> Self {
        Self::of(dial(socket))
    }

    fn of(connection: OwnedFd) -> Self {
        Self {
            connection,
            pages: None,
            given_back: 0,
        }
    }

    pub(crate) fn say(&self, message: &FromProcess) -> bool {
        self.raw(message.write().finish())
    }

    pub(crate) fn raw(&self, bytes: &[u8]) -> bool {
        send(&self.connection, bytes, SendFlags::NOSIGNAL).is_ok()
    }

    /// What comes within that time. `Err(true)`: the connection has ended.
    pub(crate) fn hear(&self, milliseconds: i64) -> Result<(FromAgent, Vec<OwnedFd>), bool> {
        let (bytes, files) = receive(&self.connection, milliseconds).ok_or(false)?;
        if bytes.is_empty() {
            return Err(true);
        }
        Ok((FromAgent::read(&bytes).unwrap(), files))
    }

    pub(crate) fn answer(&self) -> FromAgent {
        self.hear(20_000).expect("an answer").0
    }

    /// Until the connection has ended; whatever else comes is left.
    pub(crate) fn ended(&self) {
        while !matches!(self.hear(20_000), Err(true)) {}
    }

    pub(crate) fn hello(&self) -> FromAgent {
        self.hello_with(false, false, 0, 0)
    }

    pub(crate) fn hello_with(
        &self,
        again: bool,
        open: bool,
        busy_ns: u64,
        bytes_used: u64,
    ) -> FromAgent {
        assert!(self.say(&hello(again, open, busy_ns, bytes_used)));
        self.answer()
    }

    /// Asks for pages as a client of MPS.
    pub(crate) fn attach(&mut self) -> Result<(), FromAgent> {
        self.attach_with(UUID, 1, true)
    }

    pub(crate) fn attach_with(
        &mut self,
        uuid: [u8; 16],
        multiprocessors: u32,
        mps: bool,
    ) -> Result<(), FromAgent> {
        assert!(self.say(&attach(uuid, multiprocessors, mps)));
        let (message, files) = self.hear(20_000).expect("pages");
        if message != FromAgent::Pages {
            return Err(message);
        }
        let [orders, facts] = files.as_slice() else {
            panic!("two files");
        };
        self.pages = Some((
            open_orders(orders.as_fd()).unwrap(),
            open_facts(facts.as_fd()).unwrap(),
        ));
        Ok(())
    }

    pub(crate) fn begun(socket: &Path) -> Self {
        Self::new(socket).begin()
    }

    pub(crate) fn begin(mut self) -> Self {
        let welcome = self.hello();
        assert!(matches!(welcome, FromAgent::Welcome { .. }), "{welcome:?}");
        self.attach().unwrap();
        self
    }

    pub(crate) fn begin_again(mut self, open: bool, bytes: u64) -> Self {
        let welcome = self.hello_with(true, open, 0, bytes);
        assert!(matches!(welcome, FromAgent::Welcome { .. }), "{welcome:?}");
        self.attach().unwrap();
        self
    }

    /// Says that work is in flight, and will be for longer than any test lasts.
    pub(crate) fn claims_work(&self) {
        self.claims_work_of(Duration::from_secs(1_000));
    }

    /// Says that work of that length has just begun.
    pub(crate) fn claims_work_of(&self, span: Duration) {
        let us = u32::try_from(span.as_micros()).unwrap();
        self.facts().inflight_us.store(us, Ordering::Release);
        self.facts().busy_since.store(now_ns(), Ordering::Release);
    }

    pub(crate) fn orders(&self) -> &Orders {
        &self.pages.as_ref().unwrap().0
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.pages.as_ref().unwrap().1
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.orders().gate.epoch()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.epoch() & 1 == 0
    }

    pub(crate) fn wait_open(&self) -> u64 {
        until("a token", || {
            Some(self.epoch()).filter(|epoch| epoch & 1 == 0)
        })
    }

    pub(crate) fn wait_shut(&self) -> u64 {
        until("the gate to shut", || {
            Some(self.epoch()).filter(|epoch| epoch & 1 == 1)
        })
    }

    pub(crate) fn ask(&self) {
        self.say(&FromProcess::Ask {
            epoch: self.epoch(),
        });
    }

    /// The even epoch that it holds, or has held and not given back.
    pub(crate) fn held(&self) -> Option<u64> {
        let epoch = self.epoch() & !1;
        (epoch > self.given_back).then_some(epoch)
    }

    pub(crate) fn give_back(&mut self) -> bool {
        let Some(epoch) = self.held() else {
            return false;
        };
        self.given_back = epoch;
        self.say(&FromProcess::Closed { epoch })
    }
}

pub(crate) fn hello(again: bool, open: bool, busy_ns: u64, bytes_used: u64) -> FromProcess {
    FromProcess::Hello {
        pid: 1,
        again,
        open,
        busy_ns,
        ungated_ns: 0,
        bytes_used,
        program: "puppet".to_owned(),
    }
}

pub(crate) fn attach(uuid: [u8; 16], multiprocessors: u32, mps: bool) -> FromProcess {
    FromProcess::Attach {
        uuid,
        multiprocessors,
        mps,
        context_bytes: 0,
        busy_ns: 0,
    }
}

/// A process of its own. It connects when it is told, and hands the connection to the test, which speaks in its name.
#[derive(Debug)]
pub(crate) struct Other {
    child: Child,
    line: OwnedFd,
}

impl Other {
    pub(crate) fn new(socket: &Path) -> Self {
        let (line, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, socket)
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, line }
    }

    pub(crate) fn connect(&self) -> Puppet {
        send(&self.line, b"c", SendFlags::NOSIGNAL).unwrap();
        let (_, mut files) = receive(&self.line, 20_000).expect("a connection");
        Puppet::of(files.pop().expect("a connection"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid().cast_signed()).unwrap(), signal).unwrap();
    }

    /// Ends it as an operator would, and does not come back before it is dead. Nobody has taken notice of its death yet.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
        until("the death", || (!self.lives()).then_some(()));
    }

    pub(crate) fn lives(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        stat.is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _dead = self.child.kill();
        let _status = self.child.wait();
    }
}

/// What such a process does.
pub(crate) fn child() {
    let Some(socket) = std::env::var_os(VARIABLE) else {
        return;
    };
    let line = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    while let Some((bytes, _)) = receive(&line, 600_000) {
        if bytes.is_empty() {
            return;
        }
        let connection = dial(Path::new(&socket));
        let files = [connection.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        sendmsg(
            &line,
            &[IoSlice::new(b"c")],
            &mut control,
            SendFlags::NOSIGNAL,
        )
        .unwrap();
    }
}
