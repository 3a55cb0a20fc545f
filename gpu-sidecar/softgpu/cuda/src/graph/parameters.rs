//! Parameters of nodes: the interface's structures, and their conversion to work.

use std::ffi::c_void;

use crate::context::Context;
use crate::copy::{Copy3d, to_device_from, to_host_at};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::launch;
use crate::memory::Access;
use crate::module::{Function, Kernel};
use crate::pointer::In;
use crate::state::State;
use crate::table::Handle;
use crate::work::{Copy, HostCall, HostFunction, KernelLaunch, Set, Side, Way, Work};

use super::nodes::{Graph, NodeAction, kind};

/// `CUDA_KERNEL_NODE_PARAMS_v1`, a launch by function.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelParametersV1 {
    function: Handle<Function>,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    list: In<*const c_void>,
    extra: In<*const c_void>,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2` and `_v3`, which have the same layout.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelParameters {
    first: KernelParametersV1,
    kernel: Handle<Kernel>,
    context: Handle<Context>,
}

/// `CUDA_MEMSET_NODE_PARAMS`, a memset of rows.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SetParameters {
    to: u64,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`, a host function with its argument.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct HostParameters {
    function: Option<HostFunction>,
    data: *mut c_void,
}

/// `CUDA_MEMCPY_NODE_PARAMS`, a copy with its context.
#[repr(C)]
#[derive(Clone, Copy)]
struct CopyInContext {
    flags: u32,
    reserved: u32,
    context: Handle<Context>,
    copy: Copy3d,
}

/// `CUDA_MEMSET_NODE_PARAMS_v2`, a memset with its context.
#[repr(C)]
#[derive(Clone, Copy)]
struct SetInContext {
    set: SetParameters,
    context: Handle<Context>,
}

/// `CUDA_CHILD_GRAPH_NODE_PARAMS`, the graph of a child node.
#[repr(C)]
#[derive(Clone, Copy)]
struct ChildParameters {
    graph: Handle<Graph>,
    /// 0: the node gets a copy; 1: the node takes the graph itself.
    ownership: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
union Body {
    kernel: KernelParameters,
    copy: CopyInContext,
    set: SetInContext,
    host: HostParameters,
    child: ChildParameters,
    event: Handle<Event>,
    whole: [u64; 29],
}

/// `CUgraphNodeParams`, a union by kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NodeParameters {
    kind: u32,
    reserved: [u32; 3],
    body: Body,
    reserved_too: u64,
}

/// Parameters of a kernel node, in memory to which the program has pointers.
pub(super) struct ExportedParameters {
    _bytes: Box<[u8]>,
    /// Addresses of the parameters.
    list: Box<[usize]>,
}

impl ExportedParameters {
    fn new(launched: &KernelLaunch, layout: &[kernels::Parameter]) -> Self {
        let bytes: Box<[u8]> = launched.parameters.bytes().into();
        let begin = bytes.as_ptr().expose_provenance();
        Self {
            list: layout
                .iter()
                .map(|parameter| begin + parameter.offset)
                .collect(),
            _bytes: bytes,
        }
    }

    fn list(&self) -> In<*const c_void> {
        if self.list.is_empty() {
            return In::from_raw(std::ptr::null());
        }
        In::from_raw(self.list.as_ptr().cast())
    }
}

impl KernelParametersV1 {
    /// Converts to version 2.
    pub(super) const fn widen(self) -> KernelParameters {
        KernelParameters {
            first: self,
            kernel: Handle::NULL,
            context: Handle::NULL,
        }
    }
}

impl KernelParameters {
    /// Converts to version 1.
    pub(super) const fn narrow(self) -> KernelParametersV1 {
        self.first
    }

    pub(super) fn work(&self, driver: &Driver, state: &mut State) -> Result<Work> {
        let first = &self.first;
        let function = if first.function.is_null() {
            Handle::from_raw(self.kernel.raw())
        } else {
            first.function
        };
        let shape = [first.grid, first.block];
        launch::prepare(
            driver,
            state,
            function,
            shape,
            first.shared_bytes,
            first.list,
            first.extra,
        )
        .map(Work::Kernel)
    }

    /// Returns the parameters of a launch, and the memory that holds them.
    pub(super) fn of(state: &State, launched: &KernelLaunch) -> (Self, Box<ExportedParameters>) {
        let function = state.functions.get(launched.function);
        let layout = function.map_or(&[][..], |there| there.code.parameters());
        let exported = Box::new(ExportedParameters::new(launched, layout));
        let first = KernelParametersV1 {
            function: launched.function,
            grid: launched.grid,
            block: launched.block,
            shared_bytes: launched.shared_bytes,
            list: exported.list(),
            extra: In::from_raw(std::ptr::null()),
        };
        (first.widen(), exported)
    }

    /// Returns the parameters of a launch whose memory was exported before.
    pub(super) fn again(launched: &KernelLaunch, exported: &ExportedParameters) -> Self {
        let first = KernelParametersV1 {
            function: launched.function,
            grid: launched.grid,
            block: launched.block,
            shared_bytes: launched.shared_bytes,
            list: exported.list(),
            extra: In::from_raw(std::ptr::null()),
        };
        first.widen()
    }
}

/// Returns the device of a context; null is the current context.
fn device_of(driver: &Driver, state: &State, context: Handle<Context>) -> Result<usize> {
    let context = if context.is_null() {
        driver.current(state)?
    } else {
        context
    };
    let there = state.contexts.get(context).ok_or(Error::INVALID_CONTEXT)?;
    Ok(there.device)
}

/// Returns the device of the memory at an address; `None` for host memory.
fn device_at(state: &State, address: u64) -> Option<usize> {
    let (_, region) = state.memory.find(address)?;
    (!region.is_host()).then_some(region.device)
}

/// Determines the direction of a copy from its addresses, relative to the device `own`.
fn way(driver: &Driver, state: &State, own: usize, copy: &Copy) -> Way {
    let from = device_at(state, copy.from.address);
    let to = device_at(state, copy.to.address);
    match (from, to) {
        (None, None) => Way::Host,
        (None, Some(_)) => to_device_from(state, copy.from.address),
        (Some(_), None) => to_host_at(state, copy.to.address),
        (Some(from), Some(to)) if from == to => Way::Within,
        (Some(from), Some(to)) => {
            let other = if to == own { from } else { to };
            Way::Peer(driver.devices[other].unit)
        }
    }
}

/// Converts a copy in a context to work.
pub(super) fn copy_work(
    driver: &Driver,
    state: &State,
    parameters: &Copy3d,
    context: Handle<Context>,
) -> Result<Work> {
    let own = device_of(driver, state, context)?;
    let mut copy = parameters.copy()?;
    copy.way = way(driver, state, own, &copy);
    Ok(Work::Copy(copy))
}

/// Converts a copy to the interface's structure.
pub(super) fn copy_parameters(state: &State, copy: &Copy) -> Copy3d {
    let is_host = |address| device_at(state, address).is_none();
    Copy3d::of(copy, is_host(copy.from.address), is_host(copy.to.address))
}

impl SetParameters {
    pub(super) fn work(
        &self,
        driver: &Driver,
        state: &State,
        context: Handle<Context>,
    ) -> Result<Work> {
        device_of(driver, state, context)?;
        let (width, height) = (self.width as u64, self.height as u64);
        if ![1, 2, 4].contains(&self.element) || width == 0 || height == 0 {
            return Err(Error::INVALID_VALUE);
        }
        let row = width
            .checked_mul(self.element.into())
            .ok_or(Error::INVALID_VALUE)?;
        let pitch = if height == 1 { row } else { self.pitch as u64 };
        if pitch < row || !self.to.is_multiple_of(self.element.into()) {
            return Err(Error::INVALID_VALUE);
        }
        let end = pitch
            .checked_mul(height - 1)
            .and_then(|rows| rows.checked_add(row));
        let end = end.ok_or(Error::INVALID_VALUE)?;
        if !state.memory.may(self.to, end, Access::Write) {
            return Err(Error::INVALID_VALUE);
        }
        Ok(Work::Set(Set {
            to: Side {
                address: self.to,
                pitch,
                slice: 0,
            },
            value: self.value,
            element: self.element,
            extent: [width, height],
        }))
    }

    pub(super) fn of(set: &Set) -> Self {
        let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        Self {
            to: set.to.address,
            pitch: number(set.to.pitch),
            value: set.value,
            element: set.element,
            width: number(set.extent[0]),
            height: number(set.extent[1]),
        }
    }
}

impl HostParameters {
    pub(super) fn work(&self) -> Result<Work> {
        let function = self.function.ok_or(Error::INVALID_VALUE)?;
        Ok(Work::Host(HostCall::Function(
            function,
            self.data.expose_provenance(),
        )))
    }

    pub(super) fn of(call: HostCall) -> Result<Self> {
        match call {
            HostCall::Function(function, data) => Ok(Self {
                function: Some(function),
                data: std::ptr::with_exposed_provenance_mut(data),
            }),
            // A callback of `cuStreamAddCallback` is never captured.
            HostCall::Callback(..) => Err(Error::INVALID_VALUE),
        }
    }
}

impl NodeParameters {
    /// Returns the action of a node with these parameters. A child graph in them still belongs to the program.
    pub(super) fn action(&self, driver: &Driver, state: &mut State) -> Result<NodeAction> {
        let body = &self.body;
        match self.kind {
            kind::KERNEL => {
                // SAFETY: the caller guarantees a kernel; every bit pattern is valid for its numbers and pointers.
                let kernel = unsafe { body.kernel };
                kernel.work(driver, state).map(NodeAction::Work)
            }
            kind::COPY => {
                // SAFETY: as above, a copy.
                let copy = unsafe { body.copy };
                copy_work(driver, state, &copy.copy, copy.context).map(NodeAction::Work)
            }
            kind::SET => {
                // SAFETY: as above, a memset.
                let set = unsafe { body.set };
                set.set
                    .work(driver, state, set.context)
                    .map(NodeAction::Work)
            }
            kind::HOST => {
                // SAFETY: as above, a host function, whose address the caller guarantees.
                let host = unsafe { body.host };
                host.work().map(NodeAction::Work)
            }
            kind::CHILD => {
                // SAFETY: as above, a graph.
                let child = unsafe { body.child };
                match child.ownership {
                    0 => Ok(NodeAction::Child(child.graph)),
                    1 => Err(Error::NOT_SUPPORTED),
                    _ => Err(Error::INVALID_VALUE),
                }
            }
            kind::EMPTY => Ok(NodeAction::Work(Work::Nothing)),
            kind::WAIT => {
                // SAFETY: as above, an event.
                let event = unsafe { body.event };
                known_event(state, event).map(NodeAction::Wait)
            }
            kind::RECORD => {
                // SAFETY: as above, an event.
                let event = unsafe { body.event };
                known_event(state, event).map(NodeAction::Record)
            }
            // Semaphores, memory, batched operations, conditions.
            8..=13 => Err(Error::NOT_SUPPORTED),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}

/// Returns the event if it exists.
pub(super) fn known_event(state: &State, event: Handle<Event>) -> Result<Handle<Event>> {
    state
        .events
        .get(event)
        .map(|_| event)
        .ok_or(Error::INVALID_HANDLE)
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;
    use crate::work::Parameters;

    #[test]
    fn structures_have_the_layout_of_the_interface() {
        assert_eq!(size_of::<KernelParametersV1>(), 56);
        assert_eq!(size_of::<KernelParameters>(), 72);
        assert_eq!(offset_of!(KernelParametersV1, list), 40);
        assert_eq!(offset_of!(KernelParameters, context), 64);
        assert_eq!(size_of::<SetParameters>(), 40);
        assert_eq!(size_of::<SetInContext>(), 48);
        assert_eq!(size_of::<HostParameters>(), 16);
        assert_eq!(size_of::<CopyInContext>(), 216);
        assert_eq!(size_of::<ChildParameters>(), 16);
        assert_eq!(size_of::<Body>(), 232);
        assert_eq!(size_of::<NodeParameters>(), 256);
        assert_eq!(offset_of!(NodeParameters, body), 16);
    }

    #[test]
    fn exported_parameters_point_to_their_values() {
        let parameters = Parameters::new(24, |bytes| {
            bytes[8..16].copy_from_slice(&77_u64.to_le_bytes());
            Ok(())
        });
        let launched = KernelLaunch {
            function: Handle::NULL,
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            parameters: parameters.unwrap(),
            record: softgpu_wire::record::KernelRecord {
                duration_ns: 0,
                sms: 1,
                law: softgpu_wire::record::LawCode {
                    law: 0,
                    parameter_millionths: 0,
                },
                interference_millionths: 0,
            },
            effect: None,
        };
        let exported = ExportedParameters::new(&launched, kernels::Kernel::Fill.parameters());
        let list = exported.list().list(3).unwrap();
        let words = In::<u64>::from_raw(list[1].cast()).get().unwrap();
        assert_eq!(words, 77);
        assert!(ExportedParameters::new(&launched, &[]).list().is_null());
    }
}
