//! Connections of the daemon's clients and front ends.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::net::sockopt::socket_peercred;
use softgpu_wire::message::{Kind, Message};

use crate::front::{ENDED, MORE};

/// Largest part of an answer in one message, in bytes.
const CHUNK: usize = 32 * 1024;

/// Number of a connection, in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PeerId(pub(super) u64);

/// Role of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The peer has sent no request yet, and must before the deadline.
    New { until: Instant },
    /// A process that waits for admission.
    Pending,
    /// A client of the server with this PID.
    Client { server: u32 },
    /// A front end; while `is_waiting` for an answer, its commands are not read.
    Front { is_waiting: bool },
}

/// A connected client or front end.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) socket: OwnedFd,
    pub(super) role: Role,
    /// PID from the kernel; 0 for a process outside of this PID namespace.
    pub(super) pid: u32,
    pub(super) uid: u32,
    /// Messages still to be sent.
    out: VecDeque<Message>,
}

impl Peer {
    /// Creates a peer that has sent no request.
    ///
    /// # Errors
    /// Fails when the kernel does not provide its credentials.
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

    /// Sends a message, or queues it while the peer does not read.
    pub(super) fn send(&mut self, message: Message) {
        self.out.push_back(message);
        self.flush();
    }

    /// Sends the output of a command in chunks; `has_ended` marks the end of the daemon.
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

    /// Sends queued messages as far as the peer reads them. A closed connection is detected when it is read.
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

    /// Returns whether messages are queued.
    pub(super) fn has_more(&self) -> bool {
        !self.out.is_empty()
    }

    /// Returns whether requests of the peer may be read: not before it has its answer.
    pub(super) fn may_be_read(&self) -> bool {
        !self.has_more() && self.role != Role::Front { is_waiting: true }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn a_long_answer_is_sent_in_parts_as_the_peer_reads() {
        let flags = SocketFlags::CLOEXEC;
        let (ours, server_socket) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut peer = Peer::new(ours, Instant::now()).unwrap();
        assert_eq!(peer.pid, std::process::id());
        let text = "0123456789abcde\n".repeat(1 << 16);
        peer.answer(&text, false);
        assert!(peer.has_more() && !peer.may_be_read());
        let mut came = Vec::new();
        loop {
            peer.flush();
            let part = Message::receive(&server_socket, RecvFlags::empty()).unwrap();
            came.extend(part.bytes);
            if part.words[0] != MORE {
                break;
            }
        }
        assert!(came == text.as_bytes() && peer.may_be_read());
        // Messages to a closed connection are dropped.
        drop(server_socket);
        peer.answer(&text, true);
        assert!(!peer.has_more());
    }
}
