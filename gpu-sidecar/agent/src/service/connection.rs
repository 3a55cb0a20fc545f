//! One process: its socket, its pages, and its pidfd.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Once;

use agent_core::{Facts, NewPages, Order, Peer, Pod};
use agent_pages::Page;
use protocol::message::{FromAgent, FromProcess, MESSAGE_MAX, Malformed};
use protocol::page;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg,
};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::futex;

use super::roster;

/// Time for which a process that reads slowly is waited for.
const SEND_SPAN: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// Whether it was reported that host memory cannot be placed.
static UNPLACED: Once = Once::new();

/// Input and output of one process, from its connection until it is forgotten.
#[derive(Debug)]
pub(super) struct Connection {
    /// `None` after the connection was closed, while the process is still alive.
    socket: Option<OwnedFd>,
    /// Identifies the process even after its ID is reused; `None` for a process of another PID namespace.
    pidfd: Option<OwnedFd>,
    pid: u32,
    /// Version of the protocol that the process uses.
    version: Cell<u8>,
    pages: Option<Pages>,
}

/// Pages shared with a process.
#[derive(Debug)]
struct Pages {
    orders: Page<page::Orders>,
    facts: Page<page::Facts>,
    /// Number of stretches read so far.
    stretches_seen: u64,
}

/// Outcome of reading from a connection.
#[derive(Debug)]
pub(super) enum Received<Message = FromProcess> {
    /// A valid message from the peer.
    Message(Message),
    /// No message is available now.
    Nothing,
    /// A message that could not be parsed.
    Malformed(Malformed),
    /// The peer has closed the connection.
    End,
}

impl Connection {
    /// Identifies the process behind a connection of a pod.
    ///
    /// # Errors
    /// Returns an error when the process has ended already, or no file descriptor is left to watch it.
    pub(super) fn identify(socket: OwnedFd, pod: &Pod) -> io::Result<(Self, Peer)> {
        let credentials = rustix::net::sockopt::socket_peercred(&socket)?;
        let pid = credentials.pid.as_raw_pid().cast_unsigned();
        // A process of another PID namespace has no ID here.
        let number = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let pidfd = number
            .map(|number| pidfd_open(number, PidfdFlags::empty()))
            .transpose()?;
        let start = roster::start_of(pid);
        if pidfd.is_some() && start.is_none() {
            return Err(Errno::SRCH.into());
        }
        let peer = Peer {
            pid,
            start,
            is_watched: pidfd.is_some(),
            is_of_pod: belongs(pod, pid),
        };
        let connection = Self {
            socket: Some(socket),
            pidfd,
            pid,
            version: Cell::new(protocol::VERSION),
            pages: None,
        };
        Ok((connection, peer))
    }

    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    pub(super) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        self.socket = None;
    }

    /// Kills the process, if its pidfd is known.
    pub(super) fn kill(&self) {
        if let Some(pidfd) = &self.pidfd {
            let _dead = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }

    /// Reads the next message without blocking.
    pub(super) fn next(&self) -> Received {
        let Some(socket) = &self.socket else {
            return Received::Nothing;
        };
        let received = receive(socket, FromProcess::read);
        if let Received::Message(FromProcess::Hello { version, .. }) = received {
            self.version.set(version);
        }
        received
    }

    /// Sends a message without blocking. Returns `false` when the socket buffer is full or the connection has ended.
    pub(super) fn send(&self, message: &FromAgent) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        let mut writer = message.write();
        writer.set_version(self.version.get());
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        send(socket, writer.finish(), flags).is_ok()
    }

    /// Creates the pages and sends them to the process.
    ///
    /// # Errors
    /// Returns an error when the pages cannot be created or sent.
    pub(super) fn create_pages(&mut self, first: NewPages) -> io::Result<()> {
        let orders = Page::<page::Orders>::new()?;
        let facts = Page::<page::Facts>::new()?;
        first.write(&orders, &facts);
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let read_only = orders.read_only()?;
        let files = [read_only.as_fd(), facts.file()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let mut writer = FromAgent::Pages.write();
        writer.set_version(self.version.get());
        let part = [io::IoSlice::new(writer.finish())];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _bytes = sendmsg(socket, &part, &mut control, flags)?;
        self.pages = Some(Pages {
            orders,
            facts,
            stretches_seen: 0,
        });
        Ok(())
    }

    /// Creates host memory and sends it to the process, from a thread of its own: the kernel clears the pages, which takes a second for some
    /// gigabytes. They count for the agent, not for the pod. The thread calls `failed` if it cannot.
    ///
    /// # Errors
    /// Returns an error when there is no connection, or no thread can be created.
    pub(super) fn send_window(
        &self,
        bytes: u64,
        is_pinned: bool,
        nodes: Vec<u32>,
        failed: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let socket = socket.try_clone()?;
        let (pid, version) = (self.pid, self.version.get());
        let body = move || {
            if let Err(error) = window(&socket, version, bytes, is_pinned, &nodes) {
                tracing::warn!(pid, bytes, %error, "cannot give a process host memory");
                failed();
            }
        };
        let thread = std::thread::Builder::new().name("window".to_owned());
        thread.spawn(body).map(|_detached| ())
    }

    /// Writes to the page of orders, and wakes the threads which wait for it.
    pub(super) fn write(&self, order: Order) {
        if let Some(pages) = &self.pages
            && let Some(word) = order.write(&pages.orders)
        {
            let _woken = futex::wake(word, futex::Flags::empty(), i32::MAX.cast_unsigned());
        }
    }

    /// Reads the page of facts into `facts`. Returns `false` without pages.
    pub(super) fn read(&mut self, facts: &mut Facts) -> bool {
        let Some(pages) = &mut self.pages else {
            return false;
        };
        facts.read(&pages.facts, &mut pages.stretches_seen);
        true
    }
}

/// Reads the next message of a connection without blocking, and decodes it with `read`.
pub(super) fn receive<Message>(
    socket: &OwnedFd,
    read: impl Fn(&[u8]) -> Result<Message, Malformed>,
) -> Received<Message> {
    let mut bytes = [MaybeUninit::uninit(); MESSAGE_MAX];
    let received = recv(
        socket,
        &mut bytes[..],
        RecvFlags::DONTWAIT | RecvFlags::TRUNC,
    );
    match received {
        Ok((_, 0)) => Received::End,
        Ok((_, whole)) if whole > MESSAGE_MAX => Received::Malformed(Malformed::Length),
        Ok(((bytes, _), _)) => read(bytes).map_or_else(Received::Malformed, Received::Message),
        Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
        Err(_) => Received::End,
    }
}

/// Creates host memory, whose pages are there, and sends it.
fn window(
    socket: &OwnedFd,
    version: u8,
    bytes: u64,
    is_pinned: bool,
    nodes: &[u32],
) -> io::Result<()> {
    let agent_pages::HostMemory { file, unplaced } = agent_pages::host_memory(bytes, nodes)?;
    if let Some(error) = unplaced {
        // What is so for one is so for all.
        UNPLACED.call_once(|| {
            tracing::warn!(?nodes, %error, "cannot place host memory on the NUMA nodes of a GPU, so that copies may be slower; \
                 where it is not permitted, run the agent with CAP_SYS_NICE");
        });
    }
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let mut writer = FromAgent::HostWindow { bytes, is_pinned }.write();
    writer.set_version(version);
    let part = [io::IoSlice::new(writer.finish())];
    loop {
        match sendmsg(socket, &part, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::AGAIN) => {
                // The process reads slowly.
                let mut writable = [PollFd::new(socket, PollFlags::OUT)];
                if poll(&mut writable, Some(&SEND_SPAN))? == 0 {
                    return Err(Errno::AGAIN.into());
                }
            }
            Err(Errno::INTR) => {}
            sent => return sent.map(|_bytes| ()).map_err(io::Error::from),
        }
    }
}

/// Returns whether a process belongs to a pod: it does when it is in the pod's cgroup, as far as both are known. The peer has
/// the pod's socket mounted, so without pod cgroups the socket alone identifies the pod.
pub(super) fn belongs(pod: &Pod, pid: u32) -> bool {
    let Some(uid) = &pod.uid else { return true };
    match crate::identity::pod_uid_of(pid) {
        Ok(Some(own)) => own == *uid,
        Ok(None) => true,
        // The process has ended, or its cgroup is unreadable.
        Err(_) => false,
    }
}
