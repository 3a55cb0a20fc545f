//! What the operations need: the driver and the process.

use std::borrow::Cow;
use std::ffi::c_int;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use preload_state::gate::Thread;
use preload_state::process::Process;
use preload_state::streams::Stream;
use protocol::message::{FromProcess, Report};
use protocol::page::{Facts, Orders};

use crate::cuda::{Code, Handle};

/// Driver of the device, called directly and not through the wrappers.
///
/// Handles are those which the program passes in the call that is being handled, or which the driver has returned to this library and
/// which are not destroyed. A function that the driver lacks returns `NOT_SUPPORTED`.
pub trait Driver: Copy {
    /// Returns the context of the calling thread; 0 if it has none.
    ///
    /// # Errors
    ///
    /// The driver's error, as for every method.
    fn current_context(self) -> Result<Handle, Code>;
    /// Sets the context of the calling thread; 0 for none.
    ///
    /// # Errors
    ///
    /// The driver's error: a destroyed context is refused.
    fn set_current_context(self, context: Handle) -> Result<(), Code>;
    /// Returns the handle of the primary context of a device, which it retains and releases; an active one stays as it is.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn primary_context(self, device: c_int) -> Result<Handle, Code>;
    /// Returns whether the primary context of a device is active.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn is_primary_active(self, device: c_int) -> Result<bool, Code>;

    /// Returns a device.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn device(self, ordinal: c_int) -> Result<c_int, Code>;
    /// Returns the UUID of a device.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn device_uuid(self, device: c_int) -> Result<[u8; 16], Code>;
    /// Returns an attribute of a device.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn device_attribute(self, attribute: c_int, device: c_int) -> Result<c_int, Code>;

    /// Returns the context of a stream.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn stream_context(self, stream: Handle) -> Result<Handle, Code>;
    /// Queries whether all work in a stream has finished.
    ///
    /// # Errors
    ///
    /// `NOT_READY`, or the driver's error.
    fn query_stream(self, stream: Handle) -> Result<(), Code>;
    /// Returns whether a stream captures.
    ///
    /// # Errors
    ///
    /// The driver's error: also for a stream with an invalidated capture.
    fn is_capturing(self, stream: Handle) -> Result<bool, Code>;
    /// Sets the capture mode of the calling thread, and returns the previous one.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn exchange_capture_mode(self, mode: c_int) -> Result<c_int, Code>;

    /// Creates an event in the calling thread's context.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn create_event(self, flags: u32) -> Result<Handle, Code>;
    /// Records an event in a stream.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn record_event(self, event: Handle, stream: Handle) -> Result<(), Code>;
    /// Queries whether an event is complete.
    ///
    /// # Errors
    ///
    /// `NOT_READY`, or the driver's error.
    fn query_event(self, event: Handle) -> Result<(), Code>;
    /// Blocks until an event is complete.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn synchronize_event(self, event: Handle) -> Result<(), Code>;
    /// Returns the time between two completed events, in milliseconds.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn elapsed_ms(self, from: Handle, to: Handle) -> Result<f32, Code>;
    /// Destroys an event.
    fn destroy_event(self, event: Handle);

    /// Returns the name of a function or kernel; `None` if the driver has none.
    fn function_name(self, function: Handle) -> Option<Cow<'static, str>>;
}

/// Process in which the library is loaded: its state, its clock, its calling thread, and its agent.
pub trait System: Copy {
    /// Returns the state of the process.
    fn process(self) -> &'static Process;
    /// Returns the orders in effect.
    fn orders(self) -> &'static Orders;
    /// Returns the facts in use, to which the process publishes its state.
    fn facts(self) -> &'static Facts;
    /// Returns whether the orders in effect are an agent's, and not the defaults.
    fn has_agent_orders(self) -> bool;

    /// Returns the time in nanoseconds of `CLOCK_MONOTONIC`.
    fn now(self) -> u64;
    /// Blocks until the word's waiters are woken or `at_most` has passed; returns at once if the word is not `expected`. May also
    /// return early.
    fn wait(self, word: &AtomicU32, expected: u32, at_most: Duration);
    /// Blocks for this time.
    fn pause(self, span: Duration);
    /// Runs a memory barrier in all threads of the process: their earlier writes become visible, and their later reads are not
    /// reordered before it.
    fn barrier(self);

    /// Returns the entry of the calling thread among the threads that launch, and registers it if it has none; `None` if there is no
    /// room.
    fn thread(self) -> Option<&'static Thread>;
    /// Returns whether the calling thread has registered and its launch is in progress.
    fn is_launching(self) -> bool;
    /// Returns a number that no other thread of the process has now.
    fn thread_identity(self) -> usize;
    /// Returns whether the calling thread is in a launch that has passed the gate.
    fn is_inside(self) -> bool;
    /// Sets whether the calling thread is in a launch that has passed the gate.
    fn set_inside(self, is_inside: bool);
    /// Returns the stream of the calling thread's last launch.
    fn recent(self) -> Option<&'static Stream>;
    /// Sets the stream of the calling thread's last launch.
    fn set_recent(self, stream: Option<&'static Stream>);

    /// Sends a message to the agent. Lost messages are not repeated: a reconnected agent is sent the full state.
    fn send(self, message: &FromProcess);
    /// Closes the connection to an agent without a heartbeat, if there is one that serves the process; it is then treated as stopped.
    fn abandon_hung_agent(self);
    /// Writes a line for the user.
    fn log(self, line: &str);

    /// Returns whether Weir controls the process.
    #[inline]
    fn is_active(self) -> bool {
        self.process().is_active()
    }

    /// Returns whether the orders in effect are those of a connected agent, which accepts requests for a token.
    fn is_served(self) -> bool {
        !self.process().status.is_lost() && self.has_agent_orders()
    }

    /// Sends a report of interest to an operator.
    fn report(self, report: Report) {
        self.send(&FromProcess::Report(report));
    }

    /// Reports the first sticky error of the driver.
    fn report_fatal(self, code: Code) {
        if let Some(report) = preload_state::counters::note_error(self.facts(), code) {
            self.report(report);
        }
    }
}

/// Driver and process.
pub trait Platform: Driver + System {}

impl<T: Driver + System> Platform for T {}
