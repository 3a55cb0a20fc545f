//! Messages of the agent on the present connection, read by whoever needs them first.
//!
//! [`crate::link`] waits for them. Once the user container has failed a request, the agent may have recalled the lease before, since a process of the pod
//! computes no more: what it has sent is read before the next request starts ([`crate::admission`]).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::message::MESSAGE_MAX;
use protocol::queue::ToQueue;
use rustix::net::{RecvFlags, recv};

/// Largest number of messages that are read at once, so that a flood holds up no request for long.
const MESSAGES_MAX: usize = 64;

/// The connection from which messages are read. A message is handled before the next one is read.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    socket: Option<Arc<OwnedFd>>,
    /// Reason for which the connection has ended, until the link takes it.
    ended: Option<io::Error>,
}

impl Inbox {
    /// Reads from a new connection from now on, or from none.
    pub(crate) fn set(&self, socket: Option<Arc<OwnedFd>>) {
        *self.lock() = State {
            socket,
            ended: None,
        };
    }

    /// Reads the messages that are there, without waiting for any, and passes each to `handle`.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] once all have been read; otherwise the reason for which the connection has ended, which is kept for
    /// [`Inbox::take_end`].
    pub(crate) fn read(&self, handle: impl Fn(&ToQueue)) -> io::Result<()> {
        let mut state = self.lock();
        if state.ended.is_some() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for _message in 0..MESSAGES_MAX {
            match state.next() {
                Ok(message) => handle(&message),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(error) => {
                    let kind = error.kind();
                    state.ended = Some(error);
                    return Err(kind.into());
                }
            }
        }
        Ok(())
    }

    /// Returns the reason for which the connection has ended, once.
    pub(crate) fn take_end(&self) -> Option<io::Error> {
        self.lock().ended.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Reads the next message.
    fn next(&self) -> io::Result<ToQueue> {
        let Some(socket) = &self.socket else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let mut bytes = [0; MESSAGE_MAX];
        let count = loop {
            match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((count, _)) => break count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let message = bytes.get(..count).unwrap_or_default();
        match ToQueue::read(message) {
            Ok(ToQueue::Refused { reason, text }) => {
                Err(io::Error::other(format!("refused: {text} ({reason:?})")))
            }
            Ok(message) => Ok(message),
            Err(malformed) => Err(io::Error::new(io::ErrorKind::InvalidData, malformed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use rustix::net::{
        AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair,
    };

    use super::*;

    fn connected() -> (Inbox, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let inbox = Inbox::default();
        inbox.set(Some(Arc::new(here)));
        (inbox, there)
    }

    fn sent(agent: &OwnedFd, message: &ToQueue) {
        send(agent, message.write().finish(), SendFlags::empty()).unwrap();
    }

    /// Reads what is there, and returns the epochs of the recalls in it.
    fn recalled(inbox: &Inbox) -> (Vec<u64>, io::Result<()>) {
        let epochs = RefCell::new(Vec::new());
        let read = inbox.read(|message| {
            if let ToQueue::Recall { epoch } = message {
                epochs.borrow_mut().push(*epoch);
            }
        });
        (epochs.into_inner(), read)
    }

    #[test]
    fn messages_are_read_in_their_order_and_not_waited_for() {
        let (inbox, agent) = connected();
        let (none, read) = recalled(&inbox);
        assert!(none.is_empty());
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        for epoch in [3, 5, 4] {
            sent(&agent, &ToQueue::Recall { epoch });
        }
        let (epochs, read) = recalled(&inbox);
        assert_eq!(epochs, [3, 5, 4]);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(inbox.take_end().is_none());
    }

    #[test]
    fn a_flood_is_read_in_parts() {
        let (inbox, agent) = connected();
        for epoch in 0..=64 {
            sent(&agent, &ToQueue::Recall { epoch });
        }
        let (epochs, read) = recalled(&inbox);
        assert!(epochs.len() == MESSAGES_MAX && read.is_ok());
        assert_eq!(recalled(&inbox).0, [64]);
    }

    #[test]
    fn the_end_of_a_connection_is_kept_for_the_link_whoever_reads_it() {
        let (inbox, agent) = connected();
        sent(&agent, &ToQueue::Recall { epoch: 1 });
        send(&agent, &[0xff], SendFlags::empty()).unwrap();
        let (epochs, read) = recalled(&inbox);
        assert_eq!(epochs, [1]);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidData);
        let ended = inbox.take_end().unwrap();
        assert_eq!(ended.kind(), io::ErrorKind::InvalidData);
        let (inbox, agent) = connected();
        shutdown(&agent, Shutdown::Both).unwrap();
        let (_, read) = recalled(&inbox);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        inbox.set(None);
        let (_, read) = recalled(&inbox);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
