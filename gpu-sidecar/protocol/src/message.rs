//! Messages: a head of four bytes (version, kind, length of the rest), then fixed fields in the order in which they are
//! declared here. Text has its length in front and a bound.

use std::fmt;

use crate::VERSION;

/// No message is longer, head included.
pub const MESSAGE_MAX: usize = 4096;
/// A text in a message is at most this long, in bytes.
pub const TEXT_MAX: usize = 512;
const HEAD: usize = 4;

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Of another version than this one and the one before.
    Version(u8),
    /// Of no kind that the receiver takes.
    Kind(u8),
    /// Cut off, or followed by something.
    Length,
    /// A text is too long or not UTF-8.
    Text,
    /// A value that the field cannot have.
    Value,
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(
                formatter,
                "protocol version {version} is not spoken here, {VERSION} is"
            ),
            Self::Kind(kind) => write!(formatter, "no message has the kind {kind}"),
            Self::Length => formatter.write_str("the message's length is not that of its fields"),
            Self::Text => write!(
                formatter,
                "a text is longer than {TEXT_MAX} bytes or not UTF-8"
            ),
            Self::Value => formatter.write_str("a field has a value that it cannot have"),
        }
    }
}

impl std::error::Error for Malformed {}

/// What a process says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromProcess {
    /// First of all, and again after a connection was lost.
    Hello {
        /// Its own number as it sees it itself, for logs.
        pid: u32,
        /// It has been connected before: what follows is how it stands.
        again: bool,
        /// Its gate stands open, or work of it is in flight.
        open: bool,
        /// Kernel time until now, in nanoseconds.
        busy_ns: u64,
        /// Nanoseconds for which its gate stood open without an agent.
        ungated_ns: u64,
        /// Bytes of the device that it holds.
        bytes_used: u64,
        /// The program's name, for logs.
        program: String,
    },
    /// The driver is initialised.
    Attach {
        /// The device's UUID, as the driver tells it.
        uuid: [u8; 16],
        /// SMs that the process may use, as the driver tells: under MPS after its rounding.
        multiprocessors: u32,
        /// It is a client of an MPS server.
        mps: bool,
        /// What the context itself keeps of the device's memory, in bytes, as measured; 0: not known.
        context_bytes: u64,
        /// Kernel time until now, in nanoseconds: a hello may have waited for long to be heard.
        busy_ns: u64,
    },
    /// A thread is parked at the gate.
    Ask {
        /// The epoch that the thread found.
        epoch: u64,
    },
    /// No launch is under way and nothing is in flight since the gate of that epoch was shut by the process itself or by
    /// the agent.
    Closed {
        /// The even epoch that is given back.
        epoch: u64,
    },
    /// The process wants to hold that many bytes of the pod's memory in all, or no longer more than that. Answered in
    /// *orders*: `memory_others` as they are now, `memory_claim`, then `claim_answered` = `seq`.
    Claim {
        /// Counted up by the process.
        seq: u32,
        /// In all, not in addition.
        bytes: u64,
    },
    /// Answers [`FromAgent::Probe`].
    Present,
    /// Something to be known.
    Report(Report),
}

/// Something an operator wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A function that the declaration table does not know was looked up.
    UnknownSymbol(String),
    /// A kernel of a collective among several ranks was to be launched on a slot that is shared in time; it was refused.
    Collective(String),
    /// The driver reported an error that stays.
    Fatal(u32),
    /// An allocation was refused because of the limit: how many bytes were asked.
    OutOfMemory(u64),
}

/// What the agent says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromAgent {
    /// Where the process may compute.
    Welcome {
        /// What its gate does when the agent is gone.
        on_loss: OnLoss,
        /// `CUDA_VISIBLE_DEVICES`, or empty: leave it.
        visible_devices: String,
        /// `CUDA_MPS_PIPE_DIRECTORY`, or empty: without MPS.
        mps_pipe_directory: String,
        /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` in hundredths; 10,000: all.
        active_thread_hundredths: u32,
        /// `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` in bytes; 0: none. Wider than `memory_limit`, which is exact.
        mps_memory_limit: u64,
        /// How many bytes of the device the pod may have; 0: no limit.
        memory_limit: u64,
        /// Memory that stays with a context, charged before the first allocation; 0: the process measures it.
        context_residue: u64,
        /// The pod, as messages to people name it.
        pod: String,
    },
    /// The two pages of the device, *orders* and *facts*, come with this message.
    Pages,
    /// Another process of the pod needs memory: what this one has claimed and does not use is to be given back.
    Relinquish,
    /// The process has a token that others wait for, and its work should have ended; or its turn has come, and it did not use a token
    /// before: it answers with [`FromProcess::Present`], or counts as stopped.
    Probe,
    /// Not served, and why.
    Refused {
        /// Why.
        reason: Refusal,
        /// The same for people.
        text: String,
    },
}

/// What a gate does when no agent is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoss {
    /// It opens after 100 ms, and the time is counted.
    Open = 0,
    /// It stays as it is.
    Keep = 1,
}

/// Why a process is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Another version of the protocol.
    Version = 0,
    /// The process belongs to another pod than the socket.
    NotOfThisPod = 1,
    /// The device is not that of the pod's slot.
    WrongDevice = 2,
    /// The slot is lost.
    SlotLost = 3,
    /// Its SMs are more than there are.
    TooManySms = 4,
    /// So many processes are connected that no more are taken.
    TooMany = 5,
    /// MPS does not run there, and the slot is shared.
    NoMps = 6,
    /// It said something out of turn or malformed.
    Protocol = 7,
}

/// All of them, each at the index of its number.
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

/// Writes a message. Without allocation: it is also called where none is allowed.
#[derive(Debug)]
pub struct Writer {
    bytes: [u8; MESSAGE_MAX],
    used: usize,
}

impl Writer {
    fn new(kind: u8) -> Self {
        let mut bytes = [0; MESSAGE_MAX];
        bytes[0] = VERSION;
        bytes[1] = kind;
        Self { bytes, used: HEAD }
    }

    fn raw(&mut self, raw: &[u8]) {
        // Texts are cut to their bound, so a message always fits.
        if let Some(space) = self.bytes.get_mut(self.used..self.used + raw.len()) {
            space.copy_from_slice(raw);
            self.used += raw.len();
        }
    }

    fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    fn flag(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    fn text(&mut self, text: &str) {
        let mut end = text.len().min(TEXT_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = &text.as_bytes()[..end];
        self.u32(u32::try_from(text.len()).unwrap_or(0));
        self.raw(text);
    }

    /// The message.
    #[must_use]
    pub fn finish(&mut self) -> &[u8] {
        let length = u16::try_from(self.used - HEAD).unwrap_or(u16::MAX);
        self.bytes[2..HEAD].copy_from_slice(&length.to_le_bytes());
        &self.bytes[..self.used]
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn open(bytes: &'a [u8]) -> Result<(u8, Self), Malformed> {
        let (&[version, kind, low, high], rest) =
            bytes.split_first_chunk::<HEAD>().ok_or(Malformed::Length)?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        if usize::from(u16::from_le_bytes([low, high])) != rest.len() || bytes.len() > MESSAGE_MAX {
            return Err(Malformed::Length);
        }
        Ok((kind, Self(rest)))
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (chunk, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Length)?;
        self.0 = rest;
        Ok(*chunk)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.chunk().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.chunk().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Value),
        }
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let length = usize::try_from(self.u32()?).map_err(|_| Malformed::Text)?;
        if length > TEXT_MAX {
            return Err(Malformed::Text);
        }
        let (text, rest) = self.0.split_at_checked(length).ok_or(Malformed::Length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).map_err(|_| Malformed::Text)
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed::Length)
        }
    }
}

impl FromProcess {
    /// As bytes.
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
            } => {
                let mut writer = Writer::new(1);
                writer.u32(*pid);
                writer.flag(*again);
                writer.flag(*open);
                writer.u64(*busy_ns);
                writer.u64(*ungated_ns);
                writer.u64(*bytes_used);
                writer.text(program);
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

    /// From bytes.
    ///
    /// # Errors
    /// They are no such message.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut reader) = Reader::open(bytes)?;
        let message = match kind {
            1 => Self::Hello {
                pid: reader.u32()?,
                again: reader.flag()?,
                open: reader.flag()?,
                busy_ns: reader.u64()?,
                ungated_ns: reader.u64()?,
                bytes_used: reader.u64()?,
                program: reader.text()?,
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
            other => return Err(Malformed::Kind(other)),
        };
        reader.end()?;
        Ok(message)
    }
}

impl FromAgent {
    /// As bytes.
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
            Self::Refused { reason, text } => {
                let mut writer = Writer::new(131);
                writer.u32(*reason as u32);
                writer.text(text);
                writer
            }
        }
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are no such message.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut reader) = Reader::open(bytes)?;
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
                pid: 7,
                again: true,
                open: false,
                busy_ns: 3,
                ungated_ns: 4,
                bytes_used: 5,
                program: "python3".to_owned(),
            },
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
            FromAgent::Relinquish,
        ];
        all.extend(REFUSALS.map(|reason| FromAgent::Refused {
            reason,
            text: "no".to_owned(),
        }));
        all
    }

    #[test]
    fn what_is_written_is_read() {
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

    /// The bytes of version 1, written by hand: two ends that agree with each other alone would not show a change.
    #[test]
    fn the_bytes_are_those_of_version_1() {
        let ask = FromProcess::Ask { epoch: 0x0102 };
        assert_eq!(ask.write().finish(), [1, 3, 8, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        let report = FromProcess::Report(Report::Collective("nccl".to_owned()));
        assert_eq!(
            report.write().finish(),
            [
                1, 6, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, b'n', b'c', b'c', b'l'
            ]
        );
        let refused = FromAgent::Refused {
            reason: Refusal::SlotLost,
            text: "x".to_owned(),
        };
        assert_eq!(
            refused.write().finish(),
            [1, 131, 9, 0, 3, 0, 0, 0, 1, 0, 0, 0, b'x']
        );
    }

    #[test]
    fn every_cut_and_every_addition_is_refused() {
        for message in of_process() {
            let mut writer = message.write();
            let whole = writer.finish().to_vec();
            for cut in 0..whole.len() {
                assert!(FromProcess::read(&whole[..cut]).is_err());
            }
            let mut more = whole.clone();
            more.push(0);
            assert_eq!(FromProcess::read(&more), Err(Malformed::Length));
            // Also when the head agrees.
            let length = u16::try_from(more.len() - HEAD).expect("short");
            more[2..4].copy_from_slice(&length.to_le_bytes());
            assert_eq!(FromProcess::read(&more), Err(Malformed::Length));
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
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
            let _whatever = FromProcess::read(&bytes[..length]);
            let _whatever = FromAgent::read(&bytes[..length]);
        }
    }

    #[test]
    fn other_versions_and_kinds_are_named() {
        assert_eq!(FromProcess::read(&[2, 3, 0, 0]), Err(Malformed::Version(2)));
        assert_eq!(FromProcess::read(&[1, 99, 0, 0]), Err(Malformed::Kind(99)));
        assert_eq!(FromAgent::read(&[1, 1, 0, 0]), Err(Malformed::Kind(1)));
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
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
