//! Wrappers of the functions that make and change executable graphs, and what their nodes use.

use std::ffi::{c_int, c_uint, c_void};

use preload_ops::Driver as _;
use preload_ops::graphs::{self, NodeUse};
use preload_ops::launch::Arguments;

use crate::calls::{check, written};
use crate::driver::{self, Code, Handle, INVALID_VALUE};
use crate::hook::hooks;
use crate::host::Host;
use crate::pointers::read;

fn instantiate(
    real: &dyn Fn() -> Code,
    executable: *const Handle,
    graph: Handle,
    flags: u64,
) -> Code {
    graphs::instantiate(Host, real, || read(executable), graph, flags).or_call(real)
}

/// Returns the flags of a `CUDA_GRAPH_INSTANTIATE_PARAMS`, which begins with them.
fn flags_of(parameters: *const c_void) -> u64 {
    read(parameters.cast()).unwrap_or(0)
}

fn change(real: &dyn Fn() -> Code, executable: Handle) -> Code {
    graphs::forget(Host, executable);
    real()
}

hooks! { HOOKS:
    fn cuGraphInstantiate(executable: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_void, bytes: usize) =
        |real, executable: *mut Handle, graph, _node, _log, _bytes| instantiate(real, executable, graph, 0);
    fn cuGraphInstantiate_v2(executable: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_void, bytes: usize) =
        |real, executable: *mut Handle, graph, _node, _log, _bytes| instantiate(real, executable, graph, 0);
    fn cuGraphInstantiateWithFlags(executable: *mut Handle, graph: Handle, flags: u64) =
        |real, executable: *mut Handle, graph, flags| instantiate(real, executable, graph, flags);
    fn cuGraphInstantiateWithParams(executable: *mut Handle, graph: Handle, parameters: *mut c_void) =
        |real, executable: *mut Handle, graph, parameters: *mut c_void| instantiate(real, executable, graph, flags_of(parameters));
    fn cuGraphInstantiateWithParams_ptsz(executable: *mut Handle, graph: Handle, parameters: *mut c_void) =
        |real, executable: *mut Handle, graph, parameters: *mut c_void| instantiate(real, executable, graph, flags_of(parameters));
    fn cuGraphExecUpdate(executable: Handle, graph: Handle, node: *mut Handle, outcome: *mut c_int) =
        |real, executable, _graph, _node, _outcome| change(real, executable);
    fn cuGraphExecUpdate_v2(executable: Handle, graph: Handle, outcome: *mut c_void) =
        |real, executable, _graph, _outcome| change(real, executable);
    fn cuGraphExecDestroy(executable: Handle) = change;
    fn cuGraphExecKernelNodeSetParams(executable: Handle, node: Handle, parameters: *const c_void) =
        |real, executable, _node, _parameters| change(real, executable);
    fn cuGraphExecKernelNodeSetParams_v2(executable: Handle, node: Handle, parameters: *const c_void) =
        |real, executable, _node, _parameters| change(real, executable);
    fn cuGraphExecMemcpyNodeSetParams(executable: Handle, node: Handle, parameters: *const c_void, context: Handle) =
        |real, executable, _node, _parameters, _context| change(real, executable);
    fn cuGraphExecMemsetNodeSetParams(executable: Handle, node: Handle, parameters: *const c_void, context: Handle) =
        |real, executable, _node, _parameters, _context| change(real, executable);
    fn cuGraphExecBatchMemOpNodeSetParams(executable: Handle, node: Handle, parameters: *const c_void) =
        |real, executable, _node, _parameters| change(real, executable);
    fn cuGraphExecChildGraphNodeSetParams(executable: Handle, node: Handle, graph: Handle) =
        |real, executable, _node, _graph| change(real, executable);
    fn cuGraphExecNodeSetParams(executable: Handle, node: Handle, parameters: *const c_void) =
        |real, executable, _node, _parameters| change(real, executable);
}

/// `CUgraphNodeType`
mod kind {
    use std::ffi::c_int;

    pub(super) const KERNEL: c_int = 0;
    pub(super) const COPY: c_int = 1;
    pub(super) const SET: c_int = 2;
    pub(super) const HOST: c_int = 3;
    pub(super) const GRAPH: c_int = 4;
    pub(super) const EMPTY: c_int = 5;
    pub(super) const WAIT_EVENT: c_int = 6;
    pub(super) const RECORD_EVENT: c_int = 7;
    pub(super) const SIGNAL: c_int = 8;
    pub(super) const WAIT: c_int = 9;
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct KernelNode {
    function: Handle,
    dimensions: [c_uint; 7],
    list: usize,
    extra: usize,
    kernel: Handle,
    context: Handle,
}

/// `CUDA_MEMCPY3D`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct CopyNode {
    from: Side,
    to: Side,
    size: [usize; 3],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    place: [usize; 4],
    kind: c_uint,
    host: usize,
    device: u64,
    array: usize,
    reserved: usize,
    pitch: [usize; 2],
}

/// `CUmemorytype`: of the host, and of the device.
const OF_HOST: c_uint = 1;
const OF_DEVICE: c_uint = 2;

/// `CUDA_MEMSET_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct SetNode {
    at: u64,
    pitch: usize,
    value: [c_uint; 2],
    size: [usize; 2],
}

/// First and last address of what a node uses; `None` of nothing. An error: it has none.
type Range = Result<Option<[u64; 2]>, Code>;

/// Returns the range of `size` bytes, rows and layers from `at` on, of which rows are `pitch` bytes apart and layers `layer` bytes.
fn range(at: Option<u64>, size: [usize; 3], pitch: usize, layer: Option<usize>) -> Range {
    if size.contains(&0) {
        return Ok(None);
    }
    let first = at.ok_or(INVALID_VALUE)?;
    let last = || {
        let rows = (size[1] - 1).checked_mul(pitch)?;
        let layers = match size[2] {
            1 => 0,
            count => (count - 1).checked_mul(layer?)?,
        };
        let bytes = rows.checked_add(layers)?.checked_add(size[0] - 1)?;
        first.checked_add(u64::try_from(bytes).ok()?)
    };
    Ok(Some([first, last().ok_or(INVALID_VALUE)?]))
}

fn of_ranges(ranges: &[Range]) -> NodeUse {
    let mut words = Vec::new();
    for range in ranges {
        match range {
            Ok(range) => words.extend(range.iter().flatten()),
            Err(_) => return NodeUse::Unknown,
        }
    }
    NodeUse::Words(words)
}

impl Side {
    fn range(&self, size: [usize; 3]) -> Range {
        let [x, y, z, _level] = self.place;
        let [pitch, height] = self.pitch;
        let layer = pitch.checked_mul(height);
        let begin = || {
            let layers = if z == 0 { 0 } else { z.checked_mul(layer?)? };
            let offset = y.checked_mul(pitch)?.checked_add(x)?.checked_add(layers)?;
            self.device.checked_add(u64::try_from(offset).ok()?)
        };
        range(begin(), size, pitch, layer)
    }
}

impl SetNode {
    fn range(&self) -> Range {
        let [_value, element] = self.value;
        let [width, rows] = self.size;
        let bytes = usize::try_from(element)
            .ok()
            .and_then(|element| width.checked_mul(element));
        let bytes = bytes.ok_or(INVALID_VALUE)?;
        range(Some(self.at), [bytes, rows, 1], self.pitch, None)
    }
}

/// Returns whether kernels may change the node.
fn is_updatable(node: Handle) -> bool {
    /// `CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE`, whose value begins with an `int`. A driver without it, before 12.4, reports an error.
    const UPDATABLE: c_int = 13;
    let value = written(|value: *mut [u64; 8]| {
        // SAFETY: a kernel node, and a place of the size of every value.
        unsafe { driver::cuGraphKernelNodeGetAttribute(node, UPDATABLE, value.cast()) }
    });
    value.is_ok_and(|[first, ..]| first & u64::from(u32::MAX) != 0)
}

/// Returns the nodes of a graph. More than `at_most` are an error.
pub(crate) fn nodes(graph: Handle, at_most: usize) -> Result<Vec<Handle>, Code> {
    let mut count: usize = 0;
    // SAFETY: a graph of the program, no list, and a valid pointer to the number.
    check(unsafe { driver::cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut count) })?;
    if count > at_most {
        return Err(INVALID_VALUE);
    }
    let mut nodes: Vec<Handle> = vec![0; count];
    if count > 0 {
        // SAFETY: as above, with a list of as many elements as the number states.
        check(unsafe { driver::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) })?;
        nodes.truncate(count);
    }
    Ok(nodes)
}

/// Returns what a node of a graph uses.
pub(crate) fn node_use(node: Handle) -> NodeUse {
    used(node).unwrap_or(NodeUse::Unknown)
}

fn used(node: Handle) -> Result<NodeUse, Code> {
    // SAFETY: a node of a graph of the program, and a valid pointer to its kind.
    let kind = written(|kind: *mut c_int| unsafe { driver::cuGraphNodeGetType(node, kind) })?;
    Ok(match kind {
        kind::KERNEL => {
            // SAFETY: a kernel node, and a valid pointer to its parameters.
            let own = written(|own: *mut KernelNode| unsafe {
                driver::cuGraphKernelNodeGetParams_v2(node, own.cast())
            })?;
            let function = if own.function == 0 {
                own.kernel
            } else {
                own.function
            };
            let arguments = Arguments {
                list: own.list,
                extra: own.extra,
            };
            if is_updatable(node) {
                return Ok(NodeUse::Unknown);
            }
            let words = Host.argument_words(function, arguments);
            words.map_or(NodeUse::Unknown, NodeUse::Words)
        }
        kind::COPY => {
            // SAFETY: a copy node, and a valid pointer to its parameters.
            let own = written(|own: *mut CopyNode| unsafe {
                driver::cuGraphMemcpyNodeGetParams(node, own.cast())
            })?;
            let (from, to) = (own.from.range(own.size), own.to.range(own.size));
            match (own.from.kind, own.to.kind) {
                // What is copied from the host may be addresses by the time of a launch.
                (OF_DEVICE, OF_DEVICE) => of_ranges(&[from, to]),
                (OF_DEVICE, OF_HOST) => of_ranges(&[from]),
                _ => NodeUse::Unknown,
            }
        }
        kind::SET => {
            // SAFETY: a memset node, and a valid pointer to its parameters.
            let own = written(|own: *mut SetNode| unsafe {
                driver::cuGraphMemsetNodeGetParams(node, own.cast())
            })?;
            of_ranges(&[own.range()])
        }
        kind::GRAPH => {
            // SAFETY: a node of a child graph, and a valid pointer to its handle.
            NodeUse::Child(written(|child: *mut Handle| unsafe {
                driver::cuGraphChildGraphNodeGetGraph(node, child)
            })?)
        }
        kind::HOST => NodeUse::HostFunction,
        kind::EMPTY | kind::WAIT_EVENT | kind::RECORD_EVENT | kind::SIGNAL | kind::WAIT => {
            NodeUse::Words(Vec::new())
        }
        _ => NodeUse::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_sizes_of_the_driver() {
        assert_eq!(size_of::<KernelNode>(), 72);
        assert_eq!(std::mem::offset_of!(KernelNode, list), 40);
        assert_eq!(size_of::<CopyNode>(), 200);
        assert_eq!(size_of::<SetNode>(), 40);
    }

    #[test]
    fn a_copy_uses_all_from_its_first_to_its_last_byte() {
        let side = |place, pitch| Side {
            place,
            kind: OF_DEVICE,
            device: 10_000,
            pitch,
            ..Side::default()
        };
        let flat = side([7, 0, 0, 0], [0, 0]);
        assert_eq!(flat.range([5, 1, 1]), Ok(Some([10_007, 10_011])));
        assert_eq!(flat.range([5, 0, 1]), Ok(None));
        let deep = side([1, 2, 3, 0], [100, 10]);
        let first = 10_000 + 3 * 1_000 + 2 * 100 + 1;
        let last = first + 2 * 1_000 + 3 * 100 + 4;
        assert_eq!(deep.range([5, 4, 3]), Ok(Some([first, last])));
        let wide = side([usize::MAX, 1, 0, 0], [usize::MAX, 2]);
        assert_eq!(wide.range([1, 1, 1]), Err(INVALID_VALUE));
        assert_eq!(
            of_ranges(&[Ok(None), Ok(Some([1, 2]))]),
            NodeUse::Words(vec![1, 2])
        );
        assert_eq!(of_ranges(&[Ok(None), Err(INVALID_VALUE)]), NodeUse::Unknown);
    }

    #[test]
    fn a_memset_uses_all_from_its_first_to_its_last_byte() {
        let set = |pitch, element, size| SetNode {
            at: 10_000,
            pitch,
            value: [0, element],
            size,
        };
        assert_eq!(set(0, 4, [3, 1]).range(), Ok(Some([10_000, 10_011])));
        assert_eq!(set(64, 2, [3, 5]).range(), Ok(Some([10_000, 10_261])));
        assert_eq!(set(64, 2, [0, 5]).range(), Ok(None));
        assert_eq!(set(64, 2, [usize::MAX, 5]).range(), Err(INVALID_VALUE));
    }
}
