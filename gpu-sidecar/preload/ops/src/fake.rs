//! A driver and a process in virtual time, for tests.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use preload_state::gate::Thread;
use preload_state::memory::{Access, Properties};
use preload_state::process::Process;
use preload_state::streams::Stream;
use protocol::message::FromProcess;
use protocol::page::{Facts, Orders};

use crate::cuda::{
    Address, CAPTURE_RELAXED, Code, Handle, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY,
    SUCCESS,
};
use crate::memory::Memory;
use crate::platform::{Driver, System};

/// The context that is current at first.
pub(crate) const CONTEXT: Handle = 0xc0;
/// A stream of the program.
pub(crate) const STREAM: Handle = 0x5000;
/// A kernel of the program.
pub(crate) const KERNEL: Handle = 0xf000;

/// Pool of the first device.
pub(crate) const POOL: Handle = 0x9000;
/// Stands for an attribute that a device lacks if its memory cannot be shared.
pub(crate) const SHARING: c_int = -1;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`
const RESERVED: c_int = 5;
/// Granule of physical memory, in bytes.
pub(crate) const GRANULE: u64 = 2 << 20;

/// What happens at a wait.
type OnWait = Box<dyn FnOnce(&'static Fake)>;

/// Device on which each stream runs its work in order, and all streams at the same time; a process with one thread; and its agent.
#[derive(Default)]
pub(crate) struct Fake {
    pub(crate) process: Process,
    pub(crate) orders: Orders,
    pub(crate) facts: Facts,
    pub(crate) default_orders: Cell<bool>,
    pub(crate) now: Cell<u64>,
    /// End of the work in each stream.
    pub(crate) ends: RefCell<BTreeMap<Handle, u64>>,
    /// Completion time of each event; `u64::MAX` until it is recorded.
    pub(crate) events: RefCell<BTreeMap<Handle, u64>>,
    /// Context, and contexts of the streams.
    pub(crate) context: Cell<Handle>,
    pub(crate) capturing: RefCell<BTreeSet<Handle>>,
    pub(crate) capture_mode: Cell<c_int>,
    pub(crate) names: RefCell<BTreeMap<Handle, &'static str>>,
    /// Result of every query of an event, and of every record, if any.
    pub(crate) query_error: Cell<Option<Code>>,
    pub(crate) record_error: Cell<Option<Code>>,
    /// Calls of the driver that would have invalidated a capture.
    pub(crate) invalidated: Cell<u32>,
    pub(crate) primary: Cell<bool>,
    pub(crate) sent: RefCell<Vec<FromProcess>>,
    pub(crate) lines: RefCell<Vec<String>>,
    pub(crate) waits: RefCell<Vec<Duration>>,
    pub(crate) on_wait: RefCell<VecDeque<OnWait>>,
    pub(crate) barriers: Cell<u32>,
    /// Runs at the next barrier.
    pub(crate) on_barrier: RefCell<Option<OnWait>>,
    pub(crate) abandoned: Cell<u32>,
    memory: OnceCell<Memory>,
    /// Physical memory by handle; reserved addresses; mappings by address, with size and handle; access by address.
    pub(crate) physical: RefCell<BTreeMap<u64, u64>>,
    pub(crate) reserved: RefCell<Vec<(Address, u64)>>,
    pub(crate) mappings: RefCell<BTreeMap<Address, (u64, u64)>>,
    pub(crate) access: RefCell<BTreeMap<Address, Vec<Access>>>,
    next_handle: Cell<u64>,
    /// Memory of the device in bytes.
    pub(crate) total: Cell<u64>,
    /// Attributes of the device that are 0.
    pub(crate) lacks: RefCell<BTreeSet<c_int>>,
    /// Errors of the next calls of these methods.
    pub(crate) create_error: RefCell<VecDeque<Code>>,
    pub(crate) map_error: RefCell<VecDeque<Code>>,
    pub(crate) unmap_error: RefCell<VecDeque<Code>>,
    pub(crate) synchronize_error: RefCell<VecDeque<Code>>,
    pub(crate) allocate_error: Cell<Option<Code>>,
    pub(crate) synchronized: RefCell<Vec<Handle>>,
    /// Reserved and used memory of each pool, in bytes.
    pub(crate) pools: RefCell<BTreeMap<Handle, (u64, u64)>>,
    pub(crate) graph_bytes: Cell<u64>,
    pub(crate) freed_async: RefCell<Vec<Address>>,
    /// Id of the process.
    pub(crate) pid: Cell<u32>,
    /// Descriptors that other processes offer, by number.
    pub(crate) offered: RefCell<BTreeMap<u64, File>>,
    thread: Cell<Option<&'static Thread>>,
    is_inside: Cell<bool>,
    recent: Cell<Option<&'static Stream>>,
}

impl Fake {
    /// Creates an active process with an open gate, whose agent serves it.
    pub(crate) fn new() -> &'static Self {
        let fake: &'static Self = Box::leak(Box::default());
        fake.process.set_active(true);
        fake.orders.gate.set(2);
        fake.now.set(1_000_000);
        fake.context.set(CONTEXT);
        fake.total.set(64 * GRANULE);
        fake.pid.set(100);
        fake
    }

    /// Returns the physical memory that exists, in bytes.
    pub(crate) fn physical_bytes(&self) -> u64 {
        self.physical.borrow().values().sum()
    }

    /// Returns the device of a context: that of [`CONTEXT`] is 0, and the next ones follow.
    fn device_of(context: Handle) -> c_int {
        c_int::try_from((context - CONTEXT) / 0x10).unwrap_or(0)
    }

    /// Lets time pass, in nanoseconds.
    pub(crate) fn pass(&self, ns: u64) {
        self.now.set(self.now.get() + ns);
    }

    /// Enqueues work of this length in a stream.
    pub(crate) fn run(&self, stream: Handle, ns: u64) {
        let mut ends = self.ends.borrow_mut();
        let end = ends.entry(stream).or_insert(0);
        *end = (*end).max(self.now.get()) + ns;
    }

    /// Returns the messages sent since the last call.
    pub(crate) fn take_sent(&self) -> Vec<FromProcess> {
        self.sent.take()
    }

    /// Has this happen at the next wait.
    pub(crate) fn at_wait(&self, f: impl FnOnce(&'static Self) + 'static) {
        self.on_wait.borrow_mut().push_back(Box::new(f));
    }

    fn end_of(&self, stream: Handle) -> u64 {
        self.ends.borrow().get(&stream).copied().unwrap_or(0)
    }

    /// Notes a call that invalidates captures unless the mode is relaxed.
    fn touch(&self) {
        if !self.capturing.borrow().is_empty() && self.capture_mode.get() != CAPTURE_RELAXED {
            self.invalidated.set(self.invalidated.get() + 1);
        }
    }

    fn blocked(&'static self, at_most: Duration) {
        self.waits.borrow_mut().push(at_most);
        assert!(
            self.waits.borrow().len() < 100_000,
            "the thread waits for ever"
        );
        self.pass(preload_state::nanoseconds(at_most));
        let next = self.on_wait.borrow_mut().pop_front();
        if let Some(next) = next {
            next(self);
        }
    }
}

impl Driver for &'static Fake {
    fn current_context(self) -> Result<Handle, Code> {
        Ok(self.context.get())
    }

    fn set_current_context(self, context: Handle) -> Result<(), Code> {
        self.context.set(context);
        Ok(())
    }

    fn primary_context(self, _device: c_int) -> Result<Handle, Code> {
        Ok(CONTEXT)
    }

    fn is_primary_active(self, _device: c_int) -> Result<bool, Code> {
        Ok(self.primary.get())
    }

    fn device(self, ordinal: c_int) -> Result<c_int, Code> {
        Ok(ordinal)
    }

    fn device_uuid(self, _device: c_int) -> Result<[u8; 16], Code> {
        Ok([7; 16])
    }

    fn device_attribute(self, attribute: c_int, _device: c_int) -> Result<c_int, Code> {
        Ok(c_int::from(!self.lacks.borrow().contains(&attribute)))
    }

    fn current_device(self) -> Result<c_int, Code> {
        Ok(Fake::device_of(self.context.get()))
    }

    fn synchronize(self) -> Result<(), Code> {
        let context = self.context.get();
        self.synchronized.borrow_mut().push(context);
        match self.synchronize_error.borrow_mut().pop_front() {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    fn total_memory(self, _device: c_int) -> Result<u64, Code> {
        Ok(self.total.get())
    }

    fn memory_info(self) -> Result<(u64, u64), Code> {
        let total = self.total.get();
        Ok((total - self.physical_bytes(), total))
    }

    fn allocate(self, _bytes: u64) -> Result<Address, Code> {
        Err(self.allocate_error.get().unwrap_or(OUT_OF_MEMORY))
    }

    fn free(self, _address: Address) {}

    fn reserve_addresses(self, bytes: u64, alignment: u64) -> Result<Address, Code> {
        let mut reserved = self.reserved.borrow_mut();
        let begin = reserved.last().map_or(1 << 40, |(at, bytes)| at + bytes);
        let begin = begin.next_multiple_of(alignment);
        reserved.push((begin, bytes));
        Ok(begin)
    }

    fn granularity(self, _properties: &Properties) -> Result<u64, Code> {
        Ok(GRANULE)
    }

    fn create_memory(self, properties: &Properties, bytes: u64) -> Result<u64, Code> {
        assert!(bytes.is_multiple_of(GRANULE));
        if let Some(code) = self.create_error.borrow_mut().pop_front() {
            return Err(code);
        }
        if self.lacks.borrow().contains(&SHARING) && properties.handle_types != 0 {
            return Err(NOT_SUPPORTED);
        }
        if self.physical_bytes() + bytes > self.total.get() {
            return Err(OUT_OF_MEMORY);
        }
        let handle = self.next_handle.get() + 1;
        self.next_handle.set(handle);
        self.physical.borrow_mut().insert(handle, bytes);
        Ok(handle)
    }

    fn memory_properties(self, _handle: u64) -> Result<Properties, Code> {
        Ok(Properties::plain(0, false))
    }

    fn release_memory(self, handle: u64) {
        let is_mapped = self.mappings.borrow().values().any(|(_, of)| *of == handle);
        assert!(!is_mapped, "memory is unmapped before it is released");
        let released = self.physical.borrow_mut().remove(&handle);
        assert!(released.is_some(), "a handle is released once");
    }

    fn map(self, at: Address, bytes: u64, handle: u64) -> Result<(), Code> {
        if let Some(code) = self.map_error.borrow_mut().pop_front() {
            return Err(code);
        }
        let is_reserved =
            |(begin, length): &(u64, u64)| *begin <= at && at + bytes <= begin + length;
        assert!(self.reserved.borrow().iter().any(is_reserved));
        let mut mappings = self.mappings.borrow_mut();
        let before = mappings.range(..at + bytes).next_back();
        assert!(before.is_none_or(|(begin, (length, _))| begin + length <= at));
        mappings.insert(at, (bytes, handle));
        Ok(())
    }

    fn unmap(self, at: Address, bytes: u64) -> Result<(), Code> {
        if let Some(code) = self.unmap_error.borrow_mut().pop_front() {
            return Err(code);
        }
        let gone = self.mappings.borrow_mut().remove(&at);
        assert_eq!(
            gone.map(|(length, _)| length),
            Some(bytes),
            "one whole mapping"
        );
        Ok(())
    }

    fn set_access(self, at: Address, _bytes: u64, access: &[Access]) -> Result<(), Code> {
        self.access.borrow_mut().insert(at, access.to_vec());
        Ok(())
    }

    fn export_memory(self, handle: u64) -> Result<OwnedFd, Code> {
        let bytes = self.physical.borrow().get(&handle).copied();
        bytes.ok_or(INVALID_VALUE)?;
        self.memory_file().map(OwnedFd::from).ok_or(INVALID_VALUE)
    }

    fn import_memory(self, _file: BorrowedFd<'_>) -> Result<u64, Code> {
        let handle = self.next_handle.get() + 1;
        self.next_handle.set(handle);
        self.physical.borrow_mut().insert(handle, GRANULE);
        Ok(handle)
    }

    fn default_pool(self, device: c_int) -> Result<Handle, Code> {
        Ok(POOL + usize::try_from(device).unwrap_or(0))
    }

    fn pool_attribute(self, pool: Handle, attribute: c_int) -> Result<u64, Code> {
        let pools = self.pools.borrow();
        let (reserved, used) = pools.get(&pool).copied().ok_or(INVALID_VALUE)?;
        Ok(if attribute == RESERVED {
            reserved
        } else {
            used
        })
    }

    fn trim_pool(self, pool: Handle, keep: u64) {
        if let Some((reserved, used)) = self.pools.borrow_mut().get_mut(&pool) {
            *reserved = (*used).max(keep).min(*reserved);
        }
    }

    fn free_async(self, address: Address, _stream: Handle) {
        self.freed_async.borrow_mut().push(address);
    }

    fn graph_memory(self, _device: c_int, _attribute: c_int) -> Result<u64, Code> {
        Ok(self.graph_bytes.get())
    }

    fn stream_context(self, _stream: Handle) -> Result<Handle, Code> {
        Ok(CONTEXT)
    }

    fn query_stream(self, stream: Handle) -> Result<(), Code> {
        self.touch();
        let is_over = self.end_of(stream) <= self.now.get();
        if is_over { Ok(()) } else { Err(NOT_READY) }
    }

    fn is_capturing(self, stream: Handle) -> Result<bool, Code> {
        Ok(self.capturing.borrow().contains(&stream))
    }

    fn exchange_capture_mode(self, mode: c_int) -> Result<c_int, Code> {
        Ok(self.capture_mode.replace(mode))
    }

    fn create_event(self, _flags: u32) -> Result<Handle, Code> {
        self.touch();
        let mut events = self.events.borrow_mut();
        let event = 0xe000 + events.len();
        events.insert(event, u64::MAX);
        Ok(event)
    }

    fn record_event(self, event: Handle, stream: Handle) -> Result<(), Code> {
        assert!(
            !self.capturing.borrow().contains(&stream),
            "no event of this library enters a capture"
        );
        if let Some(code) = self.record_error.get() {
            return Err(code);
        }
        let at = self.end_of(stream).max(self.now.get());
        self.events.borrow_mut().insert(event, at);
        Ok(())
    }

    fn query_event(self, event: Handle) -> Result<(), Code> {
        self.touch();
        if let Some(code) = self.query_error.get() {
            return Err(code);
        }
        let at = self.events.borrow().get(&event).copied();
        match at {
            Some(at) if at <= self.now.get() => Ok(()),
            Some(_) => Err(NOT_READY),
            None => Err(INVALID_VALUE),
        }
    }

    fn synchronize_event(self, event: Handle) -> Result<(), Code> {
        let at = self.events.borrow().get(&event).copied();
        let at = at.ok_or(INVALID_VALUE)?;
        self.now.set(self.now.get().max(at));
        Ok(())
    }

    fn elapsed_ms(self, from: Handle, to: Handle) -> Result<f32, Code> {
        let events = self.events.borrow();
        let at = |event| events.get(event).copied().ok_or(INVALID_VALUE);
        let ns = at(&to)?.saturating_sub(at(&from)?);
        let us = u16::try_from(ns / 1_000).map_err(|_| INVALID_VALUE)?;
        Ok(f32::from(us) / 1e3)
    }

    fn destroy_event(self, event: Handle) {
        self.events.borrow_mut().remove(&event);
    }

    fn function_name(self, function: Handle) -> Option<Cow<'static, str>> {
        let names = self.names.borrow();
        names.get(&function).copied().map(Cow::Borrowed)
    }
}

impl System for &'static Fake {
    fn process(self) -> &'static Process {
        &self.process
    }

    fn orders(self) -> &'static Orders {
        &self.orders
    }

    fn facts(self) -> &'static Facts {
        &self.facts
    }

    fn has_agent_orders(self) -> bool {
        !self.default_orders.get()
    }

    fn memory(self) -> &'static Memory {
        self.memory.get_or_init(Memory::new)
    }

    fn process_id(self) -> u32 {
        self.pid.get()
    }

    fn random(self) -> Option<u64> {
        let next = self.next_handle.get() + 1;
        self.next_handle.set(next);
        Some(next << 32)
    }

    fn memory_file(self) -> Option<File> {
        let path = std::env::temp_dir().join(format!("preload-ops-{}", std::process::id()));
        let path = format!("{}-{:p}-{}", path.display(), self, self.next_handle.get());
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(&path).ok()?;
        std::fs::remove_file(&path).ok()?;
        Some(file)
    }

    fn permit_copies(self) {}

    fn open_process(self, _pid: u64) -> Option<OwnedFd> {
        self.memory_file().map(OwnedFd::from)
    }

    fn copy_descriptor(self, _process: BorrowedFd<'_>, number: u64) -> Result<OwnedFd, Code> {
        let offered = self.offered.borrow();
        let file = offered.get(&number).ok_or(INVALID_VALUE)?;
        file.try_clone()
            .map(OwnedFd::from)
            .map_err(|_| INVALID_VALUE)
    }

    fn now(self) -> u64 {
        self.now.get()
    }

    fn wait(self, _orders: &Orders, word: &AtomicU32, expected: u32, at_most: Duration) {
        if word.load(Ordering::Relaxed) == expected {
            self.blocked(at_most);
        }
    }

    fn pause(self, span: Duration) {
        self.blocked(span);
    }

    fn barrier(self) {
        self.barriers.set(self.barriers.get() + 1);
        if let Some(next) = self.on_barrier.take() {
            next(self);
        }
    }

    fn thread(self) -> Option<&'static Thread> {
        if self.thread.get().is_none() {
            self.thread.set(self.process.threads.register(1, |_| false));
        }
        self.thread.get()
    }

    fn is_launching(self) -> bool {
        self.thread.get().is_some_and(Thread::is_launching)
    }

    fn thread_identity(self) -> usize {
        0x1234
    }

    fn is_inside(self) -> bool {
        self.is_inside.get()
    }

    fn set_inside(self, is_inside: bool) {
        self.is_inside.set(is_inside);
    }

    fn recent(self) -> Option<&'static Stream> {
        self.recent.get()
    }

    fn set_recent(self, stream: Option<&'static Stream>) {
        self.recent.set(stream);
    }

    fn send(self, message: &FromProcess) {
        self.sent.borrow_mut().push(message.clone());
    }

    fn abandon_hung_agent(self) {
        self.abandoned.set(self.abandoned.get() + 1);
    }

    fn log(self, line: &str) {
        self.lines.borrow_mut().push(line.to_owned());
    }
}

/// Returns a call of the driver that succeeds, and the number of times it was made.
pub(crate) fn counted(calls: &Cell<u32>) -> impl Fn() -> Code {
    || {
        calls.set(calls.get() + 1);
        SUCCESS
    }
}
