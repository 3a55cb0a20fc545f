//! Device memory: what the process holds, where it is mapped, and what of it counts against the pod's limit.

use std::ffi::c_int;

mod account;
mod contexts;
mod extents;
mod host;
mod native;
mod physical;
mod pools;
mod program;
mod reported;
mod slabs;
mod spans;
mod table;
mod ticket;

pub use crate::Address;
pub use account::{Account, Kind};
pub use contexts::{Contexts, residue};
pub use extents::{Extent, Extents, FreedMember, neighbours};
pub use host::{GranuleHash, HostCopy, HostMemory, HostSpan};
pub use native::{Native, Natives, array_bytes};
pub use physical::{
    Access, Block, Location, ON_DEVICE, PART_GRANULES, PINNED, POSIX_FD, Part, Properties, Traits,
    part_sizes, size,
};
pub use pools::Pools;
pub use program::{Freed, MappingPlan, Program, ProgramBlock};
pub use reported::{View, reported, reported_total};
pub use slabs::{ALIGNMENT, Piece, Slabs, piece_bytes};
pub use spans::Spans;
pub use table::{Allocation, Backing, Pair, Ranges, Table};
pub use ticket::{OpenedBlocks, Ticket, TicketContents};

/// Number of device ordinals that are managed; machines have fewer devices.
pub const DEVICES_MAX: usize = 64;

/// Returns the ordinals of all devices that are managed.
pub fn ordinals() -> impl Iterator<Item = c_int> {
    0..c_int::try_from(DEVICES_MAX).unwrap_or(0)
}
