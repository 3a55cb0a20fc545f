//! The process's context: all that this library keeps, in one static.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use preload_ops::memory::Memory;
use preload_ops::residency;
use preload_state::link::Link;
use preload_state::process::Process;
use preload_table::abi::Front;
use protocol::page::{Facts, Gate, Orders};

use crate::connection::Connection;
use crate::copiers::Copiers;
use crate::host::Host;
use crate::synchronizer::Synchronizer;
use crate::time;

/// A wrapper and the driver function that it wraps.
#[derive(Debug)]
pub(crate) struct Hook {
    /// Symbol in the driver's file.
    pub(crate) symbol: &'static str,
    /// Returns the wrapper's address.
    pub(crate) wrapper: fn() -> *mut c_void,
    /// Address of the driver's function; null until it is looked up.
    pub(crate) real: &'static AtomicPtr<c_void>,
}

/// Room for the driver's functions that this library calls.
pub(crate) const DRIVER_FUNCTIONS: usize = 63;
/// Interval at which the waiters of an old page are woken until all are awake.
const WAKE_INTERVAL: Duration = Duration::from_micros(100);

/// All that this library keeps of the process, beside the address of each wrapped function and the variables of its threads.
#[derive(Debug)]
pub(crate) struct Context {
    /// State that the operations change.
    pub(crate) process: Process,
    /// The process with respect to its agent, until the thread of the link has taken it over. Held over an initialisation of the
    /// driver, so that a second one waits for the first.
    pub(crate) link: Mutex<Link>,
    /// Connection to the agent.
    pub(crate) connection: Connection,
    /// State of device memory; null until it is needed, and again in the child of a fork.
    pub(crate) memory: AtomicPtr<Memory>,
    /// Interface of the front; null until it has called.
    pub(crate) front: AtomicPtr<Front>,
    /// Wrappers of all driver functions.
    pub(crate) hooks: OnceLock<&'static [&'static [Hook]]>,
    /// Handle of the driver's library, which the program has loaded; null until it is found.
    pub(crate) library: AtomicPtr<c_void>,
    /// Addresses of the driver's functions that this library calls, each null until it is looked up.
    pub(crate) driver_functions: [AtomicPtr<c_void>; DRIVER_FUNCTIONS],
    /// Whether a wrapper has panicked.
    pub(crate) is_broken: AtomicBool,
    /// Whether the handler of forks is registered.
    pub(crate) has_fork_handler: AtomicBool,
    /// UUID digits of the pod's device, once the driver has named it.
    pub(crate) device_digits: OnceLock<Vec<u8>>,
    /// NVML's function that names a device; null until it is found.
    pub(crate) device_name: AtomicPtr<c_void>,
    /// Whether other processes of the user were permitted to copy descriptors.
    pub(crate) permits_copies: AtomicBool,
    /// Whether a log line has reported that descriptors cannot be copied.
    pub(crate) reported_copies: AtomicBool,
    /// Bounded waits for the work of contexts.
    pub(crate) synchronizer: Synchronizer,
    /// Copies through the staging memory.
    pub(crate) copiers: Copiers,
    /// Orders in effect: one of the defaults below, or a page that is never unmapped.
    orders: AtomicPtr<Orders>,
    /// Facts in use: the default below, or a page that is never unmapped.
    facts: AtomicPtr<Facts>,
    /// Orders in effect without an agent: every launch passes.
    open_orders: Orders,
    /// Orders in effect while an agent is running but has not provided pages yet: no launch passes.
    closed_orders: Orders,
    own_facts: Facts,
}

/// The one static of this library.
static CONTEXT: Context = Context {
    process: Process::new(),
    link: Mutex::new(Link::new()),
    connection: Connection::new(),
    memory: AtomicPtr::new(std::ptr::null_mut()),
    front: AtomicPtr::new(std::ptr::null_mut()),
    hooks: OnceLock::new(),
    library: AtomicPtr::new(std::ptr::null_mut()),
    driver_functions: [const { AtomicPtr::new(std::ptr::null_mut()) }; DRIVER_FUNCTIONS],
    is_broken: AtomicBool::new(false),
    has_fork_handler: AtomicBool::new(false),
    device_digits: OnceLock::new(),
    device_name: AtomicPtr::new(std::ptr::null_mut()),
    permits_copies: AtomicBool::new(false),
    reported_copies: AtomicBool::new(false),
    synchronizer: Synchronizer::new(),
    copiers: Copiers::new(),
    orders: AtomicPtr::new((&raw const CONTEXT.open_orders).cast_mut()),
    facts: AtomicPtr::new((&raw const CONTEXT.own_facts).cast_mut()),
    open_orders: {
        let mut orders = Orders::new();
        orders.gate = Gate::at(0);
        orders
    },
    closed_orders: Orders::new(),
    own_facts: Facts::new(),
};

/// Returns the context of this process.
#[inline]
pub(crate) fn context() -> &'static Context {
    &CONTEXT
}

impl Context {
    /// Returns the memory state of this process, created at the first call and never dropped.
    pub(crate) fn memory(&self) -> &'static Memory {
        let place = &self.memory;
        let existing = place.load(Ordering::Acquire);
        // SAFETY: null, or a box that was leaked below and is shared by reference alone.
        if let Some(existing) = unsafe { existing.as_ref() } {
            return existing;
        }
        let new = Box::into_raw(Box::new(Memory::new()));
        let put = place.compare_exchange(
            std::ptr::null_mut(),
            new,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        let kept = match put {
            Ok(_null) => new,
            Err(other) => {
                // SAFETY: from the box above, and shared with no other thread, since the exchange has failed.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
        // SAFETY: a leaked box, from this thread or from the one that stored it first.
        unsafe { &*kept }
    }

    /// Returns the orders in effect.
    #[inline]
    pub(crate) fn orders(&self) -> &'static Orders {
        // SAFETY: never null. `use_orders` and the initial value store references to statics and to pages that are mapped for the rest
        // of the process's life; both are of atomics alone, so shared references to them are valid whatever the agent writes.
        unsafe { &*self.orders.load(Ordering::Acquire) }
    }

    /// Returns the facts in use.
    #[inline]
    pub(crate) fn facts(&self) -> &'static Facts {
        // SAFETY: as in `orders`; stored by `use_facts` and the initial value alone.
        unsafe { &*self.facts.load(Ordering::Acquire) }
    }

    /// Returns whether the orders in effect are an agent's.
    pub(crate) fn has_agent_orders(&self) -> bool {
        let own = [&raw const self.open_orders, &raw const self.closed_orders];
        !own.contains(&std::ptr::from_ref(self.orders()))
    }

    /// Puts these orders into effect.
    fn use_orders(&self, orders: &'static Orders) {
        let orders: *const Orders = orders;
        self.orders.store(orders.cast_mut(), Ordering::Release);
    }

    /// Uses these facts.
    pub(crate) fn use_facts(&self, facts: &'static Facts) {
        let facts: *const Facts = facts;
        self.facts.store(facts.cast_mut(), Ordering::Release);
    }

    /// Puts an agent's orders into effect, resets the gate, and wakes the waiters of the previous page.
    pub(crate) fn switch_orders(&self, orders: &'static Orders) {
        let old = self.orders();
        if std::ptr::eq(old, orders) {
            return;
        }
        let change = || {
            self.use_orders(orders);
            self.process.gate.reset();
        };
        self.process.waiters.change(change, || {
            for word in [old.gate.word(), &old.attention, &old.claim_answered] {
                time::wake(word);
            }
            residency::wake_mover(Host);
            time::pause(WAKE_INTERVAL);
        });
    }

    /// As [`Self::switch_orders`], to the orders by which every launch passes.
    pub(crate) fn switch_to_open_orders(&'static self) {
        self.switch_orders(&self.open_orders);
    }

    /// As [`Self::switch_orders`], to the orders by which no launch passes.
    pub(crate) fn switch_to_closed_orders(&'static self) {
        self.switch_orders(&self.closed_orders);
    }

    /// Resets the context in the child of a fork, which has none of the threads. The child connects by itself if it initialises the
    /// driver.
    pub(crate) fn fork(&'static self) {
        self.process.set_active(false);
        self.use_orders(&self.open_orders);
        self.use_facts(&self.own_facts);
        self.process.waiters.fork();
        self.connection.forget();
        self.copiers.fork();
        self.synchronizer.fork();
        // A thread that does not exist in the child may hold the lock. The state then stays as it is, and the child inactive.
        if let Ok(mut link) = self.link.try_lock() {
            link.fork();
        }
        // Nothing is dropped, because such a thread may hold any of the locks of the memory.
        self.memory.store(std::ptr::null_mut(), Ordering::Release);
    }
}
