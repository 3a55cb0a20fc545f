//! Requests and answers over a Unix socket of the kind SEQPACKET: one message each, with files where they are needed.
//!
//! A message is a kind, an error, eight words, and bytes, all little-endian. Errors are numbered as the driver API numbers
//! its results, 0 being none.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The version of all that this crate describes: both sides must have the same.
pub const VERSION: u64 = 1;
/// Bytes of a message's payload, at most.
pub const PAYLOAD_MAX: usize = 60 * 1024;
/// Files with a message, at most.
pub const FILES_MAX: usize = 4;
const WORDS: usize = 8;
const HEAD: usize = 8 + WORDS * 8;

/// What a message asks for. Words and answers are listed in this order; an answer has the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The first of all: version, [`Role`]; bytes: the program's name. Answer: the client's number; bytes: the
    /// configuration; files of a [`Role::Cuda`]: its page, the bell, and the file to ring it by.
    Hello = 1,
    /// A context: unit; the active-thread percentage in hundredths or 0; the memory limit or `u64::MAX`; the MPS server's
    /// number plus one, or 0. Answer: its number in this client; SMs at most.
    Context = 2,
    /// A context is gone: its number.
    ContextDestroy = 3,
    /// Memory: unit, bytes, and of memory that others may import, the device and inode of its file. Answer: its number.
    Allocate = 4,
    /// Memory is given back: its number.
    Free = 5,
    /// Memory of another process, by the device and inode of its file. Answer: its number here, unit, bytes.
    Import = 6,
    /// Memory is offered to whoever knows the key: the number of the allocation, where it begins in the file, its bytes.
    /// File: the one it lies in. Answer: the key, two words.
    Offer = 7,
    /// Memory that was offered: the key, two words. Answer: its number here, unit, where it begins, bytes; file: it.
    Accept = 8,
    /// How much memory a unit has: unit. Answer: free, total, held by this client.
    MemoryInfo = 9,
    /// A graph of a context: context, how many nodes. File: the nodes ([`crate::graph`]). Answer: its number.
    Graph = 10,
    /// A graph is gone: its number.
    GraphDestroy = 11,
    /// An event is offered to other processes: slot. File: the page of its effects. Answer: the key, two words.
    EventOffer = 12,
    /// An event that was offered: the key, two words; the slot it has here. Answer: nothing; file: the page.
    EventAccept = 13,
    /// All rings are looked at, and whatever is due is published. Words: a slot of an event, plus one, or 0. Answer: how
    /// often the event was recorded, by whomever.
    Flush = 14,
    /// A context has gone wrong: context, error. To an MPS server, unasked: unit, error; bytes: [`ProcessLine`]s of the
    /// processes that are hit.
    Fault = 15,
    /// Another process's checkpoint: its pid, [`CheckpointStep`], for a lock the time to wait in ms. Answer: its state.
    Checkpoint = 16,
    /// Who is on a unit: unit. Answer: bytes, [`ProcessLine`]s.
    Processes = 17,
    /// How busy a unit was over its last sample: unit. Answer: SMs in millionths of time, memory in millionths of time.
    Utilisation = 18,
    /// How the server does. Answer: bytes, JSON.
    Statistics = 19,
    /// All that is in the ledger until now is to be written to its file.
    Ledger = 20,
    /// Something goes wrong with a GPU: GPU, Xid; a GPU that is lost answers nothing more.
    Inject = 21,
    /// From now on, errors of GPUs are told as they come: GPU, Xid, its time.
    Watch = 22,
    /// An MPS server is there, as long as this connection. Answer: its number.
    MpsServer = 23,
    /// Who the clients of this MPS server are. Answer: bytes, [`ProcessLine`]s.
    MpsClients = 24,
    /// A client of this MPS server is to end: pid.
    MpsTerminate = 25,
    /// A function that is not there was called: bytes: its name.
    Unsupported = 26,
    /// A process asks an MPS daemon to be let in; sent to the daemon, not to the server. Answer: the MPS server's number,
    /// the active-thread percentage in hundredths or 0, the client's priority; bytes: a limit of device memory for each
    /// unit, eight bytes each, 0 for none.
    MpsEnter = 27,
    /// A line as written to `nvidia-cuda-mps-control`; sent to the daemon. Answer: 1 if more follows, 1 if the daemon has
    /// ended; bytes, what it prints.
    MpsCommand = 28,
}

impl Kind {
    const ALL: [Self; 28] = [
        Self::Hello,
        Self::Context,
        Self::ContextDestroy,
        Self::Allocate,
        Self::Free,
        Self::Import,
        Self::Offer,
        Self::Accept,
        Self::MemoryInfo,
        Self::Graph,
        Self::GraphDestroy,
        Self::EventOffer,
        Self::EventAccept,
        Self::Flush,
        Self::Fault,
        Self::Checkpoint,
        Self::Processes,
        Self::Utilisation,
        Self::Statistics,
        Self::Ledger,
        Self::Inject,
        Self::Watch,
        Self::MpsServer,
        Self::MpsClients,
        Self::MpsTerminate,
        Self::Unsupported,
        Self::MpsEnter,
        Self::MpsCommand,
    ];

    fn of(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == code)
    }
}

/// What a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A program that computes.
    Cuda = 1,
    /// One that looks, or controls.
    Observer = 2,
    /// An MPS daemon.
    Mps = 3,
}

impl Role {
    /// From its number.
    #[must_use]
    pub fn of(number: u64) -> Option<Self> {
        [Self::Cuda, Self::Observer, Self::Mps]
            .into_iter()
            .find(|role| *role as u64 == number)
    }
}

/// What is to be done with a process (`cuCheckpointProcess…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointStep {
    /// Nothing: its state is asked for.
    State = 0,
    /// It stops at its next call.
    Lock = 1,
    /// Its device memory goes to the host.
    Checkpoint = 2,
    /// Its device memory comes back.
    Restore = 3,
    /// It goes on.
    Unlock = 4,
}

impl CheckpointStep {
    /// From its number.
    #[must_use]
    pub fn of(number: u64) -> Option<Self> {
        [
            Self::State,
            Self::Lock,
            Self::Checkpoint,
            Self::Restore,
            Self::Unlock,
        ]
        .into_iter()
        .find(|step| *step as u64 == number)
    }
}

/// A process on a unit, in 48 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessLine {
    /// Its number in the system.
    pub pid: u32,
    /// The GPU or slice.
    pub unit: u32,
    /// Device memory it holds, its context's residue included.
    pub memory: u64,
    /// Contexts it has there.
    pub contexts: u32,
    /// SMs at most.
    pub sms: u32,
    /// The MPS server it is a client of, plus one; 0: none.
    pub mps: u32,
    /// Its active-thread percentage in hundredths; 0: none was set.
    pub percentage_hundredths: u32,
    /// SM-nanoseconds it has used so far, in thousandths of SMs.
    pub millisms_ns: u64,
}

/// Bytes of a [`ProcessLine`].
pub const PROCESS_LINE: usize = 48;

impl ProcessLine {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; PROCESS_LINE] {
        let mut bytes = [0; PROCESS_LINE];
        let words = [
            u64::from(self.pid) | u64::from(self.unit) << 32,
            self.memory,
            u64::from(self.contexts) | u64::from(self.sms) << 32,
            u64::from(self.mps) | u64::from(self.percentage_hundredths) << 32,
            self.millisms_ns,
        ];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// All lines of an answer.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "each field is cut out of its word"
    )]
    pub fn decode_all(bytes: &[u8]) -> Vec<Self> {
        let line = |line: &[u8]| {
            let word = |at: usize| {
                u64::from_le_bytes(std::array::from_fn(|byte| {
                    line.get(at * 8 + byte).copied().unwrap_or_default()
                }))
            };
            Self {
                pid: word(0) as u32,
                unit: (word(0) >> 32) as u32,
                memory: word(1),
                contexts: word(2) as u32,
                sms: (word(2) >> 32) as u32,
                mps: word(3) as u32,
                percentage_hundredths: (word(3) >> 32) as u32,
                millisms_ns: word(4),
            }
        };
        bytes.chunks_exact(PROCESS_LINE).map(line).collect()
    }
}

/// One message.
#[derive(Debug)]
pub struct Message {
    /// What it is about.
    pub kind: Kind,
    /// Of an answer: why not, as the driver API numbers it; 0: done.
    pub error: u32,
    /// As [`Kind`] lists them; the others are 0.
    pub words: [u64; WORDS],
    /// As [`Kind`] says.
    pub bytes: Vec<u8>,
    /// As [`Kind`] says.
    pub files: Vec<OwnedFd>,
}

/// What a peer sent is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The connection has ended.
    #[error("the connection has ended")]
    Closed,
    /// It is not of the form.
    #[error("not a message of softgpu")]
    Form,
    /// The system says no.
    #[error("{0}")]
    System(#[from] Errno),
}

impl Message {
    /// A message with these words.
    #[must_use]
    pub fn new(kind: Kind, words: &[u64]) -> Self {
        let mut all = [0; WORDS];
        for (to, word) in all.iter_mut().zip(words) {
            *to = *word;
        }
        Self {
            kind,
            error: 0,
            words: all,
            bytes: Vec::new(),
            files: Vec::new(),
        }
    }

    /// An answer that it cannot be done.
    #[must_use]
    pub fn refusal(kind: Kind, error: u32) -> Self {
        Self {
            error,
            ..Self::new(kind, &[])
        }
    }

    /// With bytes.
    #[must_use]
    pub fn with_bytes(self, bytes: Vec<u8>) -> Self {
        Self { bytes, ..self }
    }

    /// With a file.
    #[must_use]
    pub fn with_file(mut self, file: OwnedFd) -> Self {
        self.files.push(file);
        self
    }

    /// Sends it.
    ///
    /// # Errors
    /// It cannot be sent; with [`Errno::AGAIN`] the peer does not read.
    pub fn send(&self, socket: impl AsFd, flags: SendFlags) -> Result<(), Errno> {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&(self.kind as u32).to_le_bytes());
        head[4..8].copy_from_slice(&self.error.to_le_bytes());
        for (to, word) in head[8..].chunks_exact_mut(8).zip(self.words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let files: Vec<BorrowedFd<'_>> = self.files.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(Errno::INVAL);
        }
        let parts = [IoSlice::new(&head), IoSlice::new(&self.bytes)];
        loop {
            match sendmsg(&socket, &parts, &mut control, flags | SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives one.
    ///
    /// # Errors
    /// The peer is gone or sends what is no message; with [`Errno::AGAIN`] nothing is there.
    pub fn receive(socket: impl AsFd, flags: RecvFlags) -> Result<Self, MessageError> {
        let mut buffer = vec![0; HEAD + PAYLOAD_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut buffer)];
            match recvmsg(
                &socket,
                &mut parts,
                &mut control,
                flags | RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Err(MessageError::Closed),
                Err(error) => return Err(error.into()),
            }
        };
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        if received.bytes == 0 {
            return Err(MessageError::Closed);
        }
        let is_whole = !received
            .flags
            .intersects(rustix::net::ReturnFlags::TRUNC | rustix::net::ReturnFlags::CTRUNC);
        buffer.truncate(received.bytes);
        if !is_whole || buffer.len() < HEAD {
            return Err(MessageError::Form);
        }
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| buffer[at + byte]));
        let kind = Kind::of(number(0)).ok_or(MessageError::Form)?;
        let error = number(4);
        let words = std::array::from_fn(|word| {
            u64::from_le_bytes(std::array::from_fn(|byte| buffer[8 + word * 8 + byte]))
        });
        Ok(Self {
            kind,
            error,
            words,
            bytes: buffer.split_off(HEAD),
            files,
        })
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, send, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap()
    }

    #[test]
    fn a_message_comes_through_with_its_files() {
        let (one, other) = pair();
        let message = Message::new(Kind::Offer, &[1, 2, u64::MAX])
            .with_bytes(vec![7; PAYLOAD_MAX])
            .with_file(one.try_clone().unwrap());
        message.send(&one, SendFlags::empty()).unwrap();
        let came = Message::receive(&other, RecvFlags::empty()).unwrap();
        assert_eq!(came.kind, Kind::Offer);
        assert_eq!(came.words, message.words);
        assert_eq!(came.bytes, message.bytes);
        // It is the same socket: what is sent by it arrives.
        Message::refusal(Kind::Free, 2)
            .send(&came.files[0], SendFlags::empty())
            .unwrap();
        let came = Message::receive(&other, RecvFlags::empty()).unwrap();
        assert_eq!((came.kind, came.error), (Kind::Free, 2));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let (one, other) = pair();
        for bytes in [vec![1], vec![0; HEAD], vec![255; HEAD + PAYLOAD_MAX + 1]] {
            send(&one, &bytes, SendFlags::empty()).unwrap();
            let error = Message::receive(&other, RecvFlags::empty()).unwrap_err();
            assert_eq!(error, MessageError::Form);
        }
        drop(one);
        let error = Message::receive(&other, RecvFlags::empty()).unwrap_err();
        assert_eq!(error, MessageError::Closed);
    }

    #[test]
    fn kinds_and_lines_come_back() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of(kind as u32), Some(kind));
        }
        let line = ProcessLine {
            pid: u32::MAX,
            unit: 1,
            memory: u64::MAX,
            contexts: 2,
            sms: 3,
            mps: 4,
            percentage_hundredths: 5,
            millisms_ns: u64::MAX - 1,
        };
        let bytes = [line.encode(), ProcessLine::default().encode()].concat();
        assert_eq!(
            ProcessLine::decode_all(&bytes),
            [line, ProcessLine::default()]
        );
    }
}
