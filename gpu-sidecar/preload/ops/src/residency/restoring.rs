//! Launches and touches amid a restore: what each waits for.

use std::sync::atomic::Ordering;

use preload_state::gate::RECHECK_INTERVAL;
use preload_state::memory::HostSpan;
use preload_state::restoring::Needed;

use crate::cuda::Handle;
use crate::launch::{Arguments, Kind};
use crate::memory::moves;
use crate::platform::{Platform, System};
use crate::touch::{self, Use};

/// Largest host memory of a copy which is searched for addresses, in bytes; larger ones count as if they had some.
const SEARCHED_MAX: u64 = 64 << 20;
/// Size of an address, in bytes.
const WORD: u64 = 8;

/// Returns whether the gate of memory is ajar and what a call needs is there. `needed` is computed once for each restore.
///
/// The caller has marked its launch or touch, so that no other restore can begin before it is over.
#[cold]
pub(crate) fn is_there<P: System>(
    host: P,
    needed: &mut Option<Needed>,
    compute: impl Fn() -> Needed,
) -> bool {
    let process = host.process();
    if !process.memory_gate.is_ajar() {
        // It may have been opened since the caller looked.
        return process.memory_gate.is_open();
    }
    let known = needed.filter(|known| process.restoring.is_current(*known));
    let known = known.unwrap_or_else(compute);
    *needed = Some(known);
    process.restoring.is_there(known)
}

/// Returns what the launch of a kernel with these arguments, or of a graph, needs.
pub(crate) fn of_launch<P: Platform>(
    host: P,
    function: Handle,
    kind: Kind,
    arguments: Arguments,
) -> Needed {
    let process = host.process();
    let words = match kind {
        // A kernel may find descriptors in memory, which is then not known as memory that holds addresses.
        _ if process.tensor_maps.hides_addresses() => None,
        Kind::Kernel => host.argument_words(function, arguments),
        Kind::Graph => process.graphs.words(function),
    };
    process.restoring.needed_by_launch(words.as_deref())
}

/// Returns what a touch needs.
pub(crate) fn of_touch<P: Platform>(host: P, use_: Use) -> Needed {
    let restoring = &host.process().restoring;
    let Use::Range {
        at,
        bytes,
        source,
        is_deferred,
    } = use_
    else {
        return restoring.all();
    };
    if source != 0 && (!restoring.contains(at, bytes) || restoring.is_of_block(source)) {
        // The driver may refuse it, so that the source is not there to be read.
        return restoring.all();
    }
    // The words of a block are aligned in the block, not in the source. A host function before the copy may write the source.
    let first = at.wrapping_neg() % WORD;
    let is_unknown = bytes > SEARCHED_MAX || is_deferred && host.process().has_host_functions();
    let writes_addresses = source != 0
        && (is_unknown || {
            let ranges = restoring.ranges();
            let source = HostSpan {
                at: source + first,
                bytes: bytes.saturating_sub(first),
            };
            ranges.any(host.host_words(source, ranges.near()))
        });
    restoring.needed_by_touch(at, bytes, writes_addresses)
}

/// Blocks until what is needed may be there.
pub(crate) fn wait<P: Platform>(host: P, needed: Needed) {
    let process = host.process();
    let word = process.restoring.done();
    let before = word.load(Ordering::Acquire);
    if !process.memory_gate.is_ajar() || !process.restoring.is_current(needed) {
        return;
    }
    if !process.restoring.is_there(needed) {
        host.wait_at(word, before, RECHECK_INTERVAL);
    }
}

/// Launches and touches after which the order of first use counts as known.
const OBSERVED_MAX: u32 = 4_096;
/// Time after the arrival of the last group for which the program is observed, in nanoseconds.
const OBSERVED_FOR: u64 = 1_000_000_000;

/// Opens the gate if it is ajar and the program was observed for long enough. Returns whether it is observed further.
pub(super) fn observes<P: Platform>(host: P) -> bool {
    let process = host.process();
    if !process.memory_gate.is_ajar() {
        return false;
    }
    let arrived_at = moves(host).arrived_at;
    let is_over = process.restoring.observed() >= OBSERVED_MAX
        || host.now().saturating_sub(arrived_at) >= OBSERVED_FOR;
    if is_over {
        end_observation(host);
    }
    !is_over
}

/// Opens a gate that is ajar, once everything is there, and keeps the order in which the program has used its memory.
pub(super) fn end_observation<P: Platform>(host: P) {
    if !host.process().memory_gate.is_ajar() {
        return;
    }
    let order = host.process().restoring.take_order();
    if !order.is_empty() {
        moves(host).order = order;
    }
    touch::open(host);
}
