//! What happens to a link, and what is to be done.

use std::borrow::Cow;
use std::time::Duration;

use protocol::message::{FromAgent, FromProcess};

use super::terms::Terms;

/// Time after which a gate without an agent opens.
pub const OPENS_AFTER: Duration = Duration::from_millis(100);
/// Time for which a reply of the agent is waited for.
pub const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Interval between attempts to connect to an agent that accepts no connection.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Interval between attempts of a process that the agent refused.
pub const REFUSED_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between attempts to reach a lost agent.
pub const SEARCH_INTERVAL: Duration = Duration::from_millis(100);

/// State of the process with respect to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The driver has not been initialised.
    New,
    /// Weir does not control the process: there is no socket, no thread could be created, or it is a forked child.
    Off,
    /// Terms were received, or no agent answers: the driver is to be initialised.
    Ready,
    /// The driver is initialised, and the pages of an agent, or the defaults, are in use.
    Attached,
    /// The agent refuses the process.
    Refused,
}

/// Outcome of an attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectOutcome {
    /// The connection is open.
    Connected,
    /// The socket does not exist or refuses connections: no agent is running.
    NoAgent,
    /// An agent is running but accepts no connection now, because its backlog is full; or this process cannot connect, for lack
    /// of descriptors or permission.
    Busy,
}

/// What the process does at the beginning of an attempt to reach the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Activity {
    /// Whether the agent was given up for lack of a heartbeat since the last attempt.
    pub is_hung: bool,
    /// Whether the gate is open or work is in flight.
    pub computes: bool,
}

/// Event to which the link reacts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The program initialises the driver. `has_socket`: the socket of an agent is there or named.
    Begin {
        /// Whether the path of a socket is known.
        has_socket: bool,
    },
    /// The driver is initialised.
    Initialised {
        /// Whether the connection is open.
        is_connected: bool,
    },
    /// The thread of the link runs.
    Run {
        /// Whether the connection is open.
        is_connected: bool,
        /// What the process does.
        activity: Activity,
    },
    /// An attempt to connect has ended.
    Connect(ConnectOutcome),
    /// A reply has come; `None` if none came in time, the connection was closed, or nothing could be sent.
    Reply(Option<FromAgent>),
    /// The pages of the last reply are in use; `false` if there were none or they cannot be mapped.
    Mapped(bool),
    /// The threads of the library run; `false` if one could not be created.
    Started(bool),
    /// A message has come unasked.
    Message(FromAgent),
    /// No message has come in time.
    Nothing,
    /// The connection is closed.
    Closed(Activity),
    /// A pause has ended.
    Elapsed(Activity),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Connects to the agent's socket.
    Connect,
    /// Sends `Hello` and waits for a reply for [`ANSWER_MAX`].
    Hello {
        /// Whether the process was connected before.
        again: bool,
        /// Whether it has computed since.
        open: bool,
    },
    /// Sends `Attach` and waits for a reply for [`ANSWER_MAX`].
    Attach,
    /// Maps the pages that came with the reply, continues the counters in them, uses them, resets the gate, and wakes the waiters of the
    /// previous page.
    MapPages,
    /// Puts the library into effect and starts its threads.
    Start,
    /// Waits for a message.
    Receive,
    /// Waits for this time.
    Pause(Duration),
    /// Returns from the program's call; `false` is an error, because the agent refuses the process.
    Return(bool),

    /// Applies the limits of these terms.
    Limits(Terms),
    /// Sets the variables of these terms in the environment ([`Terms::environment`]).
    SetEnvironment(Terms),
    /// Sends a message.
    Send(FromProcess),
    /// Gives up the unused part of the memory claim.
    Relinquish,
    /// Closes the connection.
    Shutdown,
    /// Uses the default orders by which every launch passes, unless they are in use. After a change resets the gate, and wakes the
    /// waiters of the previous page.
    UseOpenOrders,
    /// Uses the default orders by which no launch passes, unless they are in use. After a change resets the gate, and wakes the waiters
    /// of the previous page.
    UseClosedOrders,
    /// Adds time to that for which the gate was open without an agent, in nanoseconds.
    CountUngated(u64),
    /// Writes a line for the user.
    Log(Cow<'static, str>),
}
