//! Connection of the queue of a pod's requests.

use std::os::fd::OwnedFd;

use agent_core::Pod;
use protocol::queue::{FromQueue, ToQueue};
use rustix::net::{SendFlags, send};

use super::connection::{Received, belongs, receive};

/// Connection of a pod's queue.
#[derive(Debug)]
pub(super) struct QueueConnection(OwnedFd);

impl QueueConnection {
    pub(super) const fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Returns whether the connecting process belongs to a pod, as far as that can be examined.
    pub(super) fn belongs(socket: &OwnedFd, pod: &Pod) -> bool {
        let credentials = rustix::net::sockopt::socket_peercred(socket);
        credentials.is_ok_and(|own| belongs(pod, own.pid.as_raw_pid().cast_unsigned()))
    }

    pub(super) const fn socket(&self) -> &OwnedFd {
        &self.0
    }

    /// Reads the next message without blocking.
    pub(super) fn next(&self) -> Received<FromQueue> {
        receive(&self.0, FromQueue::read)
    }

    /// Sends a message without blocking. Returns `false` when the socket buffer is full or the connection has ended.
    pub(super) fn send(&self, message: &ToQueue) -> bool {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        send(&self.0, message.write().finish(), flags).is_ok()
    }
}
