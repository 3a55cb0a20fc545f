//! What a node's agent and the programs in its pods say to each other.
//!
//! A process that uses a GPU holds one `SOCK_SEQPACKET` connection to the socket of its pod (`gpu.sock`). Who it is follows
//! from the socket and from the peer's credentials, never from a message. What is rare goes over the connection
//! ([`message`]); what happens at every launch is two words in shared memory ([`page`]).
//!
//! | from the process | answered by | |
//! |---|---|---|
//! | `Hello` | `Welcome` or `Refused` | before the driver is initialised: where it may compute, and within what |
//! | `Attach` | `Pages` with two memory files, or `Refused` | the driver is there: pages for its device |
//! | `Ask` | – | a thread is parked at the gate |
//! | `Closed` | – | the gate of that epoch is shut and nothing is in flight |
//! | `Claim` | in *orders* | it wants to hold more of the pod's memory, or less |
//! | `Report` | – | something an operator wants to know |
//!
//! All integers are little-endian. A message has at most 4 KiB ([`message::MESSAGE_MAX`]). The first byte of each is the
//! version of this protocol: an agent understands [`VERSION`] and the one before it.

#![forbid(unsafe_code)]

pub mod message;
pub mod page;
pub mod union;

/// The version of messages and pages.
pub const VERSION: u8 = 1;

/// The socket of a pod, in the folder that is mounted into its user containers.
pub const GPU_SOCKET: &str = "gpu.sock";
/// Names another socket than the one beside the preload library.
pub const GPU_SOCKET_VARIABLE: &str = "WEIR_GPU_SOCKET";
