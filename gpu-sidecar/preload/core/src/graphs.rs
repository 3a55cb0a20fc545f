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

fn instantiate(real: &dyn Fn() -> Code, executable: *const Handle, graph: Handle) -> Code {
    graphs::instantiate(Host, real, || read(executable), graph).or_call(real)
}

fn update(real: &dyn Fn() -> Code, executable: Handle, graph: Handle) -> Code {
    graphs::update(Host, real, executable, graph).or_call(real)
}

fn change(real: &dyn Fn() -> Code, executable: Handle) -> Code {
    graphs::change(Host, executable).or_call(real)
}

hooks! { HOOKS:
    fn cuGraphInstantiate(executable: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_void, bytes: usize) =
        |real, executable: *mut Handle, graph, _node, _log, _bytes| instantiate(real, executable, graph);
    fn cuGraphInstantiate_v2(executable: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_void, bytes: usize) =
        |real, executable: *mut Handle, graph, _node, _log, _bytes| instantiate(real, executable, graph);
    fn cuGraphInstantiateWithFlags(executable: *mut Handle, graph: Handle, flags: u64) =
        |real, executable: *mut Handle, graph, _flags| instantiate(real, executable, graph);
    fn cuGraphInstantiateWithParams(executable: *mut Handle, graph: Handle, parameters: *mut c_void) =
        |real, executable: *mut Handle, graph, _parameters| instantiate(real, executable, graph);
    fn cuGraphInstantiateWithParams_ptsz(executable: *mut Handle, graph: Handle, parameters: *mut c_void) =
        |real, executable: *mut Handle, graph, _parameters| instantiate(real, executable, graph);
    fn cuGraphExecUpdate(executable: Handle, graph: Handle, node: *mut Handle, outcome: *mut c_int) =
        |real, executable, graph, _node, _outcome| update(real, executable, graph);
    fn cuGraphExecUpdate_v2(executable: Handle, graph: Handle, outcome: *mut c_void) =
        |real, executable, graph, _outcome| update(real, executable, graph);
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
            let words = Host.argument_words(function, arguments);
            words.map_or(NodeUse::Unknown, NodeUse::Words)
        }
        kind::COPY => {
            // SAFETY: a copy node, and a valid pointer to its parameters.
            let own = written(|own: *mut CopyNode| unsafe {
                driver::cuGraphMemcpyNodeGetParams(node, own.cast())
            })?;
            match (own.from.kind, own.to.kind) {
                // What is copied from the host may be addresses by the time of a launch.
                (OF_DEVICE, OF_DEVICE) => NodeUse::Words(vec![own.from.device, own.to.device]),
                (OF_DEVICE, OF_HOST) => NodeUse::Words(vec![own.from.device]),
                _ => NodeUse::Unknown,
            }
        }
        kind::SET => {
            // SAFETY: a memset node, and a valid pointer to its parameters.
            let own = written(|own: *mut SetNode| unsafe {
                driver::cuGraphMemsetNodeGetParams(node, own.cast())
            })?;
            NodeUse::Words(vec![own.at])
        }
        kind::GRAPH => {
            // SAFETY: a node of a child graph, and a valid pointer to its handle.
            NodeUse::Child(written(|child: *mut Handle| unsafe {
                driver::cuGraphChildGraphNodeGetGraph(node, child)
            })?)
        }
        kind::HOST
        | kind::EMPTY
        | kind::WAIT_EVENT
        | kind::RECORD_EVENT
        | kind::SIGNAL
        | kind::WAIT => NodeUse::Words(Vec::new()),
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
}
