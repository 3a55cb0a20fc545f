//! Moves of the process's device memory to the host and back, at the same addresses (M2.5, M2.9): the work of the mover thread.
//!
//! What moves are mappings: those of this library, which are plain allocations and slabs, and those that the program has made itself. Everything
//! else of the device stays and counts as fixed. An eviction shuts the gate of touches and launches, waits for what is in flight, hashes every
//! granule on the device, copies to the host what differs from the copy that is there, and unmaps and releases all of it; the addresses stay
//! reserved. A restore creates and maps all of it before anything may use it, copies it back, and opens the gate. The copy on the host stays,
//! so that what does not change is copied once. A process that does nothing copies ahead of time; what nothing was launched or touched after is
//! not even hashed.
//!
//! Creating, mapping and releasing handles takes long for many small blocks. Where it does, neighbours which the program keeps return with one handle
//! (`creation`), until what is freed amid them is needed (`divide`).
//!
//! Frees and the destruction of a context pass the gate, since they need no contents; they wait for a move in progress. Allocations wait
//! at the gate like touches.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use preload_state::memory::{HostMemory, HostSpan, Kind};
use preload_state::mover::{Mover, MoverStep, Situation};
use protocol::message::{FromProcess, MoveRefusal, MoveReport, Transfer};
use protocol::page::{Orders, Residency, Streaming};

use crate::capture_mode;
use crate::cuda::{Address, Code, Handle, INVALID_CONTEXT};
use crate::memory::{self, MovableDevice, movable, moves, total_of_kind};
use crate::platform::{Platform, System};
use creation::Handles;

mod creation;
pub(crate) mod divide;
mod evict;
mod hash;
mod restore;
pub(crate) mod restoring;
mod seal;
mod search;
mod staging;

pub use staging::PIECES as STAGING_PIECES;

/// Pause after a restore without an agent that has failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which it is looked whether the program was observed for long enough.
const OBSERVE_INTERVAL: Duration = Duration::from_millis(50);
/// Largest piece of the staging memory, in granules: 4 MiB on a GPU, of which the setup of a copy is below 5 % at the rate of every known link.
const STAGING_GRANULES: u64 = 2;
/// Part of a restore that mapping and unmapping may take while each block has physical memory of its own, as the number of times that it fits in.
const MAPPING_SHARE: u64 = 10;
/// Size of the copies after which a group of blocks ends, in granules: 64 MiB on a GPU.
const GROUP_GRANULES: u64 = 32;

/// What moves need on one device: a stream, and the kernel that hashes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tools {
    /// Context of the other handles.
    context: Handle,
    /// Stream of the copies.
    stream: Handle,
    /// Kernel that hashes granules; `None` if the driver does not accept it.
    kernel: Option<Handle>,
}

/// State of the moves of a process. Its lock is held over a move.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Host memory and the copies in it.
    pub(crate) host: HostMemory,
    tools: BTreeMap<c_int, Tools>,
    is_away: bool,
    /// Whether the driver serves the process no more, so that what is away cannot return: every call reports the error.
    is_faulted: bool,
    /// Number of launches and touches ([`preload_state::gate::Threads::calls`]) at which every block had the contents of its copy.
    unchanged_since: Option<u32>,
    /// Keys of blocks in the order in which the program has used them after the last restore in which it was observed.
    order: Vec<u64>,
    /// Keys of blocks of which the host had a copy, by an earlier eviction or a seal, when they left last.
    settled: BTreeSet<u64>,
    /// Whether such blocks share physical memory with their neighbours: with memory of their own, mapping them took long.
    shares_handles: bool,
    /// Time that unmapping and releasing took at the last eviction, and creating and mapping at the return after it, in nanoseconds.
    unmap_ns: u64,
    map_ns: u64,
    division: divide::Division,
    /// Time at which the last group of a restore arrived amid which the program computed, in nanoseconds.
    arrived_at: u64,
    /// Whether the copies of blocks hold addresses in blocks, by key, as far as they were searched.
    addresses: BTreeMap<u64, bool>,
    /// Ranges of addresses of blocks for which they were searched.
    searched: BTreeSet<(Address, u64)>,
}

impl Moves {
    /// Drops the copy of a block that is gone, and what is known of it.
    pub(crate) fn forget(&mut self, key: u64) {
        self.host.forget(key);
        self.addresses.remove(&key);
        self.settled.remove(&key);
    }

    /// Notes which of the blocks that are about to leave have been there for a while.
    fn note_settled(&mut self, devices: &[MovableDevice]) {
        let keys = devices.iter().flat_map(|device| &device.blocks);
        let keys = keys.map(|block| block.key);
        self.settled = keys.filter(|key| self.host.has(*key)).collect();
    }

    /// Notes how long a restore took, in nanoseconds: once mapping has taken a good part of it, neighbours share memory from then on.
    const fn note_mapping(&mut self, restore_ns: u64) {
        let mapping_ns = self.map_ns.saturating_add(self.unmap_ns);
        self.shares_handles |= mapping_ns.saturating_mul(MAPPING_SHARE) > restore_ns;
    }

    /// Returns which handles the blocks get that return.
    const fn handles(&self) -> Handles {
        match self.shares_handles {
            true => Handles::Shared,
            false => Handles::Own,
        }
    }

    /// Returns where the memory is between moves.
    const fn place(&self) -> Residency {
        match (self.is_faulted, self.is_away) {
            (true, _) => Residency::Faulted,
            (false, true) => Residency::Host,
            (false, false) => Residency::Resident,
        }
    }

    /// Notes that a copy is about to change: its contents are unknown until the copy is complete.
    fn begin_copy(&mut self, key: u64) {
        self.host.set_hashes(key, Vec::new());
        self.addresses.remove(&key);
    }

    /// Notes which ranges of addresses are away. What holds no address of earlier ones may hold one of new ones.
    fn search_for(&mut self, ranges: &[(Address, u64)]) {
        if !ranges.iter().all(|range| self.searched.contains(range)) {
            self.addresses.retain(|_, has_addresses| *has_addresses);
        }
        // Without those that are gone: a copy which is searched now is not searched for them.
        self.searched = ranges.iter().copied().collect();
    }

    /// Forgets the handles in a destroyed context, and what was registered there.
    pub(crate) fn context_destroyed(&mut self, context: Handle) {
        self.tools.retain(|_, tools| tools.context != context);
        self.host.context_destroyed(context);
    }
}

/// Returns whether the program may compute amid a restore: the agent permits it, and all memory moves, so that no address in other memory leads to
/// memory that is not there yet.
fn streams_restores<P: System>(host: P) -> bool {
    may_stream(host) && memory::fixed(host) == 0
}

/// Returns whether the agent permits the program to compute amid a restore.
pub(crate) fn may_stream<P: System>(host: P) -> bool {
    host.has_agent_orders() && streaming(host) != Streaming::Off
}

/// Returns what the orders in effect state of restores.
fn streaming<P: System>(host: P) -> Streaming {
    Streaming::from_number(host.orders().streams_restores.load(Ordering::Relaxed))
}

/// Returns the number of the program's launches and touches. Exact after a barrier over all threads.
fn calls<P: System>(host: P) -> u32 {
    host.process().threads.calls(host.thread())
}

/// Wakes the mover thread: orders may have changed, in the page in effect or because another one is, or there is more to move or more host
/// memory.
pub fn wake_mover<P: System>(host: P) {
    let word = &host.process().mover_word;
    word.fetch_add(1, Ordering::Release);
    host.wake(word);
}

/// Adds a window of host memory, which stays mapped as long as the process lives. `is_pinned`: it may be registered with the driver.
pub fn add_window<P: Platform>(host: P, window: HostSpan, is_pinned: bool) {
    // Where a limit is stated, the next step applies it.
    let is_pinned = is_pinned && host.orders().pinned_max.load(Ordering::Acquire) == 0;
    moves(host).host.add(window, is_pinned);
    let process = host.process();
    process
        .host_bytes
        .fetch_add(window.bytes, Ordering::Relaxed);
    if is_pinned {
        process
            .pinned_bytes
            .fetch_add(window.bytes, Ordering::Relaxed);
    }
    wake_mover(host);
}

/// Runs one pass of the mover thread, and blocks until the next one is due.
pub fn step<P: Platform>(host: P, mover: &mut Mover) {
    let word = &host.process().mover_word;
    let before = word.load(Ordering::Acquire);
    let orders = host.orders();
    let needed = total_of_kind(host, Kind::Plain) + total_of_kind(host, Kind::Program);
    let calls = calls(host);
    let (place, is_away, windows, is_sealed) = {
        let moves = moves(host);
        let is_sealed = !moves.is_away && moves.unchanged_since == Some(calls);
        let windows = moves.host.bytes();
        (moves.place(), moves.is_away, windows, is_sealed)
    };
    publish_place(host, place);
    let sealed = &host.facts().sealed;
    sealed.store(u32::from(is_sealed), Ordering::Relaxed);
    let situation = Situation {
        has_agent: host.has_agent_orders(),
        is_away,
        // While a connection begins, nothing can be requested over it.
        needed: if host.is_served() { needed } else { 0 },
        windows,
        calls,
        is_sealed,
        now: host.now(),
    };
    match mover.step(orders, situation) {
        MoverStep::Evict { seq, drain_ms } => {
            let drain = Duration::from_millis(u64::from(drain_ms));
            let moved = evict::evict(host, drain);
            if moved == Err(MoveRefusal::NoMemory) {
                mover.lacks_windows();
            }
            answer(host, orders, seq, moved);
        }
        MoverStep::Restore { seq } => {
            let moved = restore::restore(host, |moved| answer(host, orders, seq, moved));
            if seq == 0 && moved.is_err() {
                // No agent orders it again.
                host.pause(RETRY_INTERVAL);
            }
        }
        MoverStep::Confirm { seq } => answer(host, orders, seq, Ok(Transfer::default())),
        MoverStep::Request { bytes } => host.send(&FromProcess::WindowsWanted { bytes }),
        MoverStep::Seal => seal::seal(host, orders),
        MoverStep::SealAndConfirm { seq } => {
            seal::seal(host, orders);
            answer(host, orders, seq, Ok(Transfer::default()));
        }
        MoverStep::Sleep { at_most } => {
            if divide::divide_some(host) {
                return;
            }
            // Orders come first: both take long for large windows.
            if keep_pinned_max(host, orders) == Pins::Changed
                || keep_staging(host)
                // A model may have to return at once, and computes meanwhile only if its copies are searched.
                || is_away && search::search_some(host)
                || register_some(host)
            {
                return;
            }
            let at_most = match restoring::observes(host) {
                true => at_most.min(OBSERVE_INTERVAL),
                false => at_most,
            };
            host.wait_at(word, before, at_most);
        }
    }
}

/// What has come of the limit of registered host memory.
#[derive(Debug, PartialEq, Eq)]
enum Pins {
    /// Nothing is registered beyond it, or what is cannot be released now.
    Kept,
    /// It is another one than before, or a window beyond it was released: it is looked again.
    Changed,
}

/// Releases one window that may be registered no more, and states the limit that is kept once there is none.
fn keep_pinned_max<P: Platform>(host: P, orders: &Orders) -> Pins {
    let limit = orders.pinned_max.load(Ordering::Acquire);
    let Some(bytes) = limit.checked_sub(1) else {
        return Pins::Kept;
    };
    let (is_changed, released, is_kept) = {
        let mut moves = moves(host);
        let is_changed = moves.host.set_pinned_max(bytes);
        let is_kept = moves.host.keeps_pinned_max();
        (is_changed, moves.host.next_to_release(), is_kept)
    };
    let has_released = released.is_some_and(|(window, context)| release(host, window, context));
    let pinned = moves(host).host.pinned();
    host.process().pinned_bytes.store(pinned, Ordering::Relaxed);
    if has_released {
        return Pins::Changed;
    }
    if !is_kept {
        return Pins::Kept;
    }
    let kept = &host.facts().pinned_max;
    if kept.load(Ordering::Relaxed) != limit {
        // Before anything is registered by it: whoever has changed it since finds this limit kept, or this thread finds the other one.
        kept.store(limit, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
    if is_changed || orders.pinned_max.load(Ordering::SeqCst) != limit {
        return Pins::Changed;
    }
    Pins::Kept
}

/// Makes the staging memory that there may be, or gives back what may not be. Returns whether there was something to do.
fn keep_staging<P: Platform>(host: P) -> bool {
    let (lacks_sizes, is_away) = {
        let moves = moves(host);
        (moves.host.lacks_staging_sizes(), moves.is_away)
    };
    if lacks_sizes {
        let devices = match is_away {
            true => memory::away(host),
            false => movable(host),
        };
        // Not before there is a device whose copies pass through it.
        let Some(device) = devices.first() else {
            return false;
        };
        let unit = device.granule * STAGING_PIECES as u64;
        let most = unit * STAGING_GRANULES;
        moves(host).host.set_staging_sizes(unit, most);
        return true;
    }
    let mut moves = moves(host);
    if let Some(unused) = moves.host.take_unused_staging() {
        host.unmap_host(unused);
        return true;
    }
    let Some(bytes) = moves.host.missing_staging() else {
        return false;
    };
    let Some(at) = host.map_host(bytes) else {
        return false;
    };
    moves.host.add_staging(HostSpan { at, bytes });
    let pinned = moves.host.pinned();
    host.process().pinned_bytes.store(pinned, Ordering::Relaxed);
    true
}

/// Releases a window which the driver has registered: its pages are pinned no more. Returns `false` while the program
/// computes: the driver waits for the work of the context, and orders would wait with it.
fn release<P: Platform>(host: P, window: HostSpan, context: Handle) -> bool {
    let is_away = moves(host).is_away;
    if !is_away && seal::idle_calls(host).is_none() {
        return false;
    }
    let released = host
        .set_current_context(context)
        .and_then(|()| host.release_host(window));
    moves(host).host.set_released(window, released.is_ok());
    if let Err(code) = released {
        host.log(&format!(
            "{} bytes of host memory stay registered with the driver (error {code})",
            window.bytes
        ));
    }
    true
}

/// Registers a window with the driver in a context, so that copies run at the speed of the link. Without it they run slower. Returns `false` if
/// there is none to register, or no context yet.
fn register_some<P: Platform>(host: P) -> bool {
    let Some(window) = moves(host).host.next_to_register() else {
        return false;
    };
    // It may be away: then it returns faster.
    let is_away = moves(host).is_away;
    let devices = if is_away {
        memory::away(host)
    } else {
        movable(host)
    };
    let mut contexts = devices.iter().flat_map(|device| &device.contexts);
    let Some(&context) = contexts.next() else {
        return false;
    };
    let registered = host
        .set_current_context(context)
        .and_then(|()| host.register_host(window));
    let is_registered = registered.is_ok();
    moves(host)
        .host
        .set_registered(window, context, is_registered);
    if let Err(code) = registered {
        host.log(&format!(
            "{} bytes of host memory cannot be registered with the driver (error {code}): copies of models are slower",
            window.bytes
        ));
    }
    // The driver compiles the kernel, which takes longer than an eviction.
    for device in devices {
        if !moves(host).tools.contains_key(&device.ordinal)
            && let Ok(tools) = any_tools(host, &device)
        {
            let mut moves = moves(host);
            // Its context may have been destroyed meanwhile.
            if host.set_current_context(tools.context).is_ok() {
                moves.tools.insert(device.ordinal, tools);
            }
        }
    }
    true
}

/// Sets the published location of the memory.
fn publish<P: System>(host: P, residency: Residency) {
    host.facts()
        .residency
        .store(residency as u32, Ordering::Release);
}

/// Publishes where the memory is between moves: a page that came amid a move has an earlier place.
fn publish_place<P: System>(host: P, place: Residency) {
    if host.facts().residency.load(Ordering::Relaxed) != place as u32 {
        publish(host, place);
    }
}

/// Answers an order of a page: state, number and message, in this order.
fn answer<P: Platform>(host: P, orders: &Orders, seq: u32, moved: Result<Transfer, MoveRefusal>) {
    if !std::ptr::eq(orders, host.orders()) {
        // Numbers of another page are others. Where the memory is, it states itself.
        return;
    }
    let facts = host.facts();
    let residency = Residency::from_number(facts.residency.load(Ordering::Relaxed));
    facts.done_seq.store(seq, Ordering::Release);
    if !host.is_served() {
        // The next agent learns from the greeting where the memory is.
        return;
    }
    host.send(&FromProcess::Moved(MoveReport {
        seq,
        residency: residency.unwrap_or(Residency::None),
        refusal: moved.err(),
        transfer: moved.unwrap_or_default(),
    }));
}

/// Returns the tools for a device, which are made at the first move and whenever their context is gone, and makes their context current.
fn tools<P: Platform>(host: P, moves: &mut Moves, device: &MovableDevice) -> Result<Tools, Code> {
    if let Some(tools) = moves.tools.get(&device.ordinal)
        && host.set_current_context(tools.context).is_ok()
    {
        return Ok(*tools);
    }
    let tools = any_tools(host, device)?;
    moves.tools.insert(device.ordinal, tools);
    Ok(tools)
}

/// Makes tools in the first context that is not destroyed, which becomes current.
fn any_tools<P: Platform>(host: P, device: &MovableDevice) -> Result<Tools, Code> {
    let mut made = Err(INVALID_CONTEXT);
    for &context in &device.contexts {
        made = make_tools(host, context);
        if made.is_ok() {
            break;
        }
    }
    made
}

/// Makes tools in a context, which becomes current.
fn make_tools<P: Platform>(host: P, context: Handle) -> Result<Tools, Code> {
    host.set_current_context(context)?;
    Ok(Tools {
        context,
        stream: host.create_stream()?,
        kernel: host.load_hash().ok(),
    })
}

/// Prepares the thread that calls [`step`].
pub fn begin<P: Platform>(host: P) {
    capture_mode::set_relaxed(host);
}

#[cfg(test)]
mod tests;
