//! Commands that a client appends to its ring: 64 bytes each.

use device::Time;

/// Number of 8-byte words in a record.
pub const WORDS: usize = 8;

/// Index of a stream among the client's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamSlot(pub u32);

/// Index of an event among the client's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventSlot(pub u32);

/// Value that the server returns when a command has ended, or, for a host function, when it may run: the client then
/// performs the command's effect on memory. A record without a token has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Speedup law of a kernel over its share of SMs, as two numbers: see `device::law`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LawCode {
    /// 0 linear, 1 saturating, 2 knee, 3 Amdahl, 4 power.
    pub law: u8,
    /// Parameter of the law in millionths.
    pub parameter_millionths: u32,
}

/// A kernel on the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRecord {
    /// Duration in nanoseconds when alone on the SMs it requests, before time scaling.
    pub duration_ns: u64,
    /// Number of SMs it requests.
    pub sms: u32,
    /// Law of the kernel's speedup by its share of SMs.
    pub law: LawCode,
    /// Slowdown by another process beside it, in millionths.
    pub interference_millionths: u32,
}

/// Direction of a copy on the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyWay {
    HostToDevice,
    DeviceToHost,
    /// From host memory which the driver does not know, through its staging buffers.
    PageableToDevice,
    /// To host memory which the driver does not know, through its staging buffers.
    DeviceToPageable,
    /// From and to the memory of the same device.
    Within,
    /// To another GPU or slice, by its number in the node.
    Peer(u32),
}

/// Command of a client, which needs no answer from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Creates a stream in a context.
    StreamCreate {
        /// Number of the context, assigned by the server.
        context: u32,
    },
    /// Closes a stream to further commands; pending ones still run.
    StreamDestroy,
    /// Runs a kernel on the SMs.
    Kernel(KernelRecord),
    /// Copies memory over a link.
    Copy {
        way: CopyWay,
        /// Number of bytes copied.
        bytes: u64,
    },
    /// Fills memory with a value.
    Set {
        /// Number of bytes filled.
        bytes: u64,
    },
    /// Runs a host function: the stream blocks until [`Command::HostDone`].
    Host,
    /// Reports that a host function has returned. Belongs to no stream.
    HostDone {
        /// Command from [`Completion::value`](crate::page::Completion::value).
        command: u64,
        /// Node from [`Completion::turn`](crate::page::Completion::turn), less one.
        node: u32,
    },
    /// Records an event in the stream.
    Record {
        event: EventSlot,
        /// Number of this record among all records of the client, counted from 1.
        number: u64,
    },
    /// Blocks the stream until the last record of the event has occurred.
    Wait { event: EventSlot },
    /// Destroys an event. Belongs to no stream.
    EventDestroy { event: EventSlot },
    /// Runs all nodes of a graph.
    Graph {
        /// Number of the graph, assigned by the server.
        graph: u32,
    },
    /// Takes no time: only its token returns.
    Nothing,
}

/// A command with its time, stream and token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Time of the client's call.
    pub stamp: Time,
    /// Stream of the command; ignored by commands that belong to none.
    pub stream: StreamSlot,
    /// Value returned in the completion; `None` if the command has no effect on memory.
    pub token: Option<Token>,
    pub command: Command,
}

const HAS_TOKEN: u64 = 1 << 8;

impl Record {
    /// Encodes the record as it is stored in the ring.
    #[must_use]
    pub fn encode(&self) -> [u64; WORDS] {
        let (kind, a, b, c) = match self.command {
            Command::StreamCreate { context } => (1, u64::from(context), 0, 0),
            Command::StreamDestroy => (2, 0, 0, 0),
            Command::Kernel(kernel) => (
                3,
                kernel.duration_ns,
                u64::from(kernel.sms) << 8 | u64::from(kernel.law.law),
                u64::from(kernel.law.parameter_millionths) << 32
                    | u64::from(kernel.interference_millionths),
            ),
            Command::Copy { way, bytes } => {
                let (way, peer) = match way {
                    CopyWay::HostToDevice => (0, 0),
                    CopyWay::DeviceToHost => (1, 0),
                    CopyWay::Within => (2, 0),
                    CopyWay::Peer(unit) => (3, unit),
                    CopyWay::PageableToDevice => (4, 0),
                    CopyWay::DeviceToPageable => (5, 0),
                };
                (4, bytes, way, u64::from(peer))
            }
            Command::Set { bytes } => (5, bytes, 0, 0),
            Command::Host => (6, 0, 0, 0),
            Command::HostDone { command, node } => (7, command, u64::from(node), 0),
            Command::Record { event, number } => (8, u64::from(event.0), number, 0),
            Command::Wait { event } => (9, u64::from(event.0), 0, 0),
            Command::EventDestroy { event } => (10, u64::from(event.0), 0, 0),
            Command::Graph { graph } => (11, u64::from(graph), 0, 0),
            Command::Nothing => (12, 0, 0, 0),
        };
        let has_token = if self.token.is_some() { HAS_TOKEN } else { 0 };
        [
            kind | has_token | u64::from(self.stream.0) << 32,
            self.stamp.0,
            self.token.map_or(0, |token| token.0),
            a,
            b,
            c,
            0,
            0,
        ]
    }

    /// Decodes a record from a ring; returns `None` for a malformed one.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "each field is cut out of its word"
    )]
    pub fn decode(words: &[u64; WORDS]) -> Option<Self> {
        let [head, stamp, token, a, b, c, _, _] = *words;
        let number = |word: u64| u32::try_from(word).ok();
        let event = || number(a).map(EventSlot);
        let command = match head & 0xff {
            1 => Command::StreamCreate {
                context: number(a)?,
            },
            2 => Command::StreamDestroy,
            3 => Command::Kernel(KernelRecord {
                duration_ns: a,
                sms: number(b >> 8)?,
                law: LawCode {
                    law: b as u8,
                    parameter_millionths: (c >> 32) as u32,
                },
                interference_millionths: c as u32,
            }),
            4 => Command::Copy {
                way: match b {
                    0 => CopyWay::HostToDevice,
                    1 => CopyWay::DeviceToHost,
                    2 => CopyWay::Within,
                    3 => CopyWay::Peer(number(c)?),
                    4 => CopyWay::PageableToDevice,
                    5 => CopyWay::DeviceToPageable,
                    _ => return None,
                },
                bytes: a,
            },
            5 => Command::Set { bytes: a },
            6 => Command::Host,
            7 => Command::HostDone {
                command: a,
                node: number(b)?,
            },
            8 => Command::Record {
                event: event()?,
                number: b,
            },
            9 => Command::Wait { event: event()? },
            10 => Command::EventDestroy { event: event()? },
            11 => Command::Graph { graph: number(a)? },
            12 => Command::Nothing,
            _ => return None,
        };
        Some(Self {
            stamp: Time(stamp),
            stream: StreamSlot((head >> 32) as u32),
            token: (head & HAS_TOKEN != 0).then_some(Token(token)),
            command,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_round_trips() {
        let event = EventSlot(u32::MAX);
        for command in [
            Command::StreamCreate { context: 7 },
            Command::StreamDestroy,
            Command::Kernel(KernelRecord {
                duration_ns: u64::MAX,
                sms: u32::MAX,
                law: LawCode {
                    law: 4,
                    parameter_millionths: u32::MAX,
                },
                interference_millionths: 77_000,
            }),
            Command::Copy {
                way: CopyWay::Peer(3),
                bytes: 1 << 40,
            },
            Command::Copy {
                way: CopyWay::Within,
                bytes: 0,
            },
            Command::Copy {
                way: CopyWay::PageableToDevice,
                bytes: 1,
            },
            Command::Copy {
                way: CopyWay::DeviceToPageable,
                bytes: u64::MAX,
            },
            Command::Set { bytes: 9 },
            Command::Host,
            Command::HostDone {
                command: u64::MAX,
                node: 5,
            },
            Command::Record { event, number: 2 },
            Command::Wait { event },
            Command::EventDestroy { event },
            Command::Graph { graph: 1 },
            Command::Nothing,
        ] {
            for token in [None, Some(Token(0)), Some(Token(u64::MAX))] {
                let record = Record {
                    stamp: Time(123),
                    stream: StreamSlot(u32::MAX),
                    token,
                    command,
                };
                assert_eq!(Record::decode(&record.encode()), Some(record));
            }
        }
        assert_eq!(Record::decode(&[0; WORDS]), None);
        assert_eq!(Record::decode(&[13, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Record::decode(&[4, 0, 0, 0, 6, 0, 0, 0]), None);
    }
}
