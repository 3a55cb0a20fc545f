//! Eviction: device memory to the host.

use std::time::Duration;

use preload_state::gate::IN_FLIGHT_POLL;
use preload_state::memory::{GranuleHash, HostSpan};
use protocol::message::{MoveRefusal, Transfer};
use protocol::page::Residency;

use super::creation::Handles;
use super::staging::CopiesOut;
use super::{GROUP_GRANULES, Moves, Tools, calls, hash, publish, restore, restoring, tools};
use crate::cuda::{Address, Code, EVENT_BLOCKING_SYNC, Handle};
use crate::memory::{self, MovableBlock, MovableDevice, extents, moves};
use crate::platform::{Platform, System};
use crate::{capture_mode, streams, touch};

/// Least time for copies and memsets in flight to end, once no kernel is.
const COPIES_MIN: Duration = Duration::from_millis(50);
/// Longest time for which the kernel of the hashes waits for a token, in nanoseconds: longer than copying without hashes takes for most models.
const TOKEN_MAX: u64 = 1_000_000_000;
/// The same on an exclusive slot: the agent lets the process compute at once where no other one does, and otherwise not before it has left.
const LEASE_MAX: u64 = 50_000_000;

/// Moves the process's device memory to the host, and keeps the gate shut. After a refusal the memory is where it was, and the gate is open, unless
/// what had left could not return: then it is on the host as after an eviction.
/// `drain`: longest time for which work in flight, and calls in progress, are waited for.
pub(super) fn evict<P: Platform>(host: P, drain: Duration) -> Result<Transfer, MoveRefusal> {
    let begin = host.now();
    restoring::end_observation(host);
    refusal(host)?;
    if moves(host).is_faulted {
        return Err(MoveRefusal::StickyError);
    }
    publish(host, Residency::Closing);
    let moved = close(host, begin, drain, refusal).and_then(|drain_ns| {
        publish(host, Residency::Evicting);
        let mut moves = moves(host);
        let devices = memory::movable(host);
        moves.note_settled(&devices);
        let mut transfer = away(host, &mut moves, &devices)?;
        moves.unmap_ns = transfer.unmap_ns;
        transfer.drain_ns = drain_ns;
        transfer.total_ns = host.now().saturating_sub(begin);
        // Nothing uses the memory up to here, and nothing can while it is away.
        moves.unchanged_since = moves.host.is_all_hashed().then(|| calls(host));
        moves.is_away = true;
        Ok(transfer)
    });
    match moved {
        // The gate stays shut over memory that is not there; what could not be returned is away like after an eviction.
        Ok(_) | Err(Failure::Lost) => publish(host, Residency::Host),
        Err(Failure::Refused(_)) => {
            publish(host, Residency::Resident);
            touch::open(host);
        }
    }
    moved.map_err(|failure| match failure {
        Failure::Refused(refusal) => refusal,
        Failure::Lost => MoveRefusal::StickyError,
    })
}

/// Returns why the process's memory may not leave now.
pub(super) fn refusal<P: Platform>(host: P) -> Result<(), MoveRefusal> {
    if capture_mode::any(host) {
        return Err(MoveRefusal::Capturing);
    }
    if memory::is_exported(host) {
        return Err(MoveRefusal::Exported);
    }
    if memory::has_imported(host) {
        return Err(MoveRefusal::Imported);
    }
    if host.process().has_bound_memory() {
        return Err(MoveRefusal::Collective);
    }
    Ok(())
}

/// How an eviction fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// The memory is where it was.
    Refused(MoveRefusal),
    /// Some memory has left, and could not be returned: it is restored later.
    Lost,
}

impl From<MoveRefusal> for Failure {
    fn from(refusal: MoveRefusal) -> Self {
        Self::Refused(refusal)
    }
}

fn sticky<P: System>(host: P, code: Code) -> Failure {
    host.report_fatal(code);
    Failure::Refused(MoveRefusal::StickyError)
}

/// Shuts the gate and waits until nothing is in flight. Returns how long that took, in nanoseconds. `refusal`: returns why no memory may leave now.
pub(super) fn close<P: Platform>(
    host: P,
    begin: u64,
    drain: Duration,
    refusal: impl Fn(P) -> Result<(), MoveRefusal>,
) -> Result<u64, Failure> {
    if !touch::shut(host, drain) {
        return Err(MoveRefusal::Draining.into());
    }
    let until = begin.saturating_add(preload_state::nanoseconds(drain));
    // A kernel that does not end shows here, so that no wait below is for it.
    while streams::first_unfinished(host).is_some() {
        if host.now() >= until {
            return Err(MoveRefusal::Draining.into());
        }
        host.pause(IN_FLIGHT_POLL);
    }
    // A capture may have begun, or a call shared memory, before the gate was shut.
    refusal(host)?;
    let left = Duration::from_nanos(until.saturating_sub(host.now()));
    match synchronize(host, left.max(COPIES_MIN)) {
        Some(Ok(())) => {}
        Some(Err(code)) => return Err(sticky(host, code)),
        None => return Err(MoveRefusal::Draining.into()),
    }
    memory::give_up_spare(host);
    Ok(host.now().saturating_sub(begin))
}

/// Waits for the work of all contexts with memory, for at most `at_most`. Returns the driver's error; `None` if the work has not ended: a stream may wait
/// for the program itself.
pub(super) fn synchronize<P: Platform>(host: P, at_most: Duration) -> Option<Result<(), Code>> {
    let contexts = host.memory().contexts_with_memory();
    let waited = host.synchronize_within(&contexts, at_most)?;
    if waited.is_ok() {
        for context in contexts {
            streams::context_synchronized(host, context);
        }
    }
    Some(waited)
}

/// Copies and releases memory of these devices, with all blocks of an extent or none.
pub(super) fn away<P: Platform>(
    host: P,
    moves: &mut Moves,
    devices: &[MovableDevice],
) -> Result<Transfer, Failure> {
    let mut transfer = Transfer::default();
    // The gate is shut, with a barrier: the number is exact.
    let is_unchanged = moves.unchanged_since.take() == Some(calls(host));
    reserve(moves, devices)?;
    for device in devices {
        if let Err(code) = leave(host, moves, device, is_unchanged, &mut transfer) {
            host.report_fatal(code);
            // What is gone is brought back from its copy.
            extents::stay(host);
            return Err(match restore::bring_back(host, moves, Handles::Own) {
                Ok(_) => Failure::Refused(MoveRefusal::StickyError),
                Err(_) => {
                    moves.is_away = true;
                    Failure::Lost
                }
            });
        }
    }
    Ok(transfer)
}

/// Takes host memory for the blocks that have no copy yet.
pub(super) fn reserve(moves: &mut Moves, devices: &[MovableDevice]) -> Result<(), MoveRefusal> {
    let blocks = devices.iter().flat_map(|device| &device.blocks);
    let new: Vec<&MovableBlock> = blocks.filter(|block| !moves.host.has(block.key)).collect();
    for (index, block) in new.iter().enumerate() {
        if !moves.host.reserve(block.key, block.bytes) {
            for taken in &new[..index] {
                moves.host.forget(taken.key);
            }
            return Err(MoveRefusal::NoMemory);
        }
    }
    Ok(())
}

/// Blocks that are released together, once the copies of those that have changed are complete.
#[derive(Debug, Default)]
struct Group {
    /// Blocks, with the hashes of their contents.
    blocks: Vec<(MovableBlock, Vec<GranuleHash>)>,
    copied_bytes: u64,
    /// Event after the copies; `None` without any.
    event: Option<Handle>,
    /// Number of pieces of the staging memory that were used up to the end of its copies.
    pieces: u64,
}

/// Copies what differs from the copies on the host, and releases all blocks of a device. Those whose copies are complete are released while
/// others are being copied, or the last pieces of the staging memory are. After an error nothing is in flight any more. `is_unchanged`: blocks with a copy have its contents.
fn leave<P: Platform>(
    host: P,
    moves: &mut Moves,
    device: &MovableDevice,
    is_unchanged: bool,
    transfer: &mut Transfer,
) -> Result<(), Code> {
    let tools = tools(host, moves, device)?;
    let begin = host.now();
    let known = is_unchanged.then(|| known_hashes(moves, device)).flatten();
    let hashes = known.or_else(|| {
        let wait = if host.process().has_exclusive_slot() {
            LEASE_MAX
        } else {
            TOKEN_MAX
        };
        let until = begin.saturating_add(wait);
        hash::granules(host, &tools, device.granule, &device.granules(), until)
    });
    transfer.hash_ns += host.now().saturating_sub(begin);
    let begin = host.now();
    let mut groups = Vec::new();
    let mut copies = CopiesOut::new(&moves.host);
    let enqueued = enqueue(
        host,
        moves,
        device,
        &tools,
        hashes.as_deref(),
        &mut copies,
        &mut groups,
    );
    let left = enqueued.and_then(|()| {
        let released = transfer.unmap_ns;
        let left = groups
            .iter()
            .try_for_each(|group| leave_group(host, moves, device, group, &mut copies, transfer));
        let left = left.and_then(|()| extents::release_left(host, device.ordinal, true));
        let releasing = transfer.unmap_ns - released;
        transfer.copy_ns += host.now().saturating_sub(begin).saturating_sub(releasing);
        left
    });
    if left.is_err() {
        let _over = host.synchronize_stream(tools.stream);
    }
    copies.end(host);
    for event in groups.into_iter().filter_map(|group| group.event) {
        host.destroy_event(event);
    }
    left
}

/// Returns the hashes of the copies of all blocks; `None` if some are unknown.
fn known_hashes(moves: &Moves, device: &MovableDevice) -> Option<Vec<GranuleHash>> {
    let mut all = Vec::new();
    for block in &device.blocks {
        let known = &moves.host.copy(block.key)?.hashes;
        if known.len() as u64 * device.granule != block.bytes {
            return None;
        }
        all.extend_from_slice(known);
    }
    Some(all)
}

/// Enqueues the copies of what differs from the copies on the host, in groups.
fn enqueue<P: Platform>(
    host: P,
    moves: &mut Moves,
    device: &MovableDevice,
    tools: &Tools,
    mut hashes: Option<&[GranuleHash]>,
    copies: &mut CopiesOut,
    groups: &mut Vec<Group>,
) -> Result<(), Code> {
    let granule = device.granule;
    let mut group = Group::default();
    for (number, &block) in device.blocks.iter().enumerate() {
        let count = usize::try_from(block.bytes / granule).unwrap_or(0);
        let own = hashes.as_mut().and_then(|all| all.split_off(..count));
        let own = own.unwrap_or_default();
        let changed = moves.host.copy(block.key).map(|copy| {
            let ranges = copy.changed(own, granule).into_iter();
            let spans = ranges.flat_map(|(offset, bytes)| {
                let mut from = block.at + offset;
                copy.range(offset, bytes).map(move |span| {
                    let at = from;
                    from += span.bytes;
                    (span, at)
                })
            });
            spans.collect::<Vec<(HostSpan, Address)>>()
        });
        let changed = changed.unwrap_or_default();
        if !changed.is_empty() {
            moves.begin_copy(block.key);
        }
        for (span, from) in changed {
            let is_registered = moves.host.is_registered(span);
            copies.copy(host, span, is_registered, from, tools)?;
            group.copied_bytes += span.bytes;
        }
        group.blocks.push((block, own.to_vec()));
        let is_last = number + 1 == device.blocks.len();
        if is_last || group.copied_bytes >= GROUP_GRANULES * granule {
            let mut full = std::mem::take(&mut group);
            if full.copied_bytes > 0 {
                let event = host.create_event(EVENT_BLOCKING_SYNC)?;
                full.event = Some(event);
                host.record_event(event, tools.stream)?;
            }
            full.pieces = copies.used();
            groups.push(full);
        }
    }
    Ok(())
}

/// Waits for the copies of a group, and releases its blocks.
fn leave_group<P: Platform>(
    host: P,
    moves: &mut Moves,
    device: &MovableDevice,
    group: &Group,
    copies: &mut CopiesOut,
    transfer: &mut Transfer,
) -> Result<(), Code> {
    if let Some(event) = group.event {
        host.synchronize_event(event)?;
    }
    copies.arrive(host, group.pieces)?;
    transfer.copied_bytes += group.copied_bytes;
    let begin = host.now();
    let mut released = Ok(());
    for (block, hashes) in &group.blocks {
        moves.host.set_hashes(block.key, hashes.clone());
        released = memory::release_block(host, device.ordinal, block);
        if released.is_err() {
            break;
        }
        transfer.bytes += block.bytes;
    }
    let released = released.and_then(|()| extents::release_left(host, device.ordinal, false));
    transfer.unmap_ns += host.now().saturating_sub(begin);
    released
}
