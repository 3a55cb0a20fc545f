//! Who is connected to the daemon.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::net::sockopt::socket_peercred;
use softgpu_wire::message::{Kind, Message};

use crate::front::{ENDED, MORE};

/// Bytes of an answer in one message, at most.
const CHUNK: usize = 32 * 1024;

/// A connection, by its place in the order in which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PeerId(pub(super) u64);

/// What a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It has not said, and has to until then.
    New { until: Instant },
    /// A process that waits to be let in.
    Pending,
    /// A client of the server with this PID.
    Client { server: u32 },
    /// A front end; `is_waiting`: for an answer, until which it is not listened to.
    Front { is_waiting: bool },
}

/// A connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) socket: OwnedFd,
    pub(super) role: Role,
    /// As the kernel says; 0: a process that this PID namespace does not see.
    pub(super) pid: u32,
    pub(super) uid: u32,
    /// What it is still to be sent.
    out: VecDeque<Message>,
}

impl Peer {
    /// A peer that has not said anything.
    ///
    /// # Errors
    /// It cannot be known who it is.
    pub(super) fn new(socket: OwnedFd, until: Instant) -> Result<Self, Errno> {
        let credentials = socket_peercred(&socket)?;
        Ok(Self {
            socket,
            role: Role::New { until },
            pid: u32::try_from(credentials.pid.as_raw_pid()).unwrap_or_default(),
            uid: credentials.uid.as_raw(),
            out: VecDeque::new(),
        })
    }

    /// Sends a message, later if it has to be.
    pub(super) fn send(&mut self, message: Message) {
        self.out.push_back(message);
        self.flush();
    }

    /// Sends what a command printed; `has_ended`: the daemon ends.
    pub(super) fn answer(&mut self, text: &str, has_ended: bool) {
        let mut chunks = text.as_bytes().chunks(CHUNK).peekable();
        loop {
            let chunk = chunks.next().unwrap_or_default().to_vec();
            let more = if chunks.peek().is_some() { MORE } else { 0 };
            let ended = if has_ended { ENDED } else { 0 };
            let message = Message::new(Kind::MpsCommand, &[more, ended]).with_bytes(chunk);
            self.out.push_back(message);
            if more != MORE {
                break;
            }
        }
        self.flush();
    }

    /// Sends what is still to be sent, as far as the peer takes it. One that is gone is seen when it is read.
    pub(super) fn flush(&mut self) {
        while let Some(message) = self.out.front() {
            match message.send(&self.socket, SendFlags::DONTWAIT) {
                Ok(()) => {
                    self.out.pop_front();
                }
                Err(Errno::AGAIN | Errno::NOBUFS) => return,
                Err(_) => self.out.clear(),
            }
        }
    }

    /// Whether something is still to be sent.
    pub(super) fn has_more(&self) -> bool {
        !self.out.is_empty()
    }

    /// Whether it is to be listened to: not before it has its answer.
    pub(super) fn is_heard(&self) -> bool {
        !self.has_more() && self.role != Role::Front { is_waiting: true }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn a_long_answer_comes_in_parts_as_the_peer_takes_them() {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut peer = Peer::new(ours, Instant::now()).unwrap();
        assert_eq!(peer.pid, std::process::id());
        let text = "0123456789abcde\n".repeat(1 << 16);
        peer.answer(&text, false);
        assert!(peer.has_more() && !peer.is_heard());
        let mut came = Vec::new();
        loop {
            peer.flush();
            let part = Message::receive(&theirs, RecvFlags::empty()).unwrap();
            came.extend(part.bytes);
            if part.words[0] != MORE {
                break;
            }
        }
        assert!(came == text.as_bytes() && peer.is_heard());
        // What one that is gone was to be sent is forgotten.
        drop(theirs);
        peer.answer(&text, true);
        assert!(!peer.has_more());
    }
}
