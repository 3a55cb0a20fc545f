//! What a stream can be told to do: how the timeline sees it, and what it does to memory.

use std::ffi::c_void;
use std::sync::Arc;

use softgpu_wire::record::{Command, CopyWay, KernelRecord};

use crate::effects::Effect;
use crate::module::Function;
use crate::stream::Stream;
use crate::table::Handle;

/// Of `cuLaunchHostFunc`.
pub type HostFunction = extern "C" fn(*mut c_void);
/// Of `cuStreamAddCallback`.
pub type Callback = extern "C" fn(Handle<Stream>, u32, *mut c_void);

/// Bytes of parameters that a kernel may have here: those of the kernels that do something are known.
pub(crate) const PARAMETER_BYTES: usize = 64;

/// A kernel with its launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launched {
    pub(crate) function: Handle<Function>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) parameters: [u8; PARAMETER_BYTES],
    /// What the timeline sees.
    pub(crate) record: KernelRecord,
    /// What it does to memory; `None`: nothing.
    pub(crate) launch: Option<kernels::Launch>,
}

/// One side of a copy: where it begins, and how far apart its rows and slices are.
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
    /// What was at `from` when the copy was asked for, where the caller may change it at once.
    pub(crate) staged: Option<Arc<Vec<u8>>>,
}

/// Where a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    HostToDevice,
    DeviceToHost,
    Within,
    /// To the unit with this number.
    Peer(u32),
    /// The device has no part in it.
    Host,
}

/// Memory set to a value of one, two or four bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Set {
    pub(crate) to: Side,
    pub(crate) value: u32,
    /// 1, 2 or 4.
    pub(crate) element: u32,
    /// Elements of a row, rows.
    pub(crate) extent: [u64; 2],
}

/// A function of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostCall {
    Function(HostFunction, usize),
    Callback(Callback, Handle<Stream>, usize),
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Kernel(Launched),
    Copy(Copy),
    Set(Set),
    Host(HostCall),
    Nothing,
}

impl Side {
    /// Bytes from the first to behind the last; `None`: more than there are addresses.
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
    /// How many there are; those that are more than can be counted are refused before.
    pub(crate) const fn bytes(&self) -> u64 {
        self.extent[0]
            .saturating_mul(self.extent[1])
            .saturating_mul(self.extent[2])
    }
}

impl Work {
    /// What the timeline sees of it.
    pub(crate) fn command(&self) -> Command {
        match self {
            Self::Kernel(launched) => Command::Kernel(launched.record),
            Self::Copy(copy) => {
                let way = match copy.way {
                    Way::HostToDevice => CopyWay::HostToDevice,
                    Way::DeviceToHost => CopyWay::DeviceToHost,
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

    /// Whether it does something that the timeline does not see.
    pub(crate) const fn has_effect(&self) -> bool {
        match self {
            Self::Kernel(launched) => launched.launch.is_some(),
            Self::Copy(_) | Self::Set(_) | Self::Host(_) => true,
            Self::Nothing => false,
        }
    }

    /// What the timeline sees of it, and what it does besides.
    pub(crate) fn split(self) -> (Command, Option<Effect>) {
        let command = self.command();
        let effect = self.has_effect().then(|| Effect::Work(self));
        (command, effect)
    }
}
