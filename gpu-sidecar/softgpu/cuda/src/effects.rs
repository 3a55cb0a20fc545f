//! Effects of commands on memory. They are performed in the order in which the commands end on the timeline, before any
//! wait for them returns: by the waiting thread itself, otherwise by a background thread.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::thread::futex;
use softgpu_wire::clock;
use softgpu_wire::message::{Kind, Message};
use softgpu_wire::page::DROPPED;
use softgpu_wire::record::{Command, StreamSlot};

use crate::driver::{Driver, driver};
use crate::error::Error;
use crate::graph::Program;
use crate::hashes;
use crate::ipc::EventPage;
use crate::memory::Access;
use crate::pointer::as_pointer;
use crate::work::{Copy, HostCall, KernelEffect, Set, Work};

/// Action to perform when a command has ended.
pub(crate) enum Effect {
    Work(Work),
    /// Effects of a graph's nodes, in order.
    Graph(Arc<Program>),
    /// Notifies other processes that all earlier effects are performed.
    SharedRecord(Arc<EventPage>),
    /// Waits until the process which recorded a shared event has performed all effects before the record, or is dead.
    SharedWait(Arc<EventPage>),
    /// Returns memory to its pool.
    Free(u64),
}

/// A host function that may be called.
struct PendingCall {
    call: HostCall,
    /// Status passed to a callback; 0 for success.
    status: u32,
    /// Command and node completed by the call; `None` if they were dropped.
    completes: Option<(u64, u32)>,
}

/// Queue of host functions to call, in order: bounded by the number of commands in flight and the nodes of their
/// graphs.
#[derive(Default)]
struct CallQueue {
    waiting: Mutex<VecDeque<PendingCall>>,
    has_call: Condvar,
}

impl CallQueue {
    /// Blocks until a call is queued and returns it.
    fn next(&self) -> PendingCall {
        let mut waiting = locked(&self.waiting);
        loop {
            if let Some(turn) = waiting.pop_front() {
                return turn;
            }
            waiting = self
                .has_call
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Pending effects of this process; see the [module](self).
#[derive(Default)]
pub(crate) struct Effects {
    /// Effects not yet performed, by token.
    pending: Mutex<HashMap<u64, Effect>>,
    /// Held while completions are taken from the ring and performed, which keeps their order.
    running: Mutex<()>,
    has_worker: AtomicBool,
    calls: OnceLock<Arc<CallQueue>>,
    /// Number of effects added, and the number performed.
    added: AtomicU64,
    done: AtomicU64,
}

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread with all signals blocked, so that the program's handlers never run on it.
pub(crate) fn start(name: &str, run: impl FnOnce() + Send + 'static) {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: it fills the set that it is given.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: both sets are there, the first is filled; the mask is this thread's alone, and inherited by the new one.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    if started.is_err() {
        crate::driver::report(
            "cannot start a thread: effects of commands are delayed until a call waits for them",
        );
    }
    // SAFETY: the mask that the call above has stored.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
}

impl Effects {
    /// Adds the effect of a token, and starts the background thread with the first.
    pub(crate) fn add(&self, token: u64, effect: Effect) {
        locked(&self.pending).insert(token, effect);
        self.added.fetch_add(1, Ordering::Relaxed);
        if !self.has_worker.swap(true, Ordering::Relaxed) {
            start("softgpu-effects", work);
        }
    }

    /// Returns a guard that prevents effects from being performed.
    pub(crate) fn pause(&self) -> MutexGuard<'_, ()> {
        locked(&self.running)
    }

    /// Returns the number of effects not yet performed.
    pub(crate) fn pending(&self) -> u64 {
        self.added.load(Ordering::Relaxed) - self.done.load(Ordering::Relaxed)
    }

    /// Performs all due effects. Returns `false` if another process must perform one of its own first.
    pub(crate) fn run(&self, driver: &Driver) -> bool {
        let _in_order = locked(&self.running);
        while let Some(completion) = driver.page.next_completion() {
            if let Some(Effect::SharedWait(page)) = locked(&self.pending).get(&completion.token)
                && completion.turn == 0
                && !page.is_done(completion.value)
            {
                return false;
            }
            driver.page.completion_taken();
            if completion.turn == DROPPED {
                let dropped = locked(&self.pending).remove(&completion.token);
                if let Some(effect) = dropped {
                    self.drop_effect(driver, effect);
                    self.done.fetch_add(1, Ordering::Relaxed);
                }
                continue;
            }
            if completion.turn > 0 {
                self.call(driver, completion.token, completion.value, completion.turn);
                continue;
            }
            let Some(effect) = locked(&self.pending).remove(&completion.token) else {
                continue;
            };
            perform(driver, effect);
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Handles the effect of a dropped command: what other processes or pools rely on is still performed.
    fn drop_effect(&self, driver: &Driver, effect: Effect) {
        match effect {
            Effect::SharedRecord(page) => page.record_done(),
            Effect::Free(address) => crate::pool::free_now(driver, address),
            // A callback is called with the error; a host function is not called.
            Effect::Work(Work::Host(call @ HostCall::Callback(..))) => {
                self.queue_call(PendingCall {
                    call,
                    status: Error::LAUNCH_FAILED.0,
                    completes: None,
                })
            }
            Effect::Work(_) | Effect::Graph(_) | Effect::SharedWait(_) => {}
        }
    }

    /// Queues a host function for the thread that calls them.
    fn call(&self, driver: &Driver, token: u64, command: u64, turn: u64) {
        let node = u32::try_from(turn - 1).unwrap_or(u32::MAX);
        let (call, program) = match locked(&self.pending).get(&token) {
            Some(Effect::Work(Work::Host(call))) => (Some(*call), None),
            Some(Effect::Graph(program)) => (program.host_call(node), Some(Arc::clone(program))),
            _ => (None, None),
        };
        let Some(call) = call else {
            return;
        };
        // The nodes before the host function have ended, and it may read their results.
        for work in program
            .iter()
            .flat_map(|program| program.works_before(node))
        {
            perform_work(driver, work);
        }
        self.queue_call(PendingCall {
            call,
            status: 0,
            completes: Some((command, node)),
        });
    }

    fn queue_call(&self, turn: PendingCall) {
        let calls = self.calls.get_or_init(|| {
            let calls = Arc::new(CallQueue::default());
            let shared = Arc::clone(&calls);
            start("softgpu-callbacks", move || {
                loop {
                    call_now(&shared.next());
                }
            });
            calls
        });
        locked(&calls.waiting).push_back(turn);
        calls.has_call.notify_one();
    }
}

thread_local! {
    static IS_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is currently calling a host function.
pub(crate) fn is_host_function() -> bool {
    IS_HOST_FUNCTION.get()
}

fn call_now(turn: &PendingCall) {
    let Ok(driver) = driver() else {
        return;
    };
    // Effects of everything that ended before the function may run come first.
    while !driver.effects.run(driver) {
        if driver.pause_for_others().is_err() {
            return;
        }
    }
    IS_HOST_FUNCTION.set(true);
    match turn.call {
        HostCall::Function(function, data) => function(std::ptr::with_exposed_provenance_mut(data)),
        HostCall::Callback(function, stream, data) => {
            function(
                stream,
                turn.status,
                std::ptr::with_exposed_provenance_mut(data),
            );
        }
    }
    IS_HOST_FUNCTION.set(false);
    let Some((command, node)) = turn.completes else {
        return;
    };
    // Without waiting for room or a checkpoint: either may be waiting for this completion.
    let state = driver.state();
    let done = Command::HostDone { command, node };
    driver.put(clock::now(), StreamSlot(0), None, done);
    drop(state);
    driver.nudge();
}

/// Runs the background thread, which performs effects for which no thread waits.
fn work() {
    loop {
        let Ok(driver) = driver() else {
            return;
        };
        let bell = driver.page.completions_bell();
        let seen = bell.load(Ordering::Acquire);
        if driver.effects.run(driver) {
            let _rung = futex::wait(bell, futex::Flags::empty(), seen, None);
        } else if driver.pause_for_others().is_err() {
            return;
        }
    }
}

fn perform(driver: &Driver, effect: Effect) {
    match effect {
        Effect::Work(work) => perform_work(driver, &work),
        Effect::Graph(program) => {
            for work in program.works() {
                perform_work(driver, work);
            }
        }
        Effect::SharedRecord(page) => page.record_done(),
        // Already satisfied: `run` stops at it otherwise.
        Effect::SharedWait(_) => {}
        Effect::Free(address) => crate::pool::free_now(driver, address),
    }
}

fn perform_work(driver: &Driver, work: &Work) {
    let result = match work {
        Work::Kernel(launched) => match &launched.effect {
            Some(KernelEffect::Own(launch)) => run_kernel(driver, launch),
            Some(KernelEffect::Touch(addresses)) => {
                touch(driver, addresses);
                Ok(())
            }
            None => Ok(()),
        },
        Work::Copy(copy) => run_copy(driver, copy),
        Work::Set(set) => run_set(driver, set),
        Work::Host(_) | Work::Nothing => Ok(()),
    };
    if let Err(fault) = result {
        fail(driver, fault);
    }
}

/// Adds one to the 32-bit word at each address. A word that is not mapped or may not be written stays: what looks like an address
/// need not be one.
fn touch(driver: &Driver, addresses: &[u64]) {
    for &address in addresses {
        if driver.state().memory.may(address, 4, Access::Write) {
            let word = as_pointer::<u32>(address);
            // SAFETY: just checked as mapped, and nothing is unmapped while effects run; the address need not be aligned.
            let before = unsafe { word.read_unaligned() };
            // SAFETY: as above.
            unsafe { word.write_unaligned(before.wrapping_add(1)) };
        }
    }
}

/// An access to memory that is not mapped or not permitted.
struct Fault {
    address: u64,
}

/// Breaks the contexts of the device nearest to the address, and under MPS the server breaks those of the clients it
/// affects.
fn fail(driver: &Driver, fault: Fault) {
    let contexts: Vec<_> = {
        let state = driver.state();
        let near = state.memory.device_near(fault.address);
        state
            .contexts
            .iter()
            .filter(|(_, context)| near.is_none_or(|device| device == context.device))
            .map(|(_, context)| context.number)
            .collect()
    };
    for context in contexts {
        let words = [u64::from(context), u64::from(Error::ILLEGAL_ADDRESS.0)];
        let _reported = driver.request(&Message::new(Kind::Fault, &words));
    }
}

fn check(driver: &Driver, address: u64, bytes: u64, access: Access) -> Result<(), Fault> {
    if bytes == 0 || driver.state().memory.may_copy(address, bytes, access) {
        return Ok(());
    }
    Err(Fault { address })
}

fn run_copy(driver: &Driver, copy: &Copy) -> Result<(), Fault> {
    check(
        driver,
        copy.to.address,
        copy.to.reach(&copy.extent).unwrap_or(u64::MAX),
        Access::Write,
    )?;
    if copy.staged.is_none() {
        check(
            driver,
            copy.from.address,
            copy.from.reach(&copy.extent).unwrap_or(u64::MAX),
            Access::Read,
        )?;
    }
    let [width, rows, slices] = copy.extent;
    let source = copy.staged.as_ref().map_or(copy.from.address, |bytes| {
        bytes.as_ptr().expose_provenance() as u64
    });
    let bytes = usize::try_from(width).unwrap_or_default();
    for slice in 0..slices {
        for row in 0..rows {
            let from = source + slice * copy.from.slice + row * copy.from.pitch;
            let to = copy.to.address + slice * copy.to.slice + row * copy.to.pitch;
            // SAFETY: device memory at both ends was just checked, and nothing is unmapped while effects run; the
            // caller of the driver guarantees host memory until the copy has ended.
            unsafe { std::ptr::copy(as_pointer::<u8>(from), as_pointer(to), bytes) };
        }
    }
    Ok(())
}

fn run_set(driver: &Driver, set: &Set) -> Result<(), Fault> {
    let [elements, rows] = set.extent;
    let width = elements * u64::from(set.element);
    check(
        driver,
        set.to.address,
        set.to.reach(&[width, rows, 1]).unwrap_or(u64::MAX),
        Access::Write,
    )?;
    let count = usize::try_from(elements).unwrap_or_default();
    for row in 0..rows {
        let to = set.to.address + row * set.to.pitch;
        let bytes = set.value.to_le_bytes();
        match set.element {
            1 => {
                // SAFETY: checked above; nothing is unmapped while effects run.
                unsafe { as_pointer::<u8>(to).write_bytes(bytes[0], count) };
            }
            2 => {
                let value = u16::from_le_bytes([bytes[0], bytes[1]]);
                for at in 0..count {
                    // SAFETY: as above; the address need not be aligned.
                    unsafe {
                        as_pointer::<u16>(to)
                            .wrapping_add(at)
                            .write_unaligned(value)
                    };
                }
            }
            _ => {
                for at in 0..count {
                    // SAFETY: as above.
                    unsafe {
                        as_pointer::<u32>(to)
                            .wrapping_add(at)
                            .write_unaligned(set.value)
                    };
                }
            }
        }
    }
    Ok(())
}

/// Returns a range of memory as a slice of `T`.
fn slice<'a, T>(address: u64, count: u64) -> Result<&'a [T], Fault> {
    slice_mut(address, count).map(|slice| &*slice)
}

fn slice_mut<'a, T>(address: u64, count: u64) -> Result<&'a mut [T], Fault> {
    let at = as_pointer::<T>(address);
    if !at.is_aligned() {
        return Err(Fault { address });
    }
    let count = usize::try_from(count).map_err(|_| Fault { address })?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: aligned, and checked as mapped before (`run_kernel`); overlapping input is copied first. The program must
    // not touch memory its own running kernel uses, as on a GPU; concurrent access by other processes yields arbitrary
    // bytes.
    Ok(unsafe { std::slice::from_raw_parts_mut(at, count) })
}

/// Returns a copy of the input if it overlaps the output.
fn apart<T: Clone>(read: &[T], written: &[T]) -> Option<Vec<T>> {
    let (read_at, written_at) = (read.as_ptr_range(), written.as_ptr_range());
    let overlaps = read_at.start < written_at.end && written_at.start < read_at.end;
    overlaps.then(|| read.to_vec())
}

fn run_kernel(driver: &Driver, launch: &kernels::Launch) -> Result<(), Fault> {
    use kernels::{Launch, effect};
    for access in launch.accesses() {
        let kind = if access.writes {
            Access::Write
        } else {
            Access::Read
        };
        let address = access.address;
        if !driver.state().memory.may(address, access.bytes, kind) {
            return Err(Fault { address });
        }
    }
    match *launch {
        Launch::Spin(_) => {}
        Launch::Fill { out, words, value } => effect::fill(slice_mut(out, words)?, value),
        Launch::Sum { out, input, words } if words > 0 => {
            let sum = effect::sum(slice(input, words)?);
            add_to(out, sum)?;
        }
        Launch::Hash { out, input, words }
        | Launch::Layer {
            out, input, words, ..
        } if words > 0 => {
            let sum = hashes::hash(slice(input, words)?);
            add_to(out, sum)?;
        }
        Launch::HiddenLayer {
            out,
            table,
            index,
            words,
            ..
        } if words > 0 => {
            let entry = table.wrapping_add(index.wrapping_mul(8));
            let input = slice::<u64>(entry, 1)?[0];
            let bytes = words.saturating_mul(4);
            if !driver.state().memory.may(input, bytes, Access::Read) {
                return Err(Fault { address: input });
            }
            let sum = hashes::hash(slice(input, words)?);
            add_to(out, sum)?;
        }
        Launch::GranuleHash {
            out,
            table,
            granules,
            words,
        } => {
            let bytes = words.saturating_mul(8);
            for granule in 0..granules {
                let input = slice::<u64>(table + granule * 8, 1)?[0];
                if !driver.state().memory.may(input, bytes, Access::Read) {
                    return Err(Fault { address: input });
                }
                let sums = hashes::granule_hash(slice(input, words)?);
                add_to(out + granule * 16, sums[0])?;
                add_to(out + granule * 16 + 8, sums[1])?;
            }
        }
        Launch::Sum { .. }
        | Launch::Hash { .. }
        | Launch::Layer { .. }
        | Launch::HiddenLayer { .. } => {}
        Launch::Add { c, a, b, n } => {
            let (a, b) = (slice::<f32>(a, n)?, slice::<f32>(b, n)?);
            let c = slice_mut::<f32>(c, n)?;
            let (left, right) = (apart(a, c), apart(b, c));
            effect::add(
                c,
                left.as_deref().unwrap_or(a),
                right.as_deref().unwrap_or(b),
            );
        }
        Launch::Saxpy { y, x, n, a } => {
            let x = slice::<f32>(x, n)?;
            let y = slice_mut::<f32>(y, n)?;
            let copy = apart(x, y);
            effect::saxpy(y, copy.as_deref().unwrap_or(x), a);
        }
        Launch::Matmul { c, a, b, n } => {
            let elements = u64::from(n) * u64::from(n);
            let (a, b) = (slice::<f32>(a, elements)?, slice::<f32>(b, elements)?);
            let c = slice_mut::<f32>(c, elements)?;
            let (left, right) = (apart(a, c), apart(b, c));
            effect::matmul(
                c,
                left.as_deref().unwrap_or(a),
                right.as_deref().unwrap_or(b),
                n as usize,
            );
        }
    }
    Ok(())
}

/// Adds `sum` to the 64-bit word at the address `out`, wrapping, as an atomic addition of a kernel does.
fn add_to(out: u64, sum: u64) -> Result<(), Fault> {
    let [word] = slice_mut::<u64>(out, 1)? else {
        return Ok(());
    };
    *word = word.wrapping_add(sum);
    Ok(())
}
