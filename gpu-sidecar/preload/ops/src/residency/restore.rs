//! Restore: device memory from its copy on the host.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use preload_state::restoring::PlannedBlock;
use protocol::message::{MoveRefusal, Transfer};
use protocol::page::{Residency, Streaming};

use super::creation::{Creation, Handles};
use super::evict::synchronize;
use super::staging::CopiesIn;
use super::{Moves, Tools, calls, publish, streaming, streams_restores, tools};
use crate::cuda::{Code, OUT_OF_MEMORY};
use crate::memory::{self, MovableBlock, MovableDevice, extents, moves};
use crate::platform::Platform;
use crate::touch;

/// Size of the copies after which a group of blocks ends, in granules: 8 MiB on a GPU, of which the setup of a copy is below 3 % at the rate of every
/// known link (M2.6: elbows of 2 MiB to 4 MiB). The first groups end after one and two granules, and others before a block as large as a group: what the
/// program uses first is mostly small, such as its input, and it computes from then on.
const ARRIVAL_GRANULES: u64 = 4;
/// Longest time for which it is waited whether the device answers at all, after an error.
const GONE_MAX: Duration = Duration::from_secs(1);

/// Returns the process's memory to the device, at the same addresses, calls `answer` with the outcome, and opens the gate. After an error the
/// memory is still on the host, and the gate stays shut, unless the driver serves the process no more: then nothing can wait for it.
///
/// The answer comes first, so that an order which follows what the program does next finds the move over.
pub(super) fn restore<P: Platform>(
    host: P,
    answer: impl FnOnce(Result<Transfer, MoveRefusal>),
) -> Result<Transfer, MoveRefusal> {
    let moved = bring_all_back(host);
    answer(moved);
    // Ajar, it opens once the program was observed for a while.
    let is_over = moved.is_ok() || moves(host).is_faulted;
    if is_over && !host.process().memory_gate.is_ajar() {
        touch::open(host);
    }
    moved
}

fn bring_all_back<P: Platform>(host: P) -> Result<Transfer, MoveRefusal> {
    let begin = host.now();
    publish(host, Residency::Restoring);
    let moved = {
        let mut moves = moves(host);
        moves.map_ns = 0;
        if streams_restores(host) && !memory::has_other_access(host) {
            stream_back(host, &mut moves)
        } else {
            let handles = moves.handles();
            let moved = bring_back(host, &mut moves, handles);
            moves.is_away = moved.is_err();
            // Threads which wait at the gate count as calls: what was known of the copies when all had left is so as of now.
            let is_unchanged = moves.unchanged_since.is_some() && moves.host.is_all_hashed();
            moves.unchanged_since = is_unchanged.then(|| calls(host));
            moved
        }
    };
    // Which copies are complete is known with the answer: a model that returns ahead of its turn may have to leave again.
    if moved.is_ok() {
        let is_sealed = moves(host).unchanged_since == Some(calls(host));
        let sealed = &host.facts().sealed;
        sealed.store(u32::from(is_sealed), Ordering::Relaxed);
    }
    match moved {
        Ok(mut transfer) => {
            publish(host, Residency::Resident);
            transfer.total_ns = host.now().saturating_sub(begin);
            moves(host).note_mapping(transfer.total_ns);
            Ok(transfer)
        }
        Err(code) if !moves(host).is_away => {
            // The gate was ajar: what waits goes on, and receives the error that stays. After another one its memory is not as it was.
            let is_lost = !preload_state::counters::is_sticky(code);
            moves(host).is_faulted = is_lost;
            publish(host, moves(host).place());
            if is_lost {
                host.log(&format!(
                    "the model could not return while the program computed (error {code}): its memory is not as it was"
                ));
            }
            host.report_fatal(code);
            touch::open(host);
            Err(MoveRefusal::StickyError)
        }
        Err(code) if code != OUT_OF_MEMORY && is_device_gone(host) => {
            // What waits goes on: every call of the driver reports the error, and none reaches memory.
            let mut moves = moves(host);
            (moves.is_faulted, moves.is_away) = (true, false);
            drop(moves);
            publish(host, Residency::Faulted);
            host.log(&format!(
                "the device serves this process no more (error {code}): the model is lost, and every call fails"
            ));
            host.report_fatal(code);
            Err(MoveRefusal::StickyError)
        }
        Err(code) => {
            publish(host, Residency::Host);
            host.log(&format!(
                "the model cannot return to the device (error {code}): it stays on the host"
            ));
            if code == OUT_OF_MEMORY {
                Err(MoveRefusal::NoMemory)
            } else {
                host.report_fatal(code);
                Err(MoveRefusal::StickyError)
            }
        }
    }
}

/// Returns whether some context of the process with memory works no more, other than one that the program has destroyed: an error of a kernel, or a
/// lost device, which every later call of the driver reports.
fn is_device_gone<P: Platform>(host: P) -> bool {
    matches!(synchronize(host, GONE_MAX), Some(Err(_)))
}

/// Creates, maps and fills all blocks that are away; all of them or none. Blocks are filled while later ones are created.
pub(super) fn bring_back<P: Platform>(
    host: P,
    moves: &mut Moves,
    handles: Handles,
) -> Result<Transfer, Code> {
    let mut transfer = Transfer::default();
    let devices = memory::away(host);
    let begin = host.now();
    let mut groups = Groups::new(moves);
    let filled = devices.iter().try_for_each(|device| {
        let mut creation = Creation::new(moves, device, begin, handles);
        let filled = fill(host, moves, &mut creation, &mut groups, &mut transfer);
        let filled = filled.and_then(|()| groups.copies.enqueue_all(host));
        let over = wait_for(host, moves, device);
        filled.and(over)
    });
    let filled = filled.and_then(|()| finish(host, &devices));
    let passed = host.now().saturating_sub(begin);
    transfer.copy_ns = passed.saturating_sub(transfer.map_ns);
    groups.copies.end(host);
    if filled.is_err() {
        release(host, &devices);
    }
    filled.map(|()| transfer)
}

/// As [`bring_back`], but sets the gate ajar once all is mapped: the program then computes with what has arrived. Blocks arrive in the order in which
/// it used them before. After an error from then on, the memory counts as there.
fn stream_back<P: Platform>(host: P, moves: &mut Moves) -> Result<Transfer, Code> {
    let mut transfer = Transfer::default();
    let mut devices = memory::away(host);
    for device in &mut devices {
        sort_by_use(&moves.order, &mut device.blocks);
    }
    let begin = host.now();
    let mut groups = Groups::new(moves);
    let is_poisoned = streaming(host) == Streaming::Poisoned;
    let filled = devices.iter().try_for_each(|device| {
        let mut creation = Creation::new(moves, device, begin, moves.handles());
        if is_poisoned {
            poison(host, moves, &mut creation, &mut transfer)?;
        }
        fill(host, moves, &mut creation, &mut groups, &mut transfer)
    });
    if let Err(code) = filled {
        for device in &devices {
            let _over = wait_for(host, moves, device);
        }
        groups.copies.end(host);
        release(host, &devices);
        moves.is_away = true;
        return Err(code);
    }
    moves.is_away = false;
    let process = host.process();
    // The program may change its memory from now on. What waits at the gate has withdrawn its mark, and counts again before it goes on.
    let is_unchanged = moves.unchanged_since.is_some() && moves.host.is_all_hashed();
    host.barrier();
    let threads = &process.threads;
    let is_quiet = !threads.any_touching() && !threads.any_launching();
    moves.unchanged_since = (is_unchanged && is_quiet).then(|| calls(host));
    let blocks = devices.iter().flat_map(|device| &device.blocks);
    let ranges: Vec<_> = blocks
        .flat_map(|block| memory::ranges_of(host, block))
        .collect();
    moves.search_for(&ranges);
    let plan = groups.plan(host, moves, &devices);
    process.restoring.begin(plan, groups.count);
    touch::set_ajar(host);
    let mut arrived = Ok(());
    for number in 0..groups.count {
        // Of another device too: nothing counts as there that is on its way.
        let waited = arrived.and_then(|()| groups.copies.wait_for_event(host, number as usize));
        arrived = arrived.and(waited);
        // After an error as well: no thread waits for ever.
        process.restoring.complete(number + 1);
        host.wake(process.restoring.done());
    }
    moves.arrived_at = host.now();
    if arrived.is_err() {
        // What is on its way must not be freed.
        for device in &devices {
            let _over = wait_for(host, moves, device);
        }
    }
    groups.copies.end(host);
    let passed = host.now().saturating_sub(begin);
    transfer.copy_ns = passed.saturating_sub(transfer.map_ns);
    arrived
        .and_then(|()| finish(host, &devices))
        .map(|()| transfer)
}

/// Sorts blocks by their first use, those which were not used last.
fn sort_by_use(order: &[u64], blocks: &mut [MovableBlock]) {
    let places: BTreeMap<u64, usize> = order.iter().copied().zip(0..).collect();
    blocks.sort_by_key(|block| places.get(&block.key).copied().unwrap_or(usize::MAX));
}

/// Copies to the device in groups, each with an event after it.
#[derive(Debug)]
struct Groups {
    copies: CopiesIn,
    /// Number of groups.
    count: u32,
    /// Number of groups after which each block is there, by its key.
    blocks: BTreeMap<u64, u32>,
    /// Size of the copies after the last event, in bytes.
    open_bytes: u64,
}

impl Groups {
    fn new(moves: &Moves) -> Self {
        Self {
            copies: CopiesIn::new(&moves.host),
            count: 0,
            blocks: BTreeMap::new(),
            open_bytes: 0,
        }
    }

    /// Notes that the copy of a block was added, and ends the group if it is large enough.
    fn add<P: Platform>(
        &mut self,
        host: P,
        block: &MovableBlock,
        granule: u64,
        tools: Tools,
    ) -> Result<(), Code> {
        self.blocks.insert(block.key, self.count.saturating_add(1));
        self.open_bytes += block.bytes;
        let doublings = self.count.min(ARRIVAL_GRANULES.ilog2());
        let granules = 1 << doublings;
        if self.open_bytes >= granules * granule {
            self.end(host, tools)?;
        }
        Ok(())
    }

    /// Ends the group, if there is anything in it.
    fn end<P: Platform>(&mut self, host: P, tools: Tools) -> Result<(), Code> {
        if self.open_bytes > 0 {
            self.copies.event(host, tools)?;
            self.count = self.count.saturating_add(1);
            self.open_bytes = 0;
        }
        Ok(())
    }

    fn plan<P: Platform>(
        &self,
        host: P,
        moves: &Moves,
        devices: &[MovableDevice],
    ) -> Vec<PlannedBlock> {
        let blocks = devices.iter().flat_map(|device| &device.blocks);
        blocks
            .flat_map(|block| {
                let groups = self.blocks.get(&block.key).copied().unwrap_or(0);
                let searched = moves.addresses.get(&block.key).copied();
                let ranges = memory::ranges_of(host, block).into_iter();
                ranges.map(move |(at, bytes)| PlannedBlock {
                    key: block.key,
                    at,
                    bytes,
                    groups,
                    may_hold_addresses: searched.unwrap_or(true),
                    is_joined: memory::is_of_program(block.key),
                })
            })
            .collect()
    }
}

/// Returns the tools for a device's copies; `None` without a context: there are only empty slabs then, of which nothing is copied.
fn tools_of<P: Platform>(
    host: P,
    moves: &mut Moves,
    device: &MovableDevice,
) -> Result<Option<Tools>, Code> {
    if device.contexts.is_empty() {
        return Ok(None);
    }
    Ok(Some(tools(host, moves, device)?))
}

/// Creates the blocks of one device, unless they were, and enqueues their copies, as far as that needs no waiting.
fn fill<P: Platform>(
    host: P,
    moves: &mut Moves,
    creation: &mut Creation<'_>,
    groups: &mut Groups,
    transfer: &mut Transfer,
) -> Result<(), Code> {
    let device = creation.device;
    let tools = tools_of(host, moves, device)?;
    for block in &device.blocks {
        if !creation.make(host, block, transfer)? {
            continue;
        }
        transfer.bytes += block.bytes;
        let Some((copy, tools)) = moves.host.copy(block.key).zip(tools) else {
            continue;
        };
        if block.bytes >= ARRIVAL_GRANULES * device.granule {
            // What comes before a large block is not to wait for it.
            groups.end(host, tools)?;
        }
        let mut to = block.at;
        for &span in &copy.spans {
            let is_registered = moves.host.is_registered(span);
            groups.copies.copy(host, tools, to, span, is_registered)?;
            to += span.bytes;
        }
        transfer.copied_bytes += to - block.at;
        groups.add(host, block, device.granule, tools)?;
        groups.copies.advance(host)?;
    }
    moves.map_ns += creation.mapping_ns();
    if let Some(tools) = tools {
        groups.end(host, tools)?;
    }
    groups.copies.advance(host)
}

/// Creates the blocks of one device, with every bit set where their copies are to come, before any copy is enqueued.
fn poison<P: Platform>(
    host: P,
    moves: &mut Moves,
    creation: &mut Creation<'_>,
    transfer: &mut Transfer,
) -> Result<(), Code> {
    let device = creation.device;
    let tools = tools_of(host, moves, device)?;
    for block in &device.blocks {
        let is_made = creation.make(host, block, transfer)?;
        if let Some((_, tools)) = moves.host.copy(block.key).zip(tools)
            && is_made
        {
            host.set_all_bits(block.at, block.bytes, tools.stream)?;
        }
    }
    Ok(())
}

/// Waits until nothing is in flight on a device.
fn wait_for<P: Platform>(host: P, moves: &mut Moves, device: &MovableDevice) -> Result<(), Code> {
    match tools_of(host, moves, device)? {
        Some(tools) => host.synchronize_stream(tools.stream),
        None => Ok(()),
    }
}

/// Grants the access that the program has set to blocks whose contents are there.
fn finish<P: Platform>(host: P, devices: &[MovableDevice]) -> Result<(), Code> {
    devices.iter().try_for_each(|device| {
        let mut blocks = device.blocks.iter();
        blocks.try_for_each(|block| memory::finish_block(host, device.ordinal, block))
    })
}

/// Releases all blocks that were created. Of a block that was not created nothing is there to be released.
fn release<P: Platform>(host: P, devices: &[MovableDevice]) {
    for device in devices {
        for block in &device.blocks {
            let _released = memory::release_block(host, device.ordinal, block);
        }
        let _released = extents::release_left(host, device.ordinal, true);
    }
    extents::stay(host);
}
