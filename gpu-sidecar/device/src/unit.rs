//! A GPU, or a slice of one, as part of a machine.

use std::collections::VecDeque;

use crate::Span;
use crate::compute::{Compute, Turns};
use crate::ledger::Job;
use crate::machine::MachineError;
use crate::memory::Memory;
use crate::mig::Placement;
use crate::network::{Network, Route};
use crate::node::{Direction, Gpu, Scale};
use crate::part::Part;

/// Properties of a GPU or slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitInfo {
    /// Index in [`Node::gpus`](crate::node::Node::gpus) of the GPU that it is or belongs to.
    pub gpu: usize,
    /// Number of SMs of the unit.
    pub sms: u32,
    /// Size of the unit's device memory, in bytes.
    pub memory: u64,
    /// Properties of the slice; `None` for a whole GPU.
    pub slice: Option<SliceInfo>,
    /// Largest number of concurrent MPS clients.
    pub mps_clients_max: u32,
}

/// Properties of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceInfo {
    /// Name of the slice's profile, such as `3g.40gb`.
    pub profile: String,
    /// The vendor's id of the profile.
    pub profile_id: u32,
    /// First memory slice that the slice occupies.
    pub start: u32,
    /// Number of memory slices that the slice occupies.
    pub size: u32,
    /// Number of compute slices of the slice.
    pub compute_slices: u32,
    /// Number of memory slices of the slice, equal to `size`.
    pub memory_slices: u32,
}

/// State of a GPU or slice.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) info: UnitInfo,
    pub(crate) compute: Compute,
    pub(crate) memory: Memory,
    pub(crate) sm_unit: u32,
    pub(crate) mps_clients: u32,
    pub(crate) residue: u64,
    /// Time between the begin of a copy to or from the device and its first byte, after scaling.
    pub(crate) copy_setup: Span,
    /// Route of transfers within its own memory.
    pub(crate) within: Route,
    /// Copy engines, indexed by [`Direction`].
    engines: [Engine; 2],
    /// Whether the SMs of the unit have to be shared out again.
    pub(crate) is_changed: bool,
}

/// Copy engines of one direction: the number of free ones, and the waiting copies in order of arrival.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) free: u32,
    pub(crate) waiting: VecDeque<(Job, u64, Route)>,
}

impl Unit {
    pub(crate) const fn engine(&mut self, direction: Direction) -> &mut Engine {
        &mut self.engines[direction as usize]
    }

    /// Drops the waiting copies that match.
    pub(crate) fn drop_waiting(&mut self, matches: impl Fn(&Job) -> bool) {
        for engine in &mut self.engines {
            engine.waiting.retain(|(job, ..)| !matches(job));
        }
    }
}

/// Returns the units of the GPU with index `at`: the GPU itself, or its slices in the order of their placement.
pub(crate) fn infos(at: usize, gpu: &Gpu, scale: Scale) -> Result<Vec<UnitInfo>, MachineError> {
    let part = &gpu.part;
    part.check()
        .map_err(|error| MachineError::Part { gpu: at, error })?;
    if gpu.slices.is_empty() {
        return Ok(vec![UnitInfo {
            gpu: at,
            sms: part.sms,
            memory: scale.size(part.memory_bytes()),
            slice: None,
            mps_clients_max: part.mps_clients,
        }]);
    }
    let mig = part.mig.as_ref().ok_or_else(|| MachineError::NoMig {
        gpu: at,
        part: part.name.clone(),
    })?;
    let wrong = |error| MachineError::Slices { gpu: at, error };
    let profiles = gpu.slices.iter().map(|name| mig.profile(name));
    let profiles: Vec<_> = profiles.collect::<Result<_, _>>().map_err(wrong)?;
    let layout = mig.place(&profiles).map_err(wrong)?;
    let info = |placement: Placement| {
        let profile = &mig.profiles[placement.profile];
        let memory = profile.memory_mib.map_or_else(
            || {
                part.memory_bytes() / u64::from(mig.memory_slices)
                    * u64::from(profile.memory_slices)
            },
            |mib| mib * 1024 * 1024,
        );
        let clients = u64::from(part.mps_clients) * u64::from(profile.compute_slices)
            / u64::from(mig.compute_slices);
        UnitInfo {
            gpu: at,
            sms: profile.sms,
            memory: scale.size(memory),
            slice: Some(SliceInfo {
                profile: profile.name.clone(),
                profile_id: profile.id,
                start: placement.start,
                size: profile.memory_slices,
                compute_slices: profile.compute_slices,
                memory_slices: profile.memory_slices,
            }),
            mps_clients_max: u32::try_from(clients).unwrap_or(u32::MAX).max(1),
        }
    };
    Ok(layout.into_iter().map(info).collect())
}

/// Creates an idle GPU or slice, and adds the link of its own memory to the network.
pub(crate) fn unit(
    number: u32,
    info: UnitInfo,
    part: &Part,
    scale: Scale,
    network: &mut Network,
) -> Unit {
    let turns = Turns {
        slice: scale.span(part.time_slice()),
        switch: scale.span(part.switch()),
    };
    let bytes_per_second = match (&info.slice, &part.mig) {
        (Some(slice), Some(mig)) => {
            part.memory_bytes_per_second / u64::from(mig.memory_slices)
                * u64::from(slice.memory_slices)
        }
        _ => part.memory_bytes_per_second,
    };
    let engine = || Engine {
        free: part.copy_engines_each_way,
        waiting: VecDeque::new(),
    };
    Unit {
        compute: Compute::new(number, info.sms, part.sms, turns),
        memory: Memory::new(number, info.memory),
        sm_unit: part.sm_unit,
        mps_clients: 0,
        residue: scale.size(part.residue_bytes()),
        copy_setup: scale.span(part.copy_setup()),
        within: Route::new([network.add(scale.rate(bytes_per_second))]),
        engines: [engine(), engine()],
        is_changed: false,
        info,
    }
}
