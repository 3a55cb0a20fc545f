//! What the operations need: the driver and the process.

use std::borrow::Cow;
use std::ffi::c_int;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use preload_state::gate::Thread;
use preload_state::memory::{Access, HostSpan, Properties};
use preload_state::process::Process;
use preload_state::streams::Stream;
use protocol::message::{FromProcess, Report};
use protocol::page::{Facts, Orders};

use crate::cuda::{Address, Code, Handle};
use crate::graphs::NodeUse;
use crate::launch::Arguments;
use crate::memory::Memory;

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

    /// Returns all words of the arguments of a launch of a kernel, if they are known, with the address of the tensor in place of each
    /// descriptor of one.
    fn argument_words(self, function: Handle, arguments: Arguments) -> Option<Vec<u64>>;
    /// Returns the nodes of a graph.
    ///
    /// # Errors
    ///
    /// The driver's error; `INVALID_VALUE` for more than `at_most`.
    fn graph_nodes(self, graph: Handle, at_most: usize) -> Result<Vec<Handle>, Code>;
    /// Returns the memory that a node of a graph uses.
    fn node_use(self, node: Handle) -> NodeUse;

    /// Returns the device of the calling thread's context.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn current_device(self) -> Result<c_int, Code>;
    /// Blocks until all work of the calling thread's context has finished.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn synchronize(self) -> Result<(), Code>;
    /// Blocks until all work of these contexts has ended, for at most `at_most`, in another thread. Returns the driver's first error; `None` if the work has not
    /// ended. A destroyed context has none. One thread at a time may call this.
    fn synchronize_within(self, contexts: &[Handle], at_most: Duration)
    -> Option<Result<(), Code>>;
    /// Returns the total memory of a device, in bytes.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn total_memory(self, device: c_int) -> Result<u64, Code>;
    /// Returns the free and the total memory of the calling thread's device, in bytes.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn memory_info(self) -> Result<(u64, u64), Code>;
    /// Allocates memory of the driver's own.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn allocate(self, bytes: u64) -> Result<Address, Code>;
    /// Frees memory that [`Self::allocate`] has returned.
    fn free(self, address: Address);
    /// Reserves addresses of a device.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn reserve_addresses(self, bytes: u64, alignment: u64) -> Result<Address, Code>;
    /// Returns the granularity of physical memory with these properties, in bytes.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn granularity(self, properties: &Properties) -> Result<u64, Code>;
    /// Creates physical memory, and returns its handle.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn create_memory(self, properties: &Properties, bytes: u64) -> Result<u64, Code>;
    /// Returns the properties of physical memory.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn memory_properties(self, handle: u64) -> Result<Properties, Code>;
    /// Releases a handle of physical memory.
    fn release_memory(self, handle: u64);
    /// Maps physical memory at reserved addresses without a mapping.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn map(self, at: Address, bytes: u64, handle: u64) -> Result<(), Code>;
    /// Unmaps one whole mapping that is no longer used.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn unmap(self, at: Address, bytes: u64) -> Result<(), Code>;
    /// Sets the access of devices to mapped memory.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn set_access(self, at: Address, bytes: u64, access: &[Access]) -> Result<(), Code>;
    /// Exports physical memory as a descriptor that executed programs do not inherit.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn export_memory(self, handle: u64) -> Result<OwnedFd, Code>;
    /// Imports physical memory from a descriptor, and returns its handle.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn import_memory(self, file: BorrowedFd<'_>) -> Result<u64, Code>;
    /// Creates a stream without order relative to other streams, of the highest priority, in the calling thread's context.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn create_stream(self) -> Result<Handle, Code>;
    /// Blocks until all work in a stream has finished.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn synchronize_stream(self, stream: Handle) -> Result<(), Code>;
    /// Copies mapped device memory to a window of host memory, in stream order. The window must stay as it is until the copy has ended.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn copy_to_host(self, to: HostSpan, from: Address, stream: Handle) -> Result<(), Code>;
    /// Copies a window of host memory to mapped device memory, in stream order. The window must stay as it is until the copy has ended.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn copy_to_device(self, to: Address, from: HostSpan, stream: Handle) -> Result<(), Code>;
    /// Enqueues the setting of every bit of a range of mapped device memory.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn set_all_bits(self, at: Address, bytes: u64, stream: Handle) -> Result<(), Code>;
    /// Copies words to mapped device memory, in stream order. The slice must stay valid and unchanged until the copy has ended.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn write_words(self, to: Address, words: &[u64], stream: Handle) -> Result<(), Code>;
    /// Reads words from mapped device memory by a stream of this library, and blocks until its work has ended.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn read_words(self, from: Address, words: &mut [u64], stream: Handle) -> Result<(), Code>;
    /// Registers a window of host memory in the calling thread's context: copies to and from it run at the speed of the link.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn register_host(self, window: HostSpan) -> Result<(), Code>;
    /// Releases a window of host memory that is registered: its pages are pinned no more. Nothing may be copying to or from it.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn release_host(self, window: HostSpan) -> Result<(), Code>;
    /// Loads the module of this library's kernels in the calling thread's context, and returns the kernel that hashes granules.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn load_hash(self) -> Result<Handle, Code>;
    /// Launches the kernel that hashes granules (`weir_granule_hash`), with these parameters, in a stream.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn launch_hash(self, kernel: Handle, parameters: [u64; 4], stream: Handle) -> Result<(), Code>;
    /// Returns the pool from which a device's stream-ordered memory comes.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn default_pool(self, device: c_int) -> Result<Handle, Code>;
    /// Returns an attribute of a pool that is a number.
    ///
    /// # Errors
    ///
    /// The driver's error: a pool that it does not know is refused.
    fn pool_attribute(self, pool: Handle, attribute: c_int) -> Result<u64, Code>;
    /// Releases unused memory of a pool, except `keep` bytes.
    fn trim_pool(self, pool: Handle, keep: u64);
    /// Frees memory in stream order.
    fn free_async(self, address: Address, stream: Handle);
    /// Returns an attribute of the memory of a device's graphs that is a number.
    ///
    /// # Errors
    ///
    /// The driver's error.
    fn graph_memory(self, device: c_int, attribute: c_int) -> Result<u64, Code>;
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

    /// Returns the state of device memory, created at the first call in this process.
    fn memory(self) -> &'static Memory;

    /// Returns the time in nanoseconds of `CLOCK_MONOTONIC`.
    fn now(self) -> u64;
    /// Blocks until the waiters of `word`, a word of these orders, are woken or `at_most` has passed; returns at once if the word is not
    /// `expected` or other orders are in effect. May also return early.
    fn wait(self, orders: &Orders, word: &AtomicU32, expected: u32, at_most: Duration);
    /// Blocks until the waiters of `word`, a word of this process, are woken or `at_most` has passed; returns at once if the word is not
    /// `expected`. May also return early.
    fn wait_at(self, word: &AtomicU32, expected: u32, at_most: Duration);
    /// Wakes the waiters of a word of this process.
    fn wake(self, word: &AtomicU32);
    /// Returns the words of 8 bytes in host memory whose value is in `near`. The program passes the memory to the driver, or it is in a window of this
    /// process. Last bytes that are no whole word are left out.
    fn host_words(self, span: HostSpan, near: &Range<u64>) -> Vec<u64>;
    /// Maps host memory of this process alone, and returns its address; `None` if there is none.
    fn map_host(self, bytes: u64) -> Option<u64>;
    /// Unmaps memory that [`Self::map_host`] has returned, and that nothing uses.
    fn unmap_host(self, span: HostSpan);
    /// Begins to copy host memory, between a piece of staging memory and a window, beside the calling thread if there are threads for it. `piece`: number of the piece, below
    /// [`crate::residency::STAGING_PIECES`], of which no earlier copy is in progress.
    fn begin_copy(self, piece: usize, to: HostSpan, from: HostSpan);
    /// Returns whether the last copy of this piece is over.
    fn is_copied(self, piece: usize) -> bool;
    /// Blocks until the last copy of this piece is over.
    fn end_copy(self, piece: usize);
    /// Blocks for this time.
    fn pause(self, span: Duration);
    /// Runs a memory barrier in all threads of the process: their earlier writes become visible, and their later reads are not
    /// reordered before it.
    fn barrier(self);

    /// Returns the entry of the calling thread among the threads that launch or touch memory, and registers it if it has none; `None` if there is no
    /// room.
    fn thread(self) -> Option<&'static Thread>;
    /// Returns whether the calling thread has registered and its launch is in progress.
    fn is_launching(self) -> bool;
    /// Returns a number that no other thread of the process has now.
    fn thread_identity(self) -> usize;
    /// Returns whether the calling thread is in a launch or touch that has passed its gate.
    fn is_inside(self) -> bool;
    /// Sets whether the calling thread is in a launch or touch that has passed its gate.
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

    /// Returns the id of the process.
    fn process_id(self) -> u32;
    /// Returns a random number which cannot be guessed; `None` if the system has none.
    fn random(self) -> Option<u64>;
    /// Creates a file in memory that executed programs do not inherit.
    fn memory_file(self) -> Option<File>;
    /// Permits other processes of the user to copy descriptors of this one, where the system requires permission.
    fn permit_copies(self);
    /// Opens another process; `None` if it is gone.
    fn open_process(self, pid: u64) -> Option<OwnedFd>;
    /// Copies a descriptor of another process.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` if it has none with this number, `NOT_SUPPORTED` if the system does not permit the copy.
    fn copy_descriptor(self, process: BorrowedFd<'_>, number: u64) -> Result<OwnedFd, Code>;

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

/// Driver and process, which every operation needs.
pub trait Platform: Driver + System {}

impl<T: Driver + System> Platform for T {}
