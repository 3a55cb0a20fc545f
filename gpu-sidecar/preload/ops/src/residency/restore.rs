//! Restore: device memory from its copy on the host.

use std::time::Duration;

use protocol::message::{MoveRefusal, Transfer};
use protocol::page::Residency;

use super::{Moves, calls, publish, tools};
use crate::cuda::{Code, OUT_OF_MEMORY};
use crate::memory::{self, MovableDevice, moves};
use crate::platform::Platform;
use crate::touch;

/// Time for which the creation of memory is tried again: another process may still be releasing it.
const CREATE_MAX: Duration = Duration::from_secs(2);
/// Interval between two attempts to create memory.
const CREATE_INTERVAL: Duration = Duration::from_millis(5);

/// Returns the process's memory to the device, at the same addresses, calls `answer` with the outcome, and opens the gate. After an error the
/// memory is still on the host, and the gate stays shut.
///
/// The answer comes first, so that an order which follows what the program does next finds the move over.
pub(super) fn restore<P: Platform>(
    host: P,
    answer: impl FnOnce(Result<Transfer, MoveRefusal>),
) -> Result<Transfer, MoveRefusal> {
    let moved = bring_all_back(host);
    answer(moved);
    if moved.is_ok() {
        touch::open(host);
    }
    moved
}

fn bring_all_back<P: Platform>(host: P) -> Result<Transfer, MoveRefusal> {
    let begin = host.now();
    publish(host, Residency::Restoring);
    let moved = {
        let mut moves = moves(host);
        let moved = bring_back(host, &mut moves);
        moves.is_away = moved.is_err();
        // Threads which wait at the gate count as calls: what is known of the copies is so as of now.
        moves.unchanged_since = moves.host.is_all_hashed().then(|| calls(host));
        moved
    };
    match moved {
        Ok(mut transfer) => {
            publish(host, Residency::Resident);
            transfer.total_ns = host.now().saturating_sub(begin);
            Ok(transfer)
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

/// Creates, maps and fills all blocks that are away; all of them or none. Blocks are filled while later ones are created.
pub(super) fn bring_back<P: Platform>(host: P, moves: &mut Moves) -> Result<Transfer, Code> {
    let mut transfer = Transfer::default();
    let devices = memory::away(host);
    let begin = host.now();
    let filled = devices
        .iter()
        .try_for_each(|device| fill(host, moves, device, begin, &mut transfer));
    let passed = host.now().saturating_sub(begin);
    transfer.copy_ns = passed.saturating_sub(transfer.map_ns);
    if filled.is_err() {
        for device in &devices {
            for block in &device.blocks {
                // Of a block that was not created nothing is there to be released.
                let _released = memory::release_block(host, device.ordinal, block);
            }
        }
    }
    filled.map(|()| transfer)
}

/// Creates and fills the blocks of one device. When it returns, nothing is in flight.
fn fill<P: Platform>(
    host: P,
    moves: &mut Moves,
    device: &MovableDevice,
    begin: u64,
    transfer: &mut Transfer,
) -> Result<(), Code> {
    // Without a context there are only empty slabs, of which nothing is copied.
    let stream = match device.contexts.is_empty() {
        true => None,
        false => Some(tools(host, moves, device)?.stream),
    };
    let enqueued = device.blocks.iter().try_for_each(|block| {
        let before = host.now();
        let created = create(host, begin, || {
            memory::create_block(host, device.ordinal, block)
        });
        transfer.map_ns += host.now().saturating_sub(before);
        if !created? {
            return Ok(());
        }
        let mut to = block.at;
        let copy = moves.host.copy(block.key).filter(|_| stream.is_some());
        let stream = stream.unwrap_or_default();
        for &span in copy.map_or(&[][..], |copy| &copy.spans) {
            host.copy_to_device(to, span, stream)?;
            to += span.bytes;
        }
        transfer.bytes += block.bytes;
        transfer.copied_bytes += to - block.at;
        Ok(())
    });
    let over = stream.map_or(Ok(()), |stream| host.synchronize_stream(stream));
    enqueued.and(over)?;
    let mut blocks = device.blocks.iter();
    blocks.try_for_each(|block| memory::finish_block(host, device.ordinal, block))
}

/// Repeats an attempt to create memory for as long as the device has none.
fn create<P: Platform>(
    host: P,
    begin: u64,
    mut attempt: impl FnMut() -> Result<bool, Code>,
) -> Result<bool, Code> {
    loop {
        match attempt() {
            Err(OUT_OF_MEMORY)
                if host.now().saturating_sub(begin) < preload_state::nanoseconds(CREATE_MAX) =>
            {
                host.pause(CREATE_INTERVAL);
            }
            created => return created,
        }
    }
}
