//! Hashes of the granules of device memory, by a kernel of this library's in the process's own context.

use preload_state::memory::GranuleHash;
use preload_state::streams::DefaultStream;

use super::Tools;
use crate::cuda::{Address, Code, Handle, SUCCESS};
use crate::platform::Platform;
use crate::{capture_mode, launch, streams};

/// Returns the hash of each granule with these addresses; `None` if hashes cannot be computed, and everything counts as changed.
///
/// The kernel passes the gate like one of the program, but waits for it until the time `until` (nanoseconds) only: the memory is kept from the
/// program meanwhile, and its frees wait as well.
pub(super) fn granules<P: Platform>(
    host: P,
    tools: &Tools,
    granule: u64,
    addresses: &[Address],
    until: u64,
) -> Option<Vec<GranuleHash>> {
    let kernel = tools.kernel?;
    if addresses.is_empty() {
        return Some(Vec::new());
    }
    let count = addresses.len();
    // The table of addresses, and behind it the sums, which begin at 0.
    let mut words = addresses.to_vec();
    words.resize(3 * count, 0);
    let bytes = 8 * words.len() as u64;
    let table = host.allocate(bytes).ok()?;
    let input = Input {
        kernel,
        granule,
        table,
        until,
    };
    let hashes = sums(host, tools, input, &mut words);
    host.free(table);
    hashes.ok()
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
    words: &mut [u64],
) -> Result<Vec<GranuleHash>, Code> {
    let Input {
        kernel,
        granule,
        table,
        until,
    } = input;
    host.write_words(table, words, tools.stream)?;
    let count = words.len() / 3;
    let out = table + 8 * count as u64;
    let parameters = [out, table, count as u64, granule / 8];
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
    // One wait for both, the kernel and the copy.
    let sums = &mut words[count..];
    let read = host.read_words(out, sums, tools.stream);
    streams::stream_synchronized(host, tools.stream, DefaultStream::Legacy);
    read.inspect_err(|code| host.report_fatal(*code))?;
    let pairs = sums.chunks_exact(2);
    Ok(pairs.map(|pair| [pair[0], pair[1]]).collect())
}
