//! Hashes of the granules of device memory, by a kernel of this library's in the process's own context.

use preload_state::memory::GranuleHash;
use preload_state::streams::DefaultStream;

use super::{Moves, Tools, tools};
use crate::cuda::{Address, Code, Handle, SUCCESS};
use crate::memory::MovableDevice;
use crate::platform::Platform;
use crate::{capture_mode, launch, streams};

/// Most granules that one launch hashes: on a GPU 2 GiB of memory.
const GRANULES_MAX: usize = 1_024;

/// Size of the table of a launch, in bytes: of each granule the address, and the two sums that are its hash.
///
/// The table is part of what a context takes by itself, as the module with the kernel is: making and freeing it for each hash takes longer than most hashes
/// of unchanged models, and a free waits for the program's work.
const TABLE_BYTES: u64 = 24 * GRANULES_MAX as u64;

/// Returns the hash of each granule of a device; `None` if hashes cannot be computed, and everything counts as changed.
///
/// The kernel passes the gate like one of the program, but waits for it until the time `until` (nanoseconds) only: the memory is kept from the
/// program meanwhile, and its frees wait as well.
pub(super) fn granules<P: Platform>(
    host: P,
    moves: &mut Moves,
    device: &MovableDevice,
    until: u64,
) -> Option<Vec<GranuleHash>> {
    let tools = tools(host, moves, device).ok()?;
    let kernel = tools.kernel?;
    let table = tools.table.or_else(|| {
        let made = make_table(host);
        if let Some(own) = moves.tools.get_mut(&device.ordinal) {
            own.table = made;
        }
        made
    })?;
    let input = Input {
        kernel,
        granule: device.granule,
        table,
        until,
    };
    let addresses = device.granules();
    let mut hashes = Vec::with_capacity(addresses.len());
    for part in addresses.chunks(GRANULES_MAX) {
        hashes.extend(sums(host, &tools, input, part).ok()?);
    }
    Some(hashes)
}

/// Makes the table in the current context; `None` if the driver has no memory for it.
pub(super) fn make_table<P: Platform>(host: P) -> Option<Address> {
    host.allocate(TABLE_BYTES).ok()
}

/// Input of the kernel.
#[derive(Debug, Clone, Copy)]
struct Input {
    kernel: Handle,
    /// Size of a granule, in bytes.
    granule: u64,
    /// Address of the table of addresses and sums.
    table: Address,
    /// End of the wait for the gate, in nanoseconds.
    until: u64,
}

fn sums<P: Platform>(
    host: P,
    tools: &Tools,
    input: Input,
    addresses: &[Address],
) -> Result<Vec<GranuleHash>, Code> {
    let Input {
        kernel,
        granule,
        table,
        until,
    } = input;
    let count = addresses.len();
    // The addresses, and behind them the sums, which begin at 0.
    let mut words = addresses.to_vec();
    words.resize(3 * count, 0);
    let out = table + 8 * count as u64;
    let parameters = [out, table, count as u64, granule / 8];
    let written = host.write_words(table, &words, tools.stream);
    let launched = written.and_then(|()| {
        let launch = || match host.launch_hash(kernel, parameters, tools.stream) {
            Ok(()) => SUCCESS,
            Err(code) => code,
        };
        match launch::own(host, &launch, tools.stream, kernel, until) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    });
    if let Err(code) = launched {
        // The driver may still read the words.
        host.synchronize_stream(tools.stream)?;
        return Err(code);
    }
    // As the program's own waits do, so that the kernel does not count as in flight until something else is launched.
    if !capture_mode::any(host) {
        streams::mark(host, tools.stream, DefaultStream::Legacy);
    }
    // One wait for the kernel and both copies.
    let mut sums = vec![0; 2 * count];
    let read = host.read_words(out, &mut sums, tools.stream);
    streams::stream_synchronized(host, tools.stream, DefaultStream::Legacy);
    read.inspect_err(|code| host.report_fatal(*code))?;
    let pairs = sums.chunks_exact(2);
    Ok(pairs.map(|pair| [pair[0], pair[1]]).collect())
}
