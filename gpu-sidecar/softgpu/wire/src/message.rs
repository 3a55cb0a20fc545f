//! Requests and answers over a Unix socket of type SEQPACKET: one message per packet, with file descriptors where
//! needed.
//!
//! A message is a kind, an error, eight words, and bytes, all little-endian. Errors are `CUresult` values, 0 for none.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Version of everything in this crate; both sides must have the same.
pub const VERSION: u64 = 3;
/// Largest payload of a message, in bytes.
pub const PAYLOAD_MAX: usize = 60 * 1024;
/// Largest number of file descriptors in a message.
pub const FILES_MAX: usize = 4;
const WORDS: usize = 8;
const HEAD: usize = 8 + WORDS * 8;

/// Kind of a request. Words of request and answer are listed in this order; an answer has the kind of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The first request of a connection: version, [`Role`]; bytes: the program's name. Answer: the client's number;
    /// bytes: the configuration; files for a [`Role::Cuda`]: its page, the bell, and the eventfd that wakes the server.
    Hello = 1,
    /// Creates a context: unit; the active-thread percentage in hundredths or 0; the memory limit in bytes or
    /// `u64::MAX`; the MPS server's number plus one, or 0. Answer: the context's number in this client; its largest
    /// number of SMs.
    Context = 2,
    /// Destroys a context: its number.
    ContextDestroy = 3,
    /// Allocates memory: unit, bytes, and for memory that other processes may import, the device and inode of its file.
    /// Answer: its number.
    Allocate = 4,
    /// Frees memory: its number.
    Free = 5,
    /// Imports memory of another process, by the device and inode of its file. Answer: its number in this client, unit,
    /// bytes.
    Import = 6,
    /// Offers memory to any holder of the key: the number of the allocation, its offset in the file, its bytes. File:
    /// the one with its bytes. Answer: the key, two words.
    Offer = 7,
    /// Opens offered memory: the key, two words. Answer: its number in this client, unit, offset, bytes; file: the one
    /// with its bytes.
    Accept = 8,
    /// Queries the memory of a unit: unit. Answer: free, total, held by this client, all in bytes.
    MemoryInfo = 9,
    /// Creates a graph in a context: context, number of nodes. File: the nodes ([`crate::graph`]). Answer: its number.
    Graph = 10,
    /// Destroys a graph: its number.
    GraphDestroy = 11,
    /// Offers an event to other processes: slot. File: the page of its effects. Answer: the key, two words.
    EventOffer = 12,
    /// Opens an offered event: the key, two words; its slot in this client. Answer: empty; file: the page.
    EventAccept = 13,
    /// Reads all rings and publishes everything due. Words: the slot of an event plus one, or 0. Answer: the number of
    /// the event's last record, by any process.
    Flush = 14,
    /// Reports a fault in a context: context, error. To an MPS server, unsolicited: unit, error; bytes:
    /// [`ProcessLine`]s of the affected processes.
    Fault = 15,
    /// Checkpoints another process: its pid, [`CheckpointStep`], for a lock the timeout in ms. Answer: its state.
    Checkpoint = 16,
    /// Lists the processes on a unit: unit. Answer: bytes, [`ProcessLine`]s.
    Processes = 17,
    /// Queries the utilization of a unit over its last sample: unit. Answer: SMs in millionths of time, memory in
    /// millionths of time.
    Utilisation = 18,
    /// Queries the server's statistics. Answer: bytes, JSON.
    Statistics = 19,
    /// Writes all pending lines of the ledger to its file.
    Ledger = 20,
    /// Injects a GPU error: GPU, Xid; a lost GPU answers no further request.
    Inject = 21,
    /// Subscribes to GPU errors. Each is sent as a message: GPU, Xid, its time.
    Watch = 22,
    /// Registers an MPS server, which lives as long as this connection. Answer: its number.
    MpsServer = 23,
    /// Lists the clients of this MPS server. Answer: bytes, [`ProcessLine`]s.
    MpsClients = 24,
    /// Terminates a client of this MPS server: pid.
    MpsTerminate = 25,
    /// Counts a call of an unsupported function: bytes: its name.
    Unsupported = 26,
    /// Admits a process to an MPS daemon; sent to the daemon, not to the server. Answer: the MPS server's number, the
    /// active-thread percentage in hundredths or 0, the client's priority; bytes: a limit of device memory for each
    /// unit, eight bytes each, 0 for none.
    MpsEnter = 27,
    /// Runs a command line of `nvidia-cuda-mps-control`; sent to the daemon. Answer: 1 if more follows, 1 if the daemon
    /// has ended; bytes: its output.
    MpsCommand = 28,
    /// Counts a process which has launched a kernel whose result is not computed: bytes: the kernel's name, of at most 256 bytes.
    Modelled = 29,
}

impl Kind {
    const ALL: [Self; 29] = [
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
        Self::Modelled,
    ];

    fn of(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == code)
    }
}

/// Role of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A program that computes, with rings and contexts.
    Cuda = 1,
    /// A program that queries or controls the server without computing.
    Observer = 2,
    /// An MPS daemon, which registers one MPS server.
    Mps = 3,
}

impl Role {
    /// Returns the role of a number, or `None` for an unknown one.
    #[must_use]
    pub fn of(number: u64) -> Option<Self> {
        [Self::Cuda, Self::Observer, Self::Mps]
            .into_iter()
            .find(|role| *role as u64 == number)
    }
}

/// Operation of a checkpoint (`cuCheckpointProcess…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointStep {
    /// Queries the state without changing it.
    State = 0,
    /// Blocks the process at its next call of the driver.
    Lock = 1,
    /// Moves its device memory to the host.
    Checkpoint = 2,
    /// Moves its device memory back.
    Restore = 3,
    /// Lets the process continue.
    Unlock = 4,
}

impl CheckpointStep {
    /// Returns the step of a number, or `None` for an unknown one.
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

/// A process on a unit, encoded in 48 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessLine {
    /// Process ID of the operating system.
    pub pid: u32,
    /// Number of the GPU or slice.
    pub unit: u32,
    /// Device memory held in bytes, including the residue of its contexts.
    pub memory: u64,
    /// Number of contexts of the process on the unit.
    pub contexts: u32,
    /// Largest number of SMs it may use.
    pub sms: u32,
    /// Number of the process's MPS server plus one; 0 for none.
    pub mps: u32,
    /// Active-thread percentage in hundredths; 0 if unset.
    pub percentage_hundredths: u32,
    /// SM-nanoseconds used so far, in thousandths of SMs.
    pub millisms_ns: u64,
}

/// Length of an encoded [`ProcessLine`], in bytes.
pub const PROCESS_LINE: usize = 48;

impl ProcessLine {
    /// Encodes the line as little-endian words.
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

    /// Decodes all complete lines of an answer.
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

/// A request or an answer.
#[derive(Debug)]
pub struct Message {
    pub kind: Kind,
    /// Error of an answer as a `CUresult`; 0 for success.
    pub error: u32,
    /// Words in the order that [`Kind`] lists; the remaining ones are 0.
    pub words: [u64; WORDS],
    /// Payload that [`Kind`] lists, at most [`PAYLOAD_MAX`] bytes.
    pub bytes: Vec<u8>,
    /// File descriptors that [`Kind`] lists, at most [`FILES_MAX`].
    pub files: Vec<OwnedFd>,
}

/// A failure to receive a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The peer has closed the connection.
    #[error("the connection has ended")]
    Closed,
    /// The packet is not a well-formed message.
    #[error("not a softgpu message")]
    Form,
    /// The system call has failed.
    #[error("{0}")]
    System(#[from] Errno),
}

impl Message {
    /// Returns a message with these words, no bytes and no files.
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

    /// Returns an answer that reports an error.
    #[must_use]
    pub fn refusal(kind: Kind, error: u32) -> Self {
        Self {
            error,
            ..Self::new(kind, &[])
        }
    }

    /// Returns the message with this payload.
    #[must_use]
    pub fn with_bytes(self, bytes: Vec<u8>) -> Self {
        Self { bytes, ..self }
    }

    /// Returns the message with another file descriptor.
    #[must_use]
    pub fn with_file(mut self, file: OwnedFd) -> Self {
        self.files.push(file);
        self
    }

    /// Sends the message.
    ///
    /// # Errors
    /// Fails when the message cannot be sent; with [`Errno::AGAIN`] when the peer does not read.
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

    /// Receives a message.
    ///
    /// # Errors
    /// Fails when the peer has closed the connection or the packet is malformed; with [`Errno::AGAIN`] when none is
    /// pending.
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
    fn a_message_arrives_with_its_files() {
        let (one, other) = pair();
        let message = Message::new(Kind::Offer, &[1, 2, u64::MAX])
            .with_bytes(vec![7; PAYLOAD_MAX])
            .with_file(one.try_clone().unwrap());
        message.send(&one, SendFlags::empty()).unwrap();
        let came = Message::receive(&other, RecvFlags::empty()).unwrap();
        assert_eq!(came.kind, Kind::Offer);
        assert_eq!(came.words, message.words);
        assert_eq!(came.bytes, message.bytes);
        // The file is the sender's own socket: a message sent on it arrives too.
        Message::refusal(Kind::Free, 2)
            .send(&came.files[0], SendFlags::empty())
            .unwrap();
        let came = Message::receive(&other, RecvFlags::empty()).unwrap();
        assert_eq!((came.kind, came.error), (Kind::Free, 2));
    }

    #[test]
    fn malformed_packets_are_refused() {
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
    fn kinds_and_lines_round_trip() {
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
