//! Hashes of the granules of device memory, by a kernel of this library's in the process's own context.

use std::ffi::c_int;

use preload_state::memory::GranuleHash;
use preload_state::streams::DefaultStream;

use super::{Moves, Tools, tools};
use crate::cuda::{Address, Code, Handle, SUCCESS};
use crate::memory::{MovableDevice, movable, moves};
use crate::platform::Platform;
use crate::{capture_mode, launch, streams};

/// Addresses of granules, and behind them the sums of their hashes, in memory of the device. Making it takes longer than most hashes: it is there as
/// long as the model is.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) context: Handle,
    at: Address,
    granules: Vec<Address>,
}

impl Table {
    /// Returns the address and the size of the sums, in bytes.
    const fn sums(&self) -> (Address, u64) {
        let count = self.granules.len() as u64;
        (self.at + 8 * count, 16 * count)
    }
}

/// Returns the hash of each granule of a device; `None` if hashes cannot be computed, and everything counts as changed.
///
/// The kernel passes the gate like one of the program, but waits for it until the time `until` (nanoseconds) only: the memory is kept from the
/// program meanwhile, and its frees wait as well.
pub(super) fn granules<P: Platform>(
    host: P,
    moves: &mut Moves,
    tools: &Tools,
    device: &MovableDevice,
    until: u64,
) -> Option<Vec<GranuleHash>> {
    let kernel = tools.kernel?;
    let granules = device.granules();
    if granules.is_empty() {
        return Some(Vec::new());
    }
    let table = table(host, moves, tools, device.ordinal, granules).ok()?;
    let input = Input {
        kernel,
        granule: device.granule,
        until,
    };
    sums(host, tools, input, table).ok()
}

/// Makes the tables of the devices ahead of the first hash, for which an order may wait.
pub(super) fn prepare<P: Platform>(host: P) {
    let mut moves = moves(host);
    for device in movable(host) {
        let granules = device.granules();
        if !granules.is_empty()
            && let Ok(tools) = tools(host, &mut moves, &device)
            && tools.kernel.is_some()
        {
            // Without one the hash tries it again.
            let _made = table(host, &mut moves, &tools, device.ordinal, granules);
        }
    }
}

/// Releases the tables of a process whose memory has left.
pub(super) fn release<P: Platform>(host: P) {
    let tables = std::mem::take(&mut moves(host).tables);
    for table in tables.into_values() {
        if host.set_current_context(table.context).is_ok() {
            host.free(table.at);
        }
    }
}

/// Returns the table of these granules of a device, with sums that begin at 0.
fn table<'a, P: Platform>(
    host: P,
    moves: &'a mut Moves,
    tools: &Tools,
    ordinal: c_int,
    granules: Vec<Address>,
) -> Result<&'a Table, Code> {
    let before = moves.tables.remove(&ordinal);
    let table = match before {
        Some(table) if table.context == tools.context && table.granules == granules => {
            let (at, bytes) = table.sums();
            if let Err(code) = host.set_bytes(at, bytes, 0, tools.stream) {
                host.free(table.at);
                return Err(code);
            }
            table
        }
        before => {
            if let Some(other) = before {
                host.free(other.at);
            }
            let mut words = granules.clone();
            words.resize(3 * granules.len(), 0);
            let at = host.allocate(8 * words.len() as u64)?;
            if let Err(code) = host.write_words(at, &words, tools.stream) {
                host.free(at);
                return Err(code);
            }
            Table {
                context: tools.context,
                at,
                granules,
            }
        }
    };
    Ok(moves.tables.entry(ordinal).or_insert(table))
}

/// Input of the kernel.
#[derive(Debug, Clone, Copy)]
struct Input {
    kernel: Handle,
    /// Size of a granule, in bytes.
    granule: u64,
    /// End of the wait for the gate, in nanoseconds.
    until: u64,
}

fn sums<P: Platform>(
    host: P,
    tools: &Tools,
    input: Input,
    table: &Table,
) -> Result<Vec<GranuleHash>, Code> {
    let Input {
        kernel,
        granule,
        until,
    } = input;
    let count = table.granules.len();
    let (out, _) = table.sums();
    let parameters = [out, table.at, count as u64, granule / 8];
    let launched = launch::own(
        host,
        &|| match host.launch_hash(kernel, parameters, tools.stream) {
            Ok(()) => SUCCESS,
            Err(code) => code,
        },
        tools.stream,
        kernel,
        until,
    );
    if launched != SUCCESS {
        return Err(launched);
    }
    // As the program's own waits do, so that the kernel does not count as in flight until something else is launched.
    if !capture_mode::any(host) {
        streams::mark(host, tools.stream, DefaultStream::Legacy);
    }
    let mut sums = vec![0; 2 * count];
    let read = host.read_words(out, &mut sums, tools.stream);
    streams::stream_synchronized(host, tools.stream, DefaultStream::Legacy);
    read.inspect_err(|code| host.report_fatal(*code))?;
    let pairs = sums.chunks_exact(2);
    Ok(pairs.map(|pair| [pair[0], pair[1]]).collect())
}
