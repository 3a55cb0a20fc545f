//! Messages between the queue of a pod's requests and the agent: leases (contracts §7).
//!
//! | from the queue | meaning |
//! |---|---|
//! | `Hello` | first message on a connection |
//! | `Head` | the next request, which replaces the one of an earlier message; without any, it is withdrawn. From a holder: it has work again |
//! | `Returned` | a head which was to be forwarded is not: its instance did not accept it, or it has left the queue |
//! | `Idle` | nothing runs: the lease ends if it is recalled, and passes when another instance needs it otherwise |
//!
//! | from the agent | meaning |
//! |---|---|
//! | `Welcome` | answer to `Hello` |
//! | `State` | where the model is, and how long it takes to load |
//! | `Lease` | requests may start |
//! | `Recall` | no request may start, and `Idle` is expected once none runs |
//! | `Sibling` | the head is to be forwarded to another instance, which has got its slot's lease |
//! | `Spent` | before a `Lease` for which the model was loaded: when that was, and from where |
//! | `Refused` | the connection is not served |
//!
//! A lease has an *epoch*, a number that increases with each; a message with another than the current one is ignored. Times are nanoseconds, points
//! in time those of `CLOCK_MONOTONIC`. The first byte of a message is [`QUEUE_VERSION`].
//!
//! # Examples
//!
//! ```
//! use protocol::queue::FromQueue;
//!
//! let message = FromQueue::Idle { epoch: 7, ends: true };
//! assert_eq!(FromQueue::read(message.write().finish()), Ok(message));
//! ```

use crate::message::{Malformed, REFUSALS, Reader, Refusal, Writer};
use crate::page::Residency;

/// Version of the messages of queues: that of the protocol in which they came up.
pub const QUEUE_VERSION: u8 = 2;

/// Context of a sampled request's trace: trace ID, ID of the parent span, flags; all zero if it is not sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TraceContext {
    /// Trace ID of W3C Trace Context.
    pub trace: [u8; 16],
    /// ID of the parent span.
    pub span: [u8; 8],
    /// Flags of W3C Trace Context.
    pub flags: u32,
}

/// Where a model came from (label `source`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum LoadSource {
    /// Memory of the host.
    Host = 0,
}

impl LoadSource {
    /// Returns the value of the label `source`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
        }
    }
}

/// A message from a queue to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromQueue {
    /// First message on a connection.
    Hello {
        /// Whether the queue was connected before, to this agent or an earlier one.
        again: bool,
        /// Epoch of the lease under which it runs requests; 0: none.
        epoch: u64,
        /// Number of requests that run.
        running: u32,
        /// Number of requests that wait.
        waiting: u32,
        /// IP address at which siblings reach it; empty: not at all.
        address: String,
        /// TCP port at which siblings reach it.
        port: u32,
    },
    /// The head of the queue, and the outcomes counted over its window.
    Head {
        /// Number of the head, which increases with each.
        seq: u64,
        /// Time by which it must be answered.
        deadline: u64,
        /// Estimated execution time.
        estimate: u64,
        /// Number of requests in the window (n of M2.13).
        requests: u64,
        /// Number of them that were in time (m of M2.13).
        in_time: u64,
        /// Number of waiting requests; 0 withdraws the head.
        waiting: u32,
        /// Trace of the request.
        trace: TraceContext,
        /// Whether it may be forwarded to another instance.
        may_move: bool,
    },
    /// A head that [`ToQueue::Sibling`] has named is not served by the other instance.
    Returned {
        /// Number of the head.
        seq: u64,
        /// Whether the other instance could not be reached or did not accept it; otherwise the head had left the queue before.
        is_refused: bool,
    },
    /// No request runs.
    Idle {
        /// Epoch of the lease.
        epoch: u64,
        /// Whether the lease ends with it, as after a recall; otherwise the queue may start requests again.
        ends: bool,
    },
}

/// A message from the agent to a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToQueue {
    /// Answer to [`FromQueue::Hello`].
    Welcome {
        /// UID of the pod; empty where it is not known.
        uid: String,
    },
    /// State of the pod's model.
    State {
        /// Where the model is.
        residency: Residency,
        /// Expected time until it is loaded; 0 if it is resident.
        load: u64,
    },
    /// The instance holds the lease of its slot.
    Lease {
        /// Epoch of the lease.
        epoch: u64,
    },
    /// The lease is to end.
    Recall {
        /// Epoch of the lease.
        epoch: u64,
    },
    /// The head is to be forwarded.
    Sibling {
        /// Number of the head.
        seq: u64,
        /// UID of the instance's pod, for its check of the target.
        uid: String,
        /// IP address of the instance.
        address: String,
        /// TCP port of the instance.
        port: u32,
        /// Revision of the instance.
        revision: String,
    },
    /// The model was loaded while the head waited, for the lease that follows. How long a request waited for the lease the queue knows itself.
    Spent {
        /// Number of the head.
        seq: u64,
        /// Begin of the load, which may be before the head's arrival.
        begun: u64,
        /// Its duration so far.
        load: u64,
        /// Where the model came from.
        source: LoadSource,
    },
    /// The connection is not served.
    Refused {
        /// Machine-readable reason.
        reason: Refusal,
        /// Human-readable reason.
        text: String,
    },
}

fn writer(kind: u8) -> Writer {
    let mut writer = Writer::new(kind);
    writer.set_version(QUEUE_VERSION);
    writer
}

impl FromQueue {
    /// Encodes the message into a buffer of its own.
    #[must_use]
    pub fn write(&self) -> Writer {
        match self {
            Self::Hello {
                again,
                epoch,
                running,
                waiting,
                address,
                port,
            } => {
                let mut writer = writer(32);
                writer.flag(*again);
                writer.u64(*epoch);
                writer.u32(*running);
                writer.u32(*waiting);
                writer.text(address);
                writer.u32(*port);
                writer
            }
            Self::Head {
                seq,
                deadline,
                estimate,
                requests,
                in_time,
                waiting,
                trace,
                may_move,
            } => {
                let mut writer = writer(33);
                for value in [seq, deadline, estimate, requests, in_time] {
                    writer.u64(*value);
                }
                writer.u32(*waiting);
                writer.raw(&trace.trace);
                writer.raw(&trace.span);
                writer.u32(trace.flags);
                writer.flag(*may_move);
                writer
            }
            Self::Returned { seq, is_refused } => {
                let mut writer = writer(35);
                writer.u64(*seq);
                writer.flag(*is_refused);
                writer
            }
            Self::Idle { epoch, ends } => {
                let mut writer = writer(34);
                writer.u64(*epoch);
                writer.flag(*ends);
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
        if version != QUEUE_VERSION {
            return Err(Malformed::Version(version));
        }
        let message = match kind {
            32 => Self::Hello {
                again: reader.flag()?,
                epoch: reader.u64()?,
                running: reader.u32()?,
                waiting: reader.u32()?,
                address: reader.text()?,
                port: reader.u32()?,
            },
            33 => Self::Head {
                seq: reader.u64()?,
                deadline: reader.u64()?,
                estimate: reader.u64()?,
                requests: reader.u64()?,
                in_time: reader.u64()?,
                waiting: reader.u32()?,
                trace: TraceContext {
                    trace: reader.chunk()?,
                    span: reader.chunk()?,
                    flags: reader.u32()?,
                },
                may_move: reader.flag()?,
            },
            35 => Self::Returned {
                seq: reader.u64()?,
                is_refused: reader.flag()?,
            },
            34 => Self::Idle {
                epoch: reader.u64()?,
                ends: reader.flag()?,
            },
            other => return Err(Malformed::Kind(other)),
        };
        reader.end()?;
        Ok(message)
    }
}

impl ToQueue {
    /// Encodes the message into a buffer of its own.
    #[must_use]
    pub fn write(&self) -> Writer {
        match self {
            Self::Welcome { uid } => {
                let mut writer = writer(160);
                writer.text(uid);
                writer
            }
            Self::State { residency, load } => {
                let mut writer = writer(161);
                writer.u32(*residency as u32);
                writer.u64(*load);
                writer
            }
            Self::Lease { epoch } => {
                let mut writer = writer(162);
                writer.u64(*epoch);
                writer
            }
            Self::Recall { epoch } => {
                let mut writer = writer(163);
                writer.u64(*epoch);
                writer
            }
            Self::Sibling {
                seq,
                uid,
                address,
                port,
                revision,
            } => {
                let mut writer = writer(164);
                writer.u64(*seq);
                writer.text(uid);
                writer.text(address);
                writer.u32(*port);
                writer.text(revision);
                writer
            }
            Self::Spent {
                seq,
                begun,
                load,
                source,
            } => {
                let mut writer = writer(166);
                for value in [seq, begun, load] {
                    writer.u64(*value);
                }
                writer.u32(*source as u32);
                writer
            }
            Self::Refused { reason, text } => {
                let mut writer = writer(165);
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
        let (kind, version, mut reader) = Reader::open(bytes)?;
        if version != QUEUE_VERSION {
            return Err(Malformed::Version(version));
        }
        let message = match kind {
            160 => Self::Welcome {
                uid: reader.text()?,
            },
            161 => Self::State {
                residency: reader.residency()?,
                load: reader.u64()?,
            },
            162 => Self::Lease {
                epoch: reader.u64()?,
            },
            163 => Self::Recall {
                epoch: reader.u64()?,
            },
            164 => Self::Sibling {
                seq: reader.u64()?,
                uid: reader.text()?,
                address: reader.text()?,
                port: reader.u32()?,
                revision: reader.text()?,
            },
            165 => {
                let reason = usize::try_from(reader.u32()?).map_err(|_| Malformed::Value)?;
                Self::Refused {
                    reason: *REFUSALS.get(reason).ok_or(Malformed::Value)?,
                    text: reader.text()?,
                }
            }
            166 => Self::Spent {
                seq: reader.u64()?,
                begun: reader.u64()?,
                load: reader.u64()?,
                source: match reader.u32()? {
                    0 => LoadSource::Host,
                    _ => return Err(Malformed::Value),
                },
            },
            other => return Err(Malformed::Kind(other)),
        };
        reader.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_queue() -> Vec<FromQueue> {
        vec![
            FromQueue::Hello {
                again: true,
                epoch: 9,
                running: 2,
                waiting: 3,
                address: "10.0.0.7".to_owned(),
                port: 8012,
            },
            FromQueue::Head {
                seq: 1,
                deadline: 2,
                estimate: 3,
                requests: 4,
                in_time: 5,
                waiting: 6,
                trace: TraceContext {
                    trace: [7; 16],
                    span: [8; 8],
                    flags: 1,
                },
                may_move: true,
            },
            FromQueue::Returned {
                seq: 11,
                is_refused: true,
            },
            FromQueue::Idle {
                epoch: 10,
                ends: false,
            },
        ]
    }

    fn to_queue() -> Vec<ToQueue> {
        vec![
            ToQueue::Welcome {
                uid: "0b5c".to_owned(),
            },
            ToQueue::State {
                residency: Residency::Host,
                load: 5,
            },
            ToQueue::Lease { epoch: 1 },
            ToQueue::Recall { epoch: 1 },
            ToQueue::Sibling {
                seq: 3,
                uid: "1".to_owned(),
                address: "::1".to_owned(),
                port: 8012,
                revision: "r-1".to_owned(),
            },
            ToQueue::Spent {
                seq: 3,
                begun: 7,
                load: 2,
                source: LoadSource::Host,
            },
            ToQueue::Refused {
                reason: Refusal::TooMany,
                text: "two".to_owned(),
            },
        ]
    }

    #[test]
    fn each_message_is_decoded_as_it_was_encoded_and_no_part_of_one_is() {
        for message in from_queue() {
            let mut writer = message.write();
            let bytes = writer.finish();
            assert_eq!(FromQueue::read(bytes).as_ref(), Ok(&message));
            for cut in 0..bytes.len() {
                assert!(FromQueue::read(&bytes[..cut]).is_err());
            }
            assert!(ToQueue::read(bytes).is_err(), "the other side's");
        }
        for message in to_queue() {
            let mut writer = message.write();
            let bytes = writer.finish();
            assert_eq!(ToQueue::read(bytes).as_ref(), Ok(&message));
            for cut in 0..bytes.len() {
                assert!(ToQueue::read(&bytes[..cut]).is_err());
            }
        }
    }

    #[test]
    fn a_message_of_another_version_is_refused() {
        let mut writer = FromQueue::Idle {
            epoch: 1,
            ends: true,
        }
        .write();
        let mut bytes = writer.finish().to_vec();
        bytes[0] = 1;
        assert_eq!(FromQueue::read(&bytes), Err(Malformed::Version(1)));
    }
}
