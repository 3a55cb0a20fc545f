//! Messages: a head of four bytes (version, kind, length of the rest), then fixed fields in the order in which they are
//! declared here. A text is prefixed with its length, which is bounded.

use std::fmt;

pub use crate::moves::{MOVE_REFUSALS, MoveRefusal, MoveReport, Transfer};
use crate::page::Residency;
use crate::{MOVES_SINCE, OLDEST_VERSION, VERSION};

/// Largest size of a message including its head, in bytes.
pub const MESSAGE_MAX: usize = 4096;
/// Largest size of a text in a message, in bytes.
pub const TEXT_MAX: usize = 512;
const HEAD: usize = 4;

/// The reason why a message cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Unsupported version of the protocol, as found in the head.
    Version(u8),
    /// Message kind that the receiver does not accept.
    Kind(u8),
    /// Truncated message, or one with trailing bytes.
    Length,
    /// Text that is longer than [`TEXT_MAX`] or not UTF-8.
    Text,
    /// Field value out of its range.
    Value,
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(
                formatter,
                "unsupported protocol version {version}; supported: {OLDEST_VERSION} to {VERSION}"
            ),
            Self::Kind(kind) => write!(formatter, "unknown message kind {kind}"),
            Self::Length => {
                formatter.write_str("the message's length does not match that of its fields")
            }
            Self::Text => write!(
                formatter,
                "a text is longer than {TEXT_MAX} bytes or not UTF-8"
            ),
            Self::Value => formatter.write_str("a field has an invalid value"),
        }
    }
}

impl std::error::Error for Malformed {}

/// A message from a process to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromProcess {
    /// First message on a connection, also on one that replaces a lost one.
    Hello {
        /// Version of the protocol that the process uses: [`OLDEST_VERSION`] to [`VERSION`]. It is that of the message's head.
        version: u8,
        /// Process number in the process's own PID namespace, for logs.
        pid: u32,
        /// Whether the process was connected before, so that the state in the following fields is to be resumed.
        again: bool,
        /// Whether the gate of the process is open or it has work in flight.
        open: bool,
        /// Total kernel time so far, in nanoseconds.
        busy_ns: u64,
        /// Total time for which the gate of the process was open without an agent, in nanoseconds.
        ungated_ns: u64,
        /// Device memory that the process holds, in bytes.
        bytes_used: u64,
        /// Name of the program, for logs.
        program: String,
        /// Location of the process's memory; [`Residency::None`] in version 1, which does not state it.
        residency: Residency,
        /// Host memory for its copy, in bytes, which an agent has given it; 0 in version 1.
        host_bytes: u64,
        /// Part of `host_bytes` that may be registered with the driver, in bytes; 0 in version 1.
        pinned_bytes: u64,
    },
    /// Sent once the driver is initialised.
    Attach {
        /// UUID of the device, as reported by the driver.
        uuid: [u8; 16],
        /// SMs that the process may use, as reported by the driver: under MPS after its rounding.
        multiprocessors: u32,
        /// Whether the process is a client of an MPS server.
        mps: bool,
        /// Measured device memory of the context itself, in bytes; 0 if not known.
        context_bytes: u64,
        /// Total kernel time so far, in nanoseconds, which may have grown while the hello waited to be read.
        busy_ns: u64,
    },
    /// Request to open the gate, at which a thread is parked.
    Ask {
        /// Epoch at which the thread was parked.
        epoch: u64,
    },
    /// Sent when no launch is under way and nothing is in flight since the gate of that epoch was closed by the process
    /// itself or by the agent.
    Closed {
        /// Even epoch that is given back.
        epoch: u64,
    },
    /// Request to hold `bytes` of the pod's memory, or notice that the process no longer holds more. Answered in
    /// *orders*: the current `memory_others`, `memory_claim`, then `claim_answered` = `seq`.
    Claim {
        /// Sequence number, incremented by the process.
        seq: u32,
        /// Total amount in bytes, not an addition.
        bytes: u64,
    },
    /// Answer to [`FromAgent::Probe`].
    Present,
    /// An event for the operator.
    Report(Report),
    /// The process has carried out or refused an order about its memory. Since version 2.
    Moved(MoveReport),
    /// The process's memory could move to the host with windows of this total size in bytes. Answered with a
    /// [`FromAgent::HostWindow`] for what is missing, or not at all. Since version 2.
    WindowsWanted {
        /// Total size of all windows, in bytes.
        bytes: u64,
    },
    /// A thread of the process waits for its memory, which is on the host. Since version 2.
    MemoryWanted,
}

/// An event in a process that is reported to the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A function that is missing from the declaration table was looked up; its name.
    UnknownSymbol(String),
    /// The launch of a kernel of a multi-rank collective was refused, since the slot is shared in time; its name.
    Collective(String),
    /// The driver reported a sticky error; its code.
    Fatal(u32),
    /// An allocation was refused because of the limit; its size in bytes.
    OutOfMemory(u64),
}

/// A message from the agent to a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromAgent {
    /// Answer to [`FromProcess::Hello`]: the device and the limits of the process.
    Welcome {
        /// Behaviour of the gate when the agent is gone.
        on_loss: OnLoss,
        /// Value for `CUDA_VISIBLE_DEVICES`; empty if the variable is to stay unchanged.
        visible_devices: String,
        /// Value for `CUDA_MPS_PIPE_DIRECTORY`; empty without MPS.
        mps_pipe_directory: String,
        /// Value for `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`, in hundredths of a percent; 10,000 for all SMs.
        active_thread_hundredths: u32,
        /// Value for `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`, in bytes; 0 for none. Larger than `memory_limit`, which is exact.
        mps_memory_limit: u64,
        /// Device memory limit of the pod, in bytes; 0 without a limit.
        memory_limit: u64,
        /// Device memory of a context itself, in bytes, which is charged before the first allocation; 0 if the process
        /// measures it.
        context_residue: u64,
        /// Name of the pod for messages.
        pod: String,
    },
    /// Carries the two pages of the device, *orders* and *facts*, as file descriptors.
    Pages,
    /// Request to give back claimed memory that is not in use, since another process of the pod needs it.
    Relinquish,
    /// Liveness check. It is sent when the process holds a token that other processes wait for and its work should have
    /// ended, or when its turn has come and it did not use a token before. A process that does not answer with
    /// [`FromProcess::Present`] counts as stopped.
    Probe,
    /// Carries host memory to which device memory can be moved, as one file descriptor. Since version 2.
    HostWindow {
        /// Size of the memory in bytes.
        bytes: u64,
        /// Whether the process may register the memory with the driver, which pins its pages.
        is_pinned: bool,
    },
    /// Refusal to serve the process.
    Refused {
        /// Machine-readable reason of the refusal.
        reason: Refusal,
        /// Human-readable reason, for logs and users.
        text: String,
    },
}

/// Behaviour of a gate while there is no agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoss {
    /// The gate opens after 100 ms, and the time is counted as ungated.
    Open = 0,
    /// The gate keeps its state.
    Keep = 1,
}

/// The reason why a process is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Unsupported version of the protocol.
    Version = 0,
    /// The process belongs to another pod than the socket.
    NotOfThisPod = 1,
    /// The device is not that of the pod's slot.
    WrongDevice = 2,
    /// The pod's slot is lost.
    SlotLost = 3,
    /// The process requires more SMs than are available.
    TooManySms = 4,
    /// The limit on connected processes is reached.
    TooMany = 5,
    /// The slot is shared but MPS does not run on its device.
    NoMps = 6,
    /// The process sent a malformed or unexpected message.
    Protocol = 7,
}

/// All refusals, each at the index of its number.
pub const REFUSALS: [Refusal; 8] = [
    Refusal::Version,
    Refusal::NotOfThisPod,
    Refusal::WrongDevice,
    Refusal::SlotLost,
    Refusal::TooManySms,
    Refusal::TooMany,
    Refusal::NoMps,
    Refusal::Protocol,
];

/// Encoder of one message. It does not allocate, since it is also used where allocation is not allowed.
#[derive(Debug)]
pub struct Writer {
    bytes: [u8; MESSAGE_MAX],
    used: usize,
}

impl Writer {
    pub(crate) fn new(kind: u8) -> Self {
        let mut bytes = [0; MESSAGE_MAX];
        bytes[0] = VERSION;
        bytes[1] = kind;
        Self { bytes, used: HEAD }
    }

    /// Sets the version in the head: that of the receiver, or of a process that greets with an older one.
    pub const fn set_version(&mut self, version: u8) {
        self.bytes[0] = version;
    }

    pub(crate) fn raw(&mut self, raw: &[u8]) {
        // Texts are cut to their bound, so a message always fits.
        if let Some(space) = self.bytes.get_mut(self.used..self.used + raw.len()) {
            space.copy_from_slice(raw);
            self.used += raw.len();
        }
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn flag(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    pub(crate) fn text(&mut self, text: &str) {
        let mut end = text.len().min(TEXT_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = &text.as_bytes()[..end];
        self.u32(u32::try_from(text.len()).unwrap_or(0));
        self.raw(text);
    }

    /// Sets the length in the head and returns the encoded message.
    #[must_use]
    pub fn finish(&mut self) -> &[u8] {
        let length = u16::try_from(self.used - HEAD).unwrap_or(u16::MAX);
        self.bytes[2..HEAD].copy_from_slice(&length.to_le_bytes());
        &self.bytes[..self.used]
    }
}

pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Returns the kind and the version of a message, and the reader of its fields.
    pub(crate) fn open(bytes: &'a [u8]) -> Result<(u8, u8, Self), Malformed> {
        let (&[version, kind, low, high], rest) =
            bytes.split_first_chunk::<HEAD>().ok_or(Malformed::Length)?;
        if !(OLDEST_VERSION..=VERSION).contains(&version) {
            return Err(Malformed::Version(version));
        }
        if usize::from(u16::from_le_bytes([low, high])) != rest.len() || bytes.len() > MESSAGE_MAX {
            return Err(Malformed::Length);
        }
        Ok((kind, version, Self(rest)))
    }

    pub(crate) fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (chunk, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Length)?;
        self.0 = rest;
        Ok(*chunk)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.chunk().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.chunk().map(u64::from_le_bytes)
    }

    pub(crate) fn residency(&mut self) -> Result<Residency, Malformed> {
        Residency::from_number(self.u32()?).ok_or(Malformed::Value)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Value),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let length = usize::try_from(self.u32()?).map_err(|_| Malformed::Text)?;
        if length > TEXT_MAX {
            return Err(Malformed::Text);
        }
        let (text, rest) = self.0.split_at_checked(length).ok_or(Malformed::Length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).map_err(|_| Malformed::Text)
    }

    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed::Length)
        }
    }
}

impl FromProcess {
    /// Encodes the message into a buffer of its own.
    #[must_use]
    pub fn write(&self) -> Writer {
        match self {
            Self::Hello {
                pid,
                again,
                open,
                busy_ns,
                ungated_ns,
                bytes_used,
                program,
                residency,
                host_bytes,
                pinned_bytes,
                version,
            } => {
                let mut writer = Writer::new(1);
                writer.set_version(*version);
                writer.u32(*pid);
                writer.flag(*again);
                writer.flag(*open);
                writer.u64(*busy_ns);
                writer.u64(*ungated_ns);
                writer.u64(*bytes_used);
                writer.text(program);
                if *version >= MOVES_SINCE {
                    writer.u32(*residency as u32);
                    writer.u64(*host_bytes);
                    writer.u64(*pinned_bytes);
                }
                writer
            }
            Self::Attach {
                uuid,
                multiprocessors,
                mps,
                context_bytes,
                busy_ns,
            } => {
                let mut writer = Writer::new(2);
                writer.raw(uuid);
                writer.u32(*multiprocessors);
                writer.flag(*mps);
                writer.u64(*context_bytes);
                writer.u64(*busy_ns);
                writer
            }
            Self::Ask { epoch } => {
                let mut writer = Writer::new(3);
                writer.u64(*epoch);
                writer
            }
            Self::Closed { epoch } => {
                let mut writer = Writer::new(4);
                writer.u64(*epoch);
                writer
            }
            Self::Claim { seq, bytes } => {
                let mut writer = Writer::new(9);
                writer.u32(*seq);
                writer.u64(*bytes);
                writer
            }
            Self::Present => Writer::new(10),
            Self::Moved(report) => {
                let mut writer = Writer::new(11);
                writer.u32(report.seq);
                writer.u32(report.residency as u32);
                writer.u32(report.refusal.map_or(0, |refusal| refusal as u32));
                let Transfer {
                    bytes,
                    copied_bytes,
                    drain_ns,
                    hash_ns,
                    copy_ns,
                    unmap_ns,
                    map_ns,
                    total_ns,
                } = report.transfer;
                for value in [
                    bytes,
                    copied_bytes,
                    drain_ns,
                    hash_ns,
                    copy_ns,
                    unmap_ns,
                    map_ns,
                    total_ns,
                ] {
                    writer.u64(value);
                }
                writer
            }
            Self::WindowsWanted { bytes } => {
                let mut writer = Writer::new(12);
                writer.u64(*bytes);
                writer
            }
            Self::MemoryWanted => Writer::new(13),
            Self::Report(report) => {
                let (kind, number, text) = match report {
                    Report::UnknownSymbol(name) => (5, 0, name.as_str()),
                    Report::Collective(name) => (6, 0, name.as_str()),
                    Report::Fatal(code) => (7, u64::from(*code), ""),
                    Report::OutOfMemory(bytes) => (8, *bytes, ""),
                };
                let mut writer = Writer::new(kind);
                writer.u64(number);
                writer.text(text);
                writer
            }
        }
    }

    /// Decodes one message.
    ///
    /// # Errors
    /// Returns an error if the bytes are not exactly one message from this side of the connection.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, version, mut reader) = Reader::open(bytes)?;
        let message = match kind {
            1 => Self::Hello {
                version,
                pid: reader.u32()?,
                again: reader.flag()?,
                open: reader.flag()?,
                busy_ns: reader.u64()?,
                ungated_ns: reader.u64()?,
                bytes_used: reader.u64()?,
                program: reader.text()?,
                residency: match version {
                    MOVES_SINCE.. => reader.residency()?,
                    _ => Residency::None,
                },
                host_bytes: match version {
                    MOVES_SINCE.. => reader.u64()?,
                    _ => 0,
                },
                pinned_bytes: match version {
                    MOVES_SINCE.. => reader.u64()?,
                    _ => 0,
                },
            },
            2 => Self::Attach {
                uuid: reader.chunk()?,
                multiprocessors: reader.u32()?,
                mps: reader.flag()?,
                context_bytes: reader.u64()?,
                busy_ns: reader.u64()?,
            },
            3 => Self::Ask {
                epoch: reader.u64()?,
            },
            4 => Self::Closed {
                epoch: reader.u64()?,
            },
            5..=8 => {
                let number = reader.u64()?;
                let text = reader.text()?;
                Self::Report(match kind {
                    5 => Report::UnknownSymbol(text),
                    6 => Report::Collective(text),
                    7 => Report::Fatal(u32::try_from(number).map_err(|_| Malformed::Value)?),
                    _ => Report::OutOfMemory(number),
                })
            }
            9 => Self::Claim {
                seq: reader.u32()?,
                bytes: reader.u64()?,
            },
            10 => Self::Present,
            11 => Self::Moved(MoveReport {
                seq: reader.u32()?,
                residency: reader.residency()?,
                refusal: match reader.u32()? {
                    0 => None,
                    number => {
                        let index = usize::try_from(number - 1).map_err(|_| Malformed::Value)?;
                        Some(*MOVE_REFUSALS.get(index).ok_or(Malformed::Value)?)
                    }
                },
                transfer: Transfer {
                    bytes: reader.u64()?,
                    copied_bytes: reader.u64()?,
                    drain_ns: reader.u64()?,
                    hash_ns: reader.u64()?,
                    copy_ns: reader.u64()?,
                    unmap_ns: reader.u64()?,
                    map_ns: reader.u64()?,
                    total_ns: reader.u64()?,
                },
            }),
            12 => Self::WindowsWanted {
                bytes: reader.u64()?,
            },
            13 => Self::MemoryWanted,
            other => return Err(Malformed::Kind(other)),
        };
        reader.end()?;
        Ok(message)
    }
}

impl FromAgent {
    /// Encodes the message into a buffer of its own.
    #[must_use]
    pub fn write(&self) -> Writer {
        match self {
            Self::Welcome {
                on_loss,
                visible_devices,
                mps_pipe_directory,
                active_thread_hundredths,
                mps_memory_limit,
                memory_limit,
                context_residue,
                pod,
            } => {
                let mut writer = Writer::new(129);
                writer.u32(*on_loss as u32);
                writer.text(visible_devices);
                writer.text(mps_pipe_directory);
                writer.u32(*active_thread_hundredths);
                writer.u64(*mps_memory_limit);
                writer.u64(*memory_limit);
                writer.u64(*context_residue);
                writer.text(pod);
                writer
            }
            Self::Pages => Writer::new(130),
            Self::Relinquish => Writer::new(132),
            Self::Probe => Writer::new(133),
            Self::HostWindow { bytes, is_pinned } => {
                let mut writer = Writer::new(134);
                writer.u64(*bytes);
                writer.flag(*is_pinned);
                writer
            }
            Self::Refused { reason, text } => {
                let mut writer = Writer::new(131);
                writer.u32(*reason as u32);
                writer.text(text);
                writer
            }
        }
    }

    /// Decodes one message.
    ///
    /// # Errors
    /// Returns an error if the bytes are not exactly one message from this side of the connection.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, _version, mut reader) = Reader::open(bytes)?;
        let message = match kind {
            129 => Self::Welcome {
                on_loss: match reader.u32()? {
                    0 => OnLoss::Open,
                    1 => OnLoss::Keep,
                    _ => return Err(Malformed::Value),
                },
                visible_devices: reader.text()?,
                mps_pipe_directory: reader.text()?,
                active_thread_hundredths: reader.u32()?,
                mps_memory_limit: reader.u64()?,
                memory_limit: reader.u64()?,
                context_residue: reader.u64()?,
                pod: reader.text()?,
            },
            130 => Self::Pages,
            132 => Self::Relinquish,
            133 => Self::Probe,
            134 => Self::HostWindow {
                bytes: reader.u64()?,
                is_pinned: reader.flag()?,
            },
            131 => {
                let reason = usize::try_from(reader.u32()?).map_err(|_| Malformed::Value)?;
                Self::Refused {
                    reason: *REFUSALS.get(reason).ok_or(Malformed::Value)?,
                    text: reader.text()?,
                }
            }
            other => return Err(Malformed::Kind(other)),
        };
        reader.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_process() -> Vec<FromProcess> {
        vec![
            FromProcess::Hello {
                version: VERSION,
                pid: 7,
                again: true,
                open: false,
                busy_ns: 3,
                ungated_ns: 4,
                bytes_used: 5,
                program: "python3".to_owned(),
                residency: Residency::Host,
                host_bytes: 1 << 34,
                pinned_bytes: 6,
            },
            FromProcess::Hello {
                version: OLDEST_VERSION,
                pid: 8,
                again: false,
                open: true,
                busy_ns: 0,
                ungated_ns: 0,
                bytes_used: 0,
                program: String::new(),
                residency: Residency::None,
                host_bytes: 0,
                pinned_bytes: 0,
            },
            FromProcess::WindowsWanted { bytes: 1 << 34 },
            FromProcess::MemoryWanted,
            FromProcess::Moved(MoveReport {
                seq: 3,
                residency: Residency::Resident,
                refusal: Some(MoveRefusal::NoProcess),
                transfer: Transfer {
                    bytes: 1,
                    copied_bytes: 2,
                    drain_ns: 3,
                    hash_ns: 4,
                    copy_ns: 5,
                    unmap_ns: 6,
                    map_ns: 7,
                    total_ns: 8,
                },
            }),
            FromProcess::Attach {
                uuid: [9; 16],
                multiprocessors: 114,
                mps: true,
                context_bytes: 1 << 29,
                busy_ns: 6,
            },
            FromProcess::Ask { epoch: 11 },
            FromProcess::Closed { epoch: 12 },
            FromProcess::Claim {
                seq: 13,
                bytes: 1 << 33,
            },
            FromProcess::Report(Report::UnknownSymbol("cuNew".to_owned())),
            FromProcess::Report(Report::Collective("ncclDevKernel_AllReduce".to_owned())),
            FromProcess::Report(Report::Fatal(700)),
            FromProcess::Report(Report::OutOfMemory(1 << 40)),
        ]
    }

    fn of_agent() -> Vec<FromAgent> {
        let mut all = vec![
            FromAgent::Welcome {
                on_loss: OnLoss::Keep,
                visible_devices: "GPU-1".to_owned(),
                mps_pipe_directory: "/run/mps".to_owned(),
                active_thread_hundredths: 1_250,
                mps_memory_limit: 1,
                memory_limit: 2,
                context_residue: 3,
                pod: "default/a".to_owned(),
            },
            FromAgent::Pages,
            FromAgent::HostWindow {
                bytes: 1 << 30,
                is_pinned: true,
            },
            FromAgent::Relinquish,
        ];
        all.extend(REFUSALS.map(|reason| FromAgent::Refused {
            reason,
            text: "no".to_owned(),
        }));
        all
    }

    #[test]
    fn encoded_messages_decode_to_themselves() {
        for message in of_process() {
            assert_eq!(
                FromProcess::read(message.write().finish()).as_ref(),
                Ok(&message)
            );
        }
        for message in of_agent() {
            assert_eq!(
                FromAgent::read(message.write().finish()).as_ref(),
                Ok(&message)
            );
        }
    }

    /// The expected bytes are written by hand: a round trip would not reveal a change of the format.
    #[test]
    fn the_bytes_are_those_of_the_format() {
        let ask = FromProcess::Ask { epoch: 0x0102 };
        assert_eq!(ask.write().finish(), [2, 3, 8, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        let report = FromProcess::Report(Report::Collective("nccl".to_owned()));
        assert_eq!(
            report.write().finish(),
            [
                2, 6, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, b'n', b'c', b'c', b'l'
            ]
        );
        let refused = FromAgent::Refused {
            reason: Refusal::SlotLost,
            text: "x".to_owned(),
        };
        assert_eq!(
            refused.write().finish(),
            [2, 131, 9, 0, 3, 0, 0, 0, 1, 0, 0, 0, b'x']
        );
    }

    #[test]
    fn a_greeting_of_version_1_states_no_location() {
        let bytes = [
            &[1, 1, 40, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0][..],
            &[0; 24],
            &[0, 0, 0, 0],
        ]
        .concat();
        let Ok(FromProcess::Hello {
            version,
            pid,
            residency,
            ..
        }) = FromProcess::read(&bytes)
        else {
            panic!("readable");
        };
        assert_eq!((version, pid, residency), (1, 7, Residency::None));
        let mut answer = FromAgent::Pages.write();
        answer.set_version(version);
        assert_eq!(answer.finish(), [1, 130, 0, 0]);
    }

    #[test]
    fn refuses_every_truncation_and_every_trailing_byte() {
        for message in of_process() {
            let mut writer = message.write();
            let whole = writer.finish().to_vec();
            for cut in 0..whole.len() {
                assert!(FromProcess::read(&whole[..cut]).is_err());
            }
            let mut more = whole.clone();
            more.push(0);
            assert_eq!(FromProcess::read(&more), Err(Malformed::Length));
            // Trailing bytes are refused even if the head counts them.
            let length = u16::try_from(more.len() - HEAD).expect("short");
            more[2..4].copy_from_slice(&length.to_le_bytes());
            assert_eq!(FromProcess::read(&more), Err(Malformed::Length));
        }
    }

    #[test]
    fn decoding_never_panics() {
        let mut seed = 1_u64;
        let mut bytes = [0_u8; 96];
        for _round in 0..200_000 {
            for byte in &mut bytes {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                *byte = seed.to_le_bytes()[7];
            }
            let length = usize::from(bytes[95]) % 96;
            bytes[0] = VERSION;
            bytes[1] %= 10;
            if length >= HEAD {
                bytes[2] = u8::try_from(length - HEAD).expect("short");
                bytes[3] = 0;
            }
            let _decoded = FromProcess::read(&bytes[..length]);
            let _decoded = FromAgent::read(&bytes[..length]);
        }
    }

    #[test]
    fn errors_name_unknown_versions_and_kinds() {
        for version in [0, VERSION + 1] {
            let expected = Err(Malformed::Version(version));
            assert_eq!(FromProcess::read(&[version, 3, 0, 0]), expected);
        }
        assert_eq!(FromProcess::read(&[1, 99, 0, 0]), Err(Malformed::Kind(99)));
        assert_eq!(FromAgent::read(&[1, 1, 0, 0]), Err(Malformed::Kind(1)));
    }

    #[test]
    fn long_texts_are_truncated_at_a_character_boundary() {
        let long = "ü".repeat(TEXT_MAX);
        let message = FromProcess::Report(Report::UnknownSymbol(long));
        let Ok(FromProcess::Report(Report::UnknownSymbol(text))) =
            FromProcess::read(message.write().finish())
        else {
            panic!("readable");
        };
        assert_eq!(text.len(), TEXT_MAX);
    }
}
