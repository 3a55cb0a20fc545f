//! A driver and a process in virtual time, for tests.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_int;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use preload_state::gate::Thread;
use preload_state::link::Terms;
use preload_state::memory::{Access, HostSpan, Properties};
use preload_state::process::Process;
use preload_state::streams::Stream;
use protocol::message::{FromProcess, OnLoss};
use protocol::page::{Facts, Orders};

use crate::cuda::{
    Address, CAPTURE_RELAXED, Code, Handle, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY,
    SUCCESS,
};
use crate::graphs::NodeUse;
use crate::launch::Arguments;
use crate::memory::Memory;
use crate::platform::{Driver, System};

mod driver;
mod system;

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

/// Copy between device and host.
#[derive(Debug, Clone, Copy)]
enum Delayed {
    ToHost(HostSpan, Address),
    ToDevice(Address, HostSpan),
}

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
    pub(crate) destroyed: RefCell<BTreeSet<Handle>>,
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
    /// Number of calls that wake waiters.
    pub(crate) woken: Cell<u32>,
    pub(crate) barriers: Cell<u32>,
    /// Runs at a barrier, after this number of others.
    on_barrier: RefCell<Option<(u32, OnWait)>>,
    pub(crate) abandoned: Cell<u32>,
    memory: OnceCell<Memory>,
    /// Physical memory by handle; reserved addresses; mappings by address, with size and handle; access by address.
    pub(crate) physical: RefCell<BTreeMap<u64, u64>>,
    /// Released handles of mapped memory.
    pub(crate) released: RefCell<BTreeSet<u64>>,
    pub(crate) reserved: RefCell<Vec<(Address, u64)>>,
    pub(crate) mappings: RefCell<BTreeMap<Address, (u64, u64)>>,
    pub(crate) access: RefCell<BTreeMap<Address, Vec<Access>>>,
    /// Contents of physical memory by handle, and of host memory by address, each as one number for a granule.
    pub(crate) contents: RefCell<BTreeMap<u64, Vec<u64>>>,
    pub(crate) host_contents: RefCell<BTreeMap<u64, u64>>,
    /// Runs at a wait for an event, after this number of others; and the result of these waits.
    pub(crate) on_event_wait: RefCell<Option<(u32, OnWait)>>,
    pub(crate) event_wait_error: Cell<Option<Code>>,
    /// Words of the arguments of launches, by the address of their list.
    pub(crate) arguments: RefCell<BTreeMap<usize, Vec<u64>>>,
    /// Nodes of graphs, what each node uses, and the number of times that the nodes of some graph were listed.
    pub(crate) graphs: RefCell<BTreeMap<Handle, Vec<Handle>>>,
    pub(crate) nodes: RefCell<BTreeMap<Handle, NodeUse>>,
    pub(crate) graph_reads: Cell<u32>,
    /// Words of the memory that the driver has allocated, by address.
    pub(crate) words: RefCell<BTreeMap<Address, u64>>,
    pub(crate) next_native: Cell<Address>,
    /// Size of the memory of which every bit was set, in bytes, and that at the first copy to the device.
    pub(crate) poisoned: Cell<u64>,
    /// Addresses of allocations by the driver's own call, and of those that were freed.
    pub(crate) allocated: RefCell<Vec<Address>>,
    pub(crate) freed: RefCell<Vec<Address>>,
    pub(crate) poisoned_at_first_copy: Cell<Option<u64>>,
    /// Copies between pieces of staging memory and windows that are not over, by piece; the number of looks at them, and the size of all so far.
    pub(crate) copying: RefCell<BTreeMap<usize, (HostSpan, HostSpan)>>,
    pub(crate) looks: Cell<u32>,
    pub(crate) staged: Cell<u64>,
    /// Time that a copy takes, in nanoseconds, and copies that are not over, each with its end; 0: each is over at once.
    pub(crate) copy_ns: Cell<u64>,
    delayed: RefCell<VecDeque<(u64, Delayed)>>,
    next_event: Cell<usize>,
    /// Staging memory that was unmapped.
    pub(crate) unmapped: RefCell<Vec<HostSpan>>,
    /// Windows that were registered.
    pub(crate) registered: RefCell<Vec<HostSpan>>,
    /// Results of the next copies.
    pub(crate) copy_error: RefCell<VecDeque<Code>>,
    next_handle: Cell<u64>,
    /// Memory of the device in bytes.
    pub(crate) total: Cell<u64>,
    /// Attributes of the device that are 0.
    pub(crate) lacks: RefCell<BTreeSet<c_int>>,
    /// Time that the creation and the release of a handle take, in nanoseconds.
    pub(crate) handle_ns: Cell<u64>,
    /// Errors of the next calls of these methods.
    pub(crate) create_error: RefCell<VecDeque<Code>>,
    pub(crate) map_error: RefCell<VecDeque<Code>>,
    pub(crate) unmap_error: RefCell<VecDeque<Code>>,
    /// Whether work in some stream does not end.
    pub(crate) is_working: Cell<bool>,
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
    /// Makes the process one of an exclusive slot, under a limit in bytes; 0: none.
    pub(crate) fn share_slot_memory(&self, memory_limit: u64) {
        self.process.set_limits(&Terms {
            on_loss: OnLoss::Keep,
            visible_devices: String::new(),
            mps_pipe_directory: String::new(),
            active_thread_hundredths: 10_000,
            mps_memory_limit: 0,
            memory_limit,
            context_residue: 0,
        });
    }

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

    /// Returns the contents of the granule at a mapped address.
    pub(crate) fn granule_at(&self, at: Address) -> Option<u64> {
        let mappings = self.mappings.borrow();
        let (begin, (bytes, handle)) = mappings.range(..=at).next_back()?;
        let number = usize::try_from((at - begin) / GRANULE).ok()?;
        let contents = self.contents.borrow();
        (at - begin < *bytes).then(|| contents[handle][number])
    }

    /// Sets the contents of the granule at a mapped address.
    pub(crate) fn set_granule(&self, at: Address, value: u64) {
        let mappings = self.mappings.borrow();
        let (begin, (bytes, handle)) = mappings.range(..=at).next_back().unwrap();
        assert!(at - begin < *bytes, "mapped");
        let number = usize::try_from((at - begin) / GRANULE).unwrap();
        self.contents.borrow_mut().get_mut(handle).unwrap()[number] = value;
    }

    /// Copies at the end of the copy's time.
    fn copy(&self, stream: Handle, copy: Delayed) {
        self.run(stream, self.copy_ns.get());
        let end = self.end_of(stream);
        self.delayed.borrow_mut().push_back((end, copy));
        if self.copy_ns.get() == 0 {
            self.end_copies_until(u64::MAX);
        }
    }

    /// Copies what is over by now.
    fn end_copies(&self) {
        self.end_copies_until(self.now.get());
    }

    fn end_copies_until(&self, until: u64) {
        let granules = |bytes: u64| (0..bytes).step_by(usize::try_from(GRANULE).unwrap());
        loop {
            let next = self.delayed.borrow().front().copied();
            let Some((_, copy)) = next.filter(|(end, _)| *end <= until) else {
                return;
            };
            self.delayed.borrow_mut().pop_front();
            match copy {
                Delayed::ToHost(to, from) => {
                    for offset in granules(to.bytes) {
                        let value = self.granule_at(from + offset).expect("mapped");
                        let mut contents = self.host_contents.borrow_mut();
                        contents.insert(to.at + offset, value);
                    }
                }
                Delayed::ToDevice(to, from) => {
                    for offset in granules(from.bytes) {
                        let value = self.host_contents.borrow()[&(from.at + offset)];
                        self.set_granule(to + offset, value);
                    }
                }
            }
        }
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

    /// Runs `f` once at a barrier, after `others` of them.
    pub(crate) fn before_barrier(&self, others: u32, f: impl FnOnce(&'static Self) + 'static) {
        self.on_barrier.replace(Some((others, Box::new(f))));
    }

    /// Runs `f` once at a wait for an event, after `others` of them.
    pub(crate) fn before_event_wait(&self, others: u32, f: impl FnOnce(&'static Self) + 'static) {
        self.on_event_wait.replace(Some((others, Box::new(f))));
    }

    /// Runs `f` in another thread, which has an entry of its own.
    pub(crate) fn in_other_thread<T>(&'static self, f: impl FnOnce() -> T) -> T {
        let entry = self.process.threads.register(1_000_000, |_| false);
        let before = self.thread.replace(entry);
        let result = f();
        self.thread.set(before);
        result
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

/// Returns a call of the driver that succeeds, and the number of times it was made.
pub(crate) fn counted(calls: &Cell<u32>) -> impl Fn() -> Code {
    || {
        calls.set(calls.get() + 1);
        SUCCESS
    }
}
