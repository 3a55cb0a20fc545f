//! Seal: copies to the host of what has changed, ahead of an eviction, while the program does nothing. The gate stays open. The first launch or touch
//! ends it; what was copied before is not copied again.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use preload_state::memory::{GranuleHash, HostSpan};
use protocol::page::Orders;

use super::staging::CopiesOut;
use super::{GROUP_GRANULES, Moves, calls, evict, hash, tools};
use crate::cuda::{Address, Code};
use crate::memory::{self, MovableBlock, MovableDevice, moves};
use crate::platform::{Platform, System};
use crate::{capture_mode, streams};

/// Longest wait for work other than kernels, of a process which seems to do nothing.
const IDLE_MAX: Duration = Duration::from_millis(10);

/// Part of a block that has changed.
#[derive(Debug, Clone, Copy)]
struct Piece {
    key: u64,
    /// First byte in the block, and size, both in bytes.
    offset: u64,
    bytes: u64,
    /// Whether the block's copy is complete after it.
    is_last: bool,
}

/// Hashes of each block's granules, by its key.
type Hashes = BTreeMap<u64, Vec<GranuleHash>>;

/// Copies what has changed until all is copied, the program launches or touches something, or an order comes.
pub(super) fn seal<P: Platform>(host: P, orders: &Orders) {
    let order = orders.order_seq.load(Ordering::Relaxed);
    let Some(begun) = idle_calls(host) else {
        return;
    };
    let Some((hashes, mut pieces)) = changed(host) else {
        return;
    };
    pieces.reverse();
    while !pieces.is_empty() {
        if orders.order_seq.load(Ordering::Relaxed) != order
            || !copy_group(host, begun, &hashes, &mut pieces)
        {
            return;
        }
    }
    let mut moves = moves(host);
    let is_sealed = is_idle_since(host, begun) && moves.host.is_all_hashed();
    moves.unchanged_since = is_sealed.then_some(begun);
    host.facts()
        .sealed
        .store(u32::from(is_sealed), Ordering::Relaxed);
}

/// Returns the number of launches and touches, if none is in progress and nothing of them runs on the device; `None` otherwise, or while memory
/// could not leave.
pub(super) fn idle_calls<P: Platform>(host: P) -> Option<u32> {
    evict::refusal(host).ok()?;
    host.barrier();
    let begun = calls(host);
    let threads = &host.process().threads;
    if threads.any_touching()
        || threads.any_launching()
        || streams::first_unfinished(host).is_some()
    {
        return None;
    }
    let waited = {
        // A wait for all work would make an error of a capture that begins meanwhile.
        let _none_begins = host.process().captures.transition();
        if capture_mode::any(host) {
            return None;
        }
        evict::synchronize(host, IDLE_MAX)
    };
    // What has failed, or does not end, is not this thread's to report: the program may have destroyed its context.
    if waited != Some(Ok(())) {
        return None;
    }
    is_idle_since(host, begun).then_some(begun)
}

/// Returns whether there was neither a launch nor a touch since there were `begun` of them. Any later one finds complete what the caller has waited
/// for.
fn is_idle_since<P: System>(host: P, begun: u32) -> bool {
    host.barrier();
    calls(host) == begun
}

/// Returns the hashes of all blocks, and what differs from their copies; `None` if there is no room, no token or no hash.
fn changed<P: Platform>(host: P) -> Option<(Hashes, Vec<Piece>)> {
    let mut moves = moves(host);
    let devices = memory::movable(host);
    evict::reserve(&mut moves, &devices).ok()?;
    let (mut hashes, mut pieces) = (Hashes::new(), Vec::new());
    for device in &devices {
        let tools = tools(host, &mut moves, device).ok()?;
        // Only with the token that it holds.
        let until = host.now();
        let all = hash::granules(host, &tools, device.granule, &device.granules(), until)?;
        let mut all = all.into_iter();
        for block in &device.blocks {
            let count = usize::try_from(block.bytes / device.granule).ok()?;
            let own: Vec<GranuleHash> = all.by_ref().take(count).collect();
            add_pieces(&moves, device.granule, block, &own, &mut pieces);
            hashes.insert(block.key, own);
        }
    }
    Some((hashes, pieces))
}

/// Adds the ranges of a block that differ from its copy, in pieces of at most a group.
fn add_pieces(
    moves: &Moves,
    granule: u64,
    block: &MovableBlock,
    hashes: &[GranuleHash],
    pieces: &mut Vec<Piece>,
) {
    let copy = moves.host.copy(block.key);
    let ranges = copy.map(|copy| copy.changed(hashes, granule));
    let most = GROUP_GRANULES * granule;
    let before = pieces.len();
    for (begin, bytes) in ranges.unwrap_or_default() {
        let mut offset = begin;
        while offset < begin + bytes {
            let bytes = most.min(begin + bytes - offset);
            pieces.push(Piece {
                key: block.key,
                offset,
                bytes,
                is_last: false,
            });
            offset += bytes;
        }
    }
    if let Some(last) = pieces[before..].last_mut() {
        last.is_last = true;
    }
}

/// Copies the last of the pieces, about one group of them, and removes them. Returns `false` if the program launched or touched something
/// meanwhile, or the driver refused a copy: then the copies of these blocks are unknown.
///
/// The lock of the moves is held for one group only: frees wait for it.
fn copy_group<P: Platform>(host: P, begun: u32, hashes: &Hashes, pieces: &mut Vec<Piece>) -> bool {
    let mut moves = moves(host);
    if !is_idle_since(host, begun) {
        return false;
    }
    // What has been freed since is not there any more.
    let devices = memory::movable(host);
    let (group, device) = take_group(&devices, pieces);
    let Some(device) = device else {
        return true;
    };
    for (piece, _) in &group {
        moves.begin_copy(piece.key);
    }
    if let Err(code) = copy(host, &mut moves, device, &group) {
        host.report_fatal(code);
        return false;
    }
    if !is_idle_since(host, begun) {
        return false;
    }
    for (piece, _) in group.iter().filter(|(piece, _)| piece.is_last) {
        let known = hashes.get(&piece.key).cloned();
        moves.host.set_hashes(piece.key, known.unwrap_or_default());
    }
    true
}

/// Removes pieces of one device from the end, about one group of them, and returns each with the address of its block. Those of freed blocks are
/// dropped.
fn take_group<'a>(
    devices: &'a [MovableDevice],
    pieces: &mut Vec<Piece>,
) -> (Vec<(Piece, Address)>, Option<&'a MovableDevice>) {
    let find = |key: u64| {
        devices.iter().find_map(|device| {
            let mut blocks = device.blocks.iter();
            let block = blocks.find(|block| block.key == key)?;
            Some((device, block.at))
        })
    };
    let mut group = Vec::new();
    let mut of_group: Option<&MovableDevice> = None;
    let mut bytes = 0;
    while let Some(&piece) = pieces.last() {
        if let Some((device, at)) = find(piece.key) {
            let own = *of_group.get_or_insert(device);
            if own.ordinal != device.ordinal || bytes >= GROUP_GRANULES * device.granule {
                break;
            }
            bytes += piece.bytes;
            group.push((piece, at));
        }
        pieces.pop();
    }
    (group, of_group)
}

/// Copies pieces of a device's blocks, and waits for the copies.
fn copy<P: Platform>(
    host: P,
    moves: &mut Moves,
    device: &MovableDevice,
    group: &[(Piece, Address)],
) -> Result<(), Code> {
    let tools = tools(host, moves, device)?;
    let mut copies = CopiesOut::new(&moves.host);
    let enqueued = group.iter().try_for_each(|&(piece, at)| {
        let copy = moves.host.copy(piece.key);
        let mut from = at + piece.offset;
        let spans = copy.into_iter();
        let spans = spans.flat_map(|copy| copy.range(piece.offset, piece.bytes));
        for span in spans.collect::<Vec<HostSpan>>() {
            let is_registered = moves.host.is_registered(span);
            copies.copy(host, span, is_registered, from, &tools)?;
            from += span.bytes;
        }
        Ok(())
    });
    let over = host.synchronize_stream(tools.stream);
    let copied = enqueued.and(over);
    let arrived = copied.and_then(|()| copies.arrive(host, copies.used()));
    copies.end(host);
    arrived
}
