//! The agent's side of the socket for leases, in the hands of a test.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use protocol::message::MESSAGE_MAX;
use protocol::queue::{FromQueue, ToQueue};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with,
    bind, listen, recv, send, socket_with,
};
use tempfile::TempDir;
use tests::PATIENCE;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Number of messages that wait for the test.
const MESSAGES_MAX: usize = 64;

/// An agent that has one queue.
#[derive(Debug)]
pub(crate) struct Agent {
    folder: TempDir,
    listener: Option<OwnedFd>,
    queue: Option<OwnedFd>,
    messages: mpsc::Receiver<FromQueue>,
    sender: mpsc::Sender<FromQueue>,
}

impl Agent {
    /// Creates the socket.
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let flags = SocketFlags::CLOEXEC;
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let address = SocketAddrUnix::new(folder.path().join("queue.sock")).unwrap();
        bind(&listener, &address).unwrap();
        listen(&listener, 4).unwrap();
        let (sender, messages) = mpsc::channel(MESSAGES_MAX);
        Self {
            folder,
            listener: Some(listener),
            queue: None,
            messages,
            sender,
        }
    }

    /// Returns the path of the socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("queue.sock")
    }

    /// Waits for a queue-proxy's greeting, and welcomes it as the pod with this UID. Returns the address that it states.
    pub(crate) async fn welcome(&mut self, uid: &str) -> (String, u32) {
        let listener = self.listener.take().unwrap();
        let accepting = tokio::task::spawn_blocking(move || {
            let accepted = acceptfrom_with(&listener, SocketFlags::CLOEXEC).unwrap().0;
            (listener, accepted)
        });
        let (listener, queue) = timeout(PATIENCE, accepting).await.unwrap().unwrap();
        self.listener = Some(listener);
        let (reading, sender) = (queue.try_clone().unwrap(), self.sender.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; MESSAGE_MAX];
            while let Ok((count @ 1.., _)) = recv(&reading, &mut bytes[..], RecvFlags::empty()) {
                let message = FromQueue::read(&bytes[..count]).expect("a message of a queue");
                if sender.blocking_send(message).is_err() {
                    return;
                }
            }
        });
        self.queue = Some(queue);
        let FromQueue::Hello { address, port, .. } = self.next().await else {
            panic!("the first message is a greeting");
        };
        self.send(&ToQueue::Welcome {
            uid: uid.to_owned(),
        });
        (address, port)
    }

    /// Sends a message to the queue.
    pub(crate) fn send(&self, message: &ToQueue) {
        let mut writer = message.write();
        let queue = self.queue.as_ref().unwrap();
        send(queue, writer.finish(), SendFlags::NOSIGNAL).unwrap();
    }

    /// Returns the next message of the queue.
    pub(crate) async fn next(&mut self) -> FromQueue {
        let next = timeout(PATIENCE, self.messages.recv()).await;
        next.expect("the queue states something").unwrap()
    }

    /// Returns whether the queue states nothing for a while.
    pub(crate) async fn hears_nothing(&mut self) -> bool {
        timeout(Duration::from_millis(100), self.messages.recv())
            .await
            .is_err()
    }

    /// Waits for a head, and returns its number and whether it may be forwarded.
    pub(crate) async fn head(&mut self) -> (u64, bool) {
        loop {
            match self.next().await {
                FromQueue::Head {
                    seq,
                    waiting: 1..,
                    may_move,
                    ..
                } => return (seq, may_move),
                FromQueue::Head { .. } | FromQueue::Idle { .. } => {}
                other => panic!("{other:?} instead of a head"),
            }
        }
    }

    /// Waits for a head that may be forwarded, and names an instance at a port of 127.0.0.1 for it. Returns its number.
    pub(crate) async fn forwards_to(&mut self, port: u16) -> u64 {
        let (seq, may_move) = self.head().await;
        assert!(may_move);
        self.names(seq, port);
        seq
    }

    /// Names an instance for a head.
    pub(crate) fn names(&self, seq: u64, port: u16) {
        self.send(&ToQueue::Sibling {
            seq,
            uid: SIBLING.to_owned(),
            address: "127.0.0.1".to_owned(),
            port: port.into(),
            revision: "revision-00002".to_owned(),
        });
    }

    /// Grants the lease.
    pub(crate) fn lease(&self) {
        self.send(&ToQueue::Lease { epoch: 1 });
    }

    /// Waits until a head counts as not served by the sibling. Returns whether that has refused it.
    pub(crate) async fn returned(&mut self, number: u64) -> bool {
        loop {
            match self.next().await {
                FromQueue::Returned { seq, is_refused } if seq == number => return is_refused,
                FromQueue::Head { waiting: 0, .. } => {}
                other => panic!("{other:?} instead of {number} returned"),
            }
        }
    }
}

/// UID of the sibling.
pub(crate) const SIBLING: &str = "00000000-0000-4000-8000-000000000002";
