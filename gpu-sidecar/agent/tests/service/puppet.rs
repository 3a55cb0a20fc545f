//! A scripted process: a connection to the service driven by a test.

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

use crate::node::{UUID, now_ns};
use testing::until;

const VARIABLE: &str = "WEIR_TEST_CHILD";

/// A connection with its pages.
#[derive(Debug)]
pub(crate) struct Puppet {
    connection: OwnedFd,
    pages: Option<(View<Orders>, View<Facts>)>,
    /// Last even epoch that was returned, or up to which there was no token.
    returned: u64,
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
    /// Connects from the test's own process.
    pub(crate) fn new(socket: &Path) -> Self {
        Self::of(dial(socket))
    }

    fn of(connection: OwnedFd) -> Self {
        Self {
            connection,
            pages: None,
            returned: 0,
        }
    }

    pub(crate) fn send(&self, message: &FromProcess) -> bool {
        self.send_raw(message.write().finish())
    }

    pub(crate) fn send_raw(&self, bytes: &[u8]) -> bool {
        send(&self.connection, bytes, SendFlags::NOSIGNAL).is_ok()
    }

    /// Receives a message and its files within `milliseconds`. `Err(false)`: none arrived; `Err(true)`: the connection has
    /// ended.
    pub(crate) fn receive(&self, milliseconds: i64) -> Result<(FromAgent, Vec<OwnedFd>), bool> {
        let (bytes, files) = receive(&self.connection, milliseconds).ok_or(false)?;
        if bytes.is_empty() {
            return Err(true);
        }
        Ok((FromAgent::read(&bytes).unwrap(), files))
    }

    pub(crate) fn answer(&self) -> FromAgent {
        self.receive(20_000).expect("no answer").0
    }

    /// Waits until the connection has ended, and discards received messages.
    pub(crate) fn wait_ended(&self) {
        while !matches!(self.receive(20_000), Err(true)) {}
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
        assert!(self.send(&hello(again, open, busy_ns, bytes_used)));
        self.answer()
    }

    /// Requests pages as an MPS client.
    pub(crate) fn attach(&mut self) -> Result<(), FromAgent> {
        self.attach_with(UUID, 1, true)
    }

    pub(crate) fn attach_with(
        &mut self,
        uuid: [u8; 16],
        multiprocessors: u32,
        mps: bool,
    ) -> Result<(), FromAgent> {
        assert!(self.send(&attach(uuid, multiprocessors, mps)));
        let (message, files) = self.receive(20_000).expect("no pages");
        if message != FromAgent::Pages {
            return Err(message);
        }
        let [orders, facts] = files.as_slice() else {
            panic!("expected two files");
        };
        self.pages = Some((
            open_orders(orders.as_fd()).unwrap(),
            open_facts(facts.as_fd()).unwrap(),
        ));
        // A new gate begins above all epochs of earlier ones, without a token unless it is open.
        let epoch = self.epoch();
        self.returned = if epoch & 1 == 1 { epoch - 1 } else { epoch - 2 };
        Ok(())
    }

    pub(crate) fn attached(socket: &Path) -> Self {
        Self::new(socket).greet_and_attach()
    }

    pub(crate) fn greet_and_attach(mut self) -> Self {
        let welcome = self.hello();
        assert!(matches!(welcome, FromAgent::Welcome { .. }), "{welcome:?}");
        self.attach().unwrap();
        self
    }

    pub(crate) fn reattach(mut self, open: bool, bytes: u64) -> Self {
        let welcome = self.hello_with(true, open, 0, bytes);
        assert!(matches!(welcome, FromAgent::Welcome { .. }), "{welcome:?}");
        self.attach().unwrap();
        if open {
            // Its gate was open at first, even if it has been ordered to close since.
            self.returned = (self.epoch() & !1) - 2;
        }
        self
    }

    /// Reports work in flight that outlasts every test.
    pub(crate) fn report_work(&self) {
        self.report_work_of(Duration::from_secs(1_000));
    }

    /// Reports that work of this duration has just begun.
    pub(crate) fn report_work_of(&self, span: Duration) {
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

    pub(crate) fn request_token(&self) {
        self.send(&FromProcess::Ask {
            epoch: self.epoch(),
        });
    }

    /// Returns the even epoch of a token that is held or not yet returned.
    pub(crate) fn held(&self) -> Option<u64> {
        let epoch = self.epoch() & !1;
        (epoch > self.returned).then_some(epoch)
    }

    pub(crate) fn give_back(&mut self) -> bool {
        let Some(epoch) = self.held() else {
            return false;
        };
        self.returned = epoch;
        self.send(&FromProcess::Closed { epoch })
    }
}

pub(crate) fn hello(again: bool, open: bool, busy_ns: u64, bytes_used: u64) -> FromProcess {
    FromProcess::Hello {
        version: protocol::VERSION,
        residency: protocol::page::Residency::None,
        host_bytes: 0,
        pinned_bytes: 0,
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

/// A child process which connects on command and passes the connection to the test, which uses it on the child's behalf.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    child: Child,
    line: OwnedFd,
}

impl ChildProcess {
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
        let (_, mut files) = receive(&self.line, 20_000).expect("no connection");
        Puppet::of(files.pop().expect("no connection"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid().cast_signed()).unwrap(), signal).unwrap();
    }

    /// Kills the process and waits until it is dead; it is not reaped yet.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
        until("the death", || (!self.is_alive()).then_some(()));
    }

    pub(crate) fn is_alive(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        stat.is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _dead = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Main function of a child process: connects for each byte received on standard input.
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
