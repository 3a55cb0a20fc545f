//! Protocol between a node's agent and the programs in its pods.
//!
//! A process that uses a GPU holds one `SOCK_SEQPACKET` connection to the socket of its pod (`gpu.sock`). The agent
//! identifies the process by the socket and by the peer's credentials, never by a message. Rare events are messages on
//! the connection ([`message`]); the fast path of a launch reads two words of shared memory ([`page`]).
//!
//! | from the process | answer | meaning |
//! |---|---|---|
//! | `Hello` | `Welcome` or `Refused` | before driver initialisation: requests the device and the limits of the process |
//! | `Attach` | `Pages` with two memory files, or `Refused` | after driver initialisation: requests the pages of its device |
//! | `Ask` | – | a thread is parked at the gate |
//! | `Closed` | – | the gate of that epoch is closed and nothing is in flight |
//! | `Claim` | in *orders* | changes the amount of the pod's memory that the process holds |
//! | `Present` | – | answers the agent's `Probe` |
//! | `Report` | – | an event for the operator |
//!
//! The queue of a pod's requests holds another connection, to `queue.sock`, over which leases pass: see [`queue`].
//!
//! All integers are little-endian. A message has at most 4 KiB ([`message::MESSAGE_MAX`]). The first byte of each is the
//! version of this protocol; a message of another than [`VERSION`] is refused.
//!
//! Deliberately absent: sockets and mappings; this crate encodes, decodes and lays out. Start reading in [`message`].
//!
//! # Examples
//!
//! ```
//! use protocol::message::{FromProcess, Malformed};
//!
//! let message = FromProcess::Ask { epoch: 7 };
//! let mut writer = message.write();
//! let bytes = writer.finish();
//! assert_eq!(FromProcess::read(bytes), Ok(message));
//! assert!(matches!(FromProcess::read(&bytes[..4]), Err(Malformed::Length)));
//! ```
#![forbid(unsafe_code)]

pub mod message;
mod moves;
pub mod page;
pub mod queue;
pub mod union;

/// Version of the messages.
pub const VERSION: u8 = 2;
/// Oldest version of the messages which the agent serves: an update of a node replaces the agent first, and its pods later.
pub const OLDEST_VERSION: u8 = 1;
/// First version of the messages with moves of memory between device and host.
pub const MOVES_SINCE: u8 = 2;
/// Version of the layout of the pages. Later versions of the messages have used words that were reserved before.
pub const LAYOUT: u32 = 1;

/// File name of a pod's socket, in the directory that is mounted into its user containers.
pub const GPU_SOCKET: &str = "gpu.sock";
/// File name of the socket of a pod's queue, in the directory that is mounted into its queue-proxy.
pub const QUEUE_SOCKET: &str = "queue.sock";
/// Environment variable with the path of the socket, which overrides the one beside the preload library.
pub const GPU_SOCKET_VARIABLE: &str = "WEIR_GPU_SOCKET";
