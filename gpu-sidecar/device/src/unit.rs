//! A GPU, or a slice of one, as a machine sees it.

use std::collections::VecDeque;

use crate::compute::{Compute, Turns};
use crate::ledger::Job;
use crate::machine::MachineError;
use crate::memory::Memory;
use crate::mig::Placement;
use crate::network::{Network, Route};
use crate::node::{Direction, Gpu, Scale};
use crate::part::Part;

/// What a GPU or slice is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitInfo {
    /// The GPU that it is or lies on, by its place in [`Node::gpus`](crate::node::Node::gpus).
    pub gpu: usize,
    /// SMs it has.
    pub sms: u32,
    /// Bytes of device memory it has.
    pub memory: u64,
    /// What slice it is; `None`: a whole GPU.
    pub slice: Option<SliceInfo>,
    /// MPS clients it takes at once.
    pub mps_clients_max: u32,
}

/// What a slice is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceInfo {
    /// Its profile's name, as `3g.40gb`.
    pub profile: String,
    /// The vendor's number of that profile.
    pub profile_id: u32,
    /// The memory slice at which it begins.
    pub start: u32,
    /// Memory slices it lies on.
    pub size: u32,
    /// Compute slices it has.
    pub compute_slices: u32,
    /// Memory slices it has, as many as it lies on.
    pub memory_slices: u32,
}

#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) info: UnitInfo,
    pub(crate) compute: Compute,
    pub(crate) memory: Memory,
    pub(crate) sm_unit: u32,
    pub(crate) mps_clients: u32,
    pub(crate) residue: u64,
    /// Its own memory.
    pub(crate) within: Route,
    /// By [`Direction`].
    engines: [Engine; 2],
    /// Its SMs have to be shared out anew.
    pub(crate) is_changed: bool,
}

/// Copies in one direction: so many at once, the others as they came.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) free: u32,
    pub(crate) waiting: VecDeque<(Job, u64, Route)>,
}

impl Unit {
    pub(crate) const fn engine(&mut self, direction: Direction) -> &mut Engine {
        &mut self.engines[direction as usize]
    }

    /// Drops the copies of a process that wait.
    pub(crate) fn drop_waiting(&mut self, goes: impl Fn(&Job) -> bool) {
        for engine in &mut self.engines {
            engine.waiting.retain(|(job, ..)| !goes(job));
        }
    }
}

/// What a GPU of a node, the `at`-th, consists of: itself, or its slices in the order in which they lie.
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

/// A GPU or slice at rest; adds the link of its own memory to the network.
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
        within: Route::new([network.add(scale.rate(bytes_per_second))]),
        engines: [engine(), engine()],
        is_changed: false,
        info,
    }
}
