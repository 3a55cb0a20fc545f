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
    let hashes = sums(host, tools, input, &words);
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
    words: &[u64],
) -> Result<Vec<GranuleHash>, Code> {
    let Input {
        kernel,
        granule,
        table,
        until,
    } = input;
    let written = host.write_words(table, words, tools.stream);
    let count = words.len() / 3;
    let out = table + 8 * count as u64;
    let parameters = [out, table, count as u64, granule / 8];
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
