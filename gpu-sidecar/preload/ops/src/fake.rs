//! A driver and a process in virtual time, for tests.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use preload_state::gate::Thread;
use preload_state::process::Process;
use preload_state::streams::Stream;
use protocol::message::FromProcess;
use protocol::page::{Facts, Orders};

use crate::cuda::{CAPTURE_RELAXED, Code, Handle, INVALID_VALUE, NOT_READY, SUCCESS};
use crate::platform::{Driver, System};

/// The context that is current at first.
pub(crate) const CONTEXT: Handle = 0xc0;
/// A stream of the program.
pub(crate) const STREAM: Handle = 0x5000;
/// A kernel of the program.
pub(crate) const KERNEL: Handle = 0xf000;

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
        fake
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

    fn device_attribute(self, _attribute: c_int, _device: c_int) -> Result<c_int, Code> {
        Ok(1)
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

    fn now(self) -> u64 {
        self.now.get()
    }

    fn wait(self, word: &AtomicU32, expected: u32, at_most: Duration) {
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
