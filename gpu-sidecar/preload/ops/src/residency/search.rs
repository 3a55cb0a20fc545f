//! Search of copies for addresses of blocks: a kernel may follow those, so that its arguments do not show what it reads.
//!
//! Copies are searched while the memory is away, by the mover thread, which has nothing else to do then. A copy is searched again when it has
//! changed.

use preload_state::restoring::AddressRanges;

use crate::memory::{self, MovableBlock, moves};
use crate::platform::Platform;

/// Size of the copies that are searched before orders are looked at again, in bytes.
const TURN: u64 = 64 << 20;

/// Searches some copies. Returns whether there were any to search.
pub(super) fn search_some<P: Platform>(host: P) -> bool {
    if !super::streams_restores(host) {
        return false;
    }
    let mut moves = moves(host);
    let devices = memory::away(host);
    let blocks = devices.iter().flat_map(|device| &device.blocks);
    let ranges: Vec<_> = blocks
        .clone()
        .flat_map(|block| memory::ranges_of(host, block))
        .collect();
    moves.search_for(&ranges);
    let missing: Vec<MovableBlock> = blocks
        .filter(|block| !moves.addresses.contains_key(&block.key))
        .copied()
        .collect();
    if missing.is_empty() {
        return false;
    }
    let ranges = AddressRanges::new(ranges);
    let mut left = TURN;
    for block in missing {
        let spans = moves.host.copy(block.key).map(|copy| copy.spans.clone());
        let found = spans
            .unwrap_or_default()
            .into_iter()
            .any(|span| ranges.any(host.host_words(span, ranges.near())));
        moves.addresses.insert(block.key, found);
        left = left.saturating_sub(block.bytes);
        if left == 0 {
            break;
        }
    }
    true
}
