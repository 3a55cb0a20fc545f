//! The commands that a client puts into its ring: 64 bytes each.

use device::Time;

/// Words of 8 bytes in a record.
pub const WORDS: usize = 8;

/// A stream, by its place among the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamSlot(pub u32);

/// An event, by its place among the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventSlot(pub u32);

/// What the server gives back when a command has ended, or, for a function of the host, when its turn has come: then the
/// client does what the command does to memory. None: nothing is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// How a kernel's speed follows from its share of SMs, as two numbers: see `device::law`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LawCode {
    /// 0 linear, 1 saturating, 2 knee, 3 Amdahl, 4 power.
    pub law: u8,
    /// Its parameter in millionths.
    pub parameter_millionths: u32,
}

/// A kernel, as the timeline sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRecord {
    /// How long it takes alone on the SMs it asks for, in nanoseconds before the time scale.
    pub duration_ns: u64,
    /// SMs it asks for.
    pub sms: u32,
    /// Its law.
    pub law: LawCode,
    /// How much another process beside it slows it down, in millionths.
    pub interference_millionths: u32,
}

/// Where a copy goes, as the timeline sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyWay {
    /// From the host.
    HostToDevice,
    /// To the host.
    DeviceToHost,
    /// Within the device.
    Within,
    /// To another GPU or slice, by its number in the node.
    Peer(u32),
}

/// What a client can tell the server without waiting for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// A stream is there, of this context.
    StreamCreate {
        /// The context, by the number that the server gave it.
        context: u32,
    },
    /// No more is put into the stream; what is in it still runs.
    StreamDestroy,
    /// A kernel.
    Kernel(KernelRecord),
    /// A copy.
    Copy {
        /// Where to.
        way: CopyWay,
        /// How many bytes.
        bytes: u64,
    },
    /// Memory is set.
    Set {
        /// How many bytes.
        bytes: u64,
    },
    /// A function of the host: the stream waits for [`Command::HostDone`].
    Host,
    /// The function whose turn was told with this command and node has returned. Of no stream.
    HostDone {
        /// As told with the turn.
        command: u64,
        /// As told with the turn.
        node: u32,
    },
    /// An event is recorded, for the `number`th time, counted from 1.
    Record {
        /// The event.
        event: EventSlot,
        /// The how manieth record of this client it is.
        number: u64,
    },
    /// The stream waits for what was last recorded in the event.
    Wait {
        /// The event.
        event: EventSlot,
    },
    /// An event is gone. Of no stream.
    EventDestroy {
        /// Which.
        event: EventSlot,
    },
    /// All of a graph, by the number that the server gave it.
    Graph {
        /// Which.
        graph: u32,
    },
    /// Nothing that takes time: the token alone.
    Nothing,
}

/// A command with what all commands have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When the client asked for it.
    pub stamp: Time,
    /// In which stream.
    pub stream: StreamSlot,
    /// What the client has to do when it has ended.
    pub token: Option<Token>,
    /// What.
    pub command: Command,
}

const HAS_TOKEN: u64 = 1 << 8;

impl Record {
    /// As it lies in the ring.
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

    /// Read from a ring; `None` for what no client of ours writes.
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
    fn every_command_comes_back_as_it_was_written() {
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
        assert_eq!(Record::decode(&[4, 0, 0, 0, 4, 0, 0, 0]), None);
    }
}
