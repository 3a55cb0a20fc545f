//! Work of streams: its representation on the timeline, and its effect on memory.

use std::ffi::c_void;
use std::sync::Arc;

use softgpu_wire::record::{Command, CopyWay, KernelRecord};

use crate::effects::Effect;
use crate::error::Result;
use crate::module::Function;
use crate::stream::Stream;
use crate::table::Handle;

/// Function of `cuLaunchHostFunc` and host nodes.
pub type HostFunction = extern "C" fn(*mut c_void);
/// Callback of `cuStreamAddCallback`, which also receives the status.
pub type Callback = extern "C" fn(Handle<Stream>, u32, *mut c_void);

/// Largest size of a kernel's parameters which a launch holds without an allocation, in bytes: sufficient for Weir's kernels.
const FEW_BYTES: usize = 64;

/// Values of a kernel's parameters, in its layout.
#[derive(Clone, Debug)]
pub(crate) enum Parameters {
    Inline([u8; FEW_BYTES], usize),
    Heap(Arc<[u8]>),
}

impl Parameters {
    /// Returns parameters of this size, which `fill` writes.
    pub(crate) fn new(bytes: usize, fill: impl FnOnce(&mut [u8]) -> Result) -> Result<Self> {
        if bytes <= FEW_BYTES {
            let mut few = [0; FEW_BYTES];
            fill(&mut few[..bytes])?;
            return Ok(Self::Inline(few, bytes));
        }
        let mut many = vec![0; bytes];
        fill(&mut many)?;
        Ok(Self::Heap(many.into()))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline(all, bytes) => &all[..*bytes],
            Self::Heap(all) => all,
        }
    }
}

/// A kernel launch with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct KernelLaunch {
    pub(crate) function: Handle<Function>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) parameters: Parameters,
    /// Record for the timeline.
    pub(crate) record: KernelRecord,
    /// Effect on memory; `None` if there is none.
    pub(crate) effect: Option<KernelEffect>,
}

/// Effect of a kernel on memory.
#[derive(Clone, Debug)]
pub(crate) enum KernelEffect {
    /// What one of Weir's own kernels computes.
    Own(kernels::Launch),
    /// Adds one to the 32-bit word at each of these addresses.
    Touch(Arc<[u64]>),
}

/// One side of a copy: its address, and the distances between its rows and slices in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Side {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) slice: u64,
}

/// A copy of rows of bytes.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) from: Side,
    pub(crate) to: Side,
    /// Bytes of a row, rows of a slice, slices.
    pub(crate) extent: [u64; 3],
    pub(crate) way: Way,
    /// Copy of the source made at the call, because the caller may change pageable memory afterwards.
    pub(crate) staged: Option<Arc<Vec<u8>>>,
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    HostToDevice,
    DeviceToHost,
    PageableToDevice,
    DeviceToPageable,
    Within,
    /// To the unit with this number.
    Peer(u32),
    /// Between host addresses, without the device.
    Host,
}

/// A memset to a value of one, two or four bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Set {
    pub(crate) to: Side,
    pub(crate) value: u32,
    /// Size of an element in bytes: 1, 2 or 4.
    pub(crate) element: u32,
    /// Elements of a row, rows.
    pub(crate) extent: [u64; 2],
}

/// A function of the program, called on the host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostCall {
    Function(HostFunction, usize),
    Callback(Callback, Handle<Stream>, usize),
}

/// Work of a stream; see the [module](self).
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Kernel(KernelLaunch),
    Copy(Copy),
    Set(Set),
    Host(HostCall),
    Nothing,
}

impl Side {
    /// Returns the number of bytes from the first to the end of the last; `None` if it exceeds the address space.
    pub(crate) fn reach(&self, extent: &[u64; 3]) -> Option<u64> {
        if extent.contains(&0) {
            return Some(0);
        }
        let rows = self.pitch.checked_mul(extent[1] - 1)?;
        let slices = self.slice.checked_mul(extent[2] - 1)?;
        let bytes = slices.checked_add(rows)?.checked_add(extent[0])?;
        self.address.checked_add(bytes).map(|_| bytes)
    }
}

impl Copy {
    /// Returns the number of bytes copied, saturating.
    pub(crate) const fn bytes(&self) -> u64 {
        self.extent[0]
            .saturating_mul(self.extent[1])
            .saturating_mul(self.extent[2])
    }
}

impl Work {
    /// Returns the command for the timeline.
    pub(crate) fn command(&self) -> Command {
        match self {
            Self::Kernel(launched) => Command::Kernel(launched.record),
            Self::Copy(copy) => {
                let way = match copy.way {
                    Way::HostToDevice => CopyWay::HostToDevice,
                    Way::DeviceToHost => CopyWay::DeviceToHost,
                    Way::PageableToDevice => CopyWay::PageableToDevice,
                    Way::DeviceToPageable => CopyWay::DeviceToPageable,
                    Way::Within => CopyWay::Within,
                    Way::Peer(unit) => CopyWay::Peer(unit),
                    Way::Host => return Command::Nothing,
                };
                Command::Copy {
                    way,
                    bytes: copy.bytes(),
                }
            }
            Self::Set(set) => Command::Set {
                bytes: u64::from(set.element) * set.extent[0] * set.extent[1],
            },
            Self::Host(_) => Command::Host,
            Self::Nothing => Command::Nothing,
        }
    }

    /// Returns whether the work has an effect outside of the timeline.
    pub(crate) const fn has_effect(&self) -> bool {
        match self {
            Self::Kernel(launched) => launched.effect.is_some(),
            Self::Copy(_) | Self::Set(_) | Self::Host(_) => true,
            Self::Nothing => false,
        }
    }

    /// Returns the command for the timeline, and the effect.
    pub(crate) fn split(self) -> (Command, Option<Effect>) {
        let command = self.command();
        let effect = self.has_effect().then(|| Effect::Work(self));
        (command, effect)
    }
}
